"""Layers of an LSTM over torch's fused recurrence, in a precision that it has, and the state they carry.

Shapes: N positions, B batch, D input size, H hidden size, L layers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from anymax.regularizers import weight_drop

HALF = (torch.bfloat16, torch.float16)


# What a layer hands on: its hidden vectors and its cells, both (B, H).
LayerState = tuple[Tensor, Tensor]


class LSTMLayer(nn.Module):
    """One layer of an LSTM, which may drop numbers of its recurrent weights, the same ones for a whole call.

    The weights are plain parameters in torch's order of gates, and keep their names in training and evaluation.

    Args:
        input_dim: how wide the vectors are that it reads.
        hidden_dim: how wide it is.
        weight_dropout: the rate for numbers of the hidden-to-hidden weight.

    Merity et al. 2018.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.weight_dropout = weight_dropout
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, input_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_dim))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.weight_hh.shape[1] ** -0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, vectors_NBD: Tensor, start: LayerState | None = None) -> tuple[Tensor, LayerState]:
        """The hidden vectors of all positions, (N, B, H), and what the layer holds after the last."""
        weight_hh = weight_drop(self.weight_hh, self.weight_dropout, training=self.training)
        weights = [self.weight_ih, weight_hh, self.bias_ih, self.bias_hh]
        before = None if start is None else (start[0][None], start[1][None])
        hidden_NBH, last_1BH, cell_1BH = recurrence(vectors_NBD, before, weights)
        # Copies, as FSDP2 warns of views that leave a module.
        return hidden_NBH, (last_1BH[0].clone(), cell_1BH[0].clone())

    def extra_repr(self) -> str:
        hidden_dim, input_dim = self.weight_hh.shape[1], self.weight_ih.shape[1]
        return f"{input_dim}, {hidden_dim}, weight_dropout={self.weight_dropout}"


