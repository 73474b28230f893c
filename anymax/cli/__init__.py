"""The `anymax` command: one file per verb, torch imported only by a verb that runs."""

import os
import sys
from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from anymax.cli import (
    analyze,
    bench,
    compare,
    completion,
    doctor,
    evaluate,
    export,
    finetune,
    generate,
    postedit,
    prepare,
    recipes,
    report,
    train,
    translate,
)
from anymax.cli.console import complain, never_fail
from anymax.cli.train import INTERRUPTED
from anymax.version import __version__

DESCRIPTION = """Everything that can stand where softmax stands: sparse, learnable and structured choices for PyTorch.
`anymax VERB --help` says more about a verb, `anymax --version` prints the version."""
_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)

# What a shell reports of a process that SIGPIPE ended.
BROKEN_PIPE = 141

# Verbs whose options depend on what they are given; they read their arguments by themselves.
WHOLE = {
    "train": train.train,
    "resume": train.resume,
    "finetune": finetune.finetune,
    "evaluate": evaluate.evaluate,
    "compare": compare.compare,
    "report": report.report,
}

app = SubcommandApp()
app.command(recipes.recipes)
app.command(prepare.prepare)
for _function in WHOLE.values():
    app.command(_function)
app.command(generate.generate)
app.command(translate.translate)
app.command(postedit.postedit)
app.command(export.export)
app.command(analyze.app, name="analyze", help="Ask what the choice did: one question after the other.")
app.command(bench.app, name="bench", help="Time anymax against torch and installed peers, as ratios in one run.")
app.command(doctor.doctor)
app.command(completion.completion)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0; 1 for a negative answer; 2 for a mistake in the command; 130 where it was interrupted; 141 where the
    reader of its output is gone.
    """
    never_fail()
    try:
        return _answer(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:
        pass
    except SystemExit as leaving:
        # The parser raises it, and rich where the reader is gone.
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
    _close_output()
    return BROKEN_PIPE


def _answer(given: list[str]) -> int:
    """Run a command; what is wrong with it is printed in a line."""
    try:
        try:
            return _run(given)
        finally:
            # Not when Python ends, which prints a traceback where the reader is gone.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        raise
    # Something given is wrong: a value, a file, a package that is missing, a disk that is full. Any other error is a
    # mistake of anymax, and shows where it was made.
    except (ValueError, OSError, ModuleNotFoundError) as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        complain("stopped")
        return INTERRUPTED


def _run(given: list[str]) -> int:
    if given == ["--version"]:
        print(f"anymax {__version__}")
        return 0
    if given and given[0] in WHOLE:
        return WHOLE[given[0]](given[1:])
    code = app.cli(prog="anymax", description=DESCRIPTION, args=given or ["--help"], config=_STYLE)
    assert isinstance(code, int), "every verb returns its exit code"
    return code


def _close_output() -> None:
    """Drop what is still to be written, as the reader of standard output or standard error is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
