"""The `anymax` command: one file per verb, torch imported only by a verb that runs."""

import os
import sys
from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from anymax.cli import analyze, bench, compare, doctor, evaluate, finetune, generate, prepare, recipes, train
from anymax.cli.console import complain, never_fail
from anymax.version import __version__

DESCRIPTION = """Everything that can stand where softmax stands: sparse, learnable and structured choices for PyTorch.
`anymax VERB --help` says more about a verb, `anymax --version` prints the version."""
_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)

# Verbs whose options depend on what they are given; they read their arguments by themselves.
WHOLE = {
    "train": train.train,
    "resume": train.resume,
    "finetune": finetune.finetune,
    "compare": compare.compare,
}

app = SubcommandApp()
app.command(recipes.recipes)
app.command(prepare.prepare)
for _function in WHOLE.values():
    app.command(_function)
app.command(evaluate.evaluate)
app.command(generate.generate)
app.command(analyze.app, name="analyze", help="Ask what the choice did: one question after the other.")
app.command(bench.app, name="bench", help="Time anymax against torch and installed peers, as ratios in one run.")
app.command(doctor.doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a negative answer, 2 for a mistake in the command."""
    never_fail()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"anymax {__version__}")
        return 0
    try:
        if given and given[0] in WHOLE:
            return WHOLE[given[0]](given[1:])
        code = app.cli(prog="anymax", description=DESCRIPTION, args=given or ["--help"], config=_STYLE)
    except BrokenPipeError:
        # Whoever read has enough, as `head` does; what is still to be written goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    # Something given is wrong: a value, a file, a package that is missing, a disk that is full. Any other error is a
    # mistake of anymax, and shows where it was made.
    except (ValueError, OSError, ModuleNotFoundError) as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        complain("stopped")
        return 130
    assert isinstance(code, int), "every verb returns its exit code"
    return code
