"""Adaptively Sparse Transformers: the twelve translators of Correia, Niculae and Martins 2019, Table 1.

Transformers of base size whose heads use softmax, 1.5-entmax, or entmax with an alpha that each head learns, on four
pairs of languages. The figures are tokenized BLEU of single runs. What the paper leaves open follows its public code:
Adam with beta 0.998, Noam's learning rate with a factor of 2, label smoothing over all words but the target, pre-norm,
no clipping. Alphas start anywhere between 1 and 2, as there; the code clamps them at 1.01, which
`--model.encoder-mapping.clamp 1.01` and its like for the other two attentions do. The beam is not published.
"""

from anymax.attention import AttentionMappingConfig, EntmaxConfig, LearnedEntmaxConfig, SoftmaxConfig
from anymax.data.parallel.config import ParallelText
from anymax.data.text.config import BPE
from anymax.models import Tie, TransformerConfig, TranslatorConfig
from anymax.training.config import RunConfig
from anymax.training.optim.optimizers import AdamConfig
from anymax.training.optim.schedules import InverseSquareRoot, NonMonotone
from anymax.training.tasks.translation.config import PairTokens, TranslationConfig
from anymax.vocabulary import FixedInputConfig, FullOutputConfig

TAKES = "Transformers of base size, for a GPU"

BASE = TransformerConfig(512, 6, 8, 2048, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, final_norm=True)
WARMUP = 20_000
# 2 * 512 ** -0.5 * step ** -0.5, at the end of the warm-up.
PEAK = 2 * 512**-0.5 * WARMUP**-0.5
# More than any of the four needs to converge, which ends a run.
MOST_STEPS = 500_000


def base(corpus: str, languages: tuple[str, str], mapping: AttentionMappingConfig, *, evaluate_every: int) -> RunConfig:
    """A Transformer of base size, with one mapping in all three attentions, trained until it no longer improves."""
    model = TranslatorConfig(
        FixedInputConfig(),
        FullOutputConfig(bias=True, label_smoothing=0.1, smoothing="opennmt"),
        BASE,
        share_input=True,
        tie=Tie(),
        encoder_mapping=mapping,
        decoder_mapping=mapping,
        cross_mapping=mapping,
    )
    text = ParallelText(corpus, languages=languages, units=BPE(32_000))
    return RunConfig(
        TranslationConfig(text, model, PairTokens(8192)),
        AdamConfig(PEAK, betas=(0.9, 0.998), eps=1e-9),
        InverseSquareRoot(WARMUP),
        steps=MOST_STEPS,
        evaluate_every=evaluate_every,
        checkpoint_every=evaluate_every,
        stop=NonMonotone(window=5),
    )


def _iwslt17(mapping: AttentionMappingConfig) -> RunConfig:
    return base("iwslt17", ("de", "en"), mapping, evaluate_every=5_000)


def _kftt(mapping: AttentionMappingConfig) -> RunConfig:
    return base("kftt", ("ja", "en"), mapping, evaluate_every=5_000)


def _wmt16(mapping: AttentionMappingConfig) -> RunConfig:
    return base("wmt16-roen", ("ro", "en"), mapping, evaluate_every=10_000)


def _wmt14(mapping: AttentionMappingConfig) -> RunConfig:
    return base("wmt14-ende", ("en", "de"), mapping, evaluate_every=10_000)


def iwslt17_softmax() -> RunConfig:
    """IWSLT17 German to English, softmax: 29.79 BLEU published."""
    return _iwslt17(SoftmaxConfig())


def iwslt17_entmax() -> RunConfig:
    """IWSLT17 German to English, 1.5-entmax: 29.83 BLEU published."""
    return _iwslt17(EntmaxConfig(1.5))


def iwslt17_learned_entmax() -> RunConfig:
    """IWSLT17 German to English, an alpha learned per head: 29.90 BLEU published."""
    return _iwslt17(LearnedEntmaxConfig())


def kftt_softmax() -> RunConfig:
    """KFTT Japanese to English, softmax: 21.57 BLEU published."""
    return _kftt(SoftmaxConfig())


def kftt_entmax() -> RunConfig:
    """KFTT Japanese to English, 1.5-entmax: 22.13 BLEU published."""
    return _kftt(EntmaxConfig(1.5))


def kftt_learned_entmax() -> RunConfig:
    """KFTT Japanese to English, an alpha learned per head: 21.74 BLEU published."""
    return _kftt(LearnedEntmaxConfig())


def wmt16_softmax() -> RunConfig:
    """WMT16 Romanian to English, softmax: 32.70 BLEU published."""
    return _wmt16(SoftmaxConfig())


def wmt16_entmax() -> RunConfig:
    """WMT16 Romanian to English, 1.5-entmax: 33.10 BLEU published."""
    return _wmt16(EntmaxConfig(1.5))


def wmt16_learned_entmax() -> RunConfig:
    """WMT16 Romanian to English, an alpha learned per head: 32.89 BLEU published."""
    return _wmt16(LearnedEntmaxConfig())


def wmt14_softmax() -> RunConfig:
    """WMT14 English to German, softmax: 26.02 BLEU published."""
    return _wmt14(SoftmaxConfig())


def wmt14_entmax() -> RunConfig:
    """WMT14 English to German, 1.5-entmax: 25.89 BLEU published."""
    return _wmt14(EntmaxConfig(1.5))


def wmt14_learned_entmax() -> RunConfig:
    """WMT14 English to German, an alpha learned per head: 26.93 BLEU published."""
    return _wmt14(LearnedEntmaxConfig())
