"""Masked language modelling as a task: what it measures, what counting reaches, its export, and where heads look."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anymax.attention import LearnedEntmaxConfig
from anymax.data import Masking, WordPieces
from anymax.models import load_bert
from anymax.recipes import find
from anymax.training import Linear, Ranks, RunConfig, open_run, read_metrics, train
from anymax.training.optim.optimizers import AdamWConfig
from anymax.training.tasks.masked_language_modeling.config import MaskedLanguageModelingConfig, PackedLines
from anymax.training.tasks.masked_language_modeling.exporting import open_bert
from anymax.training.tasks.masked_language_modeling.task import MaskedLanguageModelingTask, sentence_of
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")
# "b" follows "a", "d" follows "c": half of the pieces can be told from their neighbours.
PAIRS = ["a b c d a b", "c d a b", "a b a b c d", "c d c d a b c d"]


def config(folder: Path, **changes) -> RunConfig:
    """Two languages of pairs of words, the second in capital letters, and a model that learns them in seconds."""
    for name, lines in (("low", PAIRS * 80), ("high", [line.upper() for line in PAIRS] * 40)):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    run = find("bert.small")()
    data = replace(
        run.task.data, paths=(folder / "low.txt", folder / "high.txt"), pieces=replace(run.task.data.pieces, size=40)
    )
    model = replace(run.task.model.toy(), dropout=0.0, attention_dropout=0.0, mapping=LearnedEntmaxConfig(1.3))
    task = replace(run.task, data=data, model=replace(model, model_dim=32, ffn_dim=64), batching=PackedLines(24, 16))
    return replace(
        run,
        task=replace(task, **changes),
        optimizer=AdamWConfig(5e-3),
        schedule=Linear(10),
        steps=120,
        evaluate_every=60,
        checkpoint_every=60,
        threads=1,
        device="cpu",
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(config(folder), folder / "run")
    return folder / "run"


def opened(run: Path) -> MaskedLanguageModelingTask:
    task = open_run(run).task
    assert isinstance(task, MaskedLanguageModelingTask)
    return task


def test_hidden_pieces_are_told_better_than_by_counting(trained: Path):
    task = opened(trained)
    report = task.report("test", announce=lambda line: None)
    values = json.loads(json.dumps(report.as_dict()))
    assert values["metrics"]["loss"] < 0.8 * values["unigram"]["loss"]
    assert values["metrics"]["accuracy"] > values["unigram"]["accuracy"] + 0.2
    assert set(values["texts"]) == {"low", "high"}
    assert "For comparison, a model that only counts pieces" in report.lines()[1]
    ((low, *_), (high, *_)) = report.tables()[0].rows
    assert (low, high) == ("low", "high")


def test_metrics_are_those_of_every_hidden_piece_of_every_text(trained: Path):
    task = opened(trained)
    metrics = task.evaluate(task.model, "valid")
    expected = {"low": [], "high": []}
    for batch in task.ordered("valid"):
        with torch.no_grad():
            hidden = task.model.eval().encode(batch.ids, batch.mask, batch.segments)
            log_probs = task.model.head.log_probs(hidden)
        for row, place in (batch.target != -100).nonzero().tolist():
            scores, wanted = log_probs[row, place], int(batch.target[row, place])
            name = ("low", "high")[int(batch.texts[row])]
            expected[name].append((-float(scores[wanted]), float(scores.argmax() == wanted)))
    low, high = expected.values()
    for name, pairs in (("", low + high), ("/low", low), ("/high", high)):
        loss, accuracy = (sum(values) / len(values) for values in zip(*pairs, strict=True))
        assert metrics[f"loss{name}"] == pytest.approx(loss, rel=1e-5)
        assert metrics[f"accuracy{name}"] == pytest.approx(accuracy)
    # Valid masks are fixed.
    assert task.evaluate(task.model, "valid") == metrics
    assert task.examples() and all(" | " in line and " as " in line for line in task.examples())
    evaluations = [record["metrics"] for record in read_metrics(trained) if record["kind"] == "evaluation"]
    assert evaluations[-1] == pytest.approx(metrics)


def test_the_baseline_is_the_entropy_of_counted_pieces(trained: Path):
    task = opened(trained)
    report = task.report("valid", announce=lambda line: None)
    for name, encoded in task.prepared.split("train").items():
        special = task.prepared.pieces.specials
        counts = Counter(id for id in encoded.tokens().tolist() if id not in special)
        ordinary = [id for id in range(len(task.prepared.pieces)) if id not in special]
        total = sum(counts[id] + 1 for id in ordinary)
        hidden = [
            int(id)
            for batch in task.ordered("valid")
            for text, target in zip(batch.texts.tolist(), batch.target, strict=True)
            for id in target[target != -100]
            if ("low", "high")[text] == name
        ]
        expected = sum(-math.log((counts[id] + 1) / total) for id in hidden) / len(hidden)
        assert report.counted[name].metrics()["loss"] == pytest.approx(expected)
        assert report.counted[name].hidden == len(hidden)


def test_transformers_opens_an_exported_run_with_the_same_hidden_states(trained: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")
    import anymax.hf

    task_config = config(tmp_path).task
    names = task_config.export(trained, tmp_path / "out")
    assert sorted(names) == sorted(path.name for path in (tmp_path / "out").iterdir())
    model, pieces = open_bert(trained)
    again = anymax.hf.from_pretrained(transformers.BertForMaskedLM, tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(["a b [MASK] d", "c d"], padding=True, return_tensors="pt")
    mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        theirs = again.bert(**inputs).last_hidden_state
        ours = model.encode(inputs["input_ids"], mask, inputs["token_type_ids"])
        logits = again(**inputs).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.head.log_probs(ours), logits.log_softmax(-1), rtol=0, atol=2e-5)
    loaded, left_out = load_bert(tmp_path / "out")
    assert left_out == () and WordPieces.load(tmp_path / "out") == pieces
    torch.testing.assert_close(loaded.encode(inputs["input_ids"], mask), ours)
    with pytest.raises(ValueError, match="folder must be new or empty, got"):
        task_config.export(trained, tmp_path / "out")
    with pytest.raises(ValueError, match="LanguageModelingConfig has no other layout"):
        find("sotu.softmax")().task.export(trained, tmp_path / "other")


def test_heads_are_observed_in_rows_without_hidden_pieces(trained: Path):
    task = opened(trained)
    observed = list(task.observe("valid", limit=3, seed=1))
    examples = [example for each in observed for example in each.examples()]
    assert len(examples) == 3 and all(example.kind == "encoder" for example in examples)
    for example in examples:
        assert example.queries.units[0] == "[CLS]" and "[MASK]" not in example.queries.units
        assert example.weights.shape == (4, len(example.queries), len(example.queries))
        torch.testing.assert_close(example.weights.sum(-1), torch.ones(example.weights.shape[:-1]))
    assert task.why_unobserved() is None and len(task.watch()) == 4


def test_pieces_of_a_word_are_put_together_to_be_read():
    pieces = WordPieces(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it", "##", "##s"))
    sentence = sentence_of(pieces, [2, 5, 6, 7, 9, 8, 3])
    assert sentence.units == ("[CLS]", "un", "do", "it", "s", "##", "[SEP]")
    assert sentence.words == (0, 1, 1, 2, 2, 3, 4)
    assert sentence_of(pieces, [6, 9]).words == (0, 0)


def test_alphas_are_not_decayed_and_an_epoch_has_the_stated_shares(trained: Path):
    task = opened(trained)
    names = {name for name, parameter in task.model.named_parameters() if parameter in task.undecayed()}
    assert names == {f"encoder.blocks.{block}.attention.mapping.pre_alpha" for block in range(2)}
    texts = Counter(text for batch in task.batches("train") for text in batch.texts.tolist())
    assert texts[0] == texts[1]


@each(
    ("make", "match"),
    [
        (
            lambda run: replace(run.task, batching=PackedLines(65, 2)),
            "batching.block must be at most model.max_pos.*64",
        ),
        (lambda run: PackedLines(1, 2), "block must be at least 2, got 1"),
        (lambda run: PackedLines(8, 0), "batch_size must be at least 1, got 0"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(make, match: str, tmp_path_factory):
    with pytest.raises(ValueError, match=match):
        make(config(tmp_path_factory.mktemp("texts")))


def test_two_ranks_take_the_steps_of_one(trained: Path):
    whole = opened(trained)
    parts = [opened(trained) for _ in range(2)]
    for rank, part in enumerate(parts):
        part.ranks = Ranks(rank=rank, world_size=2, device=torch.device("cpu"))
    for batch, *shares in zip(whole.batches("train"), *(part.batches("train") for part in parts), strict=True):
        step = whole.step(whole.model.eval(), batch, None)
        halves = [part.step(part.model.eval(), share, None) for part, share in zip(parts, shares, strict=True)]
        assert step.count == sum(half.count for half in halves)
        torch.testing.assert_close(step.loss_sum, sum(half.loss_sum for half in halves), rtol=1e-4, atol=1e-4)


def test_the_published_recipe_is_that_of_bert():
    run = find("bert.base_multilingual")()
    task = run.task
    assert isinstance(task, MaskedLanguageModelingConfig) and task.masking == Masking(0.15, 0.8, 0.1)
    assert (task.batching.block, task.batching.batch_size * run.accumulate, run.steps) == (512, 256, 1_000_000)
    assert (run.optimizer.lr, run.optimizer.weight_decay, run.schedule) == (1e-4, 0.01, Linear(10_000))
    with torch.device("meta"):
        model = task.model.build(task.data.pieces.size)
    size = sum(parameter.numel() for parameter in model.parameters())
    assert f"{size / 1e6:.1f}M parameters" in find("bert.base_multilingual").__doc__


def test_guesses_stand_beside_the_truth_with_the_share_that_is_right(trained: Path):
    task = opened(trained)
    (shown,), (again,), (other,) = (
        task.texts("valid", limit=8, seed=seed, announce=lambda _: None) for seed in (1, 1, 2)
    )
    assert shown == again != other and 0 < len(shown.lines) <= 8
    assert (shown.headings, shown.score) == (("read", "text", "guessed"), "% right")
    sentences = {*PAIRS, *(line.upper() for line in PAIRS)}
    for line in shown.lines:
        read, text, guessed = line.texts
        assert text.text in sentences
        columns = list(zip(*(side.text.split() for side in (read, text, guessed)), strict=True))
        hidden = [mark for part, mark in read.parts if part != " "]
        wrong = [mark for part, mark in guessed.parts if part != " "]
        for (seen, true, guess), is_hidden, is_wrong in zip(columns, hidden, wrong, strict=True):
            assert is_wrong == (true != guess) and (is_hidden or seen == true == guess)
        assert any(hidden) and line.score == pytest.approx(100 * (1 - sum(wrong) / sum(hidden)))


def test_masks_of_your_own_lines_are_filled(trained: Path):
    task = opened(trained)
    lines = ["a [MASK] c d a b", "[MASK] b <b> [MASK] d"]
    (shown,) = task.texts_for(lines, announce=lambda _: None)
    pieces = task.prepared.pieces
    for line, shown_line in zip(lines, shown.lines, strict=True):
        given, guessed = shown_line.texts
        ids = torch.tensor([[pieces.cls, *pieces.encode(line, specials=True), pieces.sep]])
        with torch.no_grad():
            best = task.model.prediction_head.log_probs(task.model.encode(ids)).argmax(-1)
        marks = [part for part, is_marked in guessed.parts if is_marked]
        assert given == line and marks == [pieces.vocabulary[id].removeprefix("##") for id in best[ids == pieces.mask]]
        assert "[MASK]" not in guessed.text and "<b>" not in shown.html()
    long = "a " * task.config.model.max_positions + "[MASK]"
    for line, said in (
        ("a b", r"line 2 must have a \[MASK\]"),
        (long, "line 2 must have at most"),
        ("", "line 2 must"),
    ):
        with pytest.raises(ValueError, match=said):
            task.texts_for(["[MASK]", line], announce=lambda _: None)
