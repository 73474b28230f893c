"""The commands of the pages on translation and post-editing, one after the other as they stand there, at toy size."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import code_of
from tests.data.triplets.test_triplets import write

pytestmark = pytest.mark.usefixtures("one_thread", "desk")
PAGES = Path(__file__).parents[2] / "docs" / "how-to"
PAIRS = [("A dog runs.", "Ein Hund rennt."), ("Two dogs see a cat.", "Zwei Hunde sehen eine Katze.")] * 20
TRIPLETS = [
    ("press the key .", "drücken die Taste .", "drücken Sie die Taste ."),
    ("a layer", "eine Schicht", "eine Ebene"),
]
# What is too large for a test, or belongs to a shell.
LEFT_OUT = {"pip": 1, "torchrun": 2}
SMALL = ["--toy", "--steps", "4", "--threads", "1", "--evaluate-every", "2", "--checkpoint-every", "2", "--keep", "2"]


def commands(page: str) -> list[list[str]]:
    """What the blocks of a page say that show nothing that is printed."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for kind, block in blocks if not kind for line in block.splitlines()]


def write_texts() -> None:
    """The files that the page names."""
    english, german = ("".join(f"{pair[side]}\n" for pair in PAIRS) for side in (0, 1))
    Path("text.en").write_text(english)
    Path("text.de").write_text(german)
    Path("new.en").write_text("A cat runs.\n\nDogs!\n")
    Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    Path("pairs.jsonl").write_text("".join(f'{{"en": "{source}", "de": "{target}"}}\n' for source, target in PAIRS))
    Path("corpus").mkdir()
    for split in ("train", "valid", "test"):
        Path(f"corpus/{split}.en").write_text(english)
        Path(f"corpus/{split}.de").write_text(german)


def test_the_page_on_translation_runs_as_it_stands(capsys: pytest.CaptureFixture[str]):
    write_texts()
    left_out = dict.fromkeys(LEFT_OUT, 0)
    for program, *arguments in commands("translate.md"):
        if program != "anymax":
            left_out[program] += 1
            continue
        small = [option for option in SMALL if option not in arguments] if arguments[0] in ("train", "compare") else []
        # An epoch of a toy is a few steps.
        assert code_of(*("9" if word == "80" else word for word in arguments), *small) == 0, arguments
        printed = capsys.readouterr().out
        if arguments[:2] == ["translate", "runs/text"] and "--n-best" not in arguments and "--output" not in arguments:
            assert printed.count("\n") == 3 and printed.splitlines()[1] == ""
    assert left_out == LEFT_OUT
    assert Path("new.de").read_text().count("\n") == 3 and Path("both/comparison.png").exists()
    compared = Path("both/comparison.md").read_text()
    assert "Differences in BLEU" in compared and "| multi30k.learned_entmax | 1 |" in compared
    assert {"text", "pairs", "pairs-2", "corpus"} <= {path.name for path in Path("runs").iterdir()}


def test_the_page_on_post_editing_runs_as_it_stands(capsys: pytest.CaptureFixture[str]):
    folder = write(Path("triplets"), "train", TRIPLETS * 4)
    for split in ("dev", "test"):
        write(folder, split, TRIPLETS)
    for side, lines in zip(("src", "mt"), zip(*TRIPLETS, strict=True), strict=False):
        Path(f"new.{side}").write_text("".join(f"{line}\n" for line in lines))
    left_out = dict.fromkeys(LEFT_OUT, 0)
    for program, *arguments in commands("post-edit.md"):
        if program != "anymax":
            left_out[program] += 1
            continue
        small = [option for option in SMALL if option not in arguments] if arguments[0] in ("train", "compare") else []
        assert code_of(*arguments, *small) == 0, arguments
        printed = capsys.readouterr().out
        if arguments[0] == "postedit" and "--output" not in arguments:
            assert printed.count("\n") == len(TRIPLETS)
    assert left_out == LEFT_OUT
    assert Path("new.pe").read_text().count("\n") == len(TRIPLETS)
    compared = Path("both/comparison.md").read_text()
    assert "| as it is |  | " in compared and "| ape_small.dual_source | 1 | " in compared


def test_the_page_on_looking_at_a_run_runs_as_it_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("vl_convert")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    Path("beginnings.txt").write_text("what is the\nall people\n")
    for program, *arguments in commands("look-at-a-run.md"):
        assert program == "anymax"
        small = (
            SMALL
            if arguments[0] == "train"
            else ["--texts", "3", *([] if "--limit" in arguments else ["--limit", "4"])]
        )
        assert code_of(*arguments, *small) == 0, arguments
        capsys.readouterr()
    assert opened == [Path("runs/first/report.html").absolute().as_uri()]
    assert "runs side by side" in Path("both.html").read_text()
