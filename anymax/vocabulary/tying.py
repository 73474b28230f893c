"""Tying: an input and an output layer that hold the same Parameter objects."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from anymax.vocabulary.adaptive_input import AdaptiveInput
from anymax.vocabulary.adaptive_output import AdaptiveOutput
from anymax.vocabulary.fixed_input import FixedInput
from anymax.vocabulary.output import OutputLayer, TableOutput


def tie_(
    input: nn.Module, output: OutputLayer, *, tables: bool = True, projections: bool = False, head: bool = False
) -> None:
    """Make an output layer share parameters with an input layer; the values that stay are the input's.

    Where the layers do not fit, nothing is changed. Tie before an optimizer is made and before layers are wrapped, and
    after `to_empty`, which gives every layer parameters of its own.

    Args:
        input: an AdaptiveInput or a FixedInput.
        output: for an AdaptiveInput an AdaptiveOutput of the same bands; for a FixedInput any other output layer.
        tables: share the vectors of the words.
        projections: share the projection between table and model; of adaptive layers, those of all tails.
        head: share the projection of an adaptive head; the output needs head_projection=True.

    Baevski and Auli 2019.

    Example:
        >>> from anymax.vocabulary import FixedInput, FullOutput, tie_
        >>> input, output = FixedInput(1000, 16), FullOutput(1000, 16)
        >>> tie_(input, output)
        >>> output.table is input.table
        True
    """
    if not (tables or projections or head):
        raise ValueError("tie_ needs something to share, got tables, projections and head all False")
    if isinstance(input, AdaptiveInput) and isinstance(output, AdaptiveOutput):
        pairs = list(_adaptive_pairs(input, output, tables, projections, head))
    elif isinstance(input, FixedInput) and isinstance(output, TableOutput):
        pairs = list(_table_pairs(input, output, tables, projections, head))
    else:
        raise TypeError(
            f"tie_ must be given an AdaptiveInput with an AdaptiveOutput, or a FixedInput with another output layer, "
            f"got {type(input).__name__} with {type(output).__name__}; a layer without a table of words cannot be tied"
        )
    for pair in pairs:
        _check_fit(pair)
    for pair in pairs:
        setattr(pair.holder, pair.name, pair.source)


class _Pair(NamedTuple):
    """A parameter of the input, and where the output holds the one that it replaces."""

    what: str
    source: nn.Parameter
    holder: nn.Module
    name: str


def _adaptive_pairs(
    input: AdaptiveInput, output: AdaptiveOutput, tables: bool, projections: bool, head: bool
) -> Iterator[_Pair]:
    if input.bands != output.bands:
        raise ValueError(
            f"input and output must have the same bands to be tied, got {input.bands} and {output.bands}; "
            "build both from one Bands"
        )
    for i in range(input.bands.num_bands):
        if tables:
            yield _Pair(f"the table of band {i}", input.tables[i], output.tables, str(i))
        if projections and i > 0:
            yield _Pair(f"the projection of band {i}", input.projections[i], output.tail_projections, str(i - 1))
    if head:
        if output.head_projection is None:
            raise ValueError(
                "head must be False for an AdaptiveOutput without a head projection, got True; "
                "build it with head_projection=True"
            )
        yield _Pair("the projection of the head", input.projections[0], output, "head_projection")


def _table_pairs(
    input: FixedInput, output: TableOutput, tables: bool, projections: bool, head: bool
) -> Iterator[_Pair]:
    if head:
        raise ValueError(
            f"head must be False for {type(output).__name__}, which has no head, got True; "
            "projections=True shares its projection"
        )
    if tables:
        yield _Pair("the table", input.table, output, "table")
    if projections:
        if input.projection is None or output.projection is None:
            without = " and ".join(type(layer).__name__ for layer in (input, output) if layer.projection is None)
            raise ValueError(
                f"projections must be False where a layer has none, got True and {without} without; "
                "FixedInput, FullOutput and SparseOutput have one if their dim differs from model_dim"
            )
        yield _Pair("the projection", input.projection, output, "projection")


def _check_fit(pair: _Pair) -> None:
    target = getattr(pair.holder, pair.name)
    for name, ours, theirs in (
        ("dtype", pair.source.dtype, target.dtype),
        ("device", pair.source.device, target.device),
    ):
        if ours != theirs:
            raise ValueError(
                f"{pair.what} must have the same {name} in input and output to be tied, got {ours} and {theirs}; "
                "move one of the layers with .to"
            )
    if pair.source.shape != target.shape:
        raise ValueError(
            f"{pair.what} must have the same shape in input and output to be tied, got {tuple(pair.source.shape)} and "
            f"{tuple(target.shape)}; build both layers with the same sizes"
        )
