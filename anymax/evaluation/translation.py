"""How close translations are to references: BLEU, chrF and TER by sacrebleu, each with the signature of its settings.

A score is comparable only with scores of the same signature: of the same tokenization, case and references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from anymax.checks import check_counts

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

# How BLEU cuts sentences into words: "13a" for text as it is written, "none" for words separated by spaces.
Tokenize = Literal["13a", "none", "intl", "char", "zh"]
NUM_SAMPLES = 1000
# Of the scores, as they are shown.
NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


@dataclass(frozen=True)
class Score:
    """A score of a corpus from 0 to 100 (TER may lie above), and what it depends on.

    Args:
        value: the score.
        signature: sacrebleu's, to be printed beside the score.

    Example:
        >>> from anymax.evaluation import score_translations
        >>> score = score_translations(["the cat sat on the mat"], ["the cat sat on the mat"])["bleu"]
        >>> round(score.value, 1), "tok:13a" in score.signature
        (100.0, True)
    """

    value: float
    signature: str


@dataclass(frozen=True)
class Difference:
    """How a system differs from the first one, by paired bootstrap resampling of sentences.

    Args:
        system: its name.
        value: the system's score.
        mean, interval: of its scores over samples: the mean, and half the width that holds 95 percent.
        p_value: the share of samples whose difference from the first is at least as far from its mean as the difference
            measured is from zero; small where luck with sentences does not explain it. None for the first system.

    Example:
        >>> from anymax.evaluation import paired_bootstrap
        >>> references = ["the cat sat on the mat", "a dog ran to the park"]
        >>> systems = {"first": references, "second": ["the cat sat on a mat", "a dog went to the park"]}
        >>> first, second = paired_bootstrap(systems, references, num_samples=20)
        >>> first.p_value, second.value < first.value
        (None, True)
    """

    system: str
    value: float
    mean: float
    interval: float
    p_value: float | None


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: Tokenize = "13a",
    lowercase: bool = False,
) -> dict[str, Score]:
    """BLEU, chrF and TER of a corpus, under "bleu", "chrf" and "ter".

    Args:
        hypotheses: one sentence each.
        references: as many sentences; or several such lists, each a whole set of references.
        tokenize: how BLEU finds words. chrF reads characters, TER words separated by spaces.
        lowercase: whether case is ignored, by all three.

    Example:
        >>> from anymax.evaluation import score_translations
        >>> scores = score_translations(["the cat sat on a mat"], ["the cat sat on the mat"])
        >>> {name: round(score.value, 1) for name, score in scores.items()}
        {'bleu': 53.7, 'chrf': 66.0, 'ter': 16.7}
    """
    sets = check_references(hypotheses, references)
    scores = {}
    for name, metric in _metrics(tokenize, lowercase).items():
        value = metric.corpus_score(list(hypotheses), sets).score
        scores[name] = Score(value, str(metric.get_signature()))
    return scores


def score_sentences(
    hypotheses: Sequence[str], references: Sequence[str], metric: Literal["chrf", "ter"], *, lowercase: bool = False
) -> list[float]:
    """The score of each sentence by itself, which says less than that of a corpus.

    Args:
        metric: "chrf", larger is better, or "ter", smaller is better.
        lowercase: whether case is ignored.
    """
    if not hypotheses:
        return []
    check_references(hypotheses, references)
    found = _metrics("none", lowercase)[metric]
    pairs = zip(hypotheses, references, strict=True)
    return [found.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: Tokenize = "13a",
    lowercase: bool = False,
    metric: Literal["bleu", "chrf", "ter"] = "bleu",
    num_samples: int = NUM_SAMPLES,
) -> list[Difference]:
    """A score of systems on the same sentences, and whether each differs from the first by more than luck. Koehn 2004.

    Args:
        systems: hypotheses by the name of the system; the first is what the others are compared with.
        references, tokenize, lowercase: as in `score_translations`.
        metric: what is compared; of TER less is better.
        num_samples: how often sentences are drawn.

    Example:
        >>> from anymax.evaluation import paired_bootstrap
        >>> references = ["the cat sat on the mat", "a dog ran to the park"]
        >>> systems = {"first": references, "second": ["the cat sat on a mat", "a dog went to the park"]}
        >>> [(found.system, round(found.value)) for found in paired_bootstrap(systems, references, num_samples=20)]
        [('first', 100), ('second', 42)]
    """
    from sacrebleu.significance import PairedTest

    check_counts(2, num_samples=num_samples)
    if len(systems) < 2:
        raise ValueError(f"systems must be two at least to be compared, got {', '.join(systems) or 'none'}")
    for hypotheses in systems.values():
        sets = check_references(hypotheses, references)
    test = PairedTest(
        [(name, list(hypotheses)) for name, hypotheses in systems.items()],
        {metric: _metrics(tokenize, lowercase)[metric]},
        sets,
        test_type="bs",
        n_samples=num_samples,
    )
    _, table = test()
    column = next(column for name, column in table.items() if name != "System")
    results = [each for each in column if not isinstance(each, str)]
    first = results[0].score
    return [
        # A difference of zero is in every sample at least as far, and sacrebleu counts what is farther.
        Difference(
            name,
            result.score,
            _number(result.mean),
            _number(result.ci),
            result.p_value if result.p_value is None or result.score != first else 1.0,
        )
        for name, result in zip(systems, results, strict=True)
    ]


def _number(value: float | None) -> float:
    # Numbers of numpy, which are there for every system.
    assert value is not None
    return float(value)


@dataclass(frozen=True)
class Changes:
    """What became of the sentences of a corpus by changing them, each by its own TER.

    Args:
        better, worse: sentences whose TER fell or rose.
        same: those of the same TER.
        untouched: those of them that were not changed at all.
    """

    better: int
    worse: int
    same: int
    untouched: int


def count_changes(
    before: Sequence[str], after: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> Changes:
    """How many sentences a change has brought nearer to their references, and how many farther away."""
    check_references(before, references)
    check_references(after, references)
    ter, signs = _metrics("none", lowercase)["ter"], list[int]()
    for old, new, reference in zip(before, after, references, strict=True):
        if old == new:
            signs.append(0)
        else:
            first, second = (ter.sentence_score(text, [reference]).score for text in (old, new))
            signs.append((second > first) - (second < first))
    untouched = sum(old == new for old, new in zip(before, after, strict=True))
    return Changes(signs.count(-1), signs.count(1), signs.count(0), untouched)


def check_references(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """Sets of references, each as long as the hypotheses; one set may be given without a list around it."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise TypeError("hypotheses and references must be lists of sentences, got one text; split it into lines")
    if not hypotheses:
        raise ValueError("hypotheses must hold one sentence at least, got none")
    if not references:
        raise ValueError("references must hold one sentence for each hypothesis, got none")
    if all(isinstance(reference, str) for reference in references):
        sets = [[str(reference) for reference in references]]
    else:
        sets = [list(each) for each in references]
    for each in sets:
        if len(each) != len(hypotheses):
            raise ValueError(
                f"references must hold one sentence for each of the {len(hypotheses)} hypotheses, got {len(each)}; "
                "several sets of references are a list of such lists"
            )
    return sets


def check_tokenize(tokenize: str) -> None:
    """Refuse a way to find words that is none."""
    if tokenize not in get_args(Tokenize):
        raise ValueError(f"tokenize must be one of {', '.join(get_args(Tokenize))}, got {tokenize!r}")


def _metrics(tokenize: Tokenize, lowercase: bool) -> dict[str, Metric]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    check_tokenize(tokenize)
    return {
        # Forced, as sacrebleu asks back where words are separated by spaces already.
        "bleu": BLEU(tokenize=tokenize, lowercase=lowercase, force=True),
        "chrf": CHRF(lowercase=lowercase),
        "ter": TER(case_sensitive=not lowercase),
    }
