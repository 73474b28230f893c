"""What the decoder of a post-editor takes from its encoder, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from anymax.models.bert.config import BertConfig
from anymax.models.transformer.config import TransformerConfig

Way = Literal["random", "copied", "tied"]
# Norms are never tied.
NormWay = Literal["random", "copied"]
Side = Literal["encoder", "decoder"]
# The sizes that two layers must have in common, for one to be copied from the other or tied to it.
SIZES = {
    "embeddings": ("model_dim", "max_positions", "num_segments"),
    "self_attention": ("model_dim", "num_layers", "num_heads"),
    "feed_forward": ("model_dim", "num_layers", "ffn_dim"),
    "norms": ("model_dim", "num_layers"),
}


@dataclass(frozen=True)
class Sharing:
    """Where the parts of a decoder come from, layer by layer. The defaults are the best row of Correia and Martins.

    A part is "random" as BERT draws weights, "copied" when training begins and then its own, or "tied": the very
    parameters of the other, which are trained once and counted once.

    Args:
        embeddings: the tables of words, positions and segments, as far as the decoder has them; from the encoder. The
            output layer always has the decoder's table of words, and a bias of its own.
        self_attention: the decoder's attention to its own words; from the encoder's self-attention.
        cross_attention: the decoder's attention to the encoder's output, called context attention in the paper.
        feed_forward: from the encoder's feed-forward layers.
        norms: those after embeddings, self-attention and feed-forward are copied from the encoder's, the one after
            cross-attention from that after self-attention.
        cross_attention_of: whose self-attention cross-attention is copied from or tied to.

    Example:
        >>> from anymax.models import BertConfig, PostEditorConfig, Sharing
        >>> tied = Sharing(cross_attention="tied", cross_attention_of="encoder", feed_forward="tied")
        >>> PostEditorConfig(BertConfig(16, 1, 2, 32), tied).sharing.feed_forward
        'tied'
    """

    embeddings: Way = "tied"
    self_attention: Way = "tied"
    cross_attention: Way = "copied"
    feed_forward: Way = "copied"
    norms: NormWay = "copied"
    _: KW_ONLY
    cross_attention_of: Side = "decoder"

    def __post_init__(self) -> None:
        for name in (*SIZES, "cross_attention"):
            choices = get_args(NormWay if name == "norms" else Way)
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.cross_attention_of not in get_args(Side):
            raise ValueError(f"cross_attention_of must be encoder or decoder, got {self.cross_attention_of!r}")
        if self.cross_attention == "random" and self.cross_attention_of != "decoder":
            raise ValueError(
                f"cross_attention_of must be left out with cross_attention 'random', got {self.cross_attention_of!r}"
            )

    def check(self, encoder: BertConfig, decoder: BertConfig) -> None:
        """Refuse to copy or tie what has different shapes."""
        of_decoder = self.cross_attention_of == "decoder"
        sizes = SIZES | {"cross_attention": ("model_dim",) if of_decoder else SIZES["self_attention"]}
        for part, names in sizes.items():
            way = getattr(self, part)
            for name in names if way != "random" else ():
                ours, theirs = getattr(decoder, name), getattr(encoder, name)
                if ours != theirs:
                    raise ValueError(
                        f"{part} must have the same {name} in decoder and encoder to be {way}, got {ours} and "
                        f"{theirs}; give both the same sizes, or make {part} random"
                    )

    def check_words_alone(self, encoder: BertConfig, decoder: TransformerConfig) -> None:
        """Refuse to copy or tie more than the table of words, or that where the decoder is of another width."""
        for part in ("self_attention", "cross_attention", "feed_forward", "norms"):
            if getattr(self, part) != "random":
                raise ValueError(
                    f"{part} must be random with a TransformerDecoderConfig, whose layers are not BERT's, got "
                    f"{getattr(self, part)!r}; make it random, or leave the decoder out for one of BERT's layers"
                )
        if self.embeddings != "random" and encoder.model_dim != decoder.model_dim:
            raise ValueError(
                f"embeddings must have the same model_dim in decoder and encoder to be {self.embeddings}, got "
                f"{decoder.model_dim} and {encoder.model_dim}; give both the same sizes, or make embeddings random"
            )


# The rows of the ablation, each with all that those before it share.
TRANSFORMER = Sharing("tied", "random", "random", "random", "random")
BERT = Sharing("tied", "copied", "random", "copied", "copied")
CROSS_COPIED = Sharing("tied", "copied", "copied", "copied", "copied")
SELF_TIED = Sharing("tied", "tied", "copied", "copied", "copied")
CROSS_TIED = Sharing("tied", "tied", "tied", "copied", "copied")
FEED_FORWARD_TIED = Sharing("tied", "tied", "tied", "tied", "copied")
PRESETS: dict[str, Sharing] = {
    "transformer": TRANSFORMER,
    "bert": BERT,
    "cross_copied": CROSS_COPIED,
    "self_tied": SELF_TIED,
    "cross_tied": CROSS_TIED,
    "feed_forward_tied": FEED_FORWARD_TIED,
}
