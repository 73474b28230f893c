"""Language modelling as a task: what its config refuses, drawn lengths, penalties, and rows of an evaluation."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from anymax.data import BPE, Prepared, RandomLengths, Text, prepare
from anymax.data.text.words import split_line
from anymax.models import AWDLSTMConfig
from anymax.recipes import find
from anymax.training import Ranks, RunConfig, open_run, read_metrics, train
from anymax.training.task_config import Sampling
from anymax.training.tasks.language_modeling.config import Contiguous, Evaluation
from anymax.training.tasks.language_modeling.task import LanguageModelingTask, open_language_model
from anymax.training.tasks.language_modeling.texts import NOTHING

QUICK = {"threads": 1, "device": "cpu", "steps": 3, "evaluate_every": None, "checkpoint_every": 99}


def recurrent(**changes) -> RunConfig:
    """An LSTM at toy size on text that is in every Python."""
    run = find("grave.full")().toy()
    return replace(run, task=replace(run.task, **changes), **QUICK)


def awd(body: AWDLSTMConfig) -> RunConfig:
    run = recurrent(batching=Contiguous(4, 8, RandomLengths(0.3, 2.0, 2)))
    return replace(run, task=replace(run.task, model=replace(run.task.model, body=body.toy())))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(recurrent(), folder)
    return folder


def test_rows_are_measured_together_and_each_starts_without_a_state(trained: Path):
    task = open_run(trained).task
    exact, quick = (task.perplexity(task.model, "valid", evaluation=Evaluation(rows=rows)) for rows in (1, 4))
    assert (exact.rows, quick.rows) == (1, 4) and exact.num_tokens == quick.num_tokens
    assert exact.loss != quick.loss and exact.loss == pytest.approx(quick.loss, rel=0.01)
    task.config = replace(task.config, evaluation=Evaluation(rows=4))
    assert task.evaluate(task.model, "valid") == quick.metrics()


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reads unknown words by their spelling."""
    folder = tmp_path_factory.mktemp("spelled") / "run"
    train(replace(find("wikitext2.character_cnn_10k_spelled")().toy(), **QUICK), folder)
    return folder


def test_a_run_that_spells_unknown_words_is_measured_on_another_text(spelled: Path, tmp_path: Path):
    trained = open_run(spelled).task
    lines = ["The zyzzyva and the <unk> of quagga", "a zyzzyva is <unk>", ""] * 9
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))
    units, path = Prepared.saved_units(spelled), Text(path=tmp_path)
    with pytest.raises(ValueError, match="prepared must keep unknown words apart where the model spells them"):
        LanguageModelingTask(trained.config, prepare(path, units=units), trained.model, Ranks(), seed=1)
    prepared = prepare(path, units=units, spell_unknown=True)
    task = LanguageModelingTask(trained.config, prepared, trained.model, Ranks(), seed=1)
    measured = task.perplexity(task.model, "test")
    assert measured.num_unknown == 9 * 5
    # The same by a table of the vectors: those of the vocabulary, and of every other word its spelling.
    characters, lexicon, size = task.model.input, prepared.spelled.lexicon, len(prepared.lexicon)
    assert {"zyzzyva", "quagga"} == set(lexicon.words[size:])
    with torch.no_grad():
        vectors = torch.cat([characters(torch.arange(size)), characters.spell(lexicon.words[size:])])
    task.model.input = torch.nn.Embedding.from_pretrained(vectors)
    assert task.perplexity(task.model, "test").loss == pytest.approx(measured.loss, rel=1e-6)
    # Reading the one unknown word in place of each is another number.
    vectors[size:] = vectors[prepared.lexicon.unk]
    assert task.perplexity(task.model, "test").loss != pytest.approx(measured.loss, rel=1e-6)


def test_spelling_unknown_words_changes_what_is_read_and_nothing_that_is_predicted(tmp_path: Path):
    names = ("wikitext2.character_cnn_10k", "wikitext2.character_cnn_10k_spelled")
    plain, spelled = (
        find(name)().toy().task.build(tmp_path, Ranks(), seed=1, announce=lambda *_: None) for name in names
    )
    size, unk = len(plain.prepared.lexicon), plain.prepared.lexicon.unk
    of_plain, of_spelled = (list(task.batches("train"))[:9] for task in (plain, spelled))
    for before, batch in zip(of_plain, of_spelled, strict=True):
        assert batch.target.equal(before.target) and not batch.ids.equal(before.ids)
        assert batch.ids.where(batch.ids < size, unk).equal(before.ids)
    # What has no unknown word has the same loss to the bit.
    plain.model.eval(), spelled.model.load_state_dict(plain.model.state_dict()), spelled.model.eval()
    ids, target = torch.arange(2, 18)[None], torch.arange(3, 19)[None]
    assert torch.equal(plain.model(ids, target), spelled.model(ids, target))


