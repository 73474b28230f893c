"""`anymax generate RUN "text"`: continue a text with a trained language model."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from anymax.cli.console import complain
from anymax.cli.progress import say
from anymax.training.run_folder.folder import read_config
from anymax.training.task_config import Sampling

_Unset = arg(metavar="NUMBER", help_behavior_hint="(default: no limit)")


def generate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    text: Annotated[Positional[str], arg(metavar="TEXT", help_behavior_hint="(default: the start of a line)")] = "",
    *,
    num_tokens: int = 100,
    temperature: float = Sampling.temperature,
    top_k: Annotated[int | None, _Unset] = Sampling.top_k,
    top_p: float | None = Sampling.top_p,
    seed: int = Sampling.seed,
    samples: int = Sampling.samples,
    unknown: bool = Sampling.unknown,
    step: Annotated[int | None, arg(metavar="STEP", help_behavior_hint="(default: the best)")] = None,
) -> int:
    """Continue a text with the model of a run.

    Words are drawn among the likely ones; --temperature 1 --top-p 1 draws by the probabilities of the model alone.

    Args:
        run: the folder of the run.
        text: what the model continues.
        num_tokens: the words or subwords to add.
        temperature: below 1 likely words become likelier, above 1 rare ones.
        top_k: sample from this many of the likeliest words; 1 is greedy.
        top_p: sample from the fewest likeliest words that together have this probability.
        seed: of the random numbers.
        samples: how many continuations.
        unknown: let the model write "<unk>", which stands for all words that it does not know.
        step: the checkpoint to use.
    """
    sampling = Sampling(num_tokens, temperature, top_k, top_p, seed, samples, unknown)
    texts = read_config(run).task.continue_text(run, text, sampling, step=step, remark=complain)
    for number, continuation in enumerate(texts):
        if number:
            say("---")
        say(continuation)
    limits = "".join(
        f" --{name} {value:g}" for name, value in (("top-k", top_k), ("top-p", top_p)) if value is not None
    )
    complain(f"sampled with --temperature {temperature:g}{limits} --seed {seed}; --seed {seed + 1} writes another text")
    return 0
