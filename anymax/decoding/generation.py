"""Text drawn from a language model, word by word, with every position computed once."""

from collections.abc import Collection

import torch
from torch import Tensor

from anymax.decoding.sampling import check_sampling, draw_allowed, draw_next
from anymax.models.language_model.model import LanguageModel, evaluating
from anymax.vocabulary import OutputLayer


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt_ids: Tensor,
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    stop: int | None = None,
    banned: Collection[int] = (),
    otherwise: int | None = None,
) -> Tensor:
    """Continue prompts by `num_tokens` words each; gives (batch, prompt and new words).

    Dropout is off while it runs. Without `top_k`, `top_p` and `banned`, and at temperature 1, an adaptive output
    computes only the tails that it draws from; with `top_k` alone, only those that can hold one of the best words.

    Args:
        model: a language model.
        prompt_ids: (batch, positions), all of one length.
        num_tokens: the words to add to each prompt.
        temperature: log-probabilities are divided by it first; below 1 likely words become likelier.
        top_k: sample among the `top_k` likeliest words; 1 takes the best.
        top_p: draw among the fewest likeliest words that together have at least this probability, of those that `top_k`
            leaves.
        generator: where the randomness comes from; by default torch's own.
        stop: a word that ends a text. What follows it is filled with it, and where all texts have ended the
            result ends early.
        banned: words that are never drawn, such as <unk>.
        otherwise: the word that is drawn where only banned ones have a probability, as a sparse output may leave it; to
            be given with `banned`.

    Example:
        >>> from anymax.decoding import generate
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(10, 8), FullOutput(10, 8), LSTMConfig(8, 8))
        >>> texts = generate(model, torch.tensor([[3, 4], [5, 6]]), num_tokens=5, temperature=0.8, top_p=0.9)
        >>> texts.shape, texts[:, :2].tolist()
        (torch.Size([2, 7]), [[3, 4], [5, 6]])
    """
    _check(model.output, prompt_ids, num_tokens, temperature, top_k, top_p, stop)
    _check_banned(model.output.vocabulary_size, banned, otherwise)
    state = model.start(prompt_ids, max_length=num_tokens)
    texts, ids = [prompt_ids], prompt_ids[:, -1]
    is_over = prompt_ids.new_zeros(prompt_ids.shape[0], dtype=torch.bool)
    with evaluating(model):
        for _ in range(num_tokens):
            hidden, state = model.next(ids, state)
            if otherwise is None:
                words = draw_next(
                    model.output, hidden, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator
                )
            else:
                words, is_stuck = draw_allowed(
                    model.output.log_probs(hidden),
                    list(banned),
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    generator=generator,
                )
                words = words.masked_fill(is_stuck, otherwise)
            if stop is not None:
                words = words.masked_fill(is_over, stop)
                is_over |= words == stop
            ids = words.to(prompt_ids.dtype)
            texts.append(ids[:, None])
            if stop is not None and bool(is_over.all()):
                break
    return torch.cat(texts, 1)


def _check(
    output: OutputLayer,
    prompt_ids: Tensor,
    num_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop: int | None,
) -> None:
    size = output.vocabulary_size
    if prompt_ids.dim() != 2 or prompt_ids.shape[1] == 0:
        raise ValueError(
            f"prompt_ids must be (batch, positions) with at least one position, got shape {tuple(prompt_ids.shape)}; "
            "begin with the word that ends a text where there is no prompt"
        )
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
    check_sampling(size, temperature, top_k, top_p)
    if stop is not None and not 0 <= stop < size:
        raise ValueError(f"stop must be a word of the vocabulary, from 0 to {size - 1}, got {stop}")


def _check_banned(size: int, banned: Collection[int], otherwise: int | None) -> None:
    """Refuse words that are not there, and a ban without what to draw instead."""
    if bool(banned) != (otherwise is not None) or otherwise in banned:
        raise ValueError(
            f"otherwise must be given with banned, and be another word, got {otherwise} with banned {list(banned)}; "
            "give the word that ends a line"
        )
    wrong = [word for word in (*banned, *([] if otherwise is None else [otherwise])) if not 0 <= word < size]
    if wrong:
        raise ValueError(f"banned and otherwise must be words of the vocabulary, from 0 to {size - 1}, got {wrong[0]}")
