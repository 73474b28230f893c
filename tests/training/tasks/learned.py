"""Whether translators learn to copy and to reverse: `python -m tests.training.tasks.learned`, three seeds of each.

Prints BLEU on sentences that were never seen, and fails where one is below 98.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from anymax.recipes import find
from anymax.training import open_run, train

ENOUGH = 98.0
SEEDS = (1, 2, 3)


def bleu_of(recipe: str, folder: Path, *, seed: int) -> float:
    """What a recipe reaches on its test split, trained as it stands on one thread."""
    train(replace(find(recipe)(), seed=seed, threads=1, device="cpu"), folder)
    return open_run(folder).task.report("test", announce=lambda _: None).scores["bleu"].value


def main() -> int:
    reached = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in ("drawn.copy", "drawn.reverse"):
            for seed in SEEDS:
                reached.append(bleu_of(recipe, Path(folder) / f"{recipe}-{seed}", seed=seed))
                print(f"{recipe} seed {seed}: {reached[-1]:.2f} BLEU", flush=True)
    return int(min(reached) < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
