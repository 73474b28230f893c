"""Averages of parameters over steps, as plain data that imports no torch."""

from dataclasses import dataclass

from anymax.checks import check_positive, check_shares


@dataclass(frozen=True)
class ExponentialAverageConfig:
    """An average that each step moves a little towards the parameters; it is what is evaluated and saved.

    The n-th step moves it by 9 / (n + 10) of the way, so that the first steps do not linger, but at least by
    `weight_at_least`.

    Args:
        weight_at_least: the share of the way in the long run, 1e-4 in Marian and in Correia and Martins 2019.

    Example:
        >>> from dataclasses import replace
        >>> from anymax import recipes
        >>> from anymax.training import ExponentialAverageConfig
        >>> replace(recipes.find("multi30k.softmax")(), average=ExponentialAverageConfig(1e-3)).average
        ExponentialAverageConfig(weight_at_least=0.001)
    """

    weight_at_least: float = 1e-4

    def __post_init__(self) -> None:
        check_positive(weight_at_least=self.weight_at_least)
        check_shares(weight_at_least=self.weight_at_least)

    def weight(self, step: int) -> float:
        """How much of the way a step moves the average, by its number from 1."""
        return max(self.weight_at_least, 1 - (step + 1) / (step + 10))
