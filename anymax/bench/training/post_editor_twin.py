"""The same post-editors as `EncoderDecoderModel` of transformers, to be measured against.

Shapes: B rows, S pieces of the longest sentence and translation, T of the longest correction, V word pieces.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.models.bert.config import BertConfig
from anymax.models.post_editing.model import PostEditor, TargetInput

# What attention is computed with.
Attention = Literal["eager", "sdpa"]
# Names of parameters within a block by those of transformers.
OF_BLOCK = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
CROSSED = {f"cross_{ours}": f"cross{theirs}" for ours, theirs in OF_BLOCK.items() if ours.startswith("attention")}
TABLES = {
    "words.table": "word_embeddings.weight",
    "positions.weight": "position_embeddings.weight",
    "segments.weight": "token_type_embeddings.weight",
    "embedding_norm.weight": "LayerNorm.weight",
    "embedding_norm.bias": "LayerNorm.bias",
}


class TwinPostEditor(nn.Module):
    """A sentence and its translation in, the loss of the correction out, by `EncoderDecoderModel` of transformers.

    Its scores are all there at once, and what is smoothed goes to all word pieces, as `F.cross_entropy` has it.

    Args:
        model: of transformers.
        label_smoothing: the share of the target that is spread evenly over all word pieces.
    """

    def __init__(self, model: nn.Module, *, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        segments: Tensor,
        positions: Tensor,
        ids: Tensor,
        target: Tensor,
        reduction: str = "mean",
    ) -> Tensor:
        """Arguments as a `PostEditor` takes them."""
        scores_BTV = self.scores(source, source_mask, segments, positions, ids)
        return F.cross_entropy(
            scores_BTV.flatten(0, 1), target.flatten(), reduction=reduction, label_smoothing=self.label_smoothing
        )

    def scores(self, source: Tensor, source_mask: Tensor, segments: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        """The score of every word piece for each place of the correction, (batch, target positions, V)."""
        found: Tensor = self.model(
            input_ids=source,
            attention_mask=source_mask,
            token_type_ids=segments,
            position_ids=positions,
            decoder_input_ids=ids,
            decoder_token_type_ids=torch.ones_like(ids),
            use_cache=False,
        ).logits
        return found

    def attend_by(self, attention: Attention) -> None:
        """Compute attention by torch's own function, or step by step."""
        self.model.set_attn_implementation(attention)  # type: ignore[operator]


def is_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def name() -> str:
    return f"transformers {importlib.metadata.version('transformers')}"


def twin_of_post_editor(model: PostEditor) -> TwinPostEditor:
    """A model of transformers with a copy of the weights of `model`, tied as they are, which computes the same.

    Args:
        model: its heads by softmax, both its sides BERT's.
    """
    if not isinstance(model.target_input, TargetInput):
        raise ValueError("model must have BERT's layers in its decoder to have a twin, got a TransformerDecoderConfig")
    sides = (model.encoder.config, model.target_input.config)
    if any(attention.mapping is not None for layers in model.attention_layers().values() for attention in layers):
        raise ValueError("model must attend by softmax to have a twin, got another mapping in some head")
    hf: Any = importlib.import_module("transformers")
    configs = [hf.BertConfig(**_settings(config, model.encoder.vocabulary_size)) for config in sides]
    theirs = hf.EncoderDecoderModel(hf.EncoderDecoderConfig.from_encoder_decoder_configs(*configs))
    # What no post-editor has: a layer over the first piece, and one before the output.
    theirs.encoder.pooler = None
    theirs.decoder.cls.predictions.transform = nn.Identity()
    copies: dict[nn.Parameter, nn.Parameter] = {}
    ours = dict(model.named_parameters(remove_duplicate=False))
    for own, name in _names(model):
        copies.setdefault(ours[own], nn.Parameter(ours[own].detach().clone()))
        holder, _, leaf = name.rpartition(".")
        setattr(theirs.get_submodule(holder), leaf, copies[ours[own]])
    return TwinPostEditor(theirs, label_smoothing=model.output.label_smoothing).train(model.training)


def _settings(config: BertConfig, num_words: int) -> dict[str, Any]:
    return {**config.to_hugging_face(), "vocab_size": num_words, "is_decoder": False, "use_cache": False}


def _names(model: PostEditor) -> Iterator[tuple[str, str]]:
    """Our parameters and their names in transformers, tied ones at each of their places."""
    for ours, theirs in (("encoder", "encoder.embeddings"), ("target_input", "decoder.bert.embeddings")):
        yield from ((f"{ours}.{own}", f"{theirs}.{name}") for own, name in TABLES.items())
    yield from (("output.table", "decoder.cls.predictions.decoder.weight"),)
    yield from (("output.bias", f"decoder.cls.predictions.{name}") for name in ("bias", "decoder.bias"))
    for ours, theirs, blocks, names in (
        ("encoder.encoder", "encoder.encoder", model.encoder.encoder.blocks, OF_BLOCK),
        ("decoder", "decoder.bert.encoder", model.decoder.blocks, OF_BLOCK | CROSSED),
    ):
        for i in range(len(blocks)):
            for own, name in names.items():
                yield from (
                    (f"{ours}.blocks.{i}.{own}.{leaf}", f"{theirs}.layer.{i}.{name}.{leaf}")
                    for leaf in ("weight", "bias")
                )
