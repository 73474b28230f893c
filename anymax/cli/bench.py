"""`anymax bench SUBJECT`: measure, show the tables, and write them down where asked."""

from __future__ import annotations

import importlib.util
import itertools
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from tyro.conf import arg
from tyro.extras import SubcommandApp

from anymax.cli.console import Console, publish

if TYPE_CHECKING:
    from anymax.bench.harness.report import Report

app = SubcommandApp()

_Flag = arg(help_behavior_hint="")
_Threads = arg(metavar="INT", help_behavior_hint="(default: torch's own number)")
_File = arg(metavar="PATH", help_behavior_hint="")
_Corpus = arg(metavar="NAME|PATH", help_behavior_hint="(default: words drawn by Zipf's law)")


@app.command
def mappings(
    *,
    quick: Annotated[bool, _Flag] = False,
    scales: tuple[float, ...] = (1.0,),
    threads: Annotated[int | None, _Threads] = None,
    peers: Annotated[bool, _Flag] = True,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Entmax at several alphas against torch.softmax and the entmax package, forward and backward.

    Args:
        quick: half a minute in all, with fewer rows and rounds.
        scales: standard deviations of the scores; 0.2 makes wide supports, 4 narrow ones.
        threads: threads that torch and the kernels use.
        peers: leave the entmax package out.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench import mappings as cases

    make = cases.quick if quick else cases.Settings
    settings = make(scales=scales, threads=threads, peers=peers)
    words = ["--scales", *(f"{scale:g}" for scale in scales), "" if peers else "--no-peers"]
    _run(cases.measure, settings, _command("mappings", quick, threads, *words), output, json)
    return 0


@app.command
def outputs(
    *,
    quick: Annotated[bool, _Flag] = False,
    threads: Annotated[int | None, _Threads] = None,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Losses of output layers, and input layers, against torch's: time and memory, forward and backward.

    Args:
        quick: half a minute in all, with fewer tokens, words and rounds; the whole takes about ten minutes.
        threads: threads that torch and the kernels use.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench import outputs as cases

    settings = cases.quick(threads) if quick else cases.Settings(threads=threads)
    _run(cases.measure, settings, _command("outputs", quick, threads), output, json)
    return 0


@app.command
def growth(
    *,
    quick: Annotated[bool, _Flag] = False,
    threads: Annotated[int | None, _Threads] = None,
    plot: Annotated[Path | None, _File] = None,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Full, sparse and adaptive outputs over vocabularies from a thousand to 800 thousand words.

    Args:
        quick: half a minute in all, up to thirty thousand words.
        threads: threads that torch and the kernels use.
        plot: draw time and memory against the vocabulary; needs matplotlib.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    for option, path in (("--plot", plot), ("--output", output), ("--json", json)):
        _check_writable(option, path)
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib, which is not installed; pip install 'anymax[plot]'")
    from anymax.bench import growth as cases

    settings = cases.quick(threads) if quick else cases.Settings(threads=threads)
    measured = _run(cases.measure, settings, _command("growth", quick, threads), output, json)
    if plot is not None:
        cases.figure(measured).save(plot)
        Console().print(f"Wrote {plot}", soft_wrap=True)
    return 0


@app.command
def training(
    *,
    quick: Annotated[bool, _Flag] = False,
    corpus: Annotated[str | None, _Corpus] = None,
    threads: Annotated[int | None, _Threads] = None,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Whole training steps of language models and translators: adaptive layers, entmax in heads, and plain torch.

    Args:
        quick: half a minute in all, with fewer tokens, words and rounds; the whole takes about eight minutes.
        corpus: language models learn from a corpus, by its name, its folder or its file.
        threads: threads that torch and the kernels use.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench.training import benchmark as cases

    make = cases.quick if quick else cases.Settings
    settings = make(corpus=corpus, threads=threads)
    command = _command("training", quick, threads, "" if corpus is None else f"--corpus {shlex.quote(corpus)}")
    _run(cases.measure, settings, command, output, json)
    return 0


@app.command
def recurrent(
    *,
    quick: Annotated[bool, _Flag] = False,
    threads: Annotated[int | None, _Threads] = None,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Training steps of AWD-LSTMs: regularizers, a mixture of softmaxes, drawn lengths and masks against plain torch.

    Args:
        quick: half a minute in all, with narrower networks, fewer words and rounds; the whole takes about five minutes.
        threads: threads that torch and the kernels use.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench.recurrent import benchmark as cases
    from anymax.bench.recurrent import settings as recurrent_settings

    settings = recurrent_settings.quick(threads) if quick else recurrent_settings.Settings(threads=threads)
    _run(cases.measure, settings, _command("recurrent", quick, threads), output, json)
    return 0


@app.command
def latent(
    *,
    quick: Annotated[bool, _Flag] = False,
    threads: Annotated[int | None, _Threads] = None,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Discrete latents: training steps with each estimator, sparse against dense sums, SparseMAP against loops.

    Args:
        quick: half a minute in all, with smaller batches and fewer rounds; the whole takes about four minutes.
        threads: threads that torch and the kernels use.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench.latent import benchmark as cases
    from anymax.bench.latent import settings as latent_settings

    settings = latent_settings.quick(threads) if quick else latent_settings.Settings(threads=threads)
    _run(cases.measure, settings, _command("latent", quick, threads), output, json)
    return 0


@app.command
def attention(
    *,
    quick: Annotated[bool, _Flag] = False,
    device: Literal["cpu", "cuda"] = "cpu",
    precision: Literal["float32", "bfloat16", "float16"] = "float32",
    threads: Annotated[int | None, _Threads] = None,
    peers: Annotated[bool, _Flag] = True,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Attention by entmax against torch's attention and the entmax package: time and memory, forward and backward.

    Args:
        quick: half a minute in all, with shorter sequences and fewer rounds; the whole takes about six minutes.
        device: where everything runs.
        precision: of queries, keys and values; whole training steps run under autocast.
        threads: threads that torch and the kernels use.
        peers: leave the entmax package out.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench.attention import benchmark as cases
    from anymax.bench.attention import settings as attention_settings

    make = attention_settings.quick if quick else attention_settings.Settings
    settings = make(device=device, precision=precision, threads=threads, peers=peers)
    words = [
        "" if device == "cpu" else f"--device {device}",
        "" if precision == "float32" else f"--precision {precision}",
    ]
    words.append("" if peers else "--no-peers")
    _run(cases.measure, settings, _command("attention", quick, threads, *words), output, json)
    return 0


@app.command
def decoding(
    *,
    quick: Annotated[bool, _Flag] = False,
    threads: Annotated[int | None, _Threads] = None,
    output: Annotated[Path | None, _File] = None,
    json: Annotated[Path | None, _File] = None,
) -> int:
    """Beam search in batches against one sentence at a time, and whether both find the same.

    Args:
        quick: half a minute in all, with smaller models and fewer words; the whole takes about four minutes.
        threads: threads that torch and the kernels use.
        output: write a Markdown page with the machine, the command and the tables.
        json: write everything that was measured.
    """
    _check_writable("--output", output)
    _check_writable("--json", json)
    from anymax.bench import decoding as cases

    settings = cases.quick(threads) if quick else cases.Settings(threads=threads)
    _run(cases.measure, settings, _command("decoding", quick, threads), output, json)
    return 0


def _run(
    measure: Callable[[Any, Callable[[str], None]], Report],
    settings: Any,
    command: str,
    output: Path | None,
    json: Path | None,
) -> Report:
    """Measure, show it and write it down; what was measured.

    Args:
        settings: those of `measure`, with the number of steps it announces.
    """
    with _progress(settings.num_steps) as announce:
        report = measure(settings, announce)
    publish(report.page(command), markdown=output, data=json)
    return report


def _check_writable(option: str, path: Path | None) -> None:
    """Say so before the measurement, not after it."""
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{option} must lie in a folder that exists, got {path}; create {path.parent} first")
    if path is not None and path.is_dir():
        raise ValueError(f"{option} must name a file, got the folder {path}")


def _command(subject: str, quick: bool, threads: int | None, *words: str) -> str:
    """The command that measures the same again, without where it was written to."""
    said = [f"anymax bench {subject}", "--quick" if quick else "", *words]
    said.append("" if threads is None else f"--threads {threads}")
    return " ".join(word for word in said if word)


@contextmanager
def _progress(num_steps: int) -> Iterator[Callable[[str], None]]:
    """A live bar on a terminal, a plain line per step elsewhere; both on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: print(step, file=sys.stderr, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(SpinnerColumn(console.spinner), *columns, console=console, transient=True) as progress:
        task, done = progress.add_task("starting", total=num_steps), itertools.count()

        def announce(step: str) -> None:
            progress.update(task, description=step, completed=next(done))

        yield announce
