"""Run folders from a stranger: every file of one mutated at random, with the hashes made to fit again.

    python -m tests.training.run_folder.fuzzed_runs --cases 10000

Each case copies a run folder, mutates it, and in a forked child resumes the run for two steps and saves, or opens its
model and generates. A child must end by itself in time, with 0 or with one error that a user can read; a signal, a
traceback, an error of several lines or with control characters is printed with its seed, and the program exits with 1.
`--only SEED` runs one case and prints its traceback.
"""

import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
import tyro
from safetensors.torch import load_file, save_file

from anymax.cli.console import complain
from anymax.cli.train import new_run
from anymax.training import open_run, resume, train
from anymax.training.checkpoint.checkpoints import STATE, _digest, _digest_of_state
from anymax.training.reporting import Silent
from anymax.training.run_folder.folder import read_config
from anymax.training.task_config import Sampling
from anymax.training.tasks.language_modeling.task import LanguageModelingTask
from tests.training.toys import StoppingAt

# Words and subwords, a carried state, averages, a discrete latent; between them every optimizer that is fused.
RECIPES = ("sotu.bpe_tied", "grave.adaptive", "billion_word.adaptive_tied", "merity.ptb", "latent.bits_quick")
STEPS, STOPPED_AT = 9, 5
OPTIONS = ["--toy", "--steps", str(STEPS), "--checkpoint-every", "2", "--evaluate-every", "4", "--threads", "1"]
# Seconds of processor time, and of the clock, in which a child must end; a case takes about 0.1.
MOST_SECONDS, PATIENCE = 20, 60
# Bytes of address space of a child: a model too large for it must be refused, not bring the machine down.
MOST_MEMORY = 8 << 30
# Characters of an error, with what stands before it.
LONGEST = 2100
NUMBERS = (0, 1, -1, 2, 3, 7, 1000, 1 << 31, 1 << 53, 1 << 63, 1 << 70, -(1 << 63), 0.5, -0.0, 1e-320, 1e308)
VALUES = (*NUMBERS, float("nan"), float("inf"), None, True, False, "", "a\0b", "\x1b[2J", "é" * 300, [], {}, [[]], "..")
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)

FINE, REFUSED, WRONG = 0, 3, 4


class AfterTwo(Silent):
    """Asks the run to stop after two steps."""

    def __init__(self) -> None:
        self.steps = 0

    def advanced(self, step: int, loss: float) -> None:
        self.steps += 1
        if self.steps == 2:
            signal.raise_signal(signal.SIGTERM)


def mutate(folder: Path, generator: random.Random) -> str:
    """Change one or two things in a run folder, and make its hashes fit; what was changed."""
    changed = [_mutate_one(folder, generator) for _ in range(generator.choice((1, 1, 1, 2)))]
    _rehash(folder)
    return ", ".join(changed)


