"""What a backend of dropout offers."""

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anymax.kernels.dropout import native, reference


class DropoutKernel(Protocol):
    """Entries are a contiguous (R, N) matrix of any floating dtype, with one int64 seed per row."""

    def why_unsupported(self, entries_RN: Tensor, /) -> str | None:
        """Why this backend cannot take the entries, or None if it can."""

    def forward(self, entries_RN: Tensor, seed_R: Tensor, rate: float, first: int = 0) -> Tensor:
        """Entries that are kept, divided by the share that is kept, and zeros.

        Args:
            first: the number of the first entry in its row, for rows that come in pieces.
        """


if TYPE_CHECKING:
    OWN: tuple[DropoutKernel, ...] = (native, reference)
