"""Roles of heads: subwords of a word, and words that look at a token, as loops over the sentence say."""

import pytest
import torch
from torch import Tensor

from anymax.analysis.heads.roles import INTERROGATIVES, Merging, Position, WordToToken
from anymax.attention.capture import Kind
from anymax.data.units.lexicon import Lexicon
from anymax.data.units.subwords import Subwords
from anymax.data.units.units import Units
from anymax.training import Sentence
from anymax.training.observed import Example
from tests.analysis.heads.synthetic import random_sparse, sentence, shifted
from tests.each import each

# "low er | the | w id est": two words that are cut.
CUT = Sentence(("low", "er", "the", "w", "id", "est"), (0, 0, 1, 2, 2, 2))


def example(kind: Kind, weights: Tensor, queries: Sentence, keys: Sentence | None = None) -> Example:
    return Example(kind, weights if weights.dim() == 3 else weights[None], queries, keys or queries)


def test_a_head_that_looks_inside_its_word_merges_fully_and_one_that_looks_at_itself_not_at_all() -> None:
    inside = torch.tensor([[float(a == b) for b in CUT.words] for a in CUT.words])
    others = inside * ~torch.eye(6, dtype=torch.bool)
    looks_at_others = others / others.sum(-1, keepdim=True).clamp(min=1)
    weights = torch.stack([looks_at_others, torch.eye(6), inside / inside.sum(-1, keepdim=True)])
    found = Merging().scores(example("encoder", weights, CUT))
    assert found is not None and found.queries_N.tolist() == [1, 5]
    expected = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1 / 2, 2 / 3]])
    torch.testing.assert_close(found.scores_GN, expected)


@each("kind", ["encoder", "decoder"])
@each("with_whole", [False, True])
def test_merging_is_the_most_weight_that_a_subword_has_on_the_rest_of_its_word(kind: Kind, with_whole: bool) -> None:
    weights = random_sparse(3, 6, 6, kind=kind)
    found = Merging(with_whole).scores(example(kind, weights, CUT))
    assert found is not None
    by_hand = []
    for head in weights.tolist():
        of_words = []
        for word in range(3):
            members = [i for i, number in enumerate(CUT.words) if number == word]
            if len(members) > 1:
                of_words.append(max(sum(head[i][j] for j in members if j != i) for i in members))
            elif with_whole:
                of_words.append(head[members[0]][members[0]])
        by_hand.append(of_words)
    torch.testing.assert_close(found.scores_GN, torch.tensor(by_hand))


def test_a_sentence_of_whole_words_shows_no_merging() -> None:
    found = Merging().scores(example("encoder", shifted(4, 0), sentence(4)))
    assert found is not None and len(found.queries_N) == 0 and found.scores_GN.shape == (1, 0)
    assert Merging().scores(example("cross", shifted(4, 0), sentence(4))) is None


@each("kind", ["encoder", "decoder", "cross"])
def test_words_look_at_all_places_of_a_token_that_they_may_attend_to(kind: Kind) -> None:
    asked = Sentence.of_words(["?", "Who", "saw", "what", "?", "no"])
    keys = Sentence.of_words(["?", "a", "?", "b"]) if kind == "cross" else asked
    weights = random_sparse(2, 6, len(keys), kind=kind if kind == "decoder" else "encoder")
    found = WordToToken().scores(example(kind, weights, asked, keys))
    assert found is not None and found.queries_N.tolist() == [1, 3]
    for head, scores in zip(weights.tolist(), found.scores_GN.tolist(), strict=True):
        for query, score in zip([1, 3], scores, strict=True):
            reached = [k for k, word in enumerate(keys.units) if word == "?" and (kind != "decoder" or k <= query)]
            assert score == pytest.approx(sum(head[query][k] for k in reached))


def test_a_query_of_a_decoder_before_the_token_does_not_count_and_any_class_of_words_may_be_named() -> None:
    asked = Sentence.of_words(["who", "?", "who", "cares"])
    role = WordToToken(("WHO", "cares"), "?")
    found = role.scores(example("decoder", torch.ones(4, 4).tril(), asked))
    assert found is not None and found.queries_N.tolist() == [2, 3] and found.scores_GN.tolist() == [[1.0, 1.0]]
    named = WordToToken(("do",), "heads").scores(example("encoder", shifted(4, 2), sentence(4)))
    assert named is not None and named.scores_GN.tolist() == [[1.0]]
    assert "what" in INTERROGATIVES
    for words, token in (((), "?"), (("a", ""), "?"), (("a",), "")):
        with pytest.raises(ValueError, match="words and token must be words"):
            WordToToken(words, token)


def test_words_and_tokens_are_whole_words_also_where_they_are_cut() -> None:
    cut = Sentence(("wh", "at", "?"), (0, 0, 1))
    weights = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    found = WordToToken().scores(example("encoder", weights, cut))
    assert found is not None and found.queries_N.tolist() == [0, 1] and found.scores_GN.tolist() == [[0.5, 1.0]]


def test_roles_have_names_and_meanings() -> None:
    assert [Position(offset).name for offset in (-1, 0, 1)] == ["position -1", "position 0", "position +1"]
    assert Position(-1).meaning == "the weight on the position before"
    assert Position(-2).meaning == "the weight on the position at -2"
    assert WordToToken(("if", "when"), ",").meaning == "the weight on ',' from if, when, where it may be attended to"
    assert Merging().name != Merging(with_whole=True).name


def test_a_sentence_of_subwords_knows_its_words() -> None:
    pytest.importorskip("tokenizers")
    counts = {"low": 5, "lower": 4, "newest": 6, "?": 3}
    subwords = Subwords.train(counts, 30)
    lexicon = Lexicon.from_counts(subwords.count(counts), keep=subwords.vocabulary)
    units = Units(lexicon, Lexicon.from_counts(counts), subwords)
    ids = [lexicon.eos, *units.encode(["lower", "?", "newest"])]
    found = Sentence.of(units, ids)
    assert found.whole == [word for word in ("<eos>", "lower", "?", "newest") for _ in (subwords.split(word))]
    assert len(found) == len(ids) and not any("</w>" in unit for unit in found.units)
    assert len(found.spans) == 4 and found.spans[0] == (0, 1) and found.spans[-1][1] == len(ids)
    plain = Sentence.of(Units(Lexicon.from_counts(counts), Lexicon.from_counts(counts)), [0, 2, 3])
    assert plain.words == (0, 1, 2) and plain.whole == list(plain.units)


def test_numbers_of_words_that_fall_or_are_too_few_are_refused() -> None:
    for units, words in ((("a", "b"), (1, 0)), (("a", "b"), (0,))):
        with pytest.raises(ValueError, match="words must have a number for each of the 2 units"):
            Sentence(units, words)
