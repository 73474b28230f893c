"""The best head of every role, the sentences that it is clearest in, and alphas out of the records of a run."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import anymax
from anymax.analysis.heads.alphas import Head, heads_in, histogram, learned
from anymax.analysis.heads.examples import SHOWN, name_heads
from anymax.analysis.heads.measure import measure
from anymax.analysis.heads.roles import Position, Role, WordToToken
from anymax.training import Observed, Sentence
from tests.analysis.heads.synthetic import observed, shifted, uniform

BEFORE: tuple[Role, ...] = (Position(-1),)


def numbered(length: int, name: str = "") -> Sentence:
    return Sentence.of_words([f"{name}{i}" for i in range(length)])


def test_the_clearest_sentences_of_the_best_head_come_first_and_no_sentence_twice() -> None:
    # In three layers of two heads the last head of the middle one looks before, wholly in two sentences.
    clear, half, blurred = shifted(5, -1), (shifted(5, -1) + uniform(5)) / 2, uniform(5)
    batches = []
    for name, weights in (("blurred", blurred), ("half", half), ("clear", clear), ("clear", clear)):
        layers = [torch.stack([uniform(5), blurred])[None] for _ in range(3)]
        layers[1] = torch.stack([uniform(5), weights])[None]
        batches.append(observed("decoder", layers, [numbered(5, name)]))
    measured = measure(batches, BEFORE)
    (named,) = name_heads(measured, BEFORE, {Head("decoder", 1, 1): 1.5}, batches, most=2)
    assert (named.head, named.alpha, named.count) == (Head("decoder", 1, 1), 1.5, 16)
    assert named.confidence == pytest.approx((0.2 + 0.6 + 1 + 1) / 4)
    assert [example.queries[0] for example in named.examples] == ["clear0", "half0"]
    assert [example.score for example in named.examples] == pytest.approx([1.0, 0.6])
    assert torch.equal(named.examples[0].weights, clear) and named.examples[0].outside == 0
    assert name_heads(measured, BEFORE, {}, batches, most=0)[0].examples == ()


def test_of_two_clear_sentences_the_one_that_shows_more_is_first() -> None:
    batches = [observed("encoder", [shifted(n, -1)[None, None]], [numbered(n)]) for n in (2, 9, 4)]
    (named,) = name_heads(measure(batches, BEFORE), BEFORE, {}, batches, most=3)
    assert [len(example.queries) for example in named.examples] == [9, 4, 2]


def test_of_a_long_sentence_the_clearest_part_is_drawn() -> None:
    length = 3 * SHOWN
    weights = shifted(length, -1)
    weights[:SHOWN] = 0
    weights[:SHOWN, 0] = 1.0
    weights[2 * SHOWN + 5 :] = 0
    weights[2 * SHOWN + 5 :, 0] = 1.0
    batch = observed("decoder", [weights[None, None]], [numbered(length)])
    (named,) = name_heads(measure([batch], BEFORE), BEFORE, {}, [batch], most=1)
    (drawn,) = named.examples
    assert len(drawn.queries) == SHOWN and drawn.keys == drawn.queries and drawn.score == 1.0
    first = int(drawn.queries[0])
    assert SHOWN <= first <= SHOWN + 5
    assert torch.equal(drawn.weights, weights[first : first + SHOWN, first : first + SHOWN])
    # The first of them looks at a position that is not drawn.
    assert drawn.outside == pytest.approx(1 / SHOWN)


def test_nothing_is_drawn_of_a_head_that_never_plays_its_role() -> None:
    """In a sentence so long that its only word of the role may lie outside of what would be drawn."""
    role, length = (WordToToken(("last",), "w0"),), 2 * SHOWN
    words = Sentence.of_words([*(f"w{i}" for i in range(length - 1)), "last"])
    batch = observed("decoder", [shifted(length, 0)[None, None]], [words])
    (named,) = name_heads(measure([batch], role), role, {}, [batch], most=1)
    assert (named.confidence, named.count, named.examples) == (0.0, 1, ())


def test_keys_are_drawn_where_the_weight_is() -> None:
    """A word at the front of a long sentence that looks at the mark at its end."""
    length, role = 3 * SHOWN, (WordToToken(),)
    words = Sentence.of_words(["who", *(f"{i}" for i in range(length - 2)), "?"])
    weights = uniform(length)
    weights[0] = 0
    weights[0, -1] = 1.0
    for kind, queries in (("encoder", words), ("cross", Sentence.of_words(["who"]))):
        of_kind = weights[None, None, : len(queries)]
        batch = Observed({kind: [of_kind]}, {kind: [queries]}, {kind: [words]})
        (named,) = name_heads(measure([batch], role), role, {}, [batch], most=1)
        (drawn,) = named.examples
        assert drawn.queries[0] == "who" and drawn.keys[-1] == "?" and len(drawn.keys) == SHOWN
        assert drawn.weights.shape == (len(drawn.queries), SHOWN) and drawn.weights[0, -1] == 1.0


def test_alphas_are_read_by_kind_and_what_else_is_watched_is_left_out() -> None:
    watched = {
        "alpha/layer_0/head_1": 1.2,
        "alpha/encoder/layer_3/head_10": 2,
        "alpha/cross/layer_0/head_0": "1.5",
        "alpha/middle/layer_0/head_0": 1.5,
        "slope/layer_0/head_1": 1.5,
    }
    assert heads_in(watched) == {Head("decoder", 0, 1): 1.2, Head("encoder", 3, 10): 2.0}
    assert heads_in(None) == heads_in([1]) == {}


def test_the_path_of_alphas_has_the_steps_at_which_they_were_recorded(tmp_path: Path) -> None:
    records = [
        {"kind": "train", "step": 10, "loss": 2.0, "watch": watched(1.25, 1.5)},
        {"kind": "evaluation", "step": 15, "metrics": {"loss": 1.0}},
        {"kind": "train", "step": 20, "loss": 2.0, "watch": {"alpha/layer_0/head_0": 1.3}},
        {"kind": "train", "step": 30, "loss": 2.0, "watch": watched(1.5, 1.75)},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    model = nn.Sequential(anymax.LearnedEntmax(shape=(2, 1, 1), low=1.0, high=2.5))
    found = learned(model, watched(1.55, 2.5), tmp_path)
    assert found is not None and (found.low, found.high, found.steps) == (1.0, 2.5, [10, 30])
    assert found.path == {Head("decoder", 0, 0): [1.25, 1.5], Head("decoder", 0, 1): [1.5, 1.75]}
    assert found.kinds == ["decoder"]
    counts = found.histogram("decoder")
    assert len(counts) == 15 and counts[5] == counts[14] == 1 and sum(counts) == 2
    assert learned(nn.Sequential(nn.Linear(1, 1)), {}, tmp_path) is None


def watched(*alphas: float) -> dict[str, float]:
    return {f"alpha/layer_0/head_{head}": alpha for head, alpha in enumerate(alphas)}


def test_a_histogram_has_every_value_in_the_part_it_lies_in() -> None:
    values = [1.0, 1.0666, 1.0667, 1.5, 1.9333, 1.9334, 2.0]
    counts = histogram(values, 1.0, 2.0)
    assert counts == [
        sum(math.floor(15 * (value - 1)) in (place, place + place // 14) for value in values) for place in range(15)
    ]
