"""Multi-head attention in which any mapping can stand where softmax stands, positions, and caches for decoding."""

from anymax.attention.cache import CrossAttentionCache, KeyValueCache
from anymax.attention.multi_head import MultiHeadAttention, expand_key_mask
from anymax.attention.positions import rotate, sinusoids

__all__ = ["CrossAttentionCache", "KeyValueCache", "MultiHeadAttention", "expand_key_mask", "rotate", "sinusoids"]
