"""Measures of heads against attention whose answers are known, and against loops over every cell."""

import math

import pytest
import torch
from torch import Tensor

from anymax.analysis.heads.diversity import diversity
from anymax.analysis.heads.measure import Measured, measure
from anymax.analysis.heads.roles import Position, usual_roles
from anymax.attention.capture import Kind
from tests.analysis.heads.synthetic import (
    entropy,
    js_by_hand,
    observed,
    possible,
    random_sparse,
    sentence,
    shifted,
    uniform,
)
from tests.each import each

N = 6


def one_layer(kind: Kind, *heads: Tensor) -> Measured:
    length = len(heads[0])
    return measure([observed(kind, [torch.stack(heads)[None]], [sentence(length)])], usual_roles())


def test_the_heads_of_the_encoder_that_look_at_one_place_have_that_density_and_position() -> None:
    found = one_layer("encoder", shifted(N, -1), shifted(N, 0), shifted(N, 1), uniform(N))
    assert [head.density for head in found.heads] == pytest.approx([1 / N, 1 / N, 1 / N, 1.0])
    names = ["position -1", "position 0", "position +1"]
    for place, name in enumerate(names):
        best = found.best("encoder", name)
        assert best is found.heads[place] and best.confidence[name] == 1.0
    # Where there is no neighbour the shifted heads look at themselves, which counts for no neighbour.
    assert [found.heads[0].confidence[name] for name in names] == pytest.approx([1.0, 1 / N, 0.0])
    assert [found.heads[3].confidence[name] for name in names] == pytest.approx([1 / N] * 3)
    assert found.counts["encoder"] == {"position -1": N - 1, "position 0": N, "position +1": N - 1, 'words to "?"': 1}


def test_a_decoder_has_the_cells_of_a_triangle_and_no_position_after() -> None:
    causal_uniform = torch.ones(N, N).tril() / torch.arange(1, N + 1)[:, None]
    found = one_layer("decoder", causal_uniform, shifted(N, 0))
    assert [head.density for head in found.heads] == pytest.approx([1.0, N / (N * (N + 1) / 2)])
    assert "position +1" not in found.counts["decoder"]
    assert found.best("decoder", "position +1") is None
    expected = sum(1 / (query + 1) for query in range(1, N)) / (N - 1)
    assert found.heads[0].confidence["position -1"] == pytest.approx(expected)


def test_positions_are_no_role_between_two_sentences() -> None:
    weights = random_sparse(1, 2, 3, 5)
    found = measure([observed("cross", [weights], [sentence(3)], [sentence(5)])], usual_roles())
    assert found.counts == {"cross": {}} and found.num_queries == {"cross": 3}


def test_the_union_has_every_key_that_any_head_keeps() -> None:
    found = one_layer("encoder", shifted(N, 0), shifted(N, 0), shifted(N, -1))
    (layer,) = found.layers
    # The first query of the third head looks at itself, as those of the others do.
    assert layer.union == pytest.approx((2 * N - 1) / N**2) and layer.density == pytest.approx(1 / N)


def test_diversity_is_zero_for_equal_heads_and_one_for_heads_that_share_no_key() -> None:
    allowed = torch.ones(N, N, dtype=torch.bool)
    same = diversity(random_sparse(N, N).expand(4, N, N), allowed)
    assert same.by_heads_N.abs().max() < 1e-12 and same.by_keys_N.abs().max() < 1e-12
    rolled = torch.stack([torch.eye(N).roll(head, 1) for head in range(4)])
    apart = diversity(rolled, allowed)
    assert apart.by_heads_N.tolist() == pytest.approx([1.0] * N)
    assert apart.by_keys_N.tolist() == pytest.approx([math.log(4) / math.log(N)] * N)


