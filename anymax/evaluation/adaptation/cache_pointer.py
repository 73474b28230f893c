"""The neural cache: a word is likelier where it stood after a similar vector not long ago.

    p(word) = (1 - weight) p_model(word) + weight sum over i of softmax(theta hidden . hidden_i)_i [word_i = word]

over the last `window` positions i, each with the vector that the output layer read there and the word that followed.
Shapes: B rows of a call, T positions of each, P positions, Q of them at a time, K keys (words remembered and those of
the block itself), D the width of hidden vectors, V words.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.data.batches.batches import IGNORE_INDEX
from anymax.evaluation.adaptation.config import CachePointer
from anymax.evaluation.perplexity.scoring import language_model

# Queries, and queries x keys, that are alive at once.
MOST_QUERIES, BLOCK_SCORES = 1024, 2**22


class CachedModel(nn.Module):
    """A language model with a cache of its own text: give it to `perplexity` in place of the model, once.

    It remembers what it was given from call to call, so that every text needs a new one. The text must come in order,
    in one row where the model carries a state.

    Args:
        model: a language model, or what wraps one, whose output is a likelihood.
        cache: its size and its share.
        num_tokens: how many tokens the text has; more than the window.

    Grave et al. 2017.

    Example:
        >>> from anymax.evaluation import CachedModel, CachePointer, Windows, perplexity
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> tokens = torch.tensor([3, 4, 0] * 20)  # the same line again and again
        >>> cached = CachedModel(model, CachePointer(window=30, weight=0.5), num_tokens=len(tokens))
        >>> perplexity(cached, tokens, Windows(8), eos=0).loss < perplexity(model, tokens, Windows(8), eos=0).loss
        True
    """

    def __init__(self, model: nn.Module, cache: CachePointer, *, num_tokens: int) -> None:
        super().__init__()
        self.model = language_model(model)
        if not self.model.output.is_likelihood:
            raise ValueError(
                f"model must have an output that is a likelihood to mix its probabilities with a cache, got "
                f"{type(self.model.output).__name__}; dynamic evaluation adapts any output"
            )
        if cache.window >= num_tokens:
            raise ValueError(
                f"window must be less than the {num_tokens} tokens of the text, got {cache.window}; lower it"
            )
        self.cache = cache
        self.num_tokens = num_tokens
        self.memory = Memory(cache)

    @torch.no_grad()
    def forward(self, ids_BT: Tensor, target_BT: Tensor, reduction: str = "none", state: Any = None) -> Tensor:
        """The loss of every word, as the model itself gives it, zero where the target is ignored."""
        if reduction != "none":
            raise ValueError(f"reduction must be 'none' for a model with a cache, got {reduction!r}; average later")
        if self.model.carries_state and len(ids_BT) != 1:
            raise ValueError(f"ids must be one row where a state is carried, got {len(ids_BT)}; score with rows=1")
        hidden_BTD, counted_BT = self.model.hidden(ids_BT, state), target_BT != IGNORE_INDEX
        hidden_PD, words_P = hidden_BTD[counted_BT], target_BT[counted_BT]
        if self.memory.num_seen + len(words_P) > self.num_tokens:
            raise ValueError(f"the text must have the {self.num_tokens} tokens announced, got more; make a new model")
        of_model_P = self.model.output.log_prob(hidden_PD, words_P)
        losses_BT = of_model_P.new_zeros(target_BT.shape)
        losses_BT[counted_BT] = -torch.cat(
            [self._mixed(*part) for part in self._blocks(hidden_PD, words_P, of_model_P)] or [of_model_P]
        )
        return losses_BT

    def _mixed(self, hidden_QD: Tensor, words_Q: Tensor, of_model_Q: Tensor) -> Tensor:
        attended = self.memory.attend(hidden_QD, words_Q)
        return mix(of_model_Q, attended.log_prob(words_Q), attended.is_open_Q, self.cache.weight)

    def _blocks(self, *parts_P: Tensor) -> Iterator[tuple[Tensor, ...]]:
        size = max(1, min(MOST_QUERIES, BLOCK_SCORES // self.cache.window))
        return zip(*(part.split(size) for part in parts_P), strict=True)


class Attended(NamedTuple):
    """How much every query looks at every key; the words of keys that it may not see have weight zero."""

    log_weights_QK: Tensor
    """Log-probabilities, minus infinity where a query may not look; a query without keys has no others."""
    words_K: Tensor
    """The word that followed each key."""
    is_open_Q: Tensor
    """Which queries have a cache to look at."""

    def log_prob(self, words_Q: Tensor) -> Tensor:
        """The cache's log-probability of one word for each query, minus infinity where it does not hold the word."""
        is_other_QK = self.words_K[None] != words_Q[:, None]
        return self.log_weights_QK.masked_fill(is_other_QK, -math.inf).logsumexp(-1)

    def probs(self, vocabulary_size: int) -> Tensor:
        """The cache's probability of every word, (queries, words), zero everywhere for a query without a cache."""
        probs_QV = self.log_weights_QK.new_zeros(len(self.log_weights_QK), vocabulary_size)
        return probs_QV.index_add_(1, self.words_K, self.log_weights_QK.exp())


class Memory:
    """The last vectors and the words that followed them."""

    def __init__(self, cache: CachePointer) -> None:
        self.cache = cache
        self.num_seen = 0
        self._hidden_KD: Tensor | None = None
        self._words_K: Tensor | None = None

    def attend(self, hidden_QD: Tensor, words_Q: Tensor) -> Attended:
        """Look from each of the next positions at those before it, then remember them with the words that follow."""
        keys_KD = hidden_QD if self._hidden_KD is None else torch.cat([self._hidden_KD, hidden_QD])
        words_K = words_Q if self._words_K is None else torch.cat([self._words_K, words_Q])
        num_before = len(keys_KD) - len(hidden_QD)
        queries_Q1 = torch.arange(num_before, len(keys_KD), device=keys_KD.device)[:, None]
        distance_QK = queries_Q1 - torch.arange(len(keys_KD), device=keys_KD.device)
        is_seen_QK = (distance_QK > 0) & (distance_QK <= self.cache.window)
        positions_Q = torch.arange(self.num_seen, self.num_seen + len(words_Q), device=keys_KD.device)
        is_open_Q = positions_Q > (self.cache.window if self.cache.only_full else 0)
        scores_QK = (self.cache.theta * (hidden_QD @ keys_KD.T)).masked_fill(~is_seen_QK, -math.inf)
        # A row without any key would be not a number.
        is_blind_Q1 = ~is_seen_QK.any(1, keepdim=True)
        log_weights_QK = scores_QK.masked_fill(is_blind_Q1, 0).log_softmax(-1).masked_fill(~is_seen_QK, -math.inf)
        self._hidden_KD, self._words_K = keys_KD[-self.cache.window :], words_K[-self.cache.window :]
        self.num_seen += len(words_Q)
        return Attended(log_weights_QK, words_K, is_open_Q)


def mix(of_model: Tensor, of_cache: Tensor, is_open_Q: Tensor, weight: float) -> Tensor:
    """The log-probabilities of the mixture; those of the model where there is no cache to look at.

    Args:
        of_model, of_cache: log-probabilities of one shape, with queries in the first dimension.
    """
    log_weight = math.log(weight) if weight else -math.inf
    mixed = torch.logaddexp(of_model + math.log1p(-weight), of_cache + log_weight)
    return torch.where(is_open_Q.reshape(-1, *[1] * (of_model.dim() - 1)), mixed, of_model)
