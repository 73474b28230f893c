"""Post-editing on two cores: the rows of the ablation with a small BERT, on 14 thousand triplets of the WMT.

    anymax train ape_small.self_tied --data.root data --bert exported

A BERT that `anymax train bert.small` made and `anymax export` wrote can be what training begins from; by default all
weights are drawn at random, and what is copied is copied from those.
"""

from dataclasses import replace

from anymax.data.multilingual.config import Pieces
from anymax.data.triplets.config import Triplets
from anymax.models.bert.config import BertConfig
from anymax.models.post_editing.config import (
    DualSourceTransformerConfig,
    PostEditorConfig,
    TransformerDecoderConfig,
    opennmt_body,
)
from anymax.models.post_editing.sharing import (
    BERT,
    CROSS_COPIED,
    CROSS_TIED,
    FEED_FORWARD_TIED,
    SELF_TIED,
    TRANSFORMER,
    Sharing,
)
from anymax.models.transformer.config import TransformerConfig
from anymax.training.config import RunConfig
from anymax.training.optim.averages import ExponentialAverageConfig
from anymax.training.optim.optimizers import BertAdamConfig
from anymax.training.optim.schedules import Linear
from anymax.training.tasks.post_editing.config import PostEditingConfig
from anymax.training.tasks.translation.config import PairTokens, Search

TAKES = "small BERTs, for two cores"

# The size of bert.small.
SIZES = BertConfig(256, 4, 4, 1024, max_positions=256)


def post_editor(sharing: Sharing, corpus: str = "ape-wmt-keystrokes") -> RunConfig:
    """A small post-editor, on triplets of which 1,000 each are held out for valid and test by seed 1."""
    return RunConfig(
        PostEditingConfig(
            Triplets(corpus, pieces=Pieces(12_000, splitting="spaces")),
            PostEditorConfig(SIZES, sharing),
            PairTokens(2_048),
            search=Search(beam=4, min_length=2, max_length=100),
            decoded=200,
        ),
        BertAdamConfig(3e-4),
        Linear(warmup=500),
        steps=8_000,
        evaluate_every=500,
        checkpoint_every=500,
        average=ExponentialAverageConfig(),
    )


def transformer() -> RunConfig:
    """Small APE: the decoder of a Transformer drawn at random, nothing but the table of words shared."""
    run = post_editor(TRANSFORMER)
    decoder = TransformerDecoderConfig(opennmt_body(256, 4, 4, 1024), max_positions=SIZES.max_positions)
    model = PostEditorConfig(SIZES, TRANSFORMER, decoder=decoder)
    return replace(run, task=replace(PostEditingConfig.of(run.task), model=model))


def bert() -> RunConfig:
    """Small APE: the decoder begins as the encoder, but for cross-attention."""
    return post_editor(BERT)


def cross_copied() -> RunConfig:
    """Small APE: and cross-attention begins as self-attention."""
    return post_editor(CROSS_COPIED)


def self_tied() -> RunConfig:
    """Small APE: and self-attention is the encoder's."""
    return post_editor(SELF_TIED)


def cross_tied() -> RunConfig:
    """Small APE: and cross-attention is self-attention."""
    return post_editor(CROSS_TIED)


def feed_forward_tied() -> RunConfig:
    """Small APE: and feed-forward layers are the encoder's."""
    return post_editor(FEED_FORWARD_TIED)


def dual_source() -> RunConfig:
    """Small APE: a Transformer with two encoders, of about the size of the others."""
    run = post_editor(SELF_TIED)
    body = TransformerConfig(256, 4, 4, 1024, dropout=0.1, attention_dropout=0.1, final_norm=True)
    return replace(
        run, task=replace(PostEditingConfig.of(run.task), model=DualSourceTransformerConfig(body, max_positions=256))
    )


def neural() -> RunConfig:
    """Small APE: the best row of the paper on corrections of neural translation, 7,000 triplets of Wikipedia."""
    return post_editor(SELF_TIED, "ape-mlqe-pe-ende")
