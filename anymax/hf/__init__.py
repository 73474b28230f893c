"""Hugging Face models whose attention is entmax, with an alpha for each head that may be learned.

    import anymax.hf

    model = anymax.hf.use_entmax(model, alpha="learned")

Importing this registers `anymax_entmax` and `anymax_sparsemax` with transformers, as values of `attn_implementation`.
"""

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "anymax.hf needs transformers 5, which is not installed; pip install 'anymax[hf]'", name="transformers"
    ) from error
if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"anymax.hf needs transformers 5, got {transformers.__version__}; pip install 'anymax[hf]'")

from anymax.hf.attention import register
from anymax.hf.loading import from_pretrained
from anymax.hf.models import alphas, use_entmax

register()

__all__ = ["alphas", "from_pretrained", "use_entmax"]
