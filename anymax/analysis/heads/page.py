"""What was measured of heads as a page: layers, heads and roles as tables, then pictures."""

from __future__ import annotations

from collections.abc import Iterator

from anymax.analysis.heads.alphas import BINS, Alphas
from anymax.analysis.heads.examples import Named
from anymax.analysis.heads.measure import HeadMeasures
from anymax.analysis.heads.pictures import figures
from anymax.analysis.heads.study import Heads
from anymax.attention.capture import Kind
from anymax.display import Bullets, Page, Paragraph, Part, Row, Section, Table
from anymax.display.printable import printable

# Kinds as `capture` has them, in words.
KINDS: dict[Kind, str] = {
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "attention of the decoder to the encoder",
}


def page(heads: Heads, run: str) -> Page:
    """Tables of layers, alphas, roles and every head, what they mean, and the pictures."""
    parts: list[Part] = [Paragraph(_about(heads)), _layers(heads)]
    if heads.alphas is not None:
        parts.append(_histogram(heads.alphas))
    parts += [_roles(heads), _heads(heads), Bullets(tuple(_meanings(heads)), is_dim=True)]
    return Page("Heads", (*parts, *figures(heads, printable(run))), heads.as_dict())


def _about(heads: Heads) -> str:
    measured = heads.measured
    queries = ", ".join(f"{number:,} queries of {KINDS[kind]}" for kind, number in measured.num_queries.items())
    sample = f"at most {heads.limit:,}, drawn by seed {heads.seed}"
    return f"{heads.split}: {measured.num_examples:,} examples ({sample}) with {queries}. Heads are counted from 0."


def _layers(heads: Heads) -> Table:
    rows: list[Row | Section] = []
    for kind in heads.measured.kinds:
        rows.append(Section(KINDS[kind]))
        for layer in heads.measured.layers:
            if layer.kind == kind:
                shares = (layer.density, layer.union, layer.diversity_by_heads, layer.diversity_by_keys)
                rows.append((f"layer {layer.layer}", str(layer.num_heads), *map(_share, shares)))
    columns = ("", "heads", "density", "of their union", "diversity by log heads", "diversity by log keys")
    return Table(columns, tuple(rows), "Layers")


def _histogram(alphas: Alphas) -> Table:
    width = (alphas.high - alphas.low) / BINS
    edges = [alphas.low + width * number for number in range(BINS + 1)]
    counts = [alphas.histogram(kind) for kind in alphas.kinds]
    rows = [
        (f"{edges[place]:.3f} to {edges[place + 1]:.3f}", *(str(of_kind[place] or "") for of_kind in counts))
        for place in range(BINS)
    ]
    return Table(("alpha", *alphas.kinds), tuple(rows), "Heads by the alpha they learned")


def _roles(heads: Heads) -> Table:
    rows: list[Row | Section] = []
    for kind in heads.measured.kinds:
        rows.append(Section(KINDS[kind]))
        rows += [_role(each) for each in heads.named if each.head.kind == kind]
        seen = heads.measured.counts[kind]
        missing = [printable(role.name) for role in heads.roles if role.name not in seen]
        rows += [(f"{name}: not seen", "", "", "", "", "") for name in missing]
    columns = ("role", "best head", "confidence", "of", "alpha", "density")
    return Table(columns, tuple(rows), "Heads with a role", text_columns=("best head",))


def _role(named: Named) -> Row:
    alpha = "" if named.alpha is None else f"{named.alpha:.3f}"
    numbers = (_share(named.confidence), f"{named.count:,}", alpha, _share(named.density))
    return (printable(named.role.name), str(named.head), *numbers)


def _heads(heads: Heads) -> Table:
    now = {} if heads.alphas is None else heads.alphas.now
    seen = {role.name: role for role in heads.roles if any(role.name in of for of in heads.measured.counts.values())}
    has_nowhere = any(each.nowhere for each in heads.measured.heads)
    columns = ("head", *(["alpha"] if now else []), "density", "entropy", *(["nowhere"] if has_nowhere else []))
    rows: list[Row | Section] = []
    for kind in heads.measured.kinds:
        rows.append(Section(KINDS[kind]))
        for each in heads.measured.of_kind(kind):
            alpha = [f"{now[each.head]:.3f}" if each.head in now else ""] if now else []
            nowhere = [_share(each.nowhere)] if has_nowhere else []
            shares = (_share(each.density), _share(each.entropy), *nowhere, *_confidences(each, list(seen)))
            rows.append((str(each.head), *alpha, *shares))
    return Table((*columns, *map(printable, seen)), tuple(rows), "Every head")


def _confidences(each: HeadMeasures, names: list[str]) -> Iterator[str]:
    for name in names:
        yield _share(each.confidence.get(name))


def _meanings(heads: Heads) -> Iterator[str]:
    yield "density: weights above zero in float32, of all that queries may attend to; in the union, of any head"
    yield "entropy: of the weights of a query, as a share of that of equal weights; 0 where one key has all"
    divided = "the logarithm of the number of heads, or of that of the keys that the query may attend to"
    yield f"diversity: the Jensen-Shannon divergence of a layer's heads, 0 where all are alike, divided by {divided}"
    if any(each.nowhere for each in heads.measured.heads):
        yield "nowhere: queries at which a head has no weight above zero"
    for role in heads.roles:
        yield printable(f"{role.name}: {role.meaning}")
    if "decoder" in heads.measured.kinds:
        yield "In self-attention of a decoder a query may attend to itself and to what stands before it."


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
