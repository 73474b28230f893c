"""What `anymax train` is given instead of a recipe's name: a text, a folder, a config, names that are nearly right."""

import json
import re
import shlex
from pathlib import Path

import pytest

from anymax.training import read_config, read_metrics
from tests.cli.commands import LINES, PLAIN, QUICK, code_of, complaint, out, own_text

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_a_text_is_trained_by_its_name_compared_with_the_bigram_and_suggests_its_own_words(
    capsys: pytest.CaptureFixture[str],
):
    shown = out(capsys, "train", own_text(), *QUICK)
    assert re.search(r"The (model beats the bigram|bigram does better): its perplexity is \d+% lower\.", shown)
    config = read_config("runs/my")
    assert config.task.data.path == Path("my.txt").absolute() and config.stop is not None
    (line,) = [line.strip() for line in shown.splitlines() if "anymax generate" in line]
    _, verb, run, beginning = shlex.split(line)
    assert (verb, run) == ("generate", "runs/my") and any(each.startswith(beginning) for each in LINES)
    assert out(capsys, *shlex.split(line)[1:]).startswith(beginning)


def test_a_path_and_the_option_for_it_train_alike(capsys: pytest.CaptureFixture[str]):
    own_text()
    for arguments in (["my.txt"], ["--data.path", "my.txt"], ["--task.data.path=my.txt"]):
        out(capsys, "train", *arguments, *QUICK)
    assert read_config("runs/my") == read_config("runs/my-2") == read_config("runs/my-3")
    # With a recipe, the option changes the text alone.
    out(capsys, "train", PLAIN, "--data.path", "my.txt", *QUICK)
    assert read_config("runs/my-4").stop is None


def test_a_folder_of_texts_is_trained_by_its_name(capsys: pytest.CaptureFixture[str]):
    Path("books").mkdir()
    for name in ("one", "two"):
        own_text(f"books/{name}.txt")
    out(capsys, "train", "books/", *QUICK)
    assert json.loads(Path("runs/books/evaluations/test.json").read_text())["train_words"] > 1_000


def test_a_text_that_no_longer_gets_better_stops_early(capsys: pytest.CaptureFixture[str]):
    options = ["--toy", "--steps", "60", "--evaluate-every", "1", "--stop.window", "1", "--optimizer.lr", "3"]
    assert code_of("train", own_text(), *options) == 0
    printed = capsys.readouterr()
    assert "stopped early by NonMonotone(window=1)" in printed.err and "resume" not in printed.out


def test_the_config_of_a_run_trains_to_the_same_numbers_and_options_change_it(capsys: pytest.CaptureFixture[str]):
    own_text()
    shown = out(capsys, "train", "my.txt", *QUICK, "--seed", "5")
    again = out(capsys, "train", "--config", "runs/my/config.json")
    assert read_config("runs/my-2") == read_config("runs/my")
    numbers = [
        [(record["step"], record.get("loss"), record.get("metrics")) for record in read_metrics(Path(run))]
        for run in ("runs/my", "runs/my-2")
    ]
    assert numbers[0] == numbers[1] and shown.replace("runs/my", "runs/my-2") == again
    Path("mine.json").write_text(Path("runs/my/config.json").read_text())
    # Its path or the folder's, and by the name alone.
    for number, arguments in enumerate((["mine.json"], ["--config=mine.json"], ["--config", "runs/my"]), 3):
        out(capsys, "train", *arguments, "--steps", "1")
        assert read_config(f"runs/my-{number}").steps == 1 and read_config(f"runs/my-{number}").seed == 5


def test_a_config_of_a_recipe_names_its_run(run: Path, capsys: pytest.CaptureFixture[str]):
    assert code_of("train", "--config", "run/config.json", "--steps", "1") == 0
    Path("small.json").write_text(Path("run/config.json").read_text())
    assert code_of("train", "small.json", "--steps", "1") == 0
    assert {"run", "small"} == {path.name for path in Path("runs").iterdir()}


def test_what_is_wrong_with_a_subject_is_said_with_what_to_type(run: Path, capsys: pytest.CaptureFixture[str]):
    own_text("book.en"), own_text("book.de"), own_text("book.txt")
    Path("half.json").write_text('{"format": 2, "steps": ')
    Path("other.json").write_text('{"name": "other"}')
    Path("typo.json").write_text(Path("run/config.json").read_text().replace('"seed"', '"sede"'))
    Path("mine.py").write_text("def quick():\n    pass\n")
    mistakes = {
        "train bok.txt": "bok.txt does not exist; perhaps book.txt",
        "train no/such/folder": "no/such/folder does not exist; check its name",
        "train book.en book.de": "train multi30k.learned_entmax --data.source book.en --data.target book.de",
        "train run": "run holds a run; continue it with anymax resume run, or train anew with its settings: "
        "anymax train --config run/config.json",
        "train mine.py": "named with it, as mine.py:NAME, got mine.py; it has quick",
        "train absent.py": "got absent.py; there is no such file",
        "train --config half.json": "half.json",
        "train --config other.json": "other.json must have format 2",
        "train --config typo.json": "typo.json must be the config of a run, but RunConfig has no field 'sede'",
    }
    for command, said in mistakes.items():
        assert said in complaint(capsys, *command.split()), command
    assert not Path("runs").exists()


def test_help_says_first_what_may_be_trained(capsys: pytest.CaptureFixture[str]):
    own_text()
    for arguments in ([], ["my.txt"], [PLAIN]):
        printed = out(capsys, "train", *arguments, "--help")
        before, _, after = printed.partition("--steps")
        assert all(each in before for each in ("RECIPE is one of", "book.txt", "my_task.py:NAME", "--config FILE"))
        assert after


def test_generate_writes_known_words_alone_and_names_those_it_does_not_know(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    def written(*options: str) -> tuple[str, str]:
        assert code_of("generate", "run", "The zyzzyva is", "--num-tokens", "200", *options) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    text, said = written()
    assert text.startswith("The zyzzyva is") and "<unk>" not in text
    assert "does not know 'zyzzyva'" in said
    assert "sampled with --temperature 0.9 --top-p 0.9 --seed 1; --seed 2 writes another text" in said
    assert "<unk>" in written("--unknown", "--temperature", "1", "--top-p", "1")[0]
    assert code_of("generate", "run", "the", "--num-tokens", "2") == 0
    assert "does not know" not in capsys.readouterr().err
