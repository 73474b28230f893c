"""`anymax completion` prints scripts that shells can use; that of bash is used here."""

import shutil
import subprocess
from pathlib import Path

import pytest

from anymax.cli import completion
from anymax.recipes import names
from tests.cli.commands import code_of

SCRIPTS = {shell: write(completion.verbs()) for shell, write in completion.SHELLS.items()}
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on the path")


def offered(typed: str, folder: Path) -> set[str]:
    """What bash offers for the last word of a line."""
    script = """
eval "$(cat)"
COMP_WORDS=($1)
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_anymax anymax
printf '%s\\n' "${COMPREPLY[@]}"
"""
    command = ["bash", "-uc", script, "bash", typed]
    result = subprocess.run(command, input=SCRIPTS["bash"], capture_output=True, text=True, cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    return set(result.stdout.split())


@needs_bash
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_valid_bash(shell: str):
    result = subprocess.run(["bash", "-n"], input=SCRIPTS[shell], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@needs_bash
def test_bash_offers_verbs_recipes_options_and_values(tmp_path: Path):
    assert offered("anymax re", tmp_path) == {"recipes", "report", "resume"}
    assert offered("anymax train sotu.", tmp_path) == {name for name in names() if name.startswith("sotu.")}
    assert offered("anymax analyze ", tmp_path) == {"bottleneck", "dirichlet", "heads", "latent"}
    assert offered("anymax analyze heads --lim", tmp_path) == {"--limit"}
    assert offered("anymax train sotu.softmax --optimizer.lr 1 --to", tmp_path) == {"--toy"}
    assert offered("anymax evaluate run --split ", tmp_path) == {"valid", "test"}
    assert offered("anymax completion ", tmp_path) == {"bash", "zsh", "fish"}
    # Flags as they are, without the pairs that the command refuses.
    assert offered("anymax doctor --", tmp_path) == {"--help", "--strict"}


@needs_bash
def test_bash_is_left_to_offer_files_where_no_word_fits(tmp_path: Path):
    for typed in ("anymax evaluate ", "anymax evaluate ru", "anymax train runs/"):
        assert offered(typed, tmp_path) == set()
    assert "complete -o bashdefault -o default -F _anymax anymax\n" in SCRIPTS["bash"]


def test_every_verb_and_question_is_in_every_script():
    found = completion.verbs()
    assert {"train", "analyze heads", "bench mappings", "completion"} <= found.keys()
    for script in SCRIPTS.values():
        assert [name for name in found if name.split()[-1:] and name.split()[-1] not in script] == []
    commands = SCRIPTS["fish"].splitlines()
    assert all(line.startswith("complete -c anymax -n '") and line.count("'") in (2, 4) for line in commands)


def test_a_shell_without_a_script_is_refused(capsys: pytest.CaptureFixture[str]):
    assert code_of("completion", "tcsh") == 2
    assert "Invalid choice" in capsys.readouterr().err
