"""The rank of log-probabilities: against numpy, for layers whose rank is known, within memory, never by a NaN."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anymax.evaluation import Windows, effective_rank, log_prob_rank, matrix_rank, singular_values
from anymax.models import LSTMLM, LSTMConfig
from anymax.transforms import PLIF, Sig
from anymax.vocabulary import AdaptiveOutput, Bands, FixedInput, FullOutput, MixtureOutput, OutputLayer, SparseOutput
from tests.each import each

N, M, D = 240, 120, 10


def log_probs_of(output: OutputLayer, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of layers whose parameters are large enough that every direction is used."""
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.normal_()
        return output.to(dtype).log_probs(2 * torch.randn(N, D, dtype=dtype))


OUTPUTS = {
    "softmax": (lambda: FullOutput(M, D), D + 1),
    "softmax with a bias": (lambda: FullOutput(M, D, bias=True), D + 2),
    "narrow softmax": (lambda: FullOutput(M, D, dim=4), 4 + 1),
    "adaptive": (lambda: AdaptiveOutput(Bands.from_cutoffs((30, 70), M, dim=D, factor=2), D), D + 3),
    "sig": (lambda: FullOutput(M, D, transform=Sig()), M),
    "plif": (lambda: FullOutput(M, D, transform=PLIF(pieces=1000)), M),
    "mixture": (lambda: MixtureOutput(M, D, num_experts=3), M),
}


@each("method", ["svd", "gram"])
@each("dtype", [torch.float32, torch.float64])
@each("name", OUTPUTS)
def test_layers_have_the_rank_that_theory_gives_them(name: str, dtype: torch.dtype, method: Any) -> None:
    build, expected = OUTPUTS[name]
    found = matrix_rank(log_probs_of(build(), dtype).split(70), num_contexts=N, num_words=M, method=method)
    assert found.rank == expected
    assert found.is_lower_bound == (method == "gram" and dtype == torch.float64 and expected < M)


@pytest.mark.parametrize("shape", [(50, 31), (31, 50), (7, 1), (1, 7)], ids=str)
def test_singular_values_are_those_of_numpy_however_rows_come(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape, dtype=torch.float64).log_softmax(-1)
    exact = np.linalg.svd(matrix.numpy(), compute_uv=False)
    for method in ("svd", "gram"):
        for rows in (3, 100):
            found = singular_values(matrix.split(rows), num_rows=shape[0], num_columns=shape[1], method=method)
            assert found.values.numpy() == pytest.approx(exact, rel=1e-9, abs=10 * found.floor)
            assert found.method == method


def test_blocks_of_the_products_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anymax.evaluation.rank.spectrum.GRAM_BLOCK", 8)
    for shape in ((60, 29), (29, 60)):
        matrix = torch.randn(*shape)
        found = singular_values(matrix.split(11), num_rows=shape[0], num_columns=shape[1], method="gram")
        assert found.values.numpy() == pytest.approx(np.linalg.svd(matrix.double().numpy(), compute_uv=False))


def test_the_floor_of_the_products_lies_above_their_noise_and_below_the_tolerance() -> None:
    matrix = log_probs_of(FullOutput(M, D), torch.float64)
    exact, squared = (singular_values([matrix], num_rows=N, num_columns=M, method=m) for m in ("svd", "gram"))
    assert exact.values[D + 1] < exact.floor * 10 and exact.floor < squared.floor
    assert exact.values[D + 1] < squared.values[D + 1 :].max() < squared.floor
    found = matrix_rank([matrix.float()], num_contexts=N, num_words=M, method="gram")
    assert found.floor < found.tolerance


def test_tolerances_are_those_of_their_rules() -> None:
    matrix = log_probs_of(FullOutput(M, D))
    options: dict[str, Any] = {"num_contexts": N, "num_words": M}
    largest = float(np.linalg.svd(matrix.double().numpy(), compute_uv=False)[0])
    eps = float(np.finfo(np.float32).eps)
    press, numpys, number = (matrix_rank([matrix], tolerance=t, **options) for t in ("press", "numpy", 0.25))
    assert press.tolerance == pytest.approx(0.5 * math.sqrt(N + M + 1) * largest * eps)
    assert numpys.tolerance == pytest.approx(N * largest * eps)
    assert (number.tolerance, number.rule, press.rule) == (0.25, "absolute", "press")
    assert number.rank == int((number.singular_values > 0.25).sum())
    assert numpys.rank == np.linalg.matrix_rank(matrix.numpy())


def test_effective_ranks_are_counted_by_hand() -> None:
    values = torch.tensor([10.0, 1.0, 0.1, 0.01])
    # Squares 100, 1, 0.01, 0.0001 of 101.0101.
    assert [effective_rank(values, share) for share in (0.5, 0.01, 1e-3, 1e-4, 1e-5, 1e-7)] == [1, 1, 2, 2, 3, 4]
    assert effective_rank(torch.ones(5), 0.3) == 4
    assert effective_rank(torch.zeros(5), 0.3) == 0


