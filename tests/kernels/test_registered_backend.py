"""A backend that is registered from outside serves the public functions, and is imported when it is first chosen."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import anymax
from anymax.kernels import backend, entmax, library, register_backend, use_backend

# Softmax alone, in half precision and with a mask by itself; it writes down what it was given.
KERNEL = """
import torch

seen = []

def why_unsupported(scores):
    return "it takes no doubles" if scores.dtype == torch.float64 else None

def forward(scores, alpha_A, mask=None):
    seen.append(("forward", scores.dtype, None if mask is None else tuple(mask.shape)))
    assert (alpha_A == 1).all()
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)

def backward(grad, probs, alpha_A, mask=None):
    seen.append(("backward", grad.dtype, None if mask is None else tuple(mask.shape)))
    grad, wide = grad.float(), probs.float()
    return (wide * (grad - (wide * grad).sum(-1, keepdim=True))).to(probs.dtype)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from; what is registered and imported in a test ends with it."""
    monkeypatch.setattr(backend, "_backends", backend._backends)
    monkeypatch.setattr(entmax.kernels, "_imported", {})
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_it_serves_entmax_in_half_precision_with_a_mask_and_is_imported_no_sooner(modules: Path) -> None:
    (modules / "softmax_kernel.py").write_text(KERNEL)
    register_backend("fake", {"entmax": "softmax_kernel"}, before="reference")
    assert backend.backend_names() == ("native", "triton", "fake", "reference")
    scores = torch.randn(2, 3, 7).half().requires_grad_()
    mask = torch.rand(3, 7) < 0.7
    mask[:, 0] = True
    if library.why_missing() is None:
        anymax.softmax(scores, mask=mask)
    with use_backend("reference"):
        anymax.softmax(scores, mask=mask)
    assert "softmax_kernel" not in sys.modules

    with use_backend("fake"):
        probs = anymax.entmax(scores, 1.0, mask=mask)
        weight = torch.randn(2, 3, 7).half()
        (gradient,) = torch.autograd.grad(probs, scores, weight)
        with torch.no_grad():
            rounded = anymax.entmax(scores, 1.0, mask=mask)
    assert sys.modules["softmax_kernel"].seen == [
        ("forward", torch.float16, (3, 7)),
        ("backward", torch.float16, (3, 7)),
        ("forward", torch.float16, (3, 7)),
    ]
    wide = scores.detach().float().requires_grad_()
    wanted = wide.masked_fill(~mask, -torch.inf).softmax(-1)
    (wanted_gradient,) = torch.autograd.grad(wanted, wide, weight.float())
    for got in (probs, rounded):
        assert got.dtype == torch.float16
        torch.testing.assert_close(got.float(), wanted, rtol=1e-3, atol=1e-6)
    assert gradient.dtype == torch.float16
    # Of rounded probabilities.
    torch.testing.assert_close(gradient.float(), wanted_gradient, rtol=1e-3, atol=1e-3)

    with use_backend("fake"), pytest.raises(RuntimeError, match=r"fake backend.*cannot run: it takes no doubles"):
        anymax.softmax(scores.double())
    with use_backend("fake"), pytest.raises(RuntimeError, match=r"fake backend.*cannot run: this kernel has no such"):
        anymax.PLIF(pieces=3)(scores)


def test_one_that_is_preferred_to_all_serves_without_being_named(modules: Path) -> None:
    (modules / "softmax_kernel.py").write_text(KERNEL)
    register_backend("fake", {"entmax": "softmax_kernel"})
    assert backend.backend_names() == ("fake", "native", "triton", "reference")
    scores = torch.randn(2, 7)
    halves = anymax.softmax(scores.half(), dim=0)
    (call,) = sys.modules["softmax_kernel"].seen
    assert call == ("forward", torch.float16, None)
    torch.testing.assert_close(halves.float(), scores.half().float().softmax(0), rtol=1e-3, atol=1e-6)
    # What it does not take goes to the next.
    torch.testing.assert_close(anymax.softmax(scores.double()), scores.double().softmax(-1))
    assert len(sys.modules["softmax_kernel"].seen) == 1


def test_it_is_not_imported_for_tensors_of_other_devices(modules: Path) -> None:
    (modules / "softmax_kernel.py").write_text(KERNEL)
    register_backend("fake", {"entmax": "softmax_kernel"}, devices=["cuda"])
    anymax.softmax(torch.randn(2, 7).half())
    assert "softmax_kernel" not in sys.modules


def test_where_a_package_it_needs_is_missing_the_next_serves_and_its_name_says_why(modules: Path) -> None:
    (modules / "needy_kernel.py").write_text("import package_of_nobody\n")
    register_backend("needy", {"entmax": "needy_kernel"})
    scores = torch.randn(2, 7)
    torch.testing.assert_close(anymax.softmax(scores), scores.softmax(-1))
    with (
        use_backend("needy"),
        pytest.raises(RuntimeError, match="it needs the package package_of_nobody, which is not installed"),
    ):
        anymax.softmax(scores)


def test_a_module_that_is_not_there_is_an_error_and_not_passed_over(modules: Path) -> None:
    register_backend("absent", {"entmax": "folder_of_nobody.kernel"})
    with pytest.raises(ModuleNotFoundError, match="folder_of_nobody"):
        anymax.softmax(torch.randn(2, 7))


def test_what_cannot_be_registered_is_refused_and_leaves_the_others_alone(modules: Path) -> None:
    with pytest.raises(ValueError, match="name must be new, got 'native', which is registered"):
        register_backend("native", {"entmax": "softmax_kernel"})
    with pytest.raises(ValueError, match=r"modules must be by operator, each one of attention, .*, got sofmax"):
        register_backend("fake", {"sofmax": "softmax_kernel"})
    with pytest.raises(ValueError, match="before must be one of native, triton, reference, got 'metal'"):
        register_backend("fake", {"entmax": "softmax_kernel"}, before="metal")
    with pytest.raises(TypeError, match=r"devices must be a collection of device types, got 'cuda'; pass \['cuda'\]"):
        register_backend("fake", {"entmax": "softmax_kernel"}, devices="cuda")
    assert backend.backend_names() == ("native", "triton", "reference")


def test_our_own_backends_are_imported_when_first_chosen() -> None:
    script = """
import sys
import torch
import anymax
import anymax.losses, anymax.mappings, anymax.regularizers, anymax.transforms

def imported():
    own = [name for name in sys.modules if name.startswith("anymax.kernels.")]
    return [name for name in own if name.rpartition(".")[2].startswith(("native", "triton", "reference"))]

assert imported() == [], imported()
with anymax.use_backend("reference"):
    anymax.entmax(torch.zeros(2, 3))
assert imported() == ["anymax.kernels.entmax.reference"], imported()
assert "triton" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
