"""`anymax completion SHELL`: the script by which a shell completes verbs, recipes, options and their values.

The options are those of tyro's own completion. Its scripts start Python at each key and offer neither files nor
recipes; ours hold lists of words, and leave to the shell what no word fits, as folders of runs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

_BASH = """\
_anymax() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb="" words="" options="" values=""
    if (( COMP_CWORD > 1 )); then verb=${COMP_WORDS[1]}; fi
    case "$verb" in
        GROUPS) if (( COMP_CWORD > 2 )); then verb="$verb ${COMP_WORDS[2]}"; fi ;;
    esac
    case "$verb" in
VERBS
    esac
    case "$verb $prev" in
VALUES
    esac
    if [[ -n $values ]]; then words=$values; elif [[ $cur == -* ]]; then words=$options; fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _anymax anymax
"""
# zsh runs what is written for bash.
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


@dataclass
class Verb:
    """What may follow a verb.

    Args:
        words: names, as of recipes.
        options: the values of each option, where they can be listed.
    """

    words: list[str] = field(default_factory=list)
    options: dict[str, list[str]] = field(default_factory=dict)


def completion(
    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="bash|zsh|fish", help_behavior_hint="")],
) -> int:
    """Print the script that completes anymax in a shell, for `source <(anymax completion bash)`.

    Args:
        shell: in zsh it is used by the same line with zsh, in fish by `anymax completion fish | source`.
    """
    print(SHELLS[shell](verbs()), end="")
    return 0


def verbs() -> dict[str, Verb]:
    """What may follow each verb, by its words, as "analyze heads"; "" is before all."""
    from anymax.cli import WHOLE, evaluate, finetune, main, train
    from anymax.recipes import names

    found = dict(_verbs("", _printed_by(main)))
    # Their options depend on the run; these are there for all.
    of_any_run = {"resume": train._Resume, "finetune": finetune._Finetune, "evaluate": evaluate._Evaluate}
    for verb, read in WHOLE.items():
        kind = of_any_run.get(verb)
        printed = _printed_by(read if kind is None else partial(_parse, kind))
        found[verb] = dict(_verbs(verb, printed))[verb]
    for verb in ("train", "compare"):
        found[verb].words = names()
    found["completion"].words = list(SHELLS)
    return found


def _parse(kind: type, arguments: list[str]) -> None:
    tyro.cli(kind, args=arguments)


def _printed_by(parse: Callable[[list[str]], Any]) -> dict[str, Any]:
    """What tyro's completion knows of a command, which it prints and exits."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        parse(["--tyro-print-completion", "bash"])
    line = re.search(r"^COMPLETION_SPEC = (.*)$", printed.getvalue(), re.MULTILINE)
    assert line is not None, "tyro writes what it knows as one line of its script"
    known: dict[str, Any] = ast.literal_eval(line[1])
    return known


def _verbs(name: str, known: dict[str, Any]) -> Iterator[tuple[str, Verb]]:
    options = {flag: one.get("choices", []) for one in known["options"] for flag in one["flags"] if flag[1] == "-"}
    yield name, Verb(list(known["subcommands"]), options)
    for word, below in known["subcommands"].items():
        yield from _verbs(f"{name} {word}".strip(), below)


def _groups(found: dict[str, Verb]) -> list[str]:
    """The verbs that others follow."""
    return [name for name in found if any(other.startswith(f"{name} ") for other in found)]


def _bash(found: dict[str, Verb]) -> str:
    lines, values = [], []
    for name, verb in found.items():
        lines.append(f'        "{name}") words="{" ".join(verb.words)}" options="{" ".join(verb.options)}" ;;')
        listed = {option: each for option, each in verb.options.items() if each}
        values += [f'        "{name} {option}") values="{" ".join(each)}" ;;' for option, each in listed.items()]
    script = _BASH.replace("GROUPS", "|".join(_groups(found)))
    return script.replace("VERBS", "\n".join(lines)).replace("VALUES", "\n".join(values))


def _zsh(found: dict[str, Verb]) -> str:
    return _ZSH + _bash(found)


def _fish(found: dict[str, Verb]) -> str:
    groups, lines = _groups(found), []
    for name, verb in found.items():
        words = [f"__fish_seen_subcommand_from {word}" for word in name.split()] or ["__fish_use_subcommand"]
        if name in groups:
            words.append(f"not __fish_seen_subcommand_from {' '.join(verb.words)}")
        start = f"complete -c anymax -n '{'; and '.join(words)}'"
        if verb.words:
            # A file is no verb, but what is trained may be one.
            alone = "-f " if name in ("", "completion", *groups) else ""
            lines.append(f"{start} {alone}-a '{' '.join(verb.words)}'")
        for option, values in verb.options.items():
            lines.append(f"{start} -l {option[2:]}" + (f" -x -a '{' '.join(values)}'" if values else ""))
    return "\n".join(lines) + "\n"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