def test_a_layer_of_one_head_has_no_diversity_and_a_first_query_of_a_decoder_none_to_show() -> None:
    (layer,) = one_layer("decoder", shifted(N, 0)).layers
    assert layer.diversity_by_heads is None and layer.diversity_by_keys is None
    first = diversity(torch.ones(3, 1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert first.by_heads_N.tolist() == [0.0] and first.by_keys_N.tolist() == [0.0]


def test_heads_that_look_nowhere_at_a_query_are_left_out_there_and_counted() -> None:
    here, there = torch.eye(N), torch.eye(N).roll(1, 1)
    nowhere = torch.zeros(N, N)
    found = one_layer("encoder", here, there, nowhere)
    assert [head.nowhere for head in found.heads] == [0.0, 0.0, 1.0]
    assert found.layers[0].diversity_by_heads == pytest.approx(1.0)
    assert one_layer("encoder", here, nowhere).layers[0].diversity_by_heads is None
    # Half of the weight went to a sink: the shares of what is left are the same.
    assert one_layer("encoder", here / 2, there).layers[0].diversity_by_heads == pytest.approx(1.0)


@each("kind", ["encoder", "decoder", "cross"])
def test_sums_over_batches_are_those_of_loops_over_every_cell_that_is_no_padding(kind: Kind) -> None:
    lengths = [(3, 5), (6, 2), (4, 4)] if kind == "cross" else [(3, 3), (6, 6), (1, 1)]
    layers = [random_sparse(3, num_heads, 6, 6, kind=kind) for num_heads in (2, 3)]
    # What stands in padding must not matter.
    queries = [sentence(q) for q, _ in lengths]
    keys = [sentence(k) for _, k in lengths]
    first = observed(kind, [layer[:2] for layer in layers], queries[:2], keys[:2])
    second = observed(kind, [layer[2:] for layer in layers], queries[2:], keys[2:])
    found = measure([first, second], usual_roles())
    assert found.num_examples == 3 and found.num_queries[kind] == sum(q for q, _ in lengths)
    cells = [(b, q, k) for b, (nq, nk) in enumerate(lengths) for q, k in possible(kind, nq, nk)]
    place = 0
    for number, layer in enumerate(layers):
        for head in range(layer.shape[1]):
            above = sum(layer[b, head, q, k].item() > 0 for b, q, k in cells)
            assert found.heads[place].density == pytest.approx(above / len(cells))
            place += 1
        union = sum(any(layer[b, h, q, k].item() > 0 for h in range(layer.shape[1])) for b, q, k in cells)
        assert found.layers[number].union == pytest.approx(union / len(cells))
        by_heads, by_keys = loop_over_queries(kind, layer, lengths)
        assert found.layers[number].diversity_by_heads == pytest.approx(by_heads, rel=1e-5)
        assert found.layers[number].diversity_by_keys == pytest.approx(by_keys, rel=1e-5)


def loop_over_queries(kind: Kind, layer: Tensor, lengths: list[tuple[int, int]]) -> tuple[float, float]:
    """The mean diversity by both logarithms, over all queries at which two heads look at something."""
    by_heads, by_keys = [], []
    for b, (num_queries, num_keys) in enumerate(lengths):
        for q in range(num_queries):
            reached = [k for other, k in possible(kind, num_queries, num_keys) if other == q]
            rows = [[layer[b, h, q, k].item() for k in reached] for h in range(layer.shape[1])]
            rows = [[weight / sum(row) for weight in row] for row in rows if sum(row) > 0]
            if len(rows) > 1:
                by_heads.append(js_by_hand(rows) / math.log(len(rows)))
                by_keys.append(js_by_hand(rows) / math.log(len(reached)) if len(reached) > 1 else 0.0)
    return sum(by_heads) / len(by_heads), sum(by_keys) / len(by_keys)


def test_what_comes_after_a_query_of_a_decoder_counts_nowhere() -> None:
    causal = random_sparse(N, N, kind="decoder")
    later = torch.rand(N, N).triu(1)
    clean, leaking = one_layer("decoder", causal, causal), one_layer("decoder", causal, causal + later)
    assert leaking == clean and leaking.layers[0].diversity_by_heads == pytest.approx(0)


def test_nothing_to_measure_and_weights_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one example"):
        measure([], [Position(0)])
    with pytest.raises(ValueError, match="weights must be finite"):
        one_layer("encoder", torch.full((N, N), math.nan))


def test_sentences_that_do_not_fit_the_weights_are_refused() -> None:
    with pytest.raises(
        ValueError, match="a sentence for each of the 2 examples, of at most 3 and 3 units, got 2 and 2"
    ):
        observed("encoder", [torch.ones(2, 1, 3, 3)], [sentence(3), sentence(4)])


@each("kind", ["encoder", "decoder", "cross"])
def test_entropy_is_a_share_of_that_of_equal_weights(kind: Kind) -> None:
    weights = random_sparse(2, 5, 5, kind=kind)
    weights[0, 3] = 0
    found = measure([observed(kind, [weights[None]], [sentence(5)])], usual_roles())
    for head, measured in zip(weights.tolist(), found.heads, strict=True):
        shares = []
        for query, row in enumerate(head):
            keys = [key for q, key in possible(kind, 5, 5) if q == query]
            total = sum(row[key] for key in keys)
            if total > 0 and len(keys) > 1:
                shares.append(entropy([row[key] / total for key in keys]) / math.log(len(keys)))
        assert measured.entropy == pytest.approx(sum(shares) / len(shares))


def test_entropy_is_one_where_all_keys_are_alike_and_none_where_there_is_one() -> None:
    found = one_layer("encoder", uniform(N), shifted(N, 0))
    assert [head.entropy for head in found.heads] == pytest.approx([1.0, 0.0])
    assert one_layer("encoder", uniform(1)).heads[0].entropy is None
