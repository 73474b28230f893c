"""`anymax export RUN FOLDER`: the model of a run as files that other libraries open."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from anymax.cli.progress import say
from anymax.training.run_folder.folder import read_config


def export(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    folder: Annotated[Positional[Path], arg(metavar="FOLDER")],
    *,
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the best)")] = None,
) -> int:
    """Write the model of a run in Hugging Face's layout, which transformers opens; for runs of BERT.

    Args:
        run: the folder of the run.
        folder: where to write; new or empty.
        step: the checkpoint to use.
    """
    for name in read_config(run).task.export(run, folder, step=step):
        say(f"Wrote {folder / name}")
    return 0
