"""`anymax analyze QUESTION`: what the choice did; one function per question, torch imported by the one that runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from anymax.checks import check_counts
from anymax.cli.console import publish
from anymax.cli.progress import Announcer, say
from anymax.training.config import RunConfig
from anymax.training.run_folder.folder import ANALYSES
from anymax.training.run_folder.lock import locked
from anymax.training.tasks.dirichlet.config import DirichletConfig

app = SubcommandApp()

_AsRecipes = arg(metavar="NUMBER", help_behavior_hint="(default: as the recipes have it)")
_Outputs = arg(metavar="OUTPUT ...", help_behavior_hint="(default: all)")
_Best = arg(metavar="STEP", help_behavior_hint="(default: the best)")
_Words = arg(metavar="WORD ...", help_behavior_hint="(default: who what when where and their like)")
_Refused = arg(metavar="FLOAT", help_behavior_hint="(default: minus infinity is refused)")


@app.command
def bottleneck(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    split: Literal["valid", "test"] = "test",
    contexts: int = 4000,
    words: int = 2000,
    most: int = 20,
    tolerance: Literal["press", "numpy"] | float = "press",
    clamp: Annotated[float | None, _Refused] = None,
    step: Annotated[int | None, _Best] = None,
) -> int:
    """The rank of a model's log-probabilities, what it chooses, and which words lose to a small rank.

    The answer is written to the folder `analyses` of the run, with a picture where matplotlib is installed.

    Args:
        run: the folder of the run.
        split: the part of the corpus to look at, from its front.
        contexts: how many tokens of it to look at.
        words: how many of the most frequent words to look at.
        most: how many of the words that lose to name.
        tolerance: singular values above it count; a rule that makes it, or the number itself.
        clamp: raise log-probabilities below it, which sparse outputs need.
        step: the checkpoint to look at.
    """
    from anymax.analysis.bottleneck import page as report
    from anymax.analysis.bottleneck.measure import measure_bottleneck
    from anymax.training.tasks.language_modeling.task import open_task

    with Announcer() as announce:
        measured = measure_bottleneck(
            open_task(run, step, announce=announce),
            split,
            contexts=contexts,
            words=words,
            most=most,
            tolerance=tolerance,
            clamp=clamp,
            announce=announce,
        )
    folder = run / ANALYSES
    folder.mkdir(exist_ok=True)
    name = f"bottleneck-{split}"
    publish(report.page(measured), data=folder / f"{name}.json", figures=folder / f"{name}.png")
    return 0


@app.command
def heads(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    split: Literal["valid", "test"] = "valid",
    limit: int = 200,
    seed: int = 1,
    word_class: Annotated[tuple[str, ...], _Words] = (),
    token: str = "?",
    whole_words: bool = False,
    most: int = 3,
    step: Annotated[int | None, _Best] = None,
) -> int:
    """What the heads of attention do: learned alphas, how many keys they keep, how they differ, and which have a role.

    A head may look at the position before, at its own or at the next, put the subwords of a word together, or look from
    words of some class at some token. The answer is written to the folder `analyses` of the run, with pictures where
    matplotlib is installed: densities, alphas over training, and the sentences that show each role best.

    Args:
        run: the folder of the run.
        split: the part of the corpus to look at.
        limit: how many examples of it to look at, at most.
        seed: which examples, where there are more.
        word_class: words from which heads may look at the token.
        token: the word that they may look at.
        whole_words: of heads that put subwords together, count whole words too, by their weight on themselves.
        most: how many sentences to draw for each role.
        step: the checkpoint to look at.
    """
    from anymax.analysis.heads import page as report
    from anymax.analysis.heads.roles import INTERROGATIVES, usual_roles
    from anymax.analysis.heads.study import study_heads
    from anymax.training import open_run

    roles = usual_roles(word_class or INTERROGATIVES, token, whole_words=whole_words)
    with Announcer() as announce:
        task = open_run(run, step=step, announce=announce).task
        found = study_heads(task, run, split, limit=limit, seed=seed, roles=roles, most=most, announce=announce)
    folder = run / ANALYSES
    folder.mkdir(exist_ok=True)
    name = f"heads-{split}"
    # Another time there may be fewer roles to draw.
    for picture in folder.glob(f"{name}-[0-9]*.png"):
        picture.unlink()
    publish(report.page(found, run.name), data=folder / f"{name}.json", figures=folder / f"{name}.png")
    return 0


@app.command
def latent(run: Annotated[Positional[Path], arg(metavar="RUN")], *, step: Annotated[int | None, _Best] = None) -> int:
    """What a discrete latent does: the images it makes or tells apart, its messages, and how it became sparse.

    The picture is drawn to the folder `analyses` of the run, and needs matplotlib.

    Args:
        run: the folder of the run.
        step: the checkpoint to look at.
    """
    from anymax.analysis.latents import draw
    from anymax.training import open_run

    say(f"Wrote {draw(open_run(run, step=step).task, run)}")
    return 0


@app.command
def dirichlet(
    *,
    dims: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128),
    concentrations: tuple[float, ...] = (0.01, 0.1, 1.0),
    seeds: int = 5,
    outputs: Annotated[tuple[str, ...], _Outputs] = (),
    contexts: Annotated[int | None, _AsRecipes] = None,
    words: Annotated[int | None, _AsRecipes] = None,
    steps: Annotated[int | None, _AsRecipes] = None,
    jobs: int = 1,
    folder: Path = Path("dirichlet"),
) -> int:
    """Which outputs reach distributions drawn at random, at which dimension: all recipes of `dirichlet` over a grid.

    The folder gets a page, a picture where matplotlib is installed, all numbers as JSON, and the trainings.
    Those that are done are not done again, and one that was stopped continues: run the same command again.

    Args:
        dims: how many numbers the vectors of contexts and words have.
        concentrations: of the Dirichlet distributions; a small one gives most of the probability to few words.
        seeds: how many seeds, from 1; each draws other distributions, the same for all outputs.
        outputs: only these, as linear plif.
        contexts: how many distributions.
        words: over how many words.
        steps: how long each trains.
        jobs: how many train at the same time, on one thread each.
        folder: where all of it goes.
    """
    from anymax.analysis.dirichlet import page as report
    from anymax.analysis.dirichlet import study as study

    recipes = _dirichlet_recipes(outputs, contexts, words, steps)
    check_counts(seeds=seeds, jobs=jobs, dims=len(dims), concentrations=len(concentrations))
    runs = study.plan(recipes, folder, dims=dims, concentrations=concentrations, seeds=range(1, seeds + 1))
    given = {"dims": dims, "concentrations": concentrations, "seeds": seeds, "outputs": outputs, "contexts": contexts}
    command = _command("dirichlet", {**given, "words": words, "steps": steps})
    with locked(folder):
        with Announcer() as announce:
            study.train_all(runs, jobs=jobs, announce=announce)
            results, untrained = list(study.read_results(runs)), list(study.without_training(runs))
        page, file = report.page(results, untrained, command), folder / "dirichlet.md"
        publish(page, markdown=file, data=file.with_suffix(".json"), figures=file.with_suffix(".png"))
    return 0


def _command(question: str, options: Mapping[str, object]) -> str:
    """The command that asks a question with the options that were chosen."""
    words = ["anymax", "analyze", question]
    for name, value in options.items():
        values = list(value) if isinstance(value, tuple) else [] if value is None else [value]
        words += [f"--{name}", *map(str, values)] if values else []
    return shlex.join(words)


def _dirichlet_recipes(
    outputs: Sequence[str], contexts: int | None, words: int | None, steps: int | None
) -> dict[str, RunConfig]:
    """The recipes of the experiment by the names of their outputs, with the sizes that were given."""
    from anymax.recipes import find, names

    known = [name.partition(".")[2] for name in names() if name.startswith("dirichlet.")]
    unknown = [output for output in outputs if output not in known]
    if unknown:
        raise ValueError(f"outputs must be among {', '.join(known)}, got {', '.join(unknown)}")
    found = {output: find(f"dirichlet.{output}")() for output in outputs or known}
    sizes: dict[str, Any] = {"num_contexts": contexts, "num_words": words}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    return {
        output: replace(
            config,
            task=replace(DirichletConfig.of(config.task), **sizes),
            steps=config.steps if steps is None else steps,
        )
        for output, config in found.items()
    }