def test_the_entropy_rank_counts_equal_directions() -> None:
    found = matrix_rank([torch.eye(6)], num_contexts=6, num_words=6)
    assert found.entropy_rank == pytest.approx(6)
    one = matrix_rank([torch.ones(4, 6)], num_contexts=4, num_words=6)
    assert one.entropy_rank == pytest.approx(1, abs=1e-6) and one.rank == 1


def test_a_vocabulary_of_one_word_has_no_rank() -> None:
    found = matrix_rank([torch.zeros(5, 1)], num_contexts=5, num_words=1)
    assert found.rank == 0 and set(found.effective.values()) == {0} and found.entropy_rank == 1


def test_what_is_too_large_is_refused_before_anything_is_computed() -> None:
    def never() -> Iterator[Tensor]:
        raise AssertionError("nothing may be asked for")
        yield

    with pytest.raises(ValueError, match=r"must fit into 1.0 GB, but take 1.6 GB by 'gram'; take at most about 7,905"):
        matrix_rank(never(), num_contexts=80_000, num_words=10_000, memory_limit=10**9)
    with pytest.raises(ValueError, match="or the method 'gram'"):
        matrix_rank(never(), num_contexts=80_000, num_words=10_000, method="svd", memory_limit=10**9)
    with pytest.raises(ValueError, match="fewer rows"):
        matrix_rank(never(), num_contexts=10**6, num_words=10**7)


def test_minus_infinity_is_refused_or_raised_to_a_number_by_name() -> None:
    log_probs = log_probs_of(SparseOutput(M, D))
    assert (log_probs == -math.inf).any()
    with pytest.raises(ValueError, match="must be finite, got minus infinity, which a sparse output gives; raise them"):
        matrix_rank([log_probs], num_contexts=N, num_words=M)
    found = matrix_rank([log_probs], num_contexts=N, num_words=M, clamp=-20.0)
    exact = np.linalg.svd(log_probs.double().clamp(min=-20).numpy(), compute_uv=False)
    assert found.singular_values.numpy() == pytest.approx(exact, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("chunks", "options", "message"),
    [
        ([torch.full((3, 4), math.nan)], {}, "finite numbers, got nan in row 0"),
        ([torch.full((3, 4), math.nan)], {"clamp": -5.0}, "finite numbers, got nan"),
        ([torch.full((3, 4), math.inf)], {}, "finite numbers, got inf"),
        ([torch.zeros(2, 4)], {}, "must have 3 rows in all, as num_rows says, got 2"),
        ([torch.zeros(3, 4)] * 2, {}, "must have 3 rows in all, as num_rows says, got more"),
        ([torch.zeros(3, 5)], {}, "matrices of 4 floating-point columns"),
        ([torch.zeros(3, 4)], {"tolerance": "small"}, "tolerance must be a number or one of"),
        ([torch.zeros(3, 4)], {"tolerance": -1.0}, "tolerance must be a finite number"),
        ([torch.zeros(3, 4)], {"shares": [0.0]}, "share must be between 0 and 1, got 0.0"),
        ([torch.zeros(3, 4)], {"method": "qr"}, r"method must be one of \('svd', 'gram'\) or None, got 'qr'"),
    ],
)
def test_a_rank_that_would_be_wrong_is_refused(chunks: list[Tensor], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matrix_rank(chunks, num_contexts=3, num_words=4, **options)


def test_a_model_is_measured_at_every_token_of_a_text() -> None:
    model = LSTMLM(FixedInput(30, 6), FullOutput(30, 8), LSTMConfig(6, 8, 1))
    tokens = torch.randint(30, (90,))
    whole = log_prob_rank(model, tokens, Windows(7), eos=0)
    assert (whole.num_contexts, whole.num_words, whole.rank) == (90, 30, 9)
    part = log_prob_rank(model, tokens, Windows(7), eos=0, words=5)
    assert (part.num_words, part.rank) == (5, 5)
    with pytest.raises(ValueError, match="words must be at most the vocabulary size, 30, got 31"):
        log_prob_rank(model, tokens, Windows(7), eos=0, words=31)


def test_a_rank_says_what_it_depends_on() -> None:
    found = matrix_rank([log_probs_of(FullOutput(M, D), torch.float64)], num_contexts=N, num_words=M, method="gram")
    assert "rank at least 11 of 240 contexts x 120 words" in str(found) and "press; gram" in str(found)
    values = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert values["rank"] == 11 and len(values["singular_values"]) == M and values["is_lower_bound"]
    assert list(values["effective"]) == ["0.001", "0.0001", "1e-05"]
