"""Perplexity: what is divided by what, words of subwords, and a number that says what it depends on."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anymax.distributed.ranks import Ranks
from anymax.evaluation import LossByFrequency, Perplexity, Windows, perplexity, token_losses
from anymax.models import LSTMLM, LSTMConfig, TransformerConfig, TransformerLM
from anymax.vocabulary import FixedInput, FullOutput, OutputLayer, SparseOutput

EOS, UNK, V = 0, 1, 12


pytestmark = pytest.mark.usefixtures("one_thread")


def build(output: OutputLayer | None = None) -> TransformerLM:
    return TransformerLM(FixedInput(V, 8), output or FullOutput(V, 8), TransformerConfig(8, 1, 2, 12))


def text(length: int = 40) -> Tensor:
    tokens = torch.randint(1, V, (length,))
    tokens[9::10] = EOS
    return tokens


def losses_by_hand(model: TransformerLM, tokens: Tensor, block: int) -> list[float]:
    """Every block by itself, from the log-probabilities of all words."""
    read = torch.cat([torch.tensor([EOS]), tokens])
    found: list[float] = []
    for start in range(0, len(tokens), block):
        targets = tokens[start : start + block]
        log_probs = model.output.log_probs(model.hidden(read[None, start : start + len(targets)]))[0]
        found += (-log_probs.gather(1, targets[:, None])[:, 0]).tolist()
    return found


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens() -> None:
    model, tokens = build(), text()
    result = perplexity(model, tokens, Windows(7), eos=EOS, unk=UNK)
    losses = losses_by_hand(model, tokens, 7)
    assert result.loss == pytest.approx(sum(losses) / 40, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(sum(losses) / 40), rel=1e-5)
    assert (result.num_units, result.num_tokens, result.unit) == (40, 40, "word")
    assert result.num_unknown == int((tokens == UNK).sum())


def test_subwords_of_a_word_are_added_and_divided_by_the_words() -> None:
    # Ids from 6 on continue a word; "<eos>" and the others end a word.
    ends_word = torch.arange(V) < 6
    tokens = torch.tensor([7, 2, 3, 8, 9, 4, EOS, 5, 6, 1, EOS])
    model = build()
    result = perplexity(model, tokens, Windows(4), eos=EOS, ends_word=ends_word)
    losses = losses_by_hand(model, tokens, 4)
    words = [losses[:2], losses[2:3], losses[3:6], losses[6:7], losses[7:8], losses[8:10], losses[10:]]
    assert result.loss == pytest.approx(sum(map(sum, words)) / 7, rel=1e-5)
    assert (result.num_units, result.num_tokens, result.unit) == (7, 11, "word")
    assert "over 7 words in 11 tokens" in str(result)


def test_bits_per_byte_do_not_depend_on_the_unit() -> None:
    model, tokens = build(), text()
    by_subword = perplexity(model, tokens, Windows(8), eos=EOS, unit="subword", num_bytes=200)
    by_word = perplexity(model, tokens, Windows(8), eos=EOS, ends_word=torch.arange(V) < 6, num_bytes=200)
    total = sum(losses_by_hand(model, tokens, 8))
    assert by_subword.bits_per_byte == pytest.approx(total / math.log(2) / 200, rel=1e-5)
    assert by_word.num_units < 40 and by_word.bits_per_byte == pytest.approx(by_subword.bits_per_byte)


def test_ranks_that_reduce_give_the_number_of_one() -> None:
    model, tokens = build(), text(97)
    shares: list[list[float]] = []

    class Others(Ranks):
        def sum(self, values: Sequence[float]) -> list[float]:
            shares.append(list(values))
            return [sum(each) for each in zip(*shares, strict=True)]

    alone, _, _, together = (
        perplexity(model, tokens, Windows(8, context=3), eos=EOS, batch_tokens=16, unk=UNK, ranks=ranks)
        for ranks in (Ranks(), Others(0, 3), Others(1, 3), Others(2, 3))
    )
    assert together.loss == pytest.approx(alone.loss, rel=1e-6)
    assert (together.num_tokens, together.num_unknown) == (97, alone.num_unknown)


def test_every_token_is_scored_whatever_the_first_window_is() -> None:
    model, tokens = build(), text(97)
    by_block, by_stride = (
        perplexity(model, tokens, Windows(8, context=5, first=first), eos=EOS) for first in ("block", "stride")
    )
    assert (by_block.num_tokens, by_stride.num_tokens) == (97, 97) and by_block.loss != by_stride.loss
    # The loss of each token in the window that fairseq would read it in.
    losses = []
    for scored in range(0, 97, 3):
        start, end = max(0, scored - 5), min(scored + 3, 97)
        read = torch.cat([torch.tensor([EOS]), tokens])[None, start:end]
        losses += model.eval()(read, tokens[None, start:end], "none")[0, scored - start :].tolist()
    assert by_stride.loss == pytest.approx(sum(losses) / 97, rel=1e-5)
    assert by_stride.as_dict()["first_window"] == "stride"


def test_each_sees_every_stretch() -> None:
    tokens, seen = text(), []
    perplexity(build(), tokens, Windows(6), eos=EOS, each=seen.append)
    assert torch.equal(torch.cat([stretch.tokens for stretch in seen]), tokens)


def test_an_output_that_is_no_likelihood_gives_its_loss_by_name_and_no_perplexity() -> None:
    model, tokens = build(SparseOutput(V, 8, alpha=1.5)), text()
    result = perplexity(model, tokens, Windows(40), eos=EOS, num_bytes=200)
    read = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
    assert result.loss == pytest.approx(model(read, tokens[None]).item(), rel=1e-5)
    assert result.perplexity is None and result.bits_per_byte is None
    assert str(result).startswith(f"SparseOutput loss {result.loss:.4f} per word (no likelihood, so no perplexity)")
    assert result.metrics() == {"loss": result.loss, "num_words": 40}


def test_a_number_says_what_it_depends_on() -> None:
    result = Perplexity(3.4164, "word", 245_569, 245_569, block=512, context=400, num_unknown=1234, num_bytes=1_290_590)
    assert str(result) == (
        "perplexity 30.46 per word (3.4164 nats) over 245,569 words; windows of 512 tokens, context 400, stride 112; "
        "one <eos> per line, scored; 1,234 of the tokens unknown; 0.9378 bits per byte over 1,290,590 bytes"
    )
    subwords = Perplexity(2.0, "subword", 10, 10, block=3072, context=2560, windows="sentences")
    assert "per subword" in str(subwords)
    assert "windows of whole sentences up to 3,072 tokens, context 2560, stride 512" in str(subwords)
    assert "stride 512 from the first window on; " in str(replace(subwords, first_window="stride"))


def test_a_carried_state_is_said() -> None:
    model = LSTMLM(FixedInput(V, 6), FullOutput(V, 8), LSTMConfig(6, 8, 1))
    whole, rows = (perplexity(model, text(), Windows(7, rows=rows), eos=EOS) for rows in (1, 4))
    assert "the state carried through the whole stream" in str(whole)
    assert "the state carried through 4 parallel rows of the stream" in str(rows)
    assert (whole.windows, rows.rows) == ("carried", 4)


def test_the_plain_values_are_json_and_complete() -> None:
    result = perplexity(build(), text(), Windows(8, context=2), eos=EOS, num_bytes=200)
    values = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert values["perplexity"] == result.perplexity and values["stride"] == 6
    assert values["end_of_line"] == "one <eos> per line, scored" and values["windows"] == "contiguous"
    assert result.metrics() == {
        "loss": result.loss,
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte,
        "num_words": 40,
    }


def test_the_package_is_imported_without_torch() -> None:
    script = "import sys, anymax.evaluation; assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("loss", [710.0, 1e6, math.inf])
def test_a_loss_beyond_what_a_float_can_exponentiate_is_an_infinite_perplexity(loss: float) -> None:
    result = Perplexity(loss, "word", 1, 1, block=1)
    assert result.perplexity == math.inf and "perplexity inf per word" in str(result)
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["perplexity"] is None


def test_large_perplexities_stay_legible() -> None:
    assert "perplexity 7.226e+86 per word" in str(Perplexity(200.0, "word", 1, 1, block=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "letter"}, r"unit must be one of \('word', 'subword', 'byte'\), got 'letter'"),
        (
            {"unit": "subword", "ends_word": torch.ones(V).bool()},
            "unit must be 'word' where ends_word adds up subwords",
        ),
        ({"ends_word": torch.arange(V) > 0}, "ends_word must be true for eos, which counts as a word"),
        ({"ends_word": torch.arange(V)}, "ends_word must be one true or false per id, got torch.int64"),
        ({"ends_word": torch.arange(V) < 6, "tokens": torch.tensor([1, 7])}, "tokens must end with the last subword"),
    ],
    ids=str,
)
def test_a_number_that_would_be_wrong_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity(**{"model": build(), "tokens": text(), "eos": EOS, "windows": Windows(8)} | options)


def test_losses_by_frequency_come_from_the_same_pass() -> None:
    model, tokens = build(), text()
    counts = [100, 5, *range(40, 30, -1)]
    apart, along = (LossByFrequency(tokens, counts, eos=EOS) for _ in range(2))
    result = perplexity(model, tokens, Windows(8), eos=EOS, each=along.add)
    for scored in token_losses(model, tokens, Windows(8), eos=EOS):
        apart.add(scored)
    assert along.table() == apart.table()
    bins = along.table().by_word
    assert sum(bin.num_words * (bin.loss or 0) for bin in bins) / 40 == pytest.approx(result.loss)
