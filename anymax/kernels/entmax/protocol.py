"""What a backend of entmax offers.

Shapes: R rows, N entries, D inputs of a layer, and one alpha per row or one for all (A is R or 1).
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anymax.kernels.entmax import native, reference


class Support(NamedTuple):
    """What `support_` tells of each row: its maximum, the conjugate of the row minus that, the derivative of Omega by
    alpha if wanted, and its list.

    A row that is a list holds `counts_R` probabilities at its front and as many indices (int32) at its back; None for
    the counts means that all rows hold probabilities.
    """

    top_R: Tensor
    conjugate_R: Tensor
    by_alpha_R: Tensor | None
    counts_R: Tensor | None


class EntmaxKernel(Protocol):
    """Scores, probabilities and their gradients are contiguous, of shape (..., N) and of any floating dtype.

    Alpha has the dtype that the scores are computed in. A mask is boolean and broadcasts to the scores; its rows may
    stand anywhere. A kernel that wants plain rows makes them with `kernels/rows.py`.
    """

    def why_unsupported(self, scores: Tensor, /) -> str | None:
        """Why this backend cannot take `scores`, or None if it can; before a backward, asked of the probabilities."""

    def forward(self, scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
        """Probabilities of each row, in the dtype of the scores.

        Args:
            mask: true where an entry may be chosen; a row with none gets zeros.
        """

    def conjugate(self, scores: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities, and max over p of <p, z> - Omega(p) where z is the row minus its maximum, of shape (R,)."""

    def backward(self, grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
        """Gradient by the scores, in the dtype of `probs`; exactly zero where the mask is false."""

    def backward_both(
        self, grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradients by the scores and, one number per row in the dtype of alpha, by alpha."""

    def support_(self, scores_RN: Tensor, alpha_A: Tensor, capacity: int, wants_by_alpha: bool) -> Support:
        """Entmax in place, of rows that may stand apart: as lists if those hold `capacity` at most, or as they are.

        The scores are float32 or float64. Whether lists are made at all is the backend's choice.
        """

    def add_products(
        self,
        lists_RN: Tensor,
        counts_R: Tensor,
        target_R: Tensor,
        coefficient_R: Tensor,
        weight_ND: Tensor,
        hidden_RD: Tensor,
        *,
        peak: float,
        into_hidden_RD: Tensor | None,
        into_weight_ND: Tensor | None,
        into_bias_N: Tensor | None,
    ) -> None:
        """Multiply the gradient G of rows of scores with a layer: c G W is written, G' c H and G' c are added.

        Args:
            lists_RN: the listed probabilities; the gradient is these less `peak` at the target.
            coefficient_R: c, what the gradient of each row is multiplied with.
        """


def alpha_error(alpha: float) -> ValueError:
    """What every backend, and the edge above them, say of an alpha that has no entmax."""
    return ValueError(
        f"alpha must be finite and at least 0, got {alpha}; use LearnedEntmax to learn it, argmax for its limit"
    )


def alpha_error_of_loss(alpha: float) -> ValueError:
    """The same for a loss: at alpha 0 the maximum is infinite."""
    if alpha != 0:
        return alpha_error(alpha)
    return ValueError(f"alpha must be above 0 for a loss, got {alpha}; a single class costs infinity there")


if TYPE_CHECKING:
    OWN: tuple[EntmaxKernel, ...] = (native, reference)
