"""What bit-vectors have beyond other latents."""

import pytest
import torch

import anymax
from anymax.latent import BitVector, Independent, SparseMap, TopKSparsemax
from anymax.structured import Bits, Budget, Sequence, sparsemap


def test_bits_are_independent_unless_told_otherwise() -> None:
    assert BitVector(torch.zeros(2)).mapping == Independent()


def test_independent_bits_agree_with_torch() -> None:
    scores = torch.randn(5, 40, requires_grad=True)
    bits = BitVector(scores)
    sample, loss = bits.sample(), torch.nn.functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(bits.log_prob(sample), -loss(scores, sample, reduction="none").sum(-1))
    torch.testing.assert_close(bits.entropy(), loss(scores, scores.sigmoid(), reduction="none").sum(-1))
    torch.testing.assert_close(bits.mode(), (scores > 0).float())


def test_entropy_of_certain_bits_keeps_its_small_value() -> None:
    size = torch.tensor([30.0, -30.0, 60.0], dtype=torch.float64)
    expected = ((1 + size.abs()) * torch.exp(-size.abs())).sum()
    torch.testing.assert_close(BitVector(size.float()).entropy().double(), expected, rtol=1e-5, atol=0)


def test_topk_sparsemax_is_exact_where_fewer_than_k_are_left() -> None:
    scores = torch.randn(40, 5, dtype=torch.float64) * torch.tensor([0.05, 2.0]).repeat(20).unsqueeze(-1)
    values = BitVector(scores).everything().values[:32]
    bits = BitVector(scores, TopKSparsemax(4))
    is_exact = bits.is_exact()
    assert 0 < is_exact.sum() < 40
    exactly = anymax.sparsemax(scores @ values.T)
    found = bits.everything().probs.reshape(40, 32)
    torch.testing.assert_close(found[is_exact], exactly[is_exact], rtol=0, atol=1e-12)
    assert (found - exactly).abs().amax(-1)[~is_exact].max() > 0.01


def test_a_bit_that_is_surely_on_does_not_disturb_the_others() -> None:
    scores, weights = torch.tensor([[0.3, 0.1, -5.0]]), torch.randn(1, 4)
    for mapping, alone in ((TopKSparsemax(4), TopKSparsemax(4)), (SparseMap(Budget(3)), SparseMap(Budget(2)))):
        expected = BitVector(scores, alone).support()
        for large in (1e6, 1e8, 1e30):
            row = torch.cat([torch.tensor([[large]]), scores], 1).requires_grad_()
            support = BitVector(row, mapping).support()
            assert (support.values[:, 0] == 1).all() and torch.equal(support.values[:, 1:], expected.values)
            torch.testing.assert_close(support.probs, expected.probs)
            (gradient,) = torch.autograd.grad((support.values * support.probs[:, None] * weights).sum(), row)
            assert gradient[0, 0] == 0 and gradient[0, 1] != 0


def test_all_bit_vectors_are_exact_even_if_all_are_in_the_support() -> None:
    assert BitVector(torch.zeros(3, 2), TopKSparsemax(4)).is_exact().all()
    assert not BitVector(torch.zeros(3, 2), TopKSparsemax(3)).is_exact().any()


def test_the_mean_of_sparsemap_bits_are_the_marginals() -> None:
    scores = torch.randn(6, 30)
    for mapping in (SparseMap(), SparseMap(Budget(5)), SparseMap(Bits(symmetric=False), "systematic")):
        support = BitVector(scores, mapping).support()
        mean = torch.zeros(6, 30).index_add(0, support.example, support.probs.unsqueeze(-1) * support.values)
        torch.testing.assert_close(mean, sparsemap(scores, mapping.polytope).marginals)


def test_samples_of_a_budget_keep_to_it() -> None:
    samples = BitVector(torch.randn(500, 12) + 1, SparseMap(Budget(3))).sample()
    assert samples.sum(-1).max() == 3


def test_log_prob_finds_long_bit_vectors_among_many() -> None:
    bits = BitVector(torch.randn(8, 128) * 0.5, SparseMap())
    support = bits.support()
    sample = bits.sample().expand(3, 8, 128).clone()
    sample[1, :, 0] = 1 - sample[1, :, 0]
    log_probs = bits.log_prob(sample)
    for row in range(8):
        for number in range(3):
            is_same = (support.values == sample[number, row]).all(-1) & (support.example == row)
            torch.testing.assert_close(log_probs[number, row].exp(), support.probs[is_same].sum())


def test_too_many_bits_to_list_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 16 to list every value, got 17 bits"):
        BitVector(torch.zeros(17)).everything()
    with pytest.raises(ValueError, match="use a sparse mapping with a sparse marginal"):
        BitVector(torch.zeros(2, 128)).support()


def test_a_relaxed_sample_of_a_list_is_refused() -> None:
    for mapping in (SparseMap(), TopKSparsemax(3)):
        with pytest.raises(ValueError, match=r"mapping must be Independent\(\) for a relaxed sample"):
            BitVector(torch.zeros(4), mapping).relaxed(1.0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, torch.inf, torch.nan])
def test_a_temperature_outside_its_range_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be finite and above 0"):
        BitVector(torch.zeros(4)).relaxed(temperature)


def test_mappings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match=r"mapping must be Independent\(\)"):
        BitVector(torch.zeros(4), anymax.sparsemax)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"mapping must be Independent\(\)"):
        BitVector(torch.zeros(4), Independent)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="decomposition of Budget must be one of 'systematic', 'active set', got 'chain'"
    ):
        SparseMap(Budget(2), "chain")
    with pytest.raises(ValueError, match="polytope must be one of bit-vectors"):
        SparseMap(Sequence(torch.zeros(3, 3)))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        TopKSparsemax(0)
    with pytest.raises(ValueError):
        BitVector(torch.zeros(4), SparseMap(Budget(5)))
    with pytest.raises(ValueError):
        BitVector(torch.zeros(2), TopKSparsemax(5))


def test_forbidden_bit_vectors_fill_the_list_up_without_probability() -> None:
    scores = torch.tensor([[0.1, -torch.inf]], requires_grad=True)
    bits = BitVector(scores, TopKSparsemax(3))
    support = bits.support()
    assert support.values.tolist() == [[1, 0], [0, 0]] and bits.is_exact().all()
    (gradient,) = torch.autograd.grad(bits.entropy().sum() + support.probs[0], scores)
    torch.testing.assert_close(support.probs, torch.tensor([0.55, 0.45]))
    assert gradient.isfinite().all()