def test_a_prompt_with_unknown_words_is_read_by_their_spelling(spelled: Path):
    opened = open_language_model(spelled)
    prompts = ["The zyzzyva of quagga", "The quagga of quagga"]
    texts = [opened.continue_text(text, Sampling(4))[0] for text in prompts]
    assert all(text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True))
    hidden = []
    for prompt in prompts:
        lexicon = opened.units.lexicon.extended(prompt.split())
        opened.continue_text(prompt, Sampling(1))
        hidden.append(opened.model.hidden(torch.tensor([lexicon.encode(prompt.split())])))
    assert not torch.allclose(*hidden)
    # Without the option they are one unknown word, and still stand in the text as they are.
    unspelled = opened._replace(spells_unknown=False)
    assert unspelled.continue_text(prompts[0], Sampling(4))[0].startswith(prompts[0])
    assert (opened.unknown_words(prompts[0]), unspelled.unknown_words(prompts[0])) == ([], ["zyzzyva", "quagga"])


def test_subwords_have_no_unknown_words_to_spell():
    task = find("wikitext2.character_cnn_10k_spelled")().task
    with pytest.raises(ValueError, match=r"model.input.spell_unknown must be False where units are subwords"):
        replace(task, data=replace(task.data, units=BPE()))


def test_rows_are_refused_where_they_do_not_apply():
    run = find("sotu.softmax_tied")()
    with pytest.raises(
        ValueError, match=r"evaluation.rows must be 1 for a TransformerConfig, .* got 4; its windows are"
    ):
        replace(run.task, evaluation=Evaluation(rows=4))
    with pytest.raises(
        ValueError, match=r"evaluation.first_window must be 'block' for a .*LSTMConfig, .* leave it out"
    ):
        recurrent(evaluation=Evaluation(first_window="stride"))
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        Evaluation(rows=0)
    assert recurrent(evaluation=Evaluation(rows=10)).toy().task.evaluation.rows == 4


def test_lengths_are_drawn_by_the_seed_of_the_run_and_reach_the_rate(tmp_path: Path):
    run = recurrent(batching=Contiguous(4, 8, RandomLengths(0.3, 2.0, 2)))
    tasks = [run.task.build(tmp_path, Ranks(), seed=seed, announce=lambda *_: None) for seed in (1, 1, 2)]
    rates = [[next(iter(batches)).lr_factor for _ in range(9)] for batches in (task.batches("train") for task in tasks)]
    assert rates[0] == rates[1] != rates[2]
    batch = next(iter(tasks[0].batches("train")))
    step = tasks[0].step(tasks[0].model, batch, tasks[0].new_carry())
    assert step.lr_factor == batch.lr_factor == rates[0][0] and (step.penalty, step.log) == (0.0, {})
    assert run.toy().task.batching.random_lengths == RandomLengths(0.3, 2.0, 2)


def test_a_penalty_is_recorded_by_itself_and_kept_out_of_the_loss(tmp_path: Path):
    plain, punished = (awd(AWDLSTMConfig(activation=strength)) for strength in (0.0, 50.0))
    plain = replace(
        plain,
        task=replace(
            plain.task, model=replace(plain.task.model, body=replace(plain.task.model.body, temporal_activation=0.0))
        ),
    )
    records = []
    for name, run in (("plain", plain), ("punished", punished)):
        train(replace(run, log_every=1), tmp_path / name)
        records.append([record for record in read_metrics(tmp_path / name) if record["kind"] == "train"])
    assert all(record["log"] == {} for record in records[0])
    assert all(record["log"]["penalty"] > 0 for record in records[1])
    # The same weights and the same dropout before the first step.
    assert records[1][0]["loss"] == pytest.approx(records[0][0]["loss"], rel=1e-5)
    assert records[1][0]["gradient_norm"] != pytest.approx(records[0][0]["gradient_norm"], rel=1e-3)


def test_a_recorded_penalty_is_that_of_an_item(tmp_path: Path):
    run = awd(AWDLSTMConfig())
    task = run.task.build(tmp_path, Ranks(), seed=1, announce=lambda *_: None)
    batch = next(iter(task.batches("train")))
    torch.manual_seed(3)
    step = task.step(task.model, batch, task.new_carry())
    torch.manual_seed(3)
    mean = task.model(batch.ids, batch.target, "mean", task.new_carry()).item()
    assert step.log["penalty"] == pytest.approx(step.penalty / step.count) == pytest.approx(float(task.model.penalty))
    assert step.loss_sum.item() / step.count == pytest.approx(mean, rel=1e-5)


