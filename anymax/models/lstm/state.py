"""Where a recurrent model stands in a text: what each of its layers holds.

Shapes: B batch, H how wide a layer is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from torch import Tensor

# What a layer hands on: its hidden vectors and its cells, both (B, H).
LayerState = tuple[Tensor, Tensor]


class RecurrentState:
    """Where an LSTM stands: nothing at first, then what every layer holds after the last position it read.

    It holds no gradients, so what reads it next is trained up to here and no further back.
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
