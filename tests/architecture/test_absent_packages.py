"""anymax without the packages it can do without, in processes of their own."""

import subprocess
import sys

ABSENT = ["triton", "matplotlib", "entmax", "numpy", "scipy", "sklearn", "tensorboard", "datasets", "transformers"]
ABSENT += ["tokenizers", "safetensors", "tyro", "rich", "pytest", "hypothesis"]

# torch itself warns where numpy is missing.
WITHOUT_THEM = f"""
import sys, warnings

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(name + " is absent", name=name)

sys.meta_path.insert(0, Absent())
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
import anymax

for name in anymax.__all__:
    getattr(anymax, name)
torch.manual_seed(0)
scores = torch.randn(3, 4, requires_grad=True)
assert torch.allclose(anymax.entmax(scores).sum(-1), torch.ones(3))
anymax.entmax_loss(anymax.PLIF(pieces=10)(scores), torch.tensor([0, 1, 2])).backward()
anymax.compat.entmax.sparsemax(scores)
try:
    anymax.hf
except ModuleNotFoundError as error:
    assert error.name == "transformers" and "pip install 'anymax[hf]'" in str(error), error
else:
    raise AssertionError("anymax.hf was imported without transformers")
"""

ALONE = """
import sys
import anymax
assert dir(anymax) and anymax.__version__
assert "torch" not in sys.modules, "import anymax imported torch"
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)


def test_mappings_transforms_and_losses_need_torch_alone():
    result = run(WITHOUT_THEM)
    assert (result.returncode, result.stderr) == (0, "")


def test_importing_anymax_does_not_import_torch():
    result = run(ALONE)
    assert (result.returncode, result.stderr) == (0, "")
