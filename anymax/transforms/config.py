"""Configs of transforms, as plain data that imports no torch; `build` makes the Module."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from anymax.checks import check_counts, check_not_negative, check_positive

if TYPE_CHECKING:
    from anymax.transforms import PLIF, LengthScale, MonotonicNetwork, Sig, SignedLog, Softcap


@dataclass(frozen=True)
class PLIFConfig:
    """A learned piecewise linear function, `anymax.PLIF`.

    Args:
        pieces: number of pieces in [-bound, bound].
        bound: half the width of the range; beyond it the end pieces continue.
        rate: the learning rate of its parameters, as a share of the optimizer's; 0 leaves them as they start.
        random_start: begin with random slopes around 1, not with the identity.

    Example:
        >>> config = anymax.transforms.PLIFConfig(1000, 10.0)
        >>> anymax.vocabulary.FullOutputConfig(transform=config).build(1000, 64).transform
        PLIF(pieces=1000, bound=10.0)
    """

    pieces: int = 100_000
    bound: float = 20.0
    _: KW_ONLY
    rate: float = 1.0
    random_start: bool = False

    def __post_init__(self) -> None:
        check_counts(pieces=self.pieces)
        check_positive(bound=self.bound)
        check_not_negative(rate=self.rate)

    def build(self) -> PLIF:
        """The Module."""
        from anymax.transforms import PLIF

        return PLIF(self.pieces, self.bound, random_start=self.random_start)

    def toy(self) -> Self:
        """The same at a size for tests, of few pieces."""
        return replace(self, pieces=min(self.pieces, 100))


@dataclass(frozen=True)
class SigConfig:
    """A fixed function with one smooth knee, `anymax.Sig`, of which softmax makes sig-softmax.

    Args:
        shift: where the knee is.
        slope: how steep it is far below the knee; above it has slope 1.

    Example:
        >>> config = anymax.transforms.SigConfig(slope=3.0)
        >>> anymax.vocabulary.FullOutputConfig(transform=config).build(1000, 64).transform
        Sig(shift=0.0, slope=3.0)
    """

    rate: ClassVar[float] = 1.0

    _: KW_ONLY
    shift: float = 0.0
    slope: float = 2.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.shift):
            raise ValueError(f"shift must be a finite number, got {self.shift}")
        check_positive(slope=self.slope)

    def build(self) -> Sig:
        """The Module."""
        from anymax.transforms import Sig

        return Sig(shift=self.shift, slope=self.slope)

    def toy(self) -> Self:
        """The same: nothing in it has a size."""
        return self


@dataclass(frozen=True)
class MonotonicNetworkConfig:
    """A learned sum of sigmoids and a line, `anymax.MonotonicNetwork`.

    Args:
        hidden: number of sigmoids.
        bound: half the width of the range that they cover at the start.
        chunk: number of sigmoids computed at a time.
        rate: the learning rate of its parameters, as a share of the optimizer's; 0 leaves them as they start.

    Example:
        >>> config = anymax.transforms.MonotonicNetworkConfig(hidden=200)
        >>> anymax.vocabulary.FullOutputConfig(transform=config).build(1000, 64).transform
        MonotonicNetwork(hidden=200, bound=20.0, chunk=128)
    """

    hidden: int = 1000
    _: KW_ONLY
    bound: float = 20.0
    chunk: int = 128
    rate: float = 1.0

    def __post_init__(self) -> None:
        check_counts(hidden=self.hidden)
        check_positive(bound=self.bound)
        check_counts(chunk=self.chunk)
        check_not_negative(rate=self.rate)

    def build(self) -> MonotonicNetwork:
        """The Module."""
        from anymax.transforms import MonotonicNetwork

        return MonotonicNetwork(self.hidden, bound=self.bound, chunk=self.chunk)

    def toy(self) -> Self:
        """The same at a size for tests, of few sigmoids."""
        return replace(self, hidden=min(self.hidden, 10))


@dataclass(frozen=True)
class SoftcapConfig:
    """A fixed bound that scores approach, `anymax.transforms.Softcap`.

    Args:
        cap: the bound; Gemma 2 has 30 before the softmax of its output.

    Example:
        >>> config = anymax.transforms.SoftcapConfig(30.0)
        >>> anymax.vocabulary.FullOutputConfig(transform=config).build(1000, 64).transform
        Softcap(cap=30)
    """

    rate: ClassVar[float] = 1.0

    cap: float = 30.0

    def __post_init__(self) -> None:
        check_positive(cap=self.cap)

    def build(self) -> Softcap:
        """The Module."""
        from anymax.transforms import Softcap

        return Softcap(self.cap)

    def toy(self) -> Self:
        """The same: nothing in it has a size."""
        return self


@dataclass(frozen=True)
class SignedLogConfig:
    """A fixed function of which softmax makes stablemax, `anymax.transforms.SignedLog`.

    Example:
        >>> config = anymax.transforms.SignedLogConfig()
        >>> anymax.vocabulary.FullOutputConfig(transform=config).build(1000, 64).transform
        SignedLog()
    """

    rate: ClassVar[float] = 1.0

    def build(self) -> SignedLog:
        """The Module."""
        from anymax.transforms import SignedLog

        return SignedLog()

    def toy(self) -> Self:
        """The same: nothing in it has a size."""
        return self


@dataclass(frozen=True)
class LengthScaleConfig:
    """Scores of attention grow with the number of positions, `anymax.transforms.LengthScale`, in every head by itself.

    Args:
        beta: its initial value, which it keeps if it is not learned; scores of n positions are multiplied with
            delta + beta (log n)^gamma.
        delta: as beta.
        gamma: as beta.
        learned: the names of those that are learned.

    Example:
        >>> anymax.transforms.LengthScaleConfig().build(num_heads=8).beta.shape
        torch.Size([8, 1, 1])
    """

    beta: float = 0.168
    _: KW_ONLY
    delta: float = 0.0
    gamma: float = 1.0
    learned: tuple[Literal["delta", "beta", "gamma"], ...] = ("beta",)

    def __post_init__(self) -> None:
        for name in ("delta", "beta", "gamma"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a finite number, got {getattr(self, name)}")
        if isinstance(self.learned, str) or not set(self.learned) <= {"delta", "beta", "gamma"}:
            raise ValueError(f"learned must be a tuple of 'delta', 'beta' and 'gamma', got {self.learned!r}")

    def build(self, num_heads: int) -> LengthScale:
        """The transform of one block, with a beta, delta or gamma for each of its heads where that is learned."""
        from anymax.transforms import LengthScale

        return LengthScale((num_heads, 1, 1), beta=self.beta, delta=self.delta, gamma=self.gamma, learned=self.learned)


TransformConfig = PLIFConfig | SigConfig | MonotonicNetworkConfig | SoftcapConfig | SignedLogConfig
# Of the scores of attention.
AttentionTransformConfig = LengthScaleConfig | SoftcapConfig
