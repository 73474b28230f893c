"""All recipes: found by name, plain, complete, and small enough for a test when asked to be."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from anymax.attention import LearnedEntmaxConfig
from anymax.data import Lexicon
from anymax.models import build_language_model, learned_alphas
from anymax.plain import as_plain
from anymax.recipes import about, find, names, sotu
from anymax.training.config import LanguageModelingConfig, RunConfig, run_config
from anymax.training.optim.optimizers import AdamConfig
from anymax.vocabulary import FullOutputConfig
from tests.each import each

FACTORIZATIONS = ["softmax", "softmax_tied", "bpe", "bpe_tied", "adaptive_softmax", "character_cnn", "adaptive"]
FACTORIZATIONS += ["adaptive_tied", "adaptive_tied_entmax"]


pytestmark = pytest.mark.usefixtures("one_thread")


@each("name", names())
def test_a_recipe_tells_in_its_first_line_what_it_is_and_gives_a_config(name: str) -> None:
    recipe = find(name)
    first = recipe.__doc__.strip().split("\n\n")[0]
    assert first.endswith(".") and about(name).title.endswith(".")
    # It goes on after the title, in the list of recipes.
    assert about(name).takes and not about(name).takes.endswith(".")
    assert isinstance(recipe(), RunConfig) and recipe() == recipe()


@each("name", names())
def test_a_recipe_comes_back_from_its_file(name: str) -> None:
    run = find(name)()
    assert run_config(json.loads(json.dumps(as_plain(run)))) == run
    assert run_config(json.loads(json.dumps(as_plain(run.toy())))) == run.toy()


LANGUAGE_MODELS = [name for name in names() if isinstance(find(name)().task, LanguageModelingConfig)]
# What differs in training alone has the same toy.
TOYS = list({repr(find(name)().toy().task.model): name for name in reversed(LANGUAGE_MODELS)}.values())


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_learns(name: str) -> None:
    lexicon = Lexicon.from_counts({f"word{i}": 1000 // (i + 1) for i in range(398)})
    model = build_language_model(find(name)().toy().task.model, lexicon)
    assert sum(parameter.numel() for parameter in model.parameters()) < 40_000
    ids = torch.randint(len(lexicon), (2, 8))
    model(ids, ids.roll(-1, 1)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # Without dropout one batch is soon learned by heart.
    model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(ids, ids.roll(-1, 1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses


def test_band_recipes_cut_the_words_as_the_paper_does() -> None:
    # Sizes in thousands of about 260 thousand words, the last with what is left.
    published = {"8_15_77": (20, 40, 200), "8_54_38": (20, 140, 100), "8_15_23_54": (20, 40, 60, 140)}
    published |= {"23_38_38": (60, 100, 100), "2_60_38": (5, 155, 100), "4_23_73": (10, 60, 190)}
    for name, sizes in published.items():
        model = find(f"wikitext2.bands_{name}")().task.model
        output = model.output.build(100 * sum(sizes), model.body.model_dim)
        assert list(output.bands.sizes) == [100 * size for size in sizes]
        assert model.input.shares == model.output.shares


def test_blocks_of_any_size_make_steps_of_as_many_tokens() -> None:
    for block in (64, 128, 256, 512):
        task = find("wikitext2.adaptive_tied" + ("" if block == 128 else f"_{block}"))().task
        assert task.batching.block == block == task.evaluation.block and task.batching.batch_size * block == 512


def test_both_small_corpora_have_the_eight_factorizations_and_one_with_entmax() -> None:
    for file, corpus in (("sotu", "sotu"), ("wikitext2", "wikitext-2")):
        listed = [name for name in names() if name.startswith(f"{file}.") and not name.startswith(f"{file}.awd_")]
        # Behind them stand the recipes of the paper's other tables.
        assert listed[: len(FACTORIZATIONS)] == [f"{file}.{kind}" for kind in FACTORIZATIONS]
        assert {find(name)().task.data.corpus for name in listed} == {corpus}
    runs = [find(f"sotu.{kind}")() for kind in FACTORIZATIONS]
    assert len({repr(run.task.model) for run in runs[:2] + runs[4:]}) == 7
    # Whatever goes in and out, the rest is the same.
    assert (
        len({repr((run.task.model.body, run.optimizer, run.schedule, run.epochs, run.task.batching)) for run in runs})
        == 1
    )


def test_the_outputs_of_the_dirichlet_experiment_differ_in_the_output_and_its_rate_alone() -> None:
    runs = [find(name)() for name in names() if name.startswith("dirichlet.")]
    assert len({repr(run.task.output) for run in runs}) == len(runs) == 7
    same = [replace(run, task=replace(run.task, output=FullOutputConfig()), optimizer=AdamConfig(1.0)) for run in runs]
    assert all(run == same[0] for run in same)


def test_learned_alphas_are_those_of_all_heads() -> None:
    run = sotu.adaptive_tied_entmax()
    assert isinstance(run.task.model.mapping, LearnedEntmaxConfig)
    with torch.device("meta"):
        model = build_language_model(run.task.model, Lexicon.from_counts({f"word{i}": 1 for i in range(20_000)}))
    assert all(block.attention.mapping is not None for block in model.blocks)
    toy = build_language_model(run.toy().task.model, Lexicon.from_counts({f"word{i}": 1 for i in range(398)}))
    assert len(learned_alphas(toy)) == 4


def test_an_unknown_recipe_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(ValueError, match=r"got 'sotu.adaptiv_tied'; perhaps sotu.adaptive_tied"):
        find("sotu.adaptiv_tied")
    with pytest.raises(ValueError, match="anymax recipes lists them"):
        find("!")
    # What recipes are made with is none.
    with pytest.raises(ValueError, match="recipe must be the name of one"):
        find("small.small")


def test_recipes_are_listed_and_called_without_torch() -> None:
    script = """
import sys
from anymax.recipes import find, names
for name in names():
    find(name)()
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
