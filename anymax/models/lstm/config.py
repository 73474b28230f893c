"""The shape of a plain LSTM language model, as plain data that imports no torch."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

from anymax.models.sizes import check_sizes


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes and dropout of an LSTM; the defaults are those of Grave et al. 2017.

    Args:
        input_dim: how wide the vectors of words are that the first layer reads.
        hidden_dim: how wide every layer is, and what the output layer reads.
        num_layers: how many layers.
        dropout: the rate for what enters every layer and for what leaves the last.
    """

    carries_state: ClassVar[bool] = True

    input_dim: int = 256
    hidden_dim: int = 512
    num_layers: int = 1
    _: KW_ONLY
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.num_layers, input_dim=self.input_dim, hidden_dim=self.hidden_dim)
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout must lie between 0 and 1, got {self.dropout}")

    @property
    def output_dim(self) -> int:
        """How wide the vectors are that the output layer reads."""
        return self.hidden_dim

    @property
    def widths(self) -> tuple[int, ...]:
        """How wide each layer is."""
        return (self.hidden_dim,) * self.num_layers

    def toy(self) -> Self:
        """The same model at a size for tests."""
        input_dim = 16 if self.input_dim == self.hidden_dim else 8
        return replace(self, input_dim=input_dim, hidden_dim=16, num_layers=min(self.num_layers, 2))
