"""Change the attention of a model of transformers, and read its alphas."""

import inspect
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from anymax.hf.attention import ENTMAX
from anymax.hf.settings import IN_CONFIG, IN_MODULE, HeadAlphas, Settings, alpha_of

Model = TypeVar("Model", bound=PreTrainedModel)

# Where models keep the number of heads of queries that a module has.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")


def use_entmax(
    model: Model,
    alpha: float | str = 1.5,
    *,
    initial: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Model:
    """Change a model's attention from softmax to entmax, in place, with one alpha or with one that each head learns.

    The model's own `save_pretrained` saves the alphas, and `anymax.hf.from_pretrained` loads them. Learned alphas are
    parameters named `...entmax.pre_alpha`: call this before the optimizer is made, and give them no weight decay, which
    would pull them to the middle of their range. Called again, alphas start anew.

    Args:
        model: any model of transformers, whole, that lets its attention be chosen by name; most do.
        alpha: a number of at least 0, where 1 is softmax and 2 is sparsemax, or "learned".
        initial: the alpha that learned ones start from; by default 1.1, near the softmax of a trained model.
        low: what learned alphas stay above; by default 1.
        high: what learned alphas stay below; by default 2.

    Returns the same model.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes))
        >>> model = anymax.hf.use_entmax(model, "learned")
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> model(input_ids=ids, labels=ids).loss.backward()
        >>> model.model.layers[0].self_attn.entmax.pre_alpha.grad.shape
        torch.Size([2])
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a model of transformers, got {type(model).__name__}; give what it wraps, or use "
            "anymax.attention.MultiHeadAttention in your own"
        )
    change(model, Settings(alpha, initial, low, high))
    return model


def alphas(model: PreTrainedModel) -> dict[str, Tensor]:
    """The alpha of every head, (heads,), by the name of the attention module, whether learned or not.

    Args:
        model: a model of transformers that `use_entmax` changed; others have none.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes))
        >>> anymax.hf.alphas(anymax.hf.use_entmax(model, "learned", initial=1.5))
        {'model.layers.0.self_attn': tensor([1.5000, 1.5000])}
    """
    found = {}
    for name, module in attention_modules(model).items():
        if module.config._attn_implementation == ENTMAX:
            num_heads = _num_heads(name, module)
            found[name] = torch.as_tensor(alpha_of(module, num_heads)).detach().expand(num_heads)
    return found


def change(model: PreTrainedModel, settings: Settings) -> None:
    """Set the implementation, check that it took, and give every attention module its alphas."""
    modules = attention_modules(model)
    built = {
        name: settings.build(_num_heads(name, module)) if settings.alpha == "learned" else None
        for name, module in modules.items()
    }
    _set_implementation(model)
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    for config in [*configs, *(module.config for module in modules.values())]:
        setattr(config, IN_CONFIG, settings.to_json())
    for name, module in modules.items():
        _attach(module, built[name])


def attention_modules(model: nn.Module) -> dict[str, Any]:
    """The modules that call the attention function of their config's name, by their own name."""
    kinds = _dispatching(model)
    return {name: module for name, module in model.named_modules() if type(module) in kinds}


def _set_implementation(model: PreTrainedModel) -> None:
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    modules = attention_modules(model)
    before = [part.config._attn_implementation for part in parts]
    missed = {type(model).__name__}
    try:
        # Where it cannot, transformers only logs a warning.
        model.set_attn_implementation(ENTMAX)
        if modules:
            holders = [*parts, *modules.values()]
            missed = {type(one).__name__ for one in holders if one.config._attn_implementation != ENTMAX}
    finally:
        if missed:
            for part, name in zip(parts, before, strict=True):
                part.config._attn_implementation_internal = name
    if missed:
        raise ValueError(
            "model must be one whose attention transformers lets be chosen by name (attn_implementation), got "
            f"{', '.join(sorted(missed))}, which computes its softmax by itself; it was left as it was"
        )
    if unchanged := _own_attention(model):
        warnings.warn(
            f"{', '.join(unchanged)} of {type(model).__name__} compute attention by themselves and stay as they were; "
            "the other attention is entmax now",
            stacklevel=4,
        )


def _own_attention(model: nn.Module) -> list[str]:
    """Classes of modules named for attention which neither call the chosen function nor have a part that does."""
    kinds, found = _dispatching(model), set()
    for module in model.modules():
        is_named = "Attention" in type(module).__name__ and not isinstance(module, PreTrainedModel)
        if is_named and not any(type(part) in kinds for part in module.modules()):
            found.add(type(module).__name__)
    return sorted(found)


def _dispatching(model: nn.Module) -> set[type]:
    """The classes of modules with a method that refers to the registry of attention functions."""
    found = set()
    for kind in {type(module) for module in model.modules()}:
        methods = (inspect.unwrap(method) for _, method in inspect.getmembers(kind, inspect.isfunction))
        # That of all models refers to it to check names.
        own = (method for method in methods if method.__module__ != PreTrainedModel.__module__)
        if any("ALL_ATTENTION_FUNCTIONS" in method.__code__.co_names for method in own):
            found.add(kind)
    return found


def _num_heads(name: str, module: nn.Module) -> int:
    places = [(module, attribute) for attribute in _HEADS] + [(module.config, "num_attention_heads")]
    for place, attribute in places:
        if isinstance(found := getattr(place, attribute, None), int):
            return found
    raise ValueError(f"the number of heads of {name} must be known for learned alphas, got no {', '.join(_HEADS)}")


def _attach(module: nn.Module, learned: HeadAlphas | None) -> None:
    if isinstance(getattr(module, IN_MODULE, None), HeadAlphas):
        delattr(module, IN_MODULE)
    if learned is None:
        return
    assert not hasattr(module, IN_MODULE), f"{type(module).__name__} has another {IN_MODULE}"
    weight = next(module.parameters(), None)
    setattr(module, IN_MODULE, learned if weight is None else learned.to(weight.device))
