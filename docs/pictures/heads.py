"""Draws docs/pictures/heads.png: where the heads of two small Transformers look, by softmax and by learned entmax.

Both learn to continue sequences of symbols that repeat. Run it with the extra `plot` installed, for a minute:
`python docs/pictures/heads.py`. Shapes: B batch, N positions, H heads, L layers.
"""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

import anymax
from anymax.attention import capture
from anymax.models import TransformerConfig, TransformerLM
from anymax.vocabulary import FixedInput, FullOutput

PICTURE = Path(__file__).with_name("heads.png")
NUM_SYMBOLS, PERIOD, H, LAYERS, DIM, BATCH = 16, 10, 4, 2, 64, 32
STEPS = 500
GREY, INK = "#868e96", "#212529"


def main(picture: Path = PICTURE, steps: int = STEPS) -> None:
    """Train both and draw their heads for one sequence."""
    torch.manual_seed(1)
    ids_1N = sequences(1)
    rows = []
    for name, mapping in (
        ("softmax", lambda: None),
        ("entmax, alpha learned", lambda: anymax.LearnedEntmax(shape=(H, 1, 1))),
    ):
        torch.manual_seed(0)
        model = trained(mapping, steps)
        with torch.no_grad(), capture(model) as weights:
            loss = model(ids_1N[:, :-1], ids_1N[:, 1:])
        print(f"{name}: loss {loss.item():.3f}, alphas {alphas(model)}, shares above zero {densities(weights)}")
        rows.append((name, alphas(model), torch.cat(weights["decoder"])))
    draw(picture, rows)


def sequences(batch: int) -> Tensor:
    """Symbols at random, three times over."""
    return torch.randint(NUM_SYMBOLS, (batch, PERIOD)).repeat(1, 3)


def trained(mapping: object, steps: int) -> TransformerLM:
    """A model after that many steps."""
    config = TransformerConfig(DIM, LAYERS, H, 4 * DIM, positions="rotary", norm="rms", final_norm=True)
    model = TransformerLM(FixedInput(NUM_SYMBOLS, DIM), FullOutput(NUM_SYMBOLS, DIM), config, mapping=mapping)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        ids_BN = sequences(BATCH)
        optimizer.zero_grad()
        model(ids_BN[:, :-1], ids_BN[:, 1:]).backward()
        optimizer.step()
    return model


def alphas(model: TransformerLM) -> list[float]:
    """The alpha of every head, layer by layer."""
    learned = [module.alpha for module in model.modules() if isinstance(module, anymax.LearnedEntmax)]
    return [round(alpha, 2) for layer in learned for alpha in layer.flatten().tolist()] or [1.0] * (LAYERS * H)


def densities(weights: dict[str, list[Tensor]]) -> list[float]:
    """The share of keys above zero among those that may be attended to, of every head."""
    shares = []
    for layer_BHNN in weights["decoder"]:
        allowed_NN = torch.ones(layer_BHNN.shape[-2:], dtype=torch.bool).tril()
        shares += [round(share, 3) for share in (layer_BHNN[..., allowed_NN] > 0).float().mean((0, 2)).tolist()]
    return shares


def draw(picture: Path, rows: list[tuple[str, list[float], Tensor]]) -> None:
    """A row for each model and a column for each head; white is a weight of exactly zero, or a key that comes later."""
    mpl.rcParams.update({"font.size": 10, "text.color": INK, "axes.edgecolor": GREY})
    figure = Figure(figsize=(14, 4.5), dpi=100, facecolor="white", layout="constrained")
    grid = figure.subplots(len(rows), LAYERS * H)
    image = None
    for line, (name, of_heads, probs_LHNN) in zip(grid, rows, strict=True):
        for number, (axes, probs_NN) in enumerate(zip(line, probs_LHNN.flatten(0, 1), strict=True)):
            shown = probs_NN.masked_fill(probs_NN == 0, torch.nan).numpy()
            image = axes.imshow(shown, cmap="viridis_r", norm=LogNorm(1e-3, 1, clip=True), interpolation="nearest")
            axes.set_title(f"layer {number // H + 1}, head {number % H + 1}\nalpha {of_heads[number]:.2f}", fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, color=INK)
    assert image is not None
    figure.colorbar(image, ax=grid, label="weight; white is exactly 0", shrink=0.8, extend="min")
    figure.savefig(picture, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
