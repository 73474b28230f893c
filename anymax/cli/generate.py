"""`anymax generate RUN "text"`: continue a text with a trained language model."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from anymax.checks import check_counts
from anymax.cli.progress import say

_Unset = arg(metavar="NUMBER", help_behavior_hint="(default: no limit)")


def generate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    text: Annotated[Positional[str], arg(metavar="TEXT", help_behavior_hint="(default: the start of a line)")] = "",
    *,
    num_tokens: int = 100,
    temperature: float = 1.0,
    top_k: Annotated[int | None, _Unset] = None,
    top_p: Annotated[float | None, _Unset] = None,
    seed: int = 1,
    samples: int = 1,
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the best)")] = None,
) -> int:
    """Continue a text with the model of a run.

    Args:
        run: the folder of the run.
        text: what the model continues.
        num_tokens: how many words, or pieces of words, to add.
        temperature: below 1 likely words become likelier, above 1 rare ones.
        top_k: draw among so many of the likeliest words; 1 takes the best each time.
        top_p: draw among the fewest likeliest words that together have this probability.
        seed: decides the draws.
        samples: how many continuations.
        step: the checkpoint to use.
    """
    texts = continued(
        run,
        text,
        num_tokens=num_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        samples=samples,
        step=step,
    )
    for number, continuation in enumerate(texts):
        if number:
            say("---")
        say(continuation)
    return 0


def continued(
    run: Path,
    text: str,
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 1,
    samples: int = 1,
    step: int | None = None,
) -> list[str]:
    """Texts that begin with `text`; arguments as in `generate`."""
    import torch

    from anymax.models import generate as draw
    from anymax.training.tasks.language_modeling.task import open_model

    check_counts(samples=samples)
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a whole number of 64 bits, got {seed}")
    model, units = open_model(run, "best" if step is None else step)
    eos = units.lexicon.eos
    # A model has read the end of the line before, whatever it continues.
    prompt = torch.tensor([[eos, *units.encode_line(text)]] * samples)
    ids = draw(
        model,
        prompt,
        num_tokens=num_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        generator=torch.Generator().manual_seed(seed),
    )
    return [units.text(row[1:]) for row in ids]
