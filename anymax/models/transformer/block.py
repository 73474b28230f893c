"""TransformerBlock: the one block that language models, encoders and decoders are stacks of.

Shapes: B batch, N positions, D the model's dimension.
"""

from collections.abc import Callable
from typing import assert_never

import torch.nn.functional as F
from torch import Tensor, nn

from anymax.attention import CrossAttentionCache, KeyValueCache, MultiHeadAttention, expand_key_mask
from anymax.attention.multi_head import Mapping
from anymax.models.transformer.config import TransformerConfig
from anymax.regularizers import fast_dropout
from anymax.transforms import LengthScaleConfig, SoftcapConfig

# Called once for every block of a stack; None is softmax.
MakeMapping = Callable[[], Mapping | None]


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention if it has one, and a feed-forward layer, with a residual connection around each.

    With `norm_first` each layer reads normalised vectors and adds to the unnormalised ones (pre-norm); without, each
    sum is normalised (post-norm). The result for one row of a batch depends neither on its padding nor on other rows.

    Args:
        config: sizes, dropout rates and choices. Its num_layers, final_norm and sinusoidal positions are left to the
            model that stacks the blocks.
        mapping: what turns scores of self-attention into probabilities, as in `MultiHeadAttention`; by default softmax.
        memory_dim: how wide the vectors of the encoder are that cross-attention attends to; by default there is no
            cross-attention.
        cross_mapping: as `mapping`, of the cross-attention.
        second_memory_dim: how wide the vectors of a second encoder are, whose attention follows that to the first; by
            default there is none.
        second_mapping: as `mapping`, of the attention to it.

    Vaswani et al. 2017.

    Example:
        >>> from anymax.mappings import sparsemax
        >>> from anymax.models import TransformerBlock, TransformerConfig
        >>> block = TransformerBlock(TransformerConfig(16, 1, 4, 32), mapping=sparsemax)
        >>> block(torch.randn(2, 5, 16), is_causal=True).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        mapping: Mapping | None = None,
        memory_dim: int | None = None,
        cross_mapping: Mapping | None = None,
        second_memory_dim: int | None = None,
        second_mapping: Mapping | None = None,
    ) -> None:
        super().__init__()
        for name, given, needed, dim in (
            ("cross_mapping", cross_mapping, "memory_dim", memory_dim),
            ("second_mapping", second_mapping, "second_memory_dim", second_memory_dim),
            ("second_memory_dim", second_memory_dim, "memory_dim", memory_dim),
        ):
            if given is not None and dim is None:
                raise ValueError(f"{name} must be None for a block without cross-attention, got one; give {needed} too")
        self.dropout = config.dropout
        self.norm_first = config.norm_first
        self.attention_norm = build_norm(config)
        self.attention = _build_attention(config, mapping=mapping, rotary=config.positions == "rotary")
        self.cross_attention_norm: nn.Module | None = None
        self.cross_attention: MultiHeadAttention | None = None
        if memory_dim is not None:
            self.cross_attention_norm = build_norm(config)
            self.cross_attention = _build_attention(config, mapping=cross_mapping, kv_dim=memory_dim)
        self.second_attention_norm: nn.Module | None = None
        self.second_attention: MultiHeadAttention | None = None
        if second_memory_dim is not None:
            self.second_attention_norm = build_norm(config)
            self.second_attention = _build_attention(config, mapping=second_mapping, kv_dim=second_memory_dim)
        self.feed_forward_norm = build_norm(config)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        hidden: Tensor,
        *,
        is_causal: bool = False,
        key_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        memory_cache: CrossAttentionCache | None = None,
        second_memory: Tensor | None = None,
        second_mask: Tensor | None = None,
        second_cache: CrossAttentionCache | None = None,
    ) -> Tensor:
        """The next vectors, in the shape of `hidden`.

        Args:
            hidden: (batch, positions, model_dim).
            is_causal: a position attends to itself and earlier ones only, as in a decoder.
            key_mask: (batch, positions), true where a position may be attended to: false for padding. With a cache, of
                its positions and the new ones.
            cache: keys and values of the positions before these; these are added to it.
            memory: (batch, memory positions, memory_dim), the encoder's output, for a block with cross-attention.
            memory_mask: (batch, memory positions), true where a position of `memory` may be attended to.
            memory_cache: in place of `memory` and `memory_mask`, what `precompute` made of them.
            second_memory, second_mask, second_cache: the same of a second encoder, for a block that attends to two.
        """
        mask = None if key_mask is None else expand_key_mask(key_mask)
        hidden = self._add(
            hidden,
            self.attention_norm,
            lambda hidden_BND: self.attention(hidden_BND, mask=mask, is_causal=is_causal, cache=cache),
        )
        norm, attention = self.cross_attention_norm, self.cross_attention
        given = {"memory": memory, "memory_mask": memory_mask, "memory_cache": memory_cache}
        hidden = self._add_memory(hidden, norm, attention, given, memory, memory_mask, memory_cache)
        norm, attention = self.second_attention_norm, self.second_attention
        given = {"second_memory": second_memory, "second_mask": second_mask, "second_cache": second_cache}
        hidden = self._add_memory(hidden, norm, attention, given, second_memory, second_mask, second_cache)
        return self._add(hidden, self.feed_forward_norm, self.feed_forward)

    def precompute(self, memory: Tensor, memory_mask: Tensor | None = None) -> CrossAttentionCache:
        """Keys and values of the encoder's output, for decoding to compute them once; arguments as in `forward`."""
        return _precomputed("memory", self.cross_attention, memory, memory_mask)

    def precompute_second(self, second_memory: Tensor, second_mask: Tensor | None = None) -> CrossAttentionCache:
        """The same of a second encoder's output."""
        return _precomputed("second_memory", self.second_attention, second_memory, second_mask)

    def _add_memory(
        self,
        hidden_BND: Tensor,
        norm: nn.Module | None,
        attention: MultiHeadAttention | None,
        given: dict[str, Tensor | CrossAttentionCache | None],
        memory: Tensor | None,
        memory_mask: Tensor | None,
        memory_cache: CrossAttentionCache | None,
    ) -> Tensor:
        names = [name for name, value in given.items() if value is not None]
        of_memory, of_mask, of_cache = given
        if norm is None or attention is None:
            if names:
                raise ValueError(
                    f"{names[0]} must be left out of a block without cross-attention, got one; "
                    f"build the block with {of_memory}_dim"
                )
            return hidden_BND
        if names not in ([of_memory], [of_memory, of_mask], [of_cache]):
            raise ValueError(
                f"a block with cross-attention must get {of_memory}, with or without {of_mask}, or else {of_cache}, "
                f"got {' and '.join(names) or 'none of them'}"
            )
        mask = None if memory_mask is None else expand_key_mask(memory_mask)
        return self._add(
            hidden_BND, norm, lambda query_BND: attention(query_BND, memory, mask=mask, cache=memory_cache)
        )

    def _add(self, hidden_BND: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return hidden_BND + fast_dropout(layer(norm(hidden_BND)), self.dropout, self.training)
        summed_BND: Tensor = norm(hidden_BND + fast_dropout(layer(hidden_BND), self.dropout, self.training))
        return summed_BND

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, norm_first={self.norm_first}"


class FeedForward(nn.Module):
    """Two linear layers with ReLU or GELU between them, or with SwiGLU: the swish of a gate times the first layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dropout = config.activation_dropout
        self.inner = nn.Linear(config.model_dim, config.ffn_dim)
        self.gate = nn.Linear(config.model_dim, config.ffn_dim) if config.activation == "swiglu" else None
        self.outer = nn.Linear(config.ffn_dim, config.model_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.inner, self.gate, self.outer):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, hidden_BND: Tensor) -> Tensor:
        inner = self.inner(hidden_BND)
        if self.gate is not None:
            active = F.silu(self.gate(hidden_BND)) * inner
        else:
            active = F.gelu(inner) if self.activation == "gelu" else inner.relu()
        return self.outer(fast_dropout(active, self.dropout, self.training))

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, dropout={self.dropout}"


def _build_attention(
    config: TransformerConfig, *, mapping: Mapping | None, kv_dim: int | None = None, rotary: bool = False
) -> MultiHeadAttention:
    match config.attention_transform:
        case LengthScaleConfig() as transform:
            built: nn.Module | None = transform.build(config.num_heads)
        case SoftcapConfig() as transform:
            built = transform.build()
        case None:
            built = None
        case never:
            assert_never(never)
    return MultiHeadAttention(
        config.model_dim,
        config.num_heads,
        mapping=mapping,
        dropout=config.attention_dropout,
        kv_dim=kv_dim,
        rotary=rotary,
        num_kv_heads=config.num_kv_heads,
        gate=config.attention_gate,
        sink=config.attention_sink,
        transform=built,
    )


def _precomputed(
    name: str, attention: MultiHeadAttention | None, memory: Tensor, memory_mask: Tensor | None
) -> CrossAttentionCache:
    if attention is None:
        raise ValueError(
            f"{name} must be left out of a block without cross-attention, got one; build the block with {name}_dim"
        )
    return attention.precompute(memory, key_mask=memory_mask)


def check_makers(**mappings: MakeMapping | None) -> None:
    """Arguments that make the mappings of a stack are functions, so that no two blocks share what they learn."""
    for name, mapping in mappings.items():
        if isinstance(mapping, nn.Module):
            raise TypeError(
                f"{name} must be a function that makes one for every block, got the Module {type(mapping).__name__}; "
                "write lambda: before it"
            )


def build_norm(config: TransformerConfig) -> nn.Module:
    """A norm of the config's kind; also for the one after the last block."""
    if config.norm == "rms":
        return nn.RMSNorm(config.model_dim, eps=config.norm_eps)
    return nn.LayerNorm(config.model_dim, eps=1e-5 if config.norm_eps is None else config.norm_eps)