class LSTMStack(nn.LSTM):
    """Torch's LSTM by the same recurrence, for rows of one length."""

    def forward(  # type: ignore[override]
        self, vectors_NBD: Tensor, start: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The hidden vectors of the last layer, (N, B, H), and hidden vectors and cells of all layers, (L, B, H)."""
        weights = [weight for of_layer in self.all_weights for weight in of_layer]
        dropout = self.dropout if self.training else 0.0
        hidden_NBH, last_LBH, cell_LBH = recurrence(vectors_NBD, start, weights, dropout=dropout)
        return hidden_NBH, (last_LBH, cell_LBH)


def recurrence(
    vectors_NBD: Tensor,
    start: tuple[Tensor, Tensor] | None,
    weights: Sequence[Tensor],
    *,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden vectors of all positions in the type of the weights, and the last hidden vectors and cells, (L, B, H).

    Args:
        weights: two matrices and two biases for each layer.
        dropout: the rate for what goes from one layer to the next.
    """
    dtype = _computed_in(vectors_NBD.device, weights[0].dtype)
    if start is None:
        zeros_LBH = vectors_NBD.new_zeros(len(weights) // 4, vectors_NBD.shape[1], weights[1].shape[1])
        start = (zeros_LBH, zeros_LBH)
    # A compiler would unroll the recurrence position by position, so it breaks its graph here.
    run = _run_outside_graphs if torch.compiler.is_compiling() else _run
    hidden_NBH, last_LBH, cell_LBH = run(
        vectors_NBD.to(dtype), [state.to(dtype) for state in start], [weight.to(dtype) for weight in weights], dropout
    )
    return hidden_NBH.to(weights[0].dtype), last_LBH, cell_LBH


def _run(
    vectors_NBD: Tensor, start: list[Tensor], weights: list[Tensor], dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    num_layers, has_biases, is_bidirectional, is_batch_first = len(weights) // 4, True, False, False
    # A backward needs what only a forward in training keeps, also where nothing is dropped.
    train = dropout > 0 or torch.is_grad_enabled()
    with torch.autocast(vectors_NBD.device.type, enabled=False):
        return torch.lstm(
            vectors_NBD, start, weights, has_biases, num_layers, dropout, train, is_bidirectional, is_batch_first
        )


# The public torch.compiler.disable does the same, but imports the compiler at once.
_run_outside_graphs = _disable_dynamo(_run)


def _computed_in(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What autocast chose, else the type of the weights; float32 for half precision on a CPU without it."""
    if dtype == torch.float32 and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    is_missing = device.type == "cpu" and dtype in HALF and not (dtype == torch.bfloat16 and _cpu_has_bfloat16())
    return torch.float32 if is_missing else dtype


def _cpu_has_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class RecurrentState:
    """The state of an LSTM: empty at first, then the hidden vectors and cells of all layers after what was read last.

    It holds no gradients, so what reads it next is trained up to here and no further back.

    Example:
        >>> from anymax.models import LSTMLM, LSTMConfig, RecurrentState
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(20, 8), FullOutput(20, 16), LSTMConfig(8, 16))
        >>> state = RecurrentState()
        >>> _ = model.hidden(torch.randint(20, (2, 6)), state)
        >>> {name: tuple(tensor.shape) for name, tensor in state.tensors().items()}
        {'hidden_0': (2, 16), 'cell_0': (2, 16)}
    """

    def __init__(self) -> None:
        self._held: list[LayerState] | None = None

    def read(self, batch: int) -> list[LayerState] | None:
        """Hidden vectors and cells of every layer, all (batch, width of the layer); None at the start."""
        if self._held is not None and len(self._held[0][0]) != batch:
            raise ValueError(
                f"ids must have as many rows as the state before them, {len(self._held[0][0])}, got {batch}; "
                "begin with a new state for another batch"
            )
        return self._held

    def write(self, layers: Iterable[LayerState]) -> None:
        """Hold what every layer gave; it is not written into, here or by later reading."""
        self._held = [(hidden_BH.detach(), cell_BH.detach()) for hidden_BH, cell_BH in layers]

    def reorder(self, index: Tensor) -> None:
        """Keep the rows of the batch that `index` names, in its order, as beam search does; the start stays the start.

        Args:
            index: (new batch) integers below the batch size; a row may be named several times or not at all.
        """
        if self._held is not None:
            self.write([(hidden.index_select(0, index), cell.index_select(0, index)) for hidden, cell in self._held])

    def tensors(self) -> dict[str, Tensor]:
        """What to save: "hidden_0", "cell_0" and so on, all (batch, width of the layer); empty at the start."""
        return {
            f"{name}_{i}": held
            for i, layer in enumerate(self._held or [])
            for name, held in zip(("hidden", "cell"), layer, strict=True)
        }

    def check(self, batch: int, widths: Sequence[int]) -> None:
        """Refuse what another batch or other layers left."""
        held = [tuple(hidden_BH.shape) for hidden_BH, _ in self._held or []]
        if held != [(batch, width) for width in widths] or not all(h.is_floating_point() for h, _ in self._held or []):
            raise ValueError(f"the state must have {batch} rows for layers of {tuple(widths)}, got {held}")

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The state whose `tensors` were saved."""
        state = cls()
        if tensors:
            _check_saved(tensors)
            num_layers = len(tensors) // 2
            state.write((tensors[f"hidden_{i}"], tensors[f"cell_{i}"]) for i in range(num_layers))
        return state


def _check_saved(tensors: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    pairs = [(f"hidden_{i}", f"cell_{i}") for i in range((len(shapes) + 1) // 2)]
    is_complete = set(shapes) == {name for pair in pairs for name in pair}
    if not (
        is_complete
        and all(shapes[hidden] == shapes[cell] and len(shapes[cell]) == 2 for hidden, cell in pairs)
        and len({shape[0] for shape in shapes.values()}) == 1
    ):
        raise ValueError(
            "tensors must be a hidden and a cell for each layer, hidden_0, cell_0 and so on, all (batch, width), or "
            f"nothing, got {shapes}; give what RecurrentState.tensors gave"
        )
