"""Dropout of single entries in plain torch: the definition the other backends are held to. Runs on every device.

Entry i of a row is kept if its 32 random bits, read as a number, reach the threshold rate 2^32. With i = 2^32 w + j and
all arithmetic modulo 2^32, the bits are

    x = k0 + j * 0x9e3779b9
    x = (x ^ x >> 16) * 0x7feb352d ^ k1
    x = (x ^ x >> 14) * 0x846ca68b

where k0 and k1 are the low and the high half of number w of the generator SplitMix64 started at the seed. Every step is
one-to-one, so of the 2^32 entries of a word exactly as many are dropped as the threshold says.
Shapes: R rows of N entries, one seed per row.
"""

import torch
from torch import Tensor

from anymax.kernels.rows import computed_in

_WORD = 2**32
_LOW = _WORD - 1


def why_unsupported(entries: Tensor) -> str | None:
    return None


def forward(entries_RN: Tensor, seed_R: Tensor, rate: float, first: int = 0) -> Tensor:
    """Entries that are kept, divided by the share that is kept, and zeros.

    Args:
        first: the number of the first entry in its row, for rows that come in pieces.
    """
    wide_RN = entries_RN.to(computed_in(entries_RN.dtype))
    kept_RN = random_bits(seed_R, first, entries_RN.shape[1]) >= threshold(rate)
    return torch.where(kept_RN, wide_RN * scale(rate), 0).to(entries_RN.dtype)


def threshold(rate: float) -> int:
    """How many of the 2^32 values of the random bits drop an entry."""
    return round(rate * _WORD)


def scale(rate: float) -> float:
    """What a kept entry is multiplied with, so that the mean is right for the threshold; zero where none is kept."""
    num_kept = _WORD - threshold(rate)
    return _WORD / num_kept if num_kept else 0.0


def random_bits(seed_R: Tensor, first: int, count: int) -> Tensor:
    """The bits of `count` entries of each row, as int64 below 2^32."""
    last = first + count
    starts = [first, *range((first // _WORD + 1) * _WORD, last, _WORD)]
    pieces = [_bits_of_word(seed_R, start, end - start) for start, end in zip(starts, [*starts[1:], last], strict=True)]
    return torch.cat(pieces, 1)


def _bits_of_word(seed_R: Tensor, first: int, count: int) -> Tensor:
    """The same for entries whose numbers differ in the low 32 bits alone. A product wraps, which leaves those right."""
    word, low = divmod(first, _WORD)
    key_R1 = _split_mix(seed_R[:, None], word)
    number_N = torch.arange(low, low + count, device=seed_R.device)
    x_RN = number_N * 0x9E3779B9 + (key_R1 & _LOW) & _LOW
    x_RN = (x_RN ^ x_RN >> 16) * 0x7FEB352D & _LOW ^ _shift(key_R1, 32)
    return (x_RN ^ x_RN >> 14) * 0x846CA68B & _LOW


def _split_mix(seed: Tensor, position: int) -> Tensor:
    """Number `position` of the generator SplitMix64 (Steele et al. 2014), 64 bits that are any int64."""
    z = seed + _signed((position + 1) * 0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(bits: Tensor, by: int) -> Tensor:
    """To the right, with zeros for the sign."""
    return bits >> by & (1 << 64 - by) - 1


def _signed(number: int) -> int:
    """The int64 with the low 64 bits of a number."""
    return (number + 2**63) % 2**64 - 2**63
