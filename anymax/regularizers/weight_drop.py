"""Weight drop: some of the numbers of a weight are zero while a batch is read, others in every batch."""

from torch import Tensor

from anymax.regularizers.element_dropout import element_dropout


def weight_drop(weight: Tensor, rate: float, *, training: bool) -> Tensor:
    """Drop each number of a weight by chance, the same ones wherever the result is used.

    The others are divided by 1 - rate. Of the recurrent weights of an LSTM a whole sequence then sees one
    mask, and its fused kernel serves as before.

    Args:
        weight: any shape; it is never written to.
        rate: the chance of each number to be dropped.
        training: otherwise the weight itself comes back.

    Wan et al. 2013; Merity et al. 2018.

    Example:
        >>> lstm = torch.nn.LSTM(8, 16)
        >>> dropped = anymax.regularizers.weight_drop(lstm.weight_hh_l0, 0.5, training=True)
        >>> outputs, _ = torch.func.functional_call(lstm, {"weight_hh_l0": dropped}, (torch.randn(5, 2, 8),))
        >>> outputs.sum().backward()
        >>> torch.equal(lstm.weight_hh_l0.grad != 0, dropped != 0)
        True
    """
    return element_dropout(weight, rate, training=training)
