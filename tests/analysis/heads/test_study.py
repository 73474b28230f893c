"""Runs of every kind are looked at or say why not; the page has tables, data and pictures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anymax.analysis.heads import page as report
from anymax.analysis.heads.alphas import Alphas, Head
from anymax.analysis.heads.examples import name_heads
from anymax.analysis.heads.measure import measure
from anymax.analysis.heads.roles import usual_roles
from anymax.analysis.heads.study import Heads, study_heads, takes
from anymax.attention import capture
from anymax.attention.capture import Kind
from anymax.attention.config import AttentionMappingConfig, LearnedEntmaxConfig, SoftmaxConfig
from anymax.data.text.config import BPE, Words
from anymax.recipes import find
from anymax.training import Observed, Sentence, Task, open_run, train
from tests.analysis.heads.synthetic import random_sparse, shifted

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = ["who is the lowest of the low ?", "the newest words are the widest", "what do they see ?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on a small text: softmax over words, learned entmax over subwords, and an LSTM."""
    folder = tmp_path_factory.mktemp("heads")
    text = folder / "text.txt"
    text.write_text("".join(f"{line}\n" for line in LINES * 40))
    make_run(folder, "softmax", "sotu.softmax_tied", Words(), SoftmaxConfig())
    make_run(folder, "learned", "sotu.softmax_tied", BPE(size=48), LearnedEntmaxConfig())
    make_run(folder, "lstm", "grave.full", Words(), None)
    return folder


def make_run(folder: Path, name: str, recipe: str, units: Words | BPE, mapping: AttentionMappingConfig | None) -> None:
    config = find(recipe)().toy()
    task = replace(config.task, data=replace(config.task.data, path=folder / "text.txt", units=units))
    if mapping is not None:
        task = replace(task, model=replace(task.model, mapping=mapping))
    train(replace(config, task=task, steps=2, log_every=1, evaluate_every=None), folder / name)


def study(folder: Path, name: str, task: Task | None = None) -> Heads:
    task = task or open_run(folder / name).task
    return study_heads(task, folder / name, "valid", limit=4, most=2, announce=lambda text: None)


def test_a_softmax_has_density_one_and_no_alphas(folder: Path) -> None:
    found = study(folder, "softmax")
    assert found.alphas is None and found.measured.kinds == ["decoder"]
    assert all(head.density == 1.0 and head.nowhere == 0.0 for head in found.measured.heads)
    assert all(layer.union == 1.0 for layer in found.measured.layers)
    assert {each.role.name for each in found.named} >= {"position -1", "position 0"}
    assert "merging" not in found.measured.counts["decoder"]


def test_a_run_that_learns_alphas_shows_them_their_path_and_how_it_merges_subwords(folder: Path) -> None:
    task = open_run(folder / "learned").task
    found = study(folder, "learned", task)
    assert found.alphas is not None and found.alphas.steps == [1, 2]
    now = task.watch()
    assert {f"alpha/layer_{head.layer}/head_{head.number}": alpha for head, alpha in found.alphas.now.items()} == now
    for head, path in found.alphas.path.items():
        assert path[-1] == pytest.approx(found.alphas.now[head], abs=1e-6)
    assert sum(found.alphas.histogram("decoder")) == len(now) == len(found.measured.heads)
    assert any(head.density < 1 for head in found.measured.heads)
    merging = next(each for each in found.named if each.role.name == "merging")
    assert merging.count > 0 and merging.alpha == found.alphas.now[merging.head] and len(merging.examples) == 2


def test_the_same_seed_takes_the_same_examples_and_each_begins_with_a_line(folder: Path) -> None:
    task = open_run(folder / "learned").task
    first, again = (list(task.observe("valid", limit=3, seed=7)) for _ in range(2))
    sentences = [example for batch in first for example in batch.queries["decoder"]]
    assert sentences == [example for batch in again for example in batch.queries["decoder"]] and len(sentences) == 3
    assert all(torch.equal(a.weights["decoder"][0], b.weights["decoder"][0]) for a, b in zip(first, again, strict=True))
    everything = list(task.observe("valid", limit=10**6, seed=7))
    whole = [sentence.whole for batch in everything for sentence in batch.queries["decoder"]]
    assert len(whole) > 3 and all(words[0] == "<eos>" for words in whole)
    for batch in everything:
        for example in batch.examples():
            rows = (example.weights * example.allowed).sum(-1)
            torch.testing.assert_close(rows, torch.ones_like(rows))


def test_a_model_looks_where_it_looks_in_evaluation(folder: Path) -> None:
    """Of two examples in a batch, padding changes nothing, and dropout is off."""
    task = open_run(folder / "learned").task
    task.model.train()
    for block in task.model.blocks:
        block.dropout = 0.5
    (batch, *_) = task.observe("valid", limit=10**6, seed=1)
    assert task.model.training
    task.model.eval()
    (number, sentence) = min(enumerate(batch.queries["decoder"]), key=lambda pair: len(pair[1]))
    ids = torch.tensor([[task.prepared.lexicon.eos, *ids_after(task, sentence)]])
    with torch.no_grad(), capture(task.model) as alone:
        task.model.hidden(ids)
    for layer, expected in zip(batch.weights["decoder"], alone["decoder"], strict=True):
        torch.testing.assert_close(layer[number, :, : len(sentence), : len(sentence)], expected[0])


