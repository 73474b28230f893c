"""What a model's config says of its attention, and the alphas that its attention modules hold."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from torch import Tensor, nn

from anymax.mappings import LearnedEntmax

LEARNED = "learned"
# The attribute of a config, and of an attention module, that is ours. Both are saved: in config.json, and as a weight.
IN_CONFIG = "anymax"
IN_MODULE = "entmax"


@dataclass(frozen=True)
class Settings:
    """Entmax with one alpha for all heads, or with an alpha for each that is learned.

    Args:
        alpha: a number of at least 0, or "learned".
        initial: the alpha that learned ones start from, strictly between `low` and `high`.
        low: what learned alphas stay above.
        high: what learned alphas stay below.
    """

    alpha: float | str = 1.5
    initial: float | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.alpha != LEARNED:
            if not (_is_number(self.alpha) and 0 <= self.alpha < math.inf):
                raise ValueError(f"alpha must be a finite number of at least 0, or {LEARNED!r}, got {self.alpha!r}")
            if (self.initial, self.low, self.high) != (None, None, None):
                raise ValueError(f"initial, low and high must be left out with a fixed alpha, got {self}")
            return
        for name in ("initial", "low", "high"):
            if not (getattr(self, name) is None or _is_number(getattr(self, name))):
                raise TypeError(f"{name} must be a number, got {getattr(self, name)!r}")
        low = 1.0 if self.low is None else self.low
        high = 2.0 if self.high is None else self.high
        # Near softmax, with which the model was trained, but not so near that the alpha hardly learns.
        initial = low + (high - low) / 10 if self.initial is None else self.initial
        for name, value in (("initial", initial), ("low", low), ("high", high)):
            object.__setattr__(self, name, float(value))
        # Which checks the range.
        self.build(1)

    def build(self, num_heads: int) -> "HeadAlphas":
        """The alphas of one attention module, in float32 whatever the model's dtype is."""
        assert self.low is not None and self.high is not None
        return HeadAlphas((num_heads,), initial=self.initial, low=self.low, high=self.high).float()

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class HeadAlphas(LearnedEntmax):
    """The alphas of the heads of an attention module; they are the result of a call, before which weights are fetched.

    Hooks that keep weights elsewhere until they are needed, as offloading does, wait for the call of a module.
    """

    def forward(self) -> Tensor:  # type: ignore[override]
        return self.alpha


def settings_in(config: Any) -> Settings | None:
    """What a config says; None if it says nothing."""
    found = getattr(config, IN_CONFIG, None)
    if found is None:
        return None
    if not isinstance(found, dict) or not found.keys() <= Settings.__dataclass_fields__.keys():
        raise ValueError(
            f"{IN_CONFIG} of {type(config).__name__} must have keys of {sorted(Settings.__dataclass_fields__)}, got "
            f"{found!r}; it was written by another version of anymax, or by something else"
        )
    return Settings(**found)


def alpha_of(module: nn.Module, num_heads: int) -> float | Tensor:
    """The alpha, or those of each head, that the attention of a module is computed with."""
    learned = getattr(module, IN_MODULE, None)
    if isinstance(learned, HeadAlphas):
        if learned.pre_alpha.shape != (num_heads,):
            raise ValueError(
                f"{IN_MODULE}.pre_alpha of {type(module).__name__} must have one alpha for each of its {num_heads} "
                f"heads, got shape {tuple(learned.pre_alpha.shape)}"
            )
        alphas: Tensor = learned()
        return alphas
    config = getattr(module, "config", None)
    found = getattr(config, IN_CONFIG, None)
    if found is None:
        return 1.5
    # Settings are checked where they are made; this is called in every layer of every step.
    alpha = found.get("alpha") if isinstance(found, dict) else None
    if _is_number(alpha):
        return float(alpha)
    settings_in(config)
    raise ValueError(
        f"alphas of {type(module).__name__} must be there, since its config says they are learned, got none; load "
        "the model with anymax.hf.from_pretrained, or call anymax.hf.use_entmax"
    )


def learned_in(model: nn.Module) -> Iterator[tuple[str, HeadAlphas]]:
    """The alphas that a model's modules hold, by the name of the attention module."""
    for name, module in model.named_modules():
        learned = getattr(module, IN_MODULE, None)
        if isinstance(learned, HeadAlphas):
            yield name, learned


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
