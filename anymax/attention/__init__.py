"""Multi-head attention in which any mapping can stand where softmax stands, positions, and a cache for decoding."""

from anymax.attention.cache import KeyValueCache
from anymax.attention.multi_head import MultiHeadAttention
from anymax.attention.positions import rotate, sinusoids

__all__ = ["KeyValueCache", "MultiHeadAttention", "rotate", "sinusoids"]
