"""Multi-head attention in which any mapping can decide where to look.

Shapes: B batch, Q queries, K keys, D the model's dimension, H heads, G heads of keys and values, E = D / H numbers per
head.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from anymax.attention.arguments import Inputs, in_autocast
from anymax.attention.attention import Transform, attend, check_mapping, transformed
from anymax.attention.attention import probs as probs_of_inputs
from anymax.attention.cache import CrossAttentionCache, KeyValueCache
from anymax.attention.capture import Kind, Watch, watch_as
from anymax.attention.positions import rotate
from anymax.attention.unfused import Mapping as Mapping
from anymax.mappings.arguments import check_boolean, check_device
from anymax.mappings.sink import check_sink

Gate = Literal["element", "head"]


class MultiHeadAttention(nn.Module):
    """Every query gathers the values of the keys that its heads choose; batch first.

    A query that may attend to nothing gathers zeros, so all it gets is the bias of the last layer.

    Args:
        model_dim: width of queries and results.
        num_heads: number of heads, which divides that width.
        mapping: what turns scores (batch, heads, queries, keys) into probabilities over keys: any of anymax's, as
            `anymax.Entmax(1.5)`, `anymax.LearnedEntmax(shape=(num_heads, 1, 1))` for an alpha per head, or a function
            such as `anymax.topk_sparsemax`. By default softmax. Entmax is fused like it; every other mapping holds all
            scores at once.
        dropout: the rate at which probabilities are dropped.
        bias: whether the four linear layers have one.
        kv_dim: width of the given keys and values; by default model_dim.
        rotary: turn queries and keys by their position; for self-attention.
        num_kv_heads: number of heads of keys and values, which divides num_heads: each serves num_heads / num_kv_heads
            consecutive heads of queries. By default one for each.
        gate: multiply what was gathered with sigmoid(linear(query)), "element" by element or by one number per "head";
            by default neither.
        sink: the score of one more key, whose value is zero: a number for all heads, or "learned" for one per head that
            starts from 0. By default there is none.
        transform: what scores go through before the mapping, as in `attention`:
            `anymax.transforms.LengthScale((num_heads, 1, 1))` or `anymax.transforms.Softcap(50.0)`.

    Vaswani et al. 2017; with entmax: Correia et al. 2019; num_kv_heads: Ainslie et al. 2023; gate: Qiu et al. 2025;
    sink: Xiao et al. 2023.

    Example:
        >>> mapping = anymax.LearnedEntmax((4, 1, 1), initial=1.5)  # an alpha for each of 4 heads
        >>> layer = anymax.attention.MultiHeadAttention(16, 4, mapping=mapping)
        >>> layer(torch.randn(2, 5, 16), is_causal=True).sum().backward()
        >>> mapping.pre_alpha.grad.shape
        torch.Size([4, 1, 1])
        >>> layer.probs(torch.randn(2, 5, 16)).shape
        torch.Size([2, 4, 5, 5])
    """

    # Set by `capture`.
    watches: tuple[Watch, ...] = ()

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        mapping: Mapping | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        kv_dim: int | None = None,
        rotary: bool = False,
        num_kv_heads: int | None = None,
        gate: Gate | None = None,
        sink: float | Literal["learned"] | None = None,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or model_dim < 1 or model_dim % num_heads:
            raise ValueError(
                f"model_dim must be a multiple of num_heads, both at least 1, got {model_dim} and {num_heads}; "
                "every head gets an equal part"
            )
        if rotary and model_dim // num_heads % 2:
            raise ValueError(
                f"model_dim / num_heads must be even for rotary positions, got {model_dim} / {num_heads}; "
                "change num_heads"
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be between 0 and 1, got {dropout}")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads must be at least 1 and divide num_heads, got {num_kv_heads} for {num_heads}; "
                "each serves an equal number of heads"
            )
        if gate not in (None, "element", "head"):
            raise ValueError(f"gate must be 'element', 'head' or None, got {gate!r}")
        check_mapping(mapping, transform, sink)
        kv_dim = model_dim if kv_dim is None else kv_dim
        kv_width = model_dim // num_heads * num_kv_heads
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.dropout = dropout
        self.rotary = rotary
        self.mapping = mapping
        self.transform = transform
        self.query = nn.Linear(model_dim, model_dim, bias=bias)
        self.key = nn.Linear(kv_dim, kv_width, bias=bias)
        self.value = nn.Linear(kv_dim, kv_width, bias=bias)
        self.output = nn.Linear(model_dim, model_dim, bias=bias)
        self.gate: nn.Linear | None = None
        if gate is not None:
            self.gate = nn.Linear(model_dim, model_dim if gate == "element" else num_heads, bias=bias)
        self.sink = self._make_sink(sink)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.query, self.key, self.value):
            # As if the three were one layer of three times the width.
            nn.init.xavier_uniform_(layer.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.output.weight)
        layers = [self.query, self.key, self.value, self.output]
        if self.gate is not None:
            nn.init.xavier_uniform_(self.gate.weight)
            layers.append(self.gate)
        for layer in layers:
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if isinstance(self.sink, nn.Parameter):
            nn.init.zeros_(self.sink)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | CrossAttentionCache | None = None,
    ) -> Tensor:
        """What every query gathered, in the shape of `query`.

        Args:
            query: (batch, queries, model_dim).
            key: (batch, keys, kv_dim); by default the queries, which is self-attention.
            value: as `key`, and by default the same.
            mask: true where a query may attend to a key; broadcasts to (batch, heads, queries, keys), where the keys
                are those of the cache and the new ones. `expand_key_mask` makes one of the padding.
            is_causal: a query attends to its own position and earlier ones only.
            cache: for self-attention a KeyValueCache, the keys and values of the positions before the first query, to
                which the new ones are added; for cross-attention what `precompute` gave, with no key, value or mask.
        """
        start = 0
        kind: Kind = "encoder"
        if isinstance(cache, CrossAttentionCache):
            self._check_precomputed(query, key, value, mask, is_causal, cache)
            queries_BHQE, keys_BGKE, values_BGKE = self._heads(self.query(query)), cache.keys, cache.values
            mask, kind = cache.mask, "cross"
        else:
            self._check_inputs(query, key, value, cache)
            start = 0 if cache is None else cache.length
            queries_BHQE, keys_BGKE = self._queries_and_keys(query, key, start)
            values_BGKE = self._heads(self.value(_first(value, key, query)))
            if cache is not None:
                keys_BGKE, values_BGKE = cache.append(keys_BGKE, values_BGKE)
            if key is not None and key is not query:
                kind = "cross"
            elif is_causal or cache is not None:
                kind = "decoder"
        inputs = self._inputs(queries_BHQE, keys_BGKE, values_BGKE, mask, is_causal, start)
        gathered_BHQE = attend(inputs, _lead(inputs), self.mapping, self.sink, watch=watch_as(kind, self.watches))
        if self.gate is not None:
            open_BHQE = self.gate(query).sigmoid().unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            gathered_BHQE = gathered_BHQE * open_BHQE
        return self.output(gathered_BHQE.transpose(1, 2).flatten(2))

    def precompute(
        self, key: Tensor, value: Tensor | None = None, *, key_mask: Tensor | None = None
    ) -> CrossAttentionCache:
        """Keys and values for cross-attention, computed once, to be passed as `cache` with every query.

        Args:
            key: (batch, keys, kv_dim), an encoder's output.
            value: as `key`, and by default the same.
            key_mask: (batch, keys), true where a key may be attended to: false for padding.
        """
        if self.rotary:
            raise ValueError("rotary must be False to precompute keys, got True; it is for self-attention")
        value = _first(value, key)
        _check_vectors("key", key, self.key)
        _check_vectors("value", value, self.value)
        _check_pair(key, value)
        mask = None
        if key_mask is not None:
            batch, num_keys, _ = key.shape
            mask = _checked(expand_key_mask(key_mask), (batch, self.num_heads, 1, num_keys), key)
            mask = mask.expand(batch, 1, 1, num_keys)
        return CrossAttentionCache(self._heads(self.key(key)), self._heads(self.value(value)), mask)

    def probs(
        self, query: Tensor, key: Tensor | None = None, *, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Where every head looks: (batch, heads, queries, keys), without dropout; arguments as in `forward`."""
        self._check_inputs(query, key, None, None)
        queries_BHQE, keys_BGKE = self._queries_and_keys(query, key, 0)
        # Nothing is gathered, so the keys serve as values.
        inputs = self._inputs(queries_BHQE, keys_BGKE, keys_BGKE, mask, is_causal, 0)
        return probs_of_inputs(inputs, _lead(inputs), self.mapping, self.sink).to(query.dtype)

    def _queries_and_keys(self, query: Tensor, key: Tensor | None, start: int) -> tuple[Tensor, Tensor]:
        queries_BHQE = self._heads(self.query(query))
        keys_BGKE = self._heads(self.key(_first(key, query)))
        if self.rotary:
            return rotate(queries_BHQE, start=start), rotate(keys_BGKE, start=start)
        return queries_BHQE, keys_BGKE

    def _heads(self, vectors_BND: Tensor) -> Tensor:
        return vectors_BND.unflatten(-1, (-1, self.query.out_features // self.num_heads)).transpose(1, 2)

    def _inputs(
        self,
        queries_BHQE: Tensor,
        keys_BGKE: Tensor,
        values_BGKE: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        start: int,
    ) -> Inputs:
        num_queries, num_keys = queries_BHQE.shape[2], keys_BGKE.shape[2]
        if mask is not None:
            mask = _checked(mask, (*queries_BHQE.shape[:3], num_keys), queries_BHQE)
        if is_causal and num_keys != start + num_queries:
            raise ValueError(
                f"is_causal must be False where keys are not the positions of the queries, got {num_queries} queries "
                f"and {num_keys} keys; say what may be attended to by a mask"
            )
        inputs = Inputs(
            in_autocast(queries_BHQE),
            in_autocast(keys_BGKE),
            in_autocast(values_BGKE),
            mask,
            1 / math.sqrt(queries_BHQE.shape[-1]),
            float(self.dropout) if self.training else 0.0,
            start if is_causal else None,
        )
        return transformed(inputs, self.transform)

    def _make_sink(self, sink: float | Literal["learned"] | None) -> nn.Parameter | float | None:
        if sink == "learned":
            return nn.Parameter(torch.empty(self.num_heads))
        if sink is not None:
            if isinstance(sink, str):
                raise ValueError(f"sink must be a number, 'learned' or None, got {sink!r}")
            check_sink(sink)
        return sink

    def _check_inputs(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, cache: KeyValueCache | None
    ) -> None:
        keys, values = _first(key, query), _first(value, key, query)
        _check_vectors("query", query, self.query)
        _check_vectors("key", keys, self.key)
        _check_vectors("value", values, self.value)
        if keys.shape[0] != query.shape[0]:
            raise ValueError(f"key must have the batch of query, {query.shape[0]}, got {keys.shape[0]}")
        _check_pair(keys, values)
        if key is not None and key is not query and (cache is not None or self.rotary):
            which = "a cache" if cache is not None else "rotary positions"
            raise ValueError(f"key must be left out with {which}, got one; both are for self-attention")

    def _check_precomputed(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
        cache: CrossAttentionCache,
    ) -> None:
        _check_vectors("query", query, self.query)
        for name, tensor in (("key", key), ("value", value), ("mask", mask)):
            if tensor is not None:
                raise ValueError(f"{name} must be left out with a CrossAttentionCache, got one; give it to precompute")
        if is_causal:
            raise ValueError("is_causal must be False with a CrossAttentionCache, got True; it is for self-attention")
        wanted = (query.shape[0], self.num_kv_heads, self.query.out_features // self.num_heads)
        batch, num_heads, _, width = cache.keys.shape
        if (batch, num_heads, width) != wanted:
            raise ValueError(
                f"cache must have the batch, heads and width per head of the query, {wanted}, "
                f"got {(batch, num_heads, width)}; precompute it by this layer, and reorder it with the batch"
            )

    def extra_repr(self) -> str:
        parts = [f"num_heads={self.num_heads}, dropout={self.dropout}, rotary={self.rotary}"]
        if self.num_kv_heads != self.num_heads:
            parts.append(f"num_kv_heads={self.num_kv_heads}")
        if self.sink is not None:
            parts.append("sink='learned'" if isinstance(self.sink, nn.Parameter) else f"sink={self.sink}")
        return ", ".join(parts)


def expand_key_mask(key_mask: Tensor) -> Tensor:
    """A mask of keys per example in the shape that attention takes, (batch, 1, 1, keys).

    Args:
        key_mask: (batch, keys), true where a key may be attended to, as `ids != padding`. torch's `key_padding_mask`
            is its opposite.

    Example:
        >>> from anymax.attention import MultiHeadAttention, expand_key_mask
        >>> ids = torch.tensor([[5, 7, 3], [4, 0, 0]])  # 0 is padding
        >>> mask = expand_key_mask(ids != 0)
        >>> weights = MultiHeadAttention(16, 4).probs(torch.randn(2, 3, 16), mask=mask)
        >>> weights[1, :, :, 1:].sum().item()
        0.0
    """
    check_boolean(key_mask, "a key may be attended to")
    if key_mask.dim() != 2:
        raise ValueError(f"key_mask must be (batch, keys), got shape {tuple(key_mask.shape)}")
    return key_mask[:, None, None]


def _first(*tensors: Tensor | None) -> Tensor:
    return next(tensor for tensor in tensors if tensor is not None)


def _lead(inputs: Inputs) -> torch.Size:
    return inputs.query_BHQE.shape[:2]


def _checked(mask: Tensor, shape: tuple[int, ...], query: Tensor) -> Tensor:
    check_boolean(mask, "a query may attend to a key")
    check_device("mask", mask, query, "query")
    whole = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(whole) != 4 or any(size not in (1, wanted) for size, wanted in zip(whole, shape, strict=True)):
        raise ValueError(
            f"mask must broadcast to (batch, heads, queries, keys), here {shape}, got {tuple(mask.shape)}; "
            "a mask of keys per example has shape (batch, 1, 1, keys)"
        )
    return mask.reshape(whole)


def _check_vectors(name: str, vectors: Tensor, layer: nn.Linear) -> None:
    if vectors.dim() != 3 or vectors.shape[-1] != layer.in_features:
        raise ValueError(f"{name} must be (batch, positions, {layer.in_features}), got shape {tuple(vectors.shape)}")


def _check_pair(key: Tensor, value: Tensor) -> None:
    if key.shape[:2] != value.shape[:2]:
        raise ValueError(
            f"value must have the batch and positions of key, {tuple(key.shape[:2])}, got {tuple(value.shape[:2])}"
        )
