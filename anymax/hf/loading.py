"""Load a model that `use_entmax` changed and `save_pretrained` saved."""

import os
import warnings
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _get_model_class

from anymax.hf.models import attention_modules, change
from anymax.hf.settings import IN_CONFIG, IN_MODULE, learned_in, settings_in

# Arguments that say where files are, for the config as for the weights.
_PLACES = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def from_pretrained(cls: type, path: str | os.PathLike[str], **options: Any) -> Any:
    """Load a saved model with the attention that `use_entmax` gave it: the mapping, and every alpha, exactly.

    A plain `cls.from_pretrained(path)` gives softmax again: transformers saves no name of an attention, and drops
    weights it does not know with a warning. Alphas that the files lack start from `initial` again, with a warning.
    Alphas stay in float32 for every `dtype`. Code that comes with a model is never run.

    Args:
        cls: a class of transformers: of a model, as LlamaForCausalLM, or an automatic one, as AutoModelForCausalLM.
        path: a folder, or the name of a model on the hub.
        options: what `cls.from_pretrained` takes.

    Example:
        >>> from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes))
        >>> anymax.hf.use_entmax(model, "learned", initial=1.5).save_pretrained("sparse-llama")
        >>> model = anymax.hf.from_pretrained(AutoModelForCausalLM, "sparse-llama")
        >>> anymax.hf.alphas(model)
        {'model.layers.0.self_attn': tensor([1.5000, 1.5000])}
    """
    _check(cls, options)
    if issubclass(cls, _BaseAutoModelClass):
        config = options.get("config")
        if not isinstance(config, PreTrainedConfig):
            places = {name: options[name] for name in _PLACES if name in options}
            config = AutoConfig.from_pretrained(config or path, trust_remote_code=False, **places)
        cls = _model_class(cls, config, path)
    model, info = _with_entmax(cls).from_pretrained(path, output_loading_info=True, trust_remote_code=False, **options)
    model.__class__ = cls
    mismatched = {key for key, *_ in info["mismatched_keys"]}
    _set_missing(model, {*info["missing_keys"], *mismatched}, path)
    _refuse_left_out(model, info["unexpected_keys"], path)
    return model


def _check(cls: type, options: dict[str, Any]) -> None:
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel | _BaseAutoModelClass)):
        raise TypeError(f"cls must be a model class of transformers, got {cls!r}; as in AutoModelForCausalLM")
    if options.pop("trust_remote_code", None):
        raise ValueError("trust_remote_code must be False, got True; anymax.hf runs no code that comes with a model")
    for name, reason in (
        ("attn_implementation", "the config says which it is; call use_entmax or set_attn_implementation afterwards"),
        ("output_loading_info", "the result is the model alone"),
    ):
        if name in options:
            raise ValueError(f"{name} must be left out, got {options[name]!r}; {reason}")


def _model_class(cls: Any, config: Any, path: str | os.PathLike[str]) -> Any:
    if type(config) not in cls._model_mapping:
        raise ValueError(f"cls must have a model for {type(config).__name__}, which {path} has, got {cls.__name__}")
    return _get_model_class(config, cls._model_mapping)


def _with_entmax(cls: Any) -> Any:
    """A subclass that has the alphas when weights are loaded; transformers ignores weights that have no place."""

    def build(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        cls.__init__(self, config, *arguments, **options)
        # Read before any is changed: a part with a config of its own may differ from the whole.
        parts = [part for part in self.modules() if isinstance(part, PreTrainedModel)]
        wanted = [(part, settings) for part in parts if (settings := settings_in(part.config)) is not None]
        if not wanted:
            raise ValueError(
                f"config.json must have {IN_CONFIG!r}, which use_entmax writes before a model is saved, got none; load "
                f"the model with {cls.__name__}.from_pretrained and call anymax.hf.use_entmax"
            )
        for part, settings in wanted:
            change(part, settings)

    # Patterns of weights whose absence is not reported; none may cover alphas.
    ignored = [rf"^(?!.*\.pre_alpha$)(?=.*(?:{pattern}))" for pattern in cls._keys_to_ignore_on_load_missing or ()]
    body = {
        "__init__": build,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "_keys_to_ignore_on_load_missing": ignored,
        "_keep_in_fp32_modules_strict": {*(cls._keep_in_fp32_modules_strict or ()), f"{IN_MODULE}.pre_alpha"},
    }
    return type(cls.__name__, (cls,), body)


def _set_missing(model: Any, missing: set[str], path: str | os.PathLike[str]) -> None:
    """Weights that no file has are uninitialised memory, since transformers knows no way to start ours."""
    unset = [(name, learned) for name, learned in learned_in(model) if f"{name}.{IN_MODULE}.pre_alpha" in missing]
    for _, learned in unset:
        learned.reset_parameters()
    if unset:
        names = ", ".join(name for name, _ in unset)
        warnings.warn(f"{path} has no alphas for {names}; they start from {unset[0][1].initial:g}", stacklevel=3)


def _refuse_left_out(model: Any, unexpected: set[str], path: str | os.PathLike[str]) -> None:
    """Alphas of modules that the config gives none; those of modules that this class lacks are left out rightly."""
    modules = attention_modules(model)
    left_out = sorted(key for key in unexpected if key.removesuffix(f".{IN_MODULE}.pre_alpha") in modules)
    if left_out:
        raise ValueError(
            f"config.json of {path} must speak of all alphas of the weights, got none of {', '.join(left_out)}; "
            "call use_entmax with the whole model before it is saved, not with a part that has no config in its own"
        )
