"""How a model follows the text it is measured on, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from anymax.checks import check_counts, check_not_negative, given

Rule = Literal["rms", "sgd"]
Statistics = Literal["sum", "mean"]


@dataclass(frozen=True)
class CachePointer:
    """A cache of the text read so far: words that followed similar hidden vectors become likelier. Grave et al. 2017.

    Args:
        window: how many of the last words are remembered.
        theta: how much similarity counts: the product of two hidden vectors is multiplied by it.
        weight: the share of the cache in the mixture with the model.
        only_full: whether the cache is left out until more than `window` words were read. The published script
            (Merity et al. 2018's pointer.py) reads the text in chunks of `--bptt` words and leaves the cache out at the
            first word of every later chunk too, which is not done here.

    Example:
        >>> from anymax.evaluation import CachePointer
        >>> CachePointer(window=2000, weight=0.12)
        CachePointer(window=2000, theta=1.0, weight=0.12, only_full=False)
    """

    window: int = 500
    theta: float = 1.0
    weight: float = 0.1
    only_full: bool = False

    def __post_init__(self) -> None:
        check_counts(window=self.window)
        check_not_negative(theta=self.theta, weight=self.weight)
        if self.weight >= 1:
            raise ValueError(f"weight must be below 1, got {self.weight}")

    def sentence(self) -> str:
        """What it does, with its numbers."""
        full = ", once it is full" if self.only_full else ""
        return f"with a cache of {self.window:,} words (theta {self.theta:g}, weight {self.weight:g}{full})"


@dataclass(frozen=True)
class DynamicEvaluation:
    """How a model is trained on a text while it is measured on it, each part after its loss was taken.

    Args:
        rule: "rms" divides the gradient of every parameter by the size it had on training text, and pulls parameters
            with large ones back more; "sgd" does neither and reads no training text.
        lr: how far a step goes along the gradient.
        decay: how strongly parameters are pulled back to the trained ones after each step; with "sgd" the share of the
            way.
        epsilon: added to what gradients are divided by.
        block: tokens from one step to the next; by default 5 where a state is carried, else what a window scores.
        statistics: whether the size of gradients is the root of the "sum" of their squares, as in the first published
            script, or of the "mean". The newest public script takes the mean too, and measures a parameter's pull
            against the mean over parameter tensors where the first one and this take the sum: its `--lamb` is `decay`
            here divided by the number of tensors, its `--lr` and `--epsilon` are the same.
        batch_size: rows of training text whose mean gradient is one of those.
        max_batches: of the training text; by default all of it.

    Krause et al. 2018.

    Example:
        >>> from anymax.evaluation import DynamicEvaluation
        >>> sgd = DynamicEvaluation(rule="sgd", lr=0.1, decay=0.0)
        >>> sgd.rule, sgd.lr
        ('sgd', 0.1)
    """

    rule: Rule = "rms"
    lr: float = 0.002
    decay: float = 0.02
    epsilon: float = 0.001
    block: int | None = None
    statistics: Statistics = "sum"
    batch_size: int = 100
    max_batches: int | None = None

    def __post_init__(self) -> None:
        for name, offered in (("rule", Rule), ("statistics", Statistics)):
            if getattr(self, name) not in get_args(offered):
                raise ValueError(f"{name} must be one of {get_args(offered)}, got {getattr(self, name)!r}")
        check_counts(batch_size=self.batch_size, **given(block=self.block, max_batches=self.max_batches))
        check_not_negative(lr=self.lr, decay=self.decay, epsilon=self.epsilon)
        if self.rule == "sgd" and self.decay > 1:
            raise ValueError(f"decay must be at most 1, the whole way back, with the rule 'sgd', got {self.decay}")
        if self.epsilon == 0:
            raise ValueError("epsilon must be above 0, since some words have no gradient on training text, got 0")
        unused = [field.name for field in fields(self) if field.name in _OF_RMS and not _is_default(self, field.name)]
        if self.rule == "sgd" and unused:
            raise ValueError(f"{' and '.join(unused)} must be left out with the rule 'sgd', which reads no statistics")

    def sentence(self) -> str:
        """What it does, with its numbers."""
        rms = f", epsilon {self.epsilon:g}, {self.statistics} of squares" if self.rule == "rms" else ""
        every = "" if self.block is None else f" every {self.block} tokens"
        return f"with dynamic evaluation{every} ({self.rule}, lr {self.lr:g}, decay {self.decay:g}{rms})"


Adaptation = CachePointer | DynamicEvaluation

_OF_RMS = ("epsilon", "statistics", "batch_size", "max_batches")


def _is_default(config: DynamicEvaluation, name: str) -> bool:
    return bool(getattr(config, name) == DynamicEvaluation.__dataclass_fields__[name].default)
