"""A translator learns: it copies sentences that it never saw. `make learn` has it reverse them too."""

from pathlib import Path

import pytest

from tests.training.tasks.learned import ENOUGH, bleu_of


@pytest.mark.usefixtures("one_thread")
def test_a_translator_learns_to_copy(tmp_path: Path):
    assert bleu_of("drawn.copy", tmp_path / "run", seed=1) >= ENOUGH
