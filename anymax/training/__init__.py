"""Training: the config of a run, the one loop for every task, checkpoints, several processes.

Names are loaded when first used, so that a config can be made without importing torch.
"""

from typing import TYPE_CHECKING

from anymax import lazy

if TYPE_CHECKING:
    from anymax.training.config import RunConfig as RunConfig
    from anymax.training.config import TaskConfig as TaskConfig
    from anymax.training.dirichlet_config import Dirichlet as Dirichlet
    from anymax.training.folder import read_config as read_config
    from anymax.training.language_modeling_config import LanguageModeling as LanguageModeling
    from anymax.training.metrics import read_metrics as read_metrics
    from anymax.training.optimizers import SGD as SGD
    from anymax.training.optimizers import Adagrad as Adagrad
    from anymax.training.optimizers import Adam as Adam
    from anymax.training.optimizers import AdamW as AdamW
    from anymax.training.optimizers import AveragedSGD as AveragedSGD
    from anymax.training.optimizers import Nesterov as Nesterov
    from anymax.training.plain import as_plain as as_plain
    from anymax.training.plain import from_plain as from_plain
    from anymax.training.ranks import Ranks as Ranks
    from anymax.training.ranks import joined as joined
    from anymax.training.reporting import EvaluationRecord as EvaluationRecord
    from anymax.training.reporting import Outcome as Outcome
    from anymax.training.reporting import Reporter as Reporter
    from anymax.training.reporting import Silent as Silent
    from anymax.training.reporting import Start as Start
    from anymax.training.reporting import TrainRecord as TrainRecord
    from anymax.training.run import Opened as Opened
    from anymax.training.run import open_run as open_run
    from anymax.training.run import resume as resume
    from anymax.training.run import train as train
    from anymax.training.schedules import Constant as Constant
    from anymax.training.schedules import Cosine as Cosine
    from anymax.training.schedules import CosineCycles as CosineCycles
    from anymax.training.schedules import InverseSquareRoot as InverseSquareRoot
    from anymax.training.task import Step as Step
    from anymax.training.task import Task as Task
    from anymax.training.triggers import AtEpoch as AtEpoch
    from anymax.training.triggers import NonMonotone as NonMonotone

_HOME_OF = {
    "Adagrad": "optimizers",
    "Adam": "optimizers",
    "AdamW": "optimizers",
    "AtEpoch": "triggers",
    "AveragedSGD": "optimizers",
    "Constant": "schedules",
    "Cosine": "schedules",
    "CosineCycles": "schedules",
    "Dirichlet": "dirichlet_config",
    "EvaluationRecord": "reporting",
    "InverseSquareRoot": "schedules",
    "LanguageModeling": "language_modeling_config",
    "Nesterov": "optimizers",
    "NonMonotone": "triggers",
    "Opened": "run",
    "Outcome": "reporting",
    "Ranks": "ranks",
    "Reporter": "reporting",
    "RunConfig": "config",
    "SGD": "optimizers",
    "Silent": "reporting",
    "Start": "reporting",
    "Step": "task",
    "Task": "task",
    "TaskConfig": "config",
    "TrainRecord": "reporting",
    "as_plain": "plain",
    "from_plain": "plain",
    "joined": "ranks",
    "open_run": "run",
    "read_config": "folder",
    "read_metrics": "metrics",
    "resume": "run",
    "train": "run",
}

__all__ = [*_HOME_OF]
__getattr__, __dir__ = lazy.attach(__name__, {name: f"{__name__}.{home}" for name, home in _HOME_OF.items()})
