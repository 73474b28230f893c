"""The command line: quick answers, clear mistakes, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anymax import cli
from anymax.bench import mappings as cases
from anymax.bench.harness.timing import Budget
from anymax.version import __version__


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "anymax", *arguments], capture_output=True, text=True)


def exit_code(*arguments: str) -> int:
    """Of a command in this process; the parser leaves by SystemExit."""
    try:
        return cli.main(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)


@pytest.fixture
def tiny_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and budgets that take no time, in place of the quick ones."""
    budget = Budget(seconds=0.01, rounds=2, least=2, turn_seconds=1e-6)

    def settings(scales: tuple[float, ...], threads: int | None, peers: bool) -> cases.Settings:
        return cases.Settings(((3, 5),), scales, threads, peers, budget=budget, sweep_budget=budget, plif_shape=(2, 30))

    monkeypatch.setattr(cases, "quick", settings)


def test_the_command_is_installed_and_runs_as_a_module():
    scripts = Path(sys.executable).parent
    result = subprocess.run([scripts / "anymax", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"anymax {__version__}\n")
    assert run("--version").stdout == result.stdout


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "recipes",
        "prepare --help",
        "train --help",
        "compare --help",
        "evaluate --help",
        "generate --help",
    ],
)
def test_what_needs_no_torch_does_not_import_it(command: str):
    script = "import sys\nfrom anymax.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
    script += "assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", script, *command.split()], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_reader_that_has_enough_sees_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    commands = ["--version", "recipes", "train --help", "resume --help"]
    processes = [
        subprocess.Popen([sys.executable, "-m", "anymax", *command.split()], stdout=writer, stderr=subprocess.PIPE)
        for command in commands
    ]
    # An error that nobody reads, too.
    processes.append(subprocess.Popen([sys.executable, "-m", "anymax", "resume"], stderr=writer))
    os.close(writer)
    ended = [(process.communicate()[1] or b"", process.returncode) for process in processes]
    # What a shell reports of a process that SIGPIPE ended.
    assert ended == [(b"", 141)] * len(processes)


def test_every_verb_has_help_wherever_it_is_asked_for(capsys: pytest.CaptureFixture[str]):
    verbs = ["recipes", "prepare", "train", "resume", "finetune", "compare", "evaluate", "generate", "doctor"]
    verbs += [f"analyze {question}" for question in ("bottleneck", "latent", "dirichlet")]
    subjects = ("mappings", "outputs", "growth", "training", "recurrent", "latent", "attention", "decoding")
    verbs += [f"bench {one}" for one in subjects]
    for verb in [*verbs, "analyze", "bench"]:
        for rest in ("--help", "-h", "sotu.softmax --help", "--help sotu.softmax"):
            assert exit_code(*verb.split(), *rest.split()) == 0, (verb, rest)
            printed = capsys.readouterr()
            assert printed.out.startswith(f"usage: anymax {verb}") and printed.err == ""


def test_a_verb_that_misses_its_argument_names_it(capsys: pytest.CaptureFixture[str]):
    missing = dict.fromkeys(["resume", "finetune", "evaluate", "generate", "analyze bottleneck"], "RUN")
    for verb, named in (missing | {"compare": "RECIPE", "analyze": "latent", "bench": "mappings"}).items():
        assert exit_code(*verb.split()) == 2
        printed = capsys.readouterr()
        assert named in printed.err and printed.out == ""


def test_help_names_every_verb_and_so_does_the_bare_command(capsys: pytest.CaptureFixture[str]):
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    verbs = ["recipes", "prepare", "train", "resume", "finetune", "compare", "evaluate", "generate", "bench", "doctor"]
    assert all(f"• {verb} " in text for verb in verbs) and "--version" in text
    assert exit_code() == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["dance"], "dance"),
        (["doctor", "--loud"], "--loud"),
        (["bench"], "mappings"),
        (["bench", "mappings", "--threads", "many"], "--threads"),
    ],
)
def test_a_mistake_in_the_command_is_named_and_exits_with_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
):
    assert exit_code(*arguments) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--scales", "0"], "scales must be positive"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--output", "no/such/folder/page.md"], "must lie in a folder that exists"),
        (["--json", "."], "must name a file"),
    ],
)
def test_a_wrong_value_gives_one_line_and_exits_with_2(
    arguments: list[str], rule: str, capsys: pytest.CaptureFixture[str]
):
    assert exit_code("bench", "mappings", "--quick", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("anymax: ") and rule in captured.err


def test_an_interrupt_says_so_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cases, "measure", interrupted)
    assert exit_code("bench", "mappings", "--quick") == 130
    assert capsys.readouterr().err == "anymax: stopped\n"


@pytest.mark.usefixtures("tiny_bench")
def test_bench_prints_the_tables_and_writes_what_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page, data = tmp_path / "page.md", tmp_path / "data.json"
    options = ["--quick", "--no-peers", "--threads", "1", "--scales", "0.5", "2"]
    assert exit_code("bench", "mappings", *options, "--output", str(page), "--json", str(data)) == 0
    captured = capsys.readouterr()
    steps = ["3x5, scores of scale 0.5", "3x5, scores of scale 2", "PLIF on 2x30", "one call on 8x64"]
    assert captured.err.splitlines() == [*steps, "3x5 in half precision"]
    assert "torch.softmax" in captured.out and "page.md" in captured.out
    command = "anymax bench mappings --quick --scales 0.5 2 --no-peers --threads 1"
    assert f"$ {command}" in page.read_text() and str(tmp_path) not in page.read_text()
    assert json.loads(data.read_text())["command"] == command


@pytest.mark.usefixtures("tiny_bench")
def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert exit_code("bench", "mappings", "--quick", "--no-peers") == 0
    bar = capsys.readouterr().err
    assert "one call on 8x64" in bar and "1/4" in bar