def ids_after(task: Task, sentence: Sentence) -> list[int]:
    """The ids of all but the first word."""
    words = [sentence.whole[begin] for begin, _ in sentence.spans[1:]]
    return task.prepared.units.encode(words)[: len(sentence) - 1]


def test_windows_of_single_sentences_are_observed_one_by_one(folder: Path) -> None:
    task = open_run(folder / "softmax").task
    whole = [sentence for batch in task.observe("valid", limit=10**6, seed=1) for sentence in batch.keys["decoder"]]
    task.config = replace(task.config, evaluation=replace(task.config.evaluation, windows="single"))
    single = [sentence for batch in task.observe("valid", limit=10**6, seed=1) for sentence in batch.keys["decoder"]]
    lines = {("<eos>", *line.split()) for line in LINES}
    assert {sentence.units for sentence in single} <= lines and len(single) > len(whole)
    assert sum(map(len, single)) == sum(map(len, whole)) == len(task.prepared.split("valid"))


def test_words_that_are_read_by_their_spelling_are_named(tmp_path: Path, folder: Path) -> None:
    text = folder / "text.txt"
    config = find("wikitext2.character_cnn_10k_spelled")().toy()
    data = replace(config.task.data, path=text, units=Words(max_size=8))
    train(replace(config, task=replace(config.task, data=data), steps=1, evaluate_every=None), tmp_path / "run")
    task = open_run(tmp_path / "run").task
    assert len(task.prepared.lexicon) == 8
    batches = task.observe("valid", limit=10**6, seed=1)
    words = {word for batch in batches for sentence in batch.queries["decoder"] for word in sentence.whole}
    assert words == {"<eos>", *" ".join(LINES).split()}


def test_runs_without_attention_say_so(folder: Path) -> None:
    task = open_run(folder / "lstm").task
    assert takes(task) == "LSTMLM has no layers of attention"
    with pytest.raises(ValueError, match="lstm must be a run whose model has heads of attention, but LSTMLM has no"):
        study(folder, "lstm", task)
    with pytest.raises(ValueError, match="the model must have attention to be observed, but LSTMLM has no layers"):
        next(task.observe("valid", limit=1, seed=1))


def test_a_task_without_a_word_on_attention_has_none(folder: Path) -> None:
    train(replace(find("dirichlet.linear")().toy(), steps=1), folder / "dirichlet")
    with pytest.raises(ValueError, match="heads of attention, but models of this task have no attention"):
        study(folder, "dirichlet")
    with pytest.raises(ValueError, match="attention to be observed, but models of this task have no attention"):
        open_run(folder / "dirichlet").task.observe("valid", limit=1, seed=1)


def translator() -> Heads:
    """As a translator of two layers has them: three kinds of attention, alphas in each, markup in its words."""
    source = Sentence(("<eos>|", "$x^2$", "\x1b[31m", "low", "er", "?"), (0, 1, 2, 3, 3, 4))
    target = Sentence.of_words(["who", "wins", "?", "who"])
    weights = {
        "encoder": [torch.stack([shifted(6, -1), shifted(6, 1)])[None], random_sparse(1, 2, 6, 6)],
        "decoder": [random_sparse(1, 2, 4, 4, kind="decoder") for _ in range(2)],
        "cross": [random_sparse(1, 2, 4, 6) for _ in range(2)],
    }
    queries = {"encoder": [source], "decoder": [target], "cross": [target]}
    batch = Observed(weights, queries, {**queries, "cross": [source]})
    roles = usual_roles()
    measured = measure([batch], roles)
    kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    heads = [Head(kind, layer, number) for kind in kinds for layer in range(2) for number in range(2)]
    now = {head: 1.1 + 0.05 * place for place, head in enumerate(heads)}
    alphas = Alphas(1.0, 2.0, now, [5, 10], {head: [1.5, alpha] for head, alpha in now.items()})
    return Heads("valid", 10, 1, roles, measured, alphas, tuple(name_heads(measured, roles, now, [batch], most=2)))


def test_the_page_names_every_kind_and_what_cannot_be_seen() -> None:
    found = translator()
    shown = report.page(found, "run")
    text = shown.markdown()
    assert "valid: 1 examples (at most 10, drawn by seed 1) with 6 queries of self-attention of the encoder" in text
    assert "| position -1 | layer 0, head 0 | 100.0% | 5 | 1.100 | 16.7% |" in text
    assert "| position +1: not seen |" in text and "**attention of the decoder to the encoder**" in text
    assert "\x1b" not in text and "| 1.067 to 1.133 | 1 |  |  |" in text
    data = json.loads(json.dumps(shown.as_dict()))
    assert {each["kind"] for each in data["heads"]} == {"encoder", "decoder", "cross"}
    assert data["named"][0]["confidence"] == 1.0 and data["alphas"]["steps"] == [5, 10]
    assert len(data["named"][0]["examples"][0]["weights"]) == 6


def test_pictures_of_every_kind_are_drawn_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = report.page(translator(), "my_run $")
    files = shown.save_figures(tmp_path)
    assert len(files) == 2 + len(translator().named)
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
