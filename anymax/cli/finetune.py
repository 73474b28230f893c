"""`anymax finetune RUN`: a second stage that starts from the best weights of a run, averaged from the first step."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from anymax.cli.train import (
    HELP,
    Settings,
    is_help_alone,
    name_and_options,
    parse,
    print_help,
    settings_of,
    train_in,
)
from anymax.plain import with_absolute_paths
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AveragedSGDConfig, SGDConfig
from anymax.training.optim.schedules import AtEpoch, NonMonotone

_Folder = arg(metavar="FOLDER", help_behavior_hint="(default: RUN-finetuned)")


@dataclass(frozen=True)
class SecondStage:
    """A run that begins with the weights of another.

    Args:
        settings: those of the other, with averaged SGD until evaluations no longer get better.
        folder: the folder of the new run.
    """

    settings: Annotated[Settings, arg(name="")]
    folder: Annotated[Path | None, _Folder] = None


@dataclass(frozen=True)
class _Finetune:
    """Continue from the best weights of a run with averaged SGD, until that no longer helps.

    Every setting of the run is an option too: --optimizer.lr, --stop.window and so on. `anymax finetune RUN --help`
    lists them with their values.

    Args:
        run: the folder of the run, which stays as it is.
        folder: the folder of the new run.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    folder: Annotated[Path | None, _Folder] = None


def finetune(arguments: Sequence[str]) -> int:
    """Continue from the best weights of a run with averaged SGD, until that no longer helps."""
    name, options = name_and_options(arguments, "")
    if is_help_alone(name, options):
        return print_help(_Finetune, "anymax finetune")
    if not name:
        raise ValueError("finetune needs the folder of a run, got none; write anymax finetune RUN")
    run = Path(name)
    stage = SecondStage(settings_of(second_stage(run, options), options))
    given = parse(stage, options, f"anymax finetune {name}", finetune.__doc__ or "")
    config = with_absolute_paths(given.settings.config())
    return train_in(given.folder, config, default=run.with_name(f"{run.name}-finetuned"))


def second_stage(run: Path, options: Sequence[str]) -> RunConfig:
    """The config of a run with the settings of its second stage."""
    from anymax.training import read_config

    config = read_config(run)
    return replace(
        config,
        optimizer=_averaged(config, run, options),
        evaluate_every=config.evaluate_every or "epoch",
        start=run,
        stop=_until(config),
    )


def _until(config: RunConfig) -> NonMonotone:
    """The criterion that the first stage switched by, or the published one."""
    begin = config.optimizer.begin if isinstance(config.optimizer, AveragedSGDConfig) else None
    return begin if isinstance(begin, NonMonotone) else NonMonotone()


def _averaged(config: RunConfig, run: Path, options: Sequence[str]) -> AveragedSGDConfig:
    before = config.optimizer
    if isinstance(before, AveragedSGDConfig):
        return replace(before, begin=AtEpoch(0))
    if isinstance(before, SGDConfig):
        return AveragedSGDConfig(before.lr, weight_decay=before.weight_decay, begin=AtEpoch(0))
    if not any(word.partition("=")[0] in ("--optimizer.lr", *HELP) for word in options):
        command = shlex.join(["anymax", "finetune", str(run), "--optimizer.lr", "1"])
        raise ValueError(
            f"optimizer.lr must be given where a run was trained with {type(before).__name__}, whose learning rate "
            f"means something else than that of SGD; write {command}, or what suits it"
        )
    return AveragedSGDConfig(before.lr, begin=AtEpoch(0))
