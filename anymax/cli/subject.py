"""What `anymax train RECIPE` names: a recipe, a text of your own, a recipe of your own file, or a run's config.json."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from anymax.cli import own_file
from anymax.data.text.corpus import name_of_file
from anymax.training.config import RunConfig
from anymax.training.run_folder.folder import CONFIG, read_config_file
from anymax.training.task_config import TaskConfig

DEFAULT_RECIPE = "sotu.adaptive_tied"
WHAT = """RECIPE is one of:
  the name of a recipe, as anymax recipes lists them (default: sotu.adaptive_tied)
  a text file, or a folder of them: book.txt
  a recipe in your own Python file: my_task.py:NAME
  the settings of a run: runs/book/config.json, or --config FILE"""
OPTION = "--config"
# Options that name a text without a recipe.
_PATHS = ("--data.path", "--task.data.path")
# Endings of names that are no recipe's.
_OF_FILES = (".txt", ".gz", ".md", ".text", ".json", ".csv", ".tsv")

Find = Callable[[], RunConfig]


def subject_of(name: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """What is trained, and the options besides: `--config FILE` names it too, and --data.path where nothing else does.

    Args:
        name: what stands before the options, "" for nothing.
    """
    _check_one(name, options)
    config, options = own_file.take_value(options, OPTION, "runs/book/config.json")
    if config and name:
        raise ValueError(f"{OPTION} must stand without RECIPE, got {OPTION} {config} and {name}; drop one of the two")
    if config:
        path = Path(config) / CONFIG if Path(config).is_dir() else Path(config)
        if path.suffix != ".json":
            raise ValueError(f"{OPTION} must be followed by the config.json of a run, got {config}; name such a file")
        return str(path), options
    text = next((value for path in _PATHS if (value := own_file.take_value(options, path, "book.txt")[0])), "")
    return name or text or DEFAULT_RECIPE, options


def _check_one(name: str, options: Sequence[str]) -> None:
    """Refuse a second text, of which one is tempted to make a translator."""
    others = [word for word in options[:1] if not word.startswith("-")]
    if not others:
        return
    if is_text(name):
        pair = shlex.join(
            ["anymax", "train", "multi30k.learned_entmax", "--data.source", name, "--data.target", others[0]]
        )
        raise ValueError(
            f"RECIPE must be one text, got {name} and {others[0]}; put several into a folder and name that, or, if the "
            f"second translates the first, train a translator: {pair}"
        )
    raise ValueError(f"RECIPE must be one, got {name} and {others[0]}; options begin with --, see anymax train --help")


def is_text(subject: str) -> bool:
    """Whether it is a text of your own: a file or a folder, whose name is no recipe's."""
    path = Path(subject)
    is_other = own_file.is_own(subject) or path.suffix in (".json", ".py") or is_recipe(subject)
    return not is_other and (path.exists() or path.is_symlink())


def is_recipe(subject: str) -> bool:
    """Whether it is the name of a recipe, or of a choice of one."""
    from anymax.recipes import names

    return not {subject, subject.rpartition(".")[0]}.isdisjoint(names())


def find(subject: str, *, toy: bool = False, tasks: Sequence[type[TaskConfig]] = ()) -> tuple[Find, str]:
    """What gives the config that is trained, and what describes it.

    Args:
        toy: everything tiny.
        tasks: those of a user's own file, which the config.json of a run may name.
    """
    path = Path(subject)
    if tasks and path.suffix != ".json":
        raise ValueError(f"{own_file.OPTION} must come with {OPTION}, got it with {subject}; leave it out")
    if own_file.is_own(subject):
        function = own_file.find(subject)
    elif is_recipe(subject):
        from anymax.recipes import find as find_recipe

        function = find_recipe(subject)
    elif path.suffix == ".json" and path.exists():
        function = partial(read_config_file, path, tasks)
        function.__doc__ = f"The settings of {path}."
    elif is_text(subject):
        return _own_text(path, toy)
    else:
        raise ValueError(_unknown(subject))
    return (lambda: function().toy()) if toy else function, function.__doc__ or ""


def name_of_run(subject: str) -> str:
    """The name of a run in names of folders, where the task of its config knows none."""
    path = Path(subject)
    if own_file.is_own(subject) or is_recipe(subject):
        return own_file.plain_name(subject)
    if path.suffix == ".json":
        return path.absolute().parent.name if path.name == CONFIG else path.stem
    return name_of_file(path.absolute())


def _own_text(path: Path, toy: bool) -> tuple[Find, str]:
    from anymax.recipes import own_text

    if (path / CONFIG).exists():
        raise ValueError(
            f"RECIPE must be a text where it is a folder, but {path} holds a run; continue it with "
            f"{shlex.join(['anymax', 'resume', str(path)])}, or train anew with its settings: "
            f"{shlex.join(['anymax', 'train', OPTION, str(path / CONFIG)])}"
        )
    return partial(own_text.toy if toy else own_text.own_text, path), own_text.own_text.__doc__ or ""


def _unknown(subject: str) -> str:
    """What to say of a name that is nothing that can be trained."""
    from anymax.recipes import names

    path = Path(subject)
    if path.suffix == ".py":
        return f"a recipe in your own file is named with it, as {subject}:NAME, got {subject}; {_offered(path)}"
    if path.suffix in _OF_FILES or len(path.parts) > 1:
        kind = "the config.json of a run" if path.suffix == ".json" else "a text file or a folder of them"
        there = [str(each) for each in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(str(path), there, n=1)
        advice = f"perhaps {near[0]}" if near else "check its name"
        return f"RECIPE must be {kind} where it is a path, but {subject} does not exist; {advice}"
    near = difflib.get_close_matches(subject, names(), n=3) or [each for each in names() if subject in each][:3]
    advice = f"perhaps {' or '.join(near)}" if near and subject else "anymax recipes lists them"
    return f"recipe must be the name of one, or of a text file, got {subject!r}; {advice}"


def _offered(file: Path) -> str:
    return f"it has {', '.join(own_file.names_in(file))}" if file.is_file() else "there is no such file"