def test_the_training_loss_of_subwords_is_recorded_per_word_as_evaluations_measure_it(tmp_path: Path):
    run = find("sotu.bpe_tied")().toy()
    model = replace(run.task.model, body=replace(run.task.model.body, dropout=0.0))
    task = replace(run.task, model=model, batching=replace(run.task.batching, batch_size=64))
    # An epoch in records of seven steps, with weights that stay as they are.
    still = replace(run, task=task, optimizer=replace(run.optimizer, lr=1e-30), steps=None, epochs=1.0, log_every=7)
    train(replace(still, accumulate=2, evaluate_every=None, checkpoint_every=999, threads=1), tmp_path / "run")
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    opened = open_run(tmp_path / "run").task
    measured = opened.perplexity(opened.model, "train")
    items = [after["items"] - before["items"] for before, after in pairwise([{"items": 0}, *records])]
    words = [n * record["loss"] / record["log"]["loss_per_word"] for n, record in zip(items, records, strict=True)]
    assert sum(words) == pytest.approx(measured.num_units) and sum(items) == measured.num_tokens
    total = sum(n * record["log"]["loss_per_word"] for n, record in zip(words, records, strict=True))
    assert total / sum(words) == pytest.approx(measured.loss, rel=1e-5)
    assert measured.num_units < 0.9 * measured.num_tokens


def continued(task: LanguageModelingTask, seed: int, limit: int = 6) -> list[tuple[str, ...]]:
    (shown,) = task.texts("valid", limit=limit, seed=seed, announce=lambda _: None)
    assert shown.headings == ("context", "text", "model")
    return [line.texts for line in shown.lines]


@pytest.mark.parametrize("which", ["trained", "spelled"])
def test_contexts_stand_in_the_text_before_what_follows_and_the_model_always_writes(
    which: str, request: pytest.FixtureRequest
):
    task = open_run(request.getfixturevalue(which)).task
    first = continued(task, 1)
    assert first == continued(task, 1) != continued(task, 2) and len(first) == 6
    units = task.units_read()
    whole = units.text(task.prepared.as_read("valid").tokens())
    # Where marks stand in print depends on what is before them, so spaces are left out.
    letters = "".join(whole.split())
    for context, text, written in first:
        assert "".join(f"{context}{text}".split()) in letters
        assert written and text and "<unk>" not in written and "\n" not in written + text
        assert 1 <= len(context.split()) <= 20


def test_contexts_of_subwords_begin_and_end_with_whole_words(tmp_path: Path):
    run = recurrent()
    train(replace(run, task=replace(run.task, data=replace(run.task.data, units=BPE(300)))), tmp_path / "run")
    task = open_run(tmp_path / "run").task
    whole = [word for word in task.prepared.units.decode(task.prepared.split("valid").tokens()) if word != "<eos>"]
    texts = continued(task, 1, limit=20)
    assert len(texts) == 20
    for context, _, written in texts:
        words = split_line(context, "prose")
        assert (
            written
            and len(words) in range(1, 21)
            and any(whole[place : place + len(words)] == words for place in range(len(whole)))
        )


def test_a_model_that_can_write_nothing_but_an_unknown_word_says_so(trained: Path, monkeypatch: pytest.MonkeyPatch):
    task = open_run(trained).task
    lexicon, output = task.prepared.lexicon, task.model.output

    def certain(hidden: torch.Tensor) -> torch.Tensor:
        return torch.full((len(hidden), len(lexicon)), -torch.inf).index_fill(1, torch.tensor([lexicon.unk]), 0.0)

    monkeypatch.setattr(output, "log_probs", certain)
    assert {written for _, _, written in continued(task, 1)} == {NOTHING}


@pytest.mark.parametrize("which", ["trained", "spelled"])
def test_your_own_beginnings_are_continued_and_the_model_reads_its_text_as_before(
    which: str, request: pytest.FixtureRequest
):
    task = open_run(request.getfixturevalue(which)).task
    before, lines = continued(task, 1), ["the", "a zyzzyva </script><b> \u202e"]
    (shown,), (again,) = (task.texts_for(lines, announce=lambda _: None) for _ in range(2))
    assert shown == again and [line.texts[0] for line in shown.lines] == lines
    assert all(line.texts[1] and "<unk>" not in line.texts[1] for line in shown.lines)
    assert "</script><b>" not in shown.html() and continued(task, 1) == before
    with pytest.raises(ValueError, match="line 3 must hold words"):
        task.texts_for([*lines, " "], announce=lambda _: None)
