"""Scores of translations, against formulas written out and sacrebleu's own functions; what is refused."""

import math
import random
from collections import Counter

import pytest
import sacrebleu

from anymax.evaluation.translation import check_references, paired_bootstrap, score_sentences, score_translations

WORDS = ["a", "dog", "cat", "runs", "sees", "the", "big", "red", "over", "fence"]


def drawn(number: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(4, 12))) for _ in range(number)]


def changed(sentences: list[str], rate: float, seed: int) -> list[str]:
    """Sentences some words of which are others."""
    chance = random.Random(seed)
    return [
        " ".join(chance.choice(WORDS) if chance.random() < rate else word for word in sentence.split())
        for sentence in sentences
    ]


def bleu_by_hand(hypotheses: list[str], references: list[str]) -> float:
    """BLEU of words by its definition: clipped n-grams up to four, their geometric mean, the brevity penalty."""
    log_precision = 0.0
    for n in range(1, 5):
        matched = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            ours, theirs = (
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (hypothesis.split(), reference.split())
            )
            matched += sum((ours & theirs).values())
            total += sum(ours.values())
        log_precision += math.log(matched / total) / 4
    ours, theirs = (sum(len(line.split()) for line in lines) for lines in (hypotheses, references))
    return 100 * math.exp(log_precision + min(0.0, 1 - theirs / ours))


def test_bleu_is_the_formula_and_all_scores_are_those_of_sacrebleu():
    references = drawn(60, 1)
    hypotheses = changed(references, 0.3, 2)
    scores = score_translations(hypotheses, references, tokenize="none")
    assert scores["bleu"].value == pytest.approx(bleu_by_hand(hypotheses, references), rel=1e-9)
    assert scores["chrf"].value == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert scores["ter"].value == pytest.approx(sacrebleu.corpus_ter(hypotheses, [references]).score)
    assert "tok:none" in scores["bleu"].signature and "nrefs:1" in scores["ter"].signature


def test_references_equal_to_hypotheses_are_perfect_and_case_counts_unless_ignored():
    sentences = drawn(20, 3)
    perfect = score_translations(sentences, sentences)
    assert [round(perfect[name].value, 6) for name in ("bleu", "chrf", "ter")] == [100, 100, 0]
    upper = [sentence.upper() for sentence in sentences]
    other = score_translations(upper, sentences)
    assert other["bleu"].value < 1 and other["ter"].value == 100 and "case:mixed" in other["bleu"].signature
    same = score_translations(upper, sentences, lowercase=True)
    assert [round(same[name].value, 6) for name in ("bleu", "chrf", "ter")] == [100, 100, 0]


def test_several_sets_of_references_are_each_a_list():
    first, second = drawn(30, 4), drawn(30, 5)
    hypotheses = [one if i % 2 else other for i, (one, other) in enumerate(zip(first, second, strict=True))]
    scores = score_translations(hypotheses, [first, second], tokenize="none")
    assert scores["bleu"].value == pytest.approx(100) and "nrefs:2" in scores["bleu"].signature


def test_a_difference_that_luck_explains_has_a_large_p_value_and_a_real_one_a_small_one():
    references = drawn(200, 6)
    systems = {
        "first": changed(references, 0.3, 7),
        "equal": changed(references, 0.3, 8),
        "worse": changed(references, 0.6, 9),
    }
    first, equal, worse = paired_bootstrap(systems, references, tokenize="none", num_samples=300)
    assert first.p_value is None and [each.system for each in (first, equal, worse)] == list(systems)
    assert equal.p_value > 0.05 > 0.01 > worse.p_value
    for each in (first, equal, worse):
        alone = score_translations(systems[each.system], references, tokenize="none")["bleu"].value
        assert each.value == pytest.approx(alone) and abs(each.mean - alone) < each.interval


def test_a_difference_may_be_of_another_score():
    references = drawn(60, 6)
    systems = {"first": changed(references, 0.3, 7), "worse": changed(references, 0.6, 9)}
    first, worse = paired_bootstrap(systems, references, metric="ter", num_samples=100)
    for each in (first, worse):
        assert each.value == pytest.approx(score_translations(systems[each.system], references)["ter"].value)
    assert first.value < worse.value and worse.p_value < 0.02


def test_equal_systems_do_not_differ():
    references = drawn(30, 10)
    wrong = ["x y z"] * 30
    for system in (changed(references, 0.3, 11), wrong):
        _, other = paired_bootstrap({"one": system, "other": system}, references, num_samples=20)
        assert other.p_value == 1


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="references must hold one sentence for each of the 2 hypotheses, got 3"):
        score_translations(["a", "b"], ["a", "b", "c"])
    # Transposed: a list for each sentence instead of one for each set.
    with pytest.raises(ValueError, match="several sets of references are a list of such lists"):
        score_translations(["a", "b", "c"], [["a"], ["b"], ["c"]])
    with pytest.raises(ValueError, match="hypotheses must hold one sentence at least"):
        check_references([], [])
    with pytest.raises(TypeError, match="must be lists of sentences, got one text"):
        score_translations("a b", ["a b"])
    with pytest.raises(ValueError, match=r"tokenize must be one of 13a, none, .*, got 'words'"):
        score_translations(["a"], ["a"], tokenize="words")
    with pytest.raises(ValueError, match="systems must be two at least to be compared, got one"):
        paired_bootstrap({"one": ["a"]}, ["a"])


def test_sentences_are_scored_one_by_one():
    written, wanted = ["a cat sat", "", "The dog"], ["a cat sat", "a dog", "the dog"]
    assert score_sentences(written, wanted, "ter") == [0.0, 100.0, 50.0]
    assert score_sentences(written, wanted, "ter", lowercase=True) == [0.0, 100.0, 0.0]
    by_itself = [sacrebleu.sentence_chrf(text, [right]).score for text, right in zip(written, wanted, strict=True)]
    assert score_sentences(written, wanted, "chrf") == by_itself
    assert score_sentences([], [], "ter") == []
    with pytest.raises(ValueError, match="references must hold one sentence for each of the 3 hypotheses, got 1"):
        score_sentences(written, ["a"], "chrf")