def _mutate_one(folder: Path, generator: random.Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    # Checkpoints and configs are what loading reads most of.
    weights = [4 if path.suffix == ".safetensors" or path.name in (STATE, "config.json") else 1 for path in files]
    (file,) = generator.choices(files, weights)
    change = _change_anything
    if file.suffix == ".json" and generator.random() < 0.9:
        change = _change_json
    elif file.suffix == ".safetensors" and generator.random() < 0.85:
        change = _change_tensors
    return f"{file.relative_to(folder)}: {change(file, generator)}"


def _change_json(file: Path, generator: random.Random) -> str:
    try:
        values = json.loads(file.read_bytes())
    except ValueError:
        return _change_anything(file, generator)
    places = list(_places(values))
    if not places:
        return _change_anything(file, generator)
    holder, key = generator.choice(places)
    kind = generator.choice(("value", "value", "value", "remove", "add", "other", "nest"))
    match kind:
        case "value":
            holder[key] = generator.choice(VALUES)
        case "remove":
            del holder[key]
        case "add" if isinstance(holder, dict):
            holder[generator.choice(("kind", "unknown", "\x1b[31m", "step"))] = generator.choice(VALUES)
        case "nest":
            for _ in range(generator.choice((1, 5, 200))):
                holder[key] = [holder[key]]
        case _:
            source, name = generator.choice(places)
            holder[key] = json.loads(json.dumps(source[name]))
    file.write_text(json.dumps(values))
    return f"{kind} at {key!r}"


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Every entry of nested objects and lists, by what holds it."""
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
        yield values, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _change_tensors(file: Path, generator: random.Random) -> str:
    try:
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    except Exception:
        return _change_anything(file, generator)
    if not tensors or generator.random() < 0.15:
        return _change_header(file, generator)
    name = generator.choice(sorted(tensors))
    tensor = tensors[name]
    kind = generator.choice(("number", "empty", "shape", "dtype", "fill", "remove", "rename", "swap", "all"))
    match kind:
        case "number":
            tensors[name] = torch.ones((), dtype=tensor.dtype)
        case "empty":
            tensors[name] = tensor.new_zeros(generator.choice(((0,), (0, 3), (1, 0, 1))))
        case "shape":
            shapes = (
                (1,),
                (*tensor.shape, 1),
                tuple(reversed(tensor.shape)),
                tuple(2 * n for n in tensor.shape),
                (3,) * 9,
            )
            tensors[name] = tensor.new_ones(generator.choice(shapes))
        case "dtype":
            tensors[name] = tensor.to(generator.choice(DTYPES))
        case "fill":
            fills = (float("nan"), float("inf"), 3e38, -1.0, 0.0, 1e-40) if tensor.is_floating_point() else (-1, 0)
            tensors[name] = torch.full_like(tensor, generator.choice(fills))
        case "remove":
            del tensors[name]
        case "rename":
            tensors[generator.choice((f"{name}.x", "", "\x1b[2J", "__metadata__x", "é" * 300))] = tensors.pop(name)
        case "swap":
            other = generator.choice(sorted(tensors))
            tensors[name], tensors[other] = tensors[other], tensors[name].clone()
        case "all":
            tensors = {
                key: value.flatten()[:1].reshape(()) if value.numel() else value for key, value in tensors.items()
            }
    save_file({key: value.contiguous() for key, value in tensors.items()}, file)
    return f"{kind} of {name!r}"


def _change_header(file: Path, generator: random.Random) -> str:
    """Change what a safetensors file says of its tensors, and not the tensors."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    places = list(_places(header))
    holder, key = generator.choice(places) if places else ({}, "x")
    holder[key] = generator.choice((*VALUES, "F64", "U8", [0, 4], [4, 0], [1 << 40, 1 << 41]))
    written = json.dumps(header).encode()
    claimed = generator.choice((len(written), len(written), len(written), 0, 1 << 62, length + 1))
    file.write_bytes(claimed.to_bytes(8, "little") + written + data[8 + length :])
    return f"header at {key!r}"


def _change_anything(file: Path, generator: random.Random) -> str:
    data = bytearray(file.read_bytes())
    kind = generator.choice(("bytes", "cut", "zeros", "double", "empty", "missing", "folder", "fifo", "link", "line"))
    match kind:
        case "bytes":
            for _ in range(generator.choice((1, 4, 64))):
                if data:
                    data[generator.randrange(len(data))] = generator.randrange(256)
        case "cut":
            del data[generator.randrange(len(data) + 1) :]
        case "zeros":
            data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        case "double":
            data += bytes(data)
        case "empty":
            data.clear()
        case "line":
            lines = bytes(data).split(b"\n")
            lines.insert(
                generator.randrange(len(lines)),
                generator.choice((b"{}", b"[" * 100_000, b"null", b"\xff\xfe", b"\x1b[2J")),
            )
            data = bytearray(b"\n".join(lines))
        case _:
            file.unlink()
            match kind:
                case "folder":
                    file.mkdir()
                case "fifo":
                    os.mkfifo(file)
                case "link":
                    file.symlink_to(generator.choice(("/dev/zero", "/nowhere", file.name, "..")))
            return kind
    file.write_bytes(data)
    return kind


def _rehash(folder: Path) -> None:
    """Make every hash fit what lies there, as somebody would who wants it read."""
    for name in ("lexicon", "words"):
        _rehash_lexicon(folder, name)
    for file in folder.glob(f"checkpoints/*/{STATE}"):
        if not file.is_file():
            continue
        try:
            state = json.loads(file.read_bytes())
            for name, record in state["files"].items():
                tensors = file.parent / name
                if tensors.is_file() and isinstance(record, dict):
                    record |= {"bytes": tensors.stat().st_size, "sha256": _digest(tensors)}
            state.pop("sha256", None)
            file.write_text(json.dumps({**state, "sha256": _digest_of_state(state)}))
        except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
            continue


def _rehash_lexicon(folder: Path, name: str) -> None:
    file, data = folder / f"{name}.txt", folder / "data.json"
    try:
        head, body = (file.read_text() if file.is_file() else "").split("\n", 1)
        num_specials, num_words = int(head.split("specials ")[1].split("\t")[0]), body.count("\n")
        hash = hashlib.sha256(f"1 {num_specials} {num_words}\n{body}".encode()).hexdigest()
        head = f"anymax-lexicon 1\tspecials {num_specials}\twords {num_words}\tsha256 {hash}"
        file.write_text(f"{head}\n{body}")
        values = json.loads(data.read_bytes() if data.is_file() else b"")
        values["identity"][name] = hash
        data.write_text(json.dumps(values))
    except (ValueError, LookupError, TypeError, OSError):
        return


def use(folder: Path, *, resumes: bool) -> None:
    """Resume a run for two steps, which saves it; or open it and generate."""
    if resumes:
        resume(folder, reporter=AfterTwo())
        return
    opened = open_run(folder, device="cpu")
    if isinstance(opened.task, LanguageModelingTask):
        read_config(folder).task.continue_text(folder, "a", Sampling(3))


def in_child(work: Callable[[], None], *, shows_traceback: bool = False) -> str | None:
    """Do something in a forked child: None where it went well, "" where it was refused, or what is wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code, said = FINE, ""
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            work()
        except (ValueError, OSError, ModuleNotFoundError) as error:
            code, said = REFUSED, _printed(error)
        except BaseException as error:
            code, said = WRONG, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        if shows_traceback and code != FINE:
            traceback.print_exc()
        os.write(writer, said.encode(errors="backslashreplace")[: 1 << 15])
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    match os.waitstatus_to_exitcode(status):
        case 0:
            return None
        case code if code == REFUSED and said and said.isprintable() and len(said) <= LONGEST:
            return ""
        case _:
            return said or "an error without words"


def _printed(error: Exception) -> str:
    """What the command line prints of an error."""
    with redirect_stderr(io.StringIO()) as printed:
        complain(error)
    return printed.getvalue().removesuffix("\n")


def case(whole: Path, folder: Path, seed: int, *, shows_traceback: bool = False) -> tuple[str, str | None]:
    """What was changed, and what is wrong with how it was met."""
    generator = random.Random(seed)
    shutil.copytree(whole, folder, symlinks=True)
    changed = f"{whole.name}: {mutate(folder, generator)}"
    resumes = generator.random() < 0.8
    try:
        return changed, in_child(lambda: use(folder, resumes=resumes), shows_traceback=shows_traceback)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def runs(folder: Path) -> Iterator[list[Path]]:
    """Runs that were stopped amid an epoch. Trained in a child, as a process that has trained should not fork."""
    with patch.dict(os.environ, ANYMAX_CACHE=str(folder / "cache")):
        wholes = [folder / recipe for recipe in RECIPES]

        def make() -> None:
            for recipe, whole in zip(RECIPES, wholes, strict=True):
                train(new_run(recipe, OPTIONS).config, whole, reporter=StoppingAt(STOPPED_AT))

        wrong = in_child(make, shows_traceback=True)
        assert wrong is None, wrong
        # Nothing here survives a power cut anyway.
        with patch("os.fsync", lambda descriptor: None):
            yield wholes


def main(cases: int = 10_000, jobs: int = 2, seed: int = 0, only: int | None = None) -> int:
    """Resume and open run folders that were changed at random.

    Args:
        cases: how many.
        jobs: how many at the same time.
        seed: of the first case; the others have the numbers after it.
        only: run the case of this seed alone and show its traceback.
    """
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, runs(Path(name)) as wholes, ThreadPoolExecutor(jobs) as pool:

        def run(number: int) -> tuple[int, str, str | None]:
            whole = wholes[number % len(wholes)]
            return number, *case(whole, Path(name, f"case-{number}"), number, shows_traceback=only is not None)

        numbers = range(seed, seed + cases) if only is None else [only]
        for number, changed, wrong in pool.map(run, numbers):
            counts["loaded" if wrong is None else "refused" if wrong == "" else "wrong"] += 1
            if wrong:
                print(f"case {number}, {changed}: {wrong}", flush=True)
    print(f"{counts.total()} cases: {counts['loaded']} loaded, {counts['refused']} refused, {counts['wrong']} wrong")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
