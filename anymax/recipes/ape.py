"""Automatic post-editing with BERT, English to German: every row of the ablation, and both training sizes.

    anymax train ape.self_tied --data.root FOLDER

The folder holds the folder ape-wmt18-ende-smt, and for `ape.large` escape-ende-smt too, each with train.src, train.mt
and train.pe. BERT comes from the hub, which needs the extra `hf`; --bert takes a folder with it.

The rows share more and more, each what those before it do; `self_tied` is the best of them.
"""

from dataclasses import replace
from pathlib import Path

from anymax.data.multilingual.config import Pieces
from anymax.data.triplets.config import Triplets
from anymax.models.bert.config import BertConfig
from anymax.models.post_editing.config import (
    DualSourceTransformerConfig,
    PostEditorConfig,
    TransformerDecoderConfig,
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
from anymax.training.config import RunConfig
from anymax.training.optim.averages import ExponentialAverageConfig
from anymax.training.optim.optimizers import AdamConfig, BertAdamConfig
from anymax.training.optim.schedules import InverseSquareRoot, Linear
from anymax.training.tasks.post_editing.config import PostEditingConfig
from anymax.training.tasks.translation.config import PairTokens, Search

TAKES = "234M to 291M parameters; for a GPU"

SYNTHETIC = Path("escape-ende-smt")
TEXT = Triplets("ape-wmt18-ende-smt", pieces=Pieces(119_547, splitting="spaces"))


def post_editor(sharing: Sharing) -> RunConfig:
    """A post-editor of BERT-base for many languages, and how it was trained on 23 thousand triplets."""
    return RunConfig(
        PostEditingConfig(
            TEXT,
            PostEditorConfig(BertConfig(), sharing),
            PairTokens(512),
            bert="bert-base-multilingual-cased",
            search=Search(beam=8, min_length=2, max_length=100, batch_size=8),
        ),
        BertAdamConfig(5e-5),
        Linear(warmup=5_000),
        steps=50_000,
        accumulate=2,
        seed=42,
        log_every=100,
        evaluate_every=1_000,
        checkpoint_every=1_000,
        average=ExponentialAverageConfig(),
    )


def transformer() -> RunConfig:
    """APE: BERT reads, and a Transformer's random decoder writes; 290.8M parameters, 20.33 TER on dev published.

    Its layers are OpenNMT's, pre-norm, with sinusoids. For BERT's layers drawn at random take `ape.bert` with
    self_attention, feed_forward and norms of its sharing random.
    """
    run = post_editor(TRANSFORMER)
    model = PostEditorConfig(BertConfig(), TRANSFORMER, decoder=TransformerDecoderConfig())
    return replace(run, task=replace(PostEditingConfig.of(run.task), model=model))


def bert() -> RunConfig:
    """APE: the decoder is copied from BERT but for cross-attention; 290.8M parameters, 20.83 TER published."""
    return post_editor(BERT)


def cross_copied() -> RunConfig:
    """APE: and cross-attention is copied from self-attention; 290.8M parameters, 18.91 TER published."""
    return post_editor(CROSS_COPIED)


def self_tied() -> RunConfig:
    """APE: and self-attention is the encoder's; 262.5M parameters, 18.44 TER published, the best."""
    return post_editor(SELF_TIED)


def cross_tied() -> RunConfig:
    """APE: and cross-attention is self-attention; 234.1M parameters, 18.75 TER published."""
    return post_editor(CROSS_TIED)


def feed_forward_tied() -> RunConfig:
    """APE: and feed-forward layers are the encoder's; 177.4M parameters, 19.04 TER published."""
    return post_editor(FEED_FORWARD_TIED)


def dual_source() -> RunConfig:
    """APE: the baseline without BERT, a Transformer with two encoders; 27.80 TER on test 2016 published.

    How it was trained is not published; the optimizer is that of Junczys-Dowmunt and Grundkiewicz 2018.
    """
    run = post_editor(SELF_TIED)
    task = replace(PostEditingConfig.of(run.task), model=DualSourceTransformerConfig(), bert=None)
    data = replace(task.data, pieces=Pieces(32_000, splitting="spaces"))
    return replace(
        run,
        task=replace(task, data=data),
        optimizer=AdamConfig(3e-4, betas=(0.9, 0.98), eps=1e-9),
        schedule=InverseSquareRoot(16_000),
        clip=1.0,
    )


def large() -> RunConfig:
    """APE: the best row, with 8 million synthetic triplets more, the own ones each 35 times; 16.91 TER on test 2016."""
    run = post_editor(SELF_TIED)
    task = PostEditingConfig.of(run.task)
    data = replace(task.data, further=(SYNTHETIC,), oversample=35)
    return replace(
        run,
        task=replace(task, data=data, batching=PairTokens(1_024)),
        steps=200_000,
        evaluate_every=10_000,
        checkpoint_every=10_000,
    )
