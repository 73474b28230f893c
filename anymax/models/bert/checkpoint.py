"""Checkpoints of BERT in Hugging Face's layout: config.json and model.safetensors, read and written whole.

Every tensor of a file is read, or is named as left out; one that is missing or does not fit is an error, and so is one
that is unknown.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anymax.attention.config import AttentionMappingConfig, EntmaxConfig, LearnedEntmaxConfig, SoftmaxConfig
from anymax.files import load_tensors, read_json, replacing
from anymax.mappings import Entmax, LearnedEntmax
from anymax.models.bert.config import SUPPORTED, BertConfig
from anymax.models.bert.model import Bert
from anymax.models.sizes import check_fits_memory

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# All that is brought from the hub.
FILES = [CONFIG, WEIGHTS, INDEX, "model-*.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
PICKLES = ("pytorch_model.bin", "model.bin", "pytorch_model.pt")
# Where config.json has the mapping of the heads, and each attention its alphas, as `anymax.hf` writes them.
MAPPING, ALPHAS = "anymax", "attention.self.entmax.pre_alpha"
# Beginnings of our names of parameters and of those in files.
NAMES = {
    "words.table": "bert.embeddings.word_embeddings.weight",
    "positions.": "bert.embeddings.position_embeddings.",
    "segments.": "bert.embeddings.token_type_embeddings.",
    "embedding_norm.": "bert.embeddings.LayerNorm.",
    "pooler.": "bert.pooler.dense.",
    "head.dense.": "cls.predictions.transform.dense.",
    "head.norm.": "cls.predictions.transform.LayerNorm.",
    "head.output.bias": "cls.predictions.bias",
}
# The same within a block.
NAMES_IN_BLOCK = {
    "attention.query.": "attention.self.query.",
    "attention.key.": "attention.self.key.",
    "attention.value.": "attention.self.value.",
    "attention.output.": "attention.output.dense.",
    "attention.mapping.pre_alpha": ALPHAS,
    "attention_norm.": "attention.output.LayerNorm.",
    "feed_forward.inner.": "intermediate.dense.",
    "feed_forward.outer.": "output.dense.",
    "feed_forward_norm.": "output.LayerNorm.",
}
# Second names of tensors that files may hold besides the first.
COPIES = {
    "cls.predictions.decoder.weight": NAMES["words.table"],
    "cls.predictions.decoder.bias": NAMES["head.output.bias"],
}
# The classifier of whether one sentence follows another, and a constant of old files: nothing here reads them.
UNREAD = ("cls.seq_relationship.", "bert.embeddings.position_ids")
POOLER, HEAD = "bert.pooler.", "cls.predictions."
# Names in a message.
MOST_SHOWN = 6


class LoadedBert(NamedTuple):
    """A model, and the tensors of its file that it has no place for, by their names.

    Example:
        >>> from anymax.models import BertConfig, load_bert, save_bert
        >>> save_bert(BertConfig(16, 1, 2, 32).build(vocabulary_size=30), "small")
        >>> model, left_out = load_bert("small")
        >>> left_out
        ()
    """

    model: Bert
    left_out: tuple[str, ...]


def load_bert(
    folder: str | os.PathLike[str],
    *,
    mapping: AttentionMappingConfig | None = None,
    pooler: bool | None = None,
    head: bool | None = None,
) -> LoadedBert:
    """A BERT from a folder with config.json and model.safetensors, or by its name on the hub; in evaluation mode.

    Its hidden states are those of `BertModel` of transformers. What is missing in the file, what has another shape and
    unknown names are listed in an error; `left_out` has what was known and not read, as the classifier of the next
    sentence. A pickle is refused.

    Args:
        folder: where the files lie; what is no folder is the name of a model on the hub, which needs the extra `hf`.
        mapping: what heads turn scores into probabilities with, in place of what config.json says, which is softmax
            but for files that anymax wrote. Alphas that are learned start anew where the file has none.
        pooler: whether the model has a pooler; by default where the file has one.
        head: whether it can predict masked words; by default where the file has that head.

    Example:
        >>> from anymax.models import BertConfig, load_bert, save_bert
        >>> save_bert(BertConfig(16, 1, 2, 32).build(vocabulary_size=30), "small")
        >>> model, left_out = load_bert("small")
        >>> model.encode(torch.tensor([[2, 7, 3]])).shape, left_out
        (torch.Size([1, 3, 16]), ())
    """
    folder = find_bert(folder)
    values = read_json(_there(folder / CONFIG))
    config = BertConfig.of_hugging_face(values, name=str(folder / CONFIG))
    config = replace(config, mapping=_mapping_in(values, folder / CONFIG) if mapping is None else mapping)
    tensors = _renamed(_read(folder))
    has = {part: any(name.startswith(part) for name in tensors) for part in (POOLER, HEAD)}
    pooler = has[POOLER] if pooler is None else pooler
    head = has[HEAD] if head is None else head
    vocabulary_size = _vocabulary_size(values, folder / CONFIG)

    def make() -> Bert:
        return config.build(vocabulary_size, pooler=pooler, head=head)

    check_fits_memory(make)
    with torch.device("meta"):
        shapes = {theirs: _shape(theirs, tensor) for theirs, tensor in _by_their_names(make()).items()}
    may_lack = [name for name in shapes if name.endswith(ALPHAS)] if mapping is not None else []
    unread = UNREAD + (() if pooler else (POOLER,)) + (() if head else (HEAD,))
    _check(shapes, tensors, folder, may_lack, unread)
    model = make()
    with torch.no_grad():
        for theirs, parameter in _by_their_names(model).items():
            if theirs in tensors:
                parameter.copy_(tensors[theirs].reshape(parameter.shape))
    read = {*shapes, *(COPIES if head else ())}
    return LoadedBert(model.eval(), tuple(sorted(name for name in tensors if name not in read)))


def save_bert(model: Bert, folder: str | os.PathLike[str]) -> None:
    """Write config.json and model.safetensors, from which transformers makes a model with the same hidden states.

    With softmax any of its classes does. A model with entmax, whose alpha may be learned by each head, is opened by
    `anymax.hf.from_pretrained`; transformers by itself would use softmax, and warn of the alphas it does not know.
    Other mappings are refused, as transformers has none of them.

    Args:
        model: what to write.
        folder: where to; files that are there are replaced.

    Example:
        >>> from anymax.models import BertConfig, load_bert, save_bert
        >>> model = BertConfig(16, 1, 2, 32).build(vocabulary_size=30)
        >>> save_bert(model, "small")
        >>> load_bert("small").model.words.table.equal(model.words.table)
        True
    """
    from safetensors.torch import save

    in_config = _mapping_to_json(model)
    folder = Path(folder)
    tensors = {
        theirs: parameter.detach().cpu().reshape(_shape(theirs, parameter)).contiguous()
        for theirs, parameter in _by_their_names(model).items()
    }
    for block, attention in enumerate(model.encoder.attentions()):
        if isinstance(attention.mapping, LearnedEntmax) and attention.mapping.clamp is not None:
            tensors[f"bert.encoder.layer.{block}.{ALPHAS}"] = _without_clamp(attention.mapping).flatten().cpu()
    if model.head is None:
        # As transformers saves an encoder by itself.
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    values = {
        "architectures": ["BertModel" if model.head is None else "BertForMaskedLM"],
        **model.config.to_hugging_face(),
        "vocab_size": model.vocabulary_size,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "dtype": str(model.encoder.dtype).removeprefix("torch."),
        **in_config,
    }
    with replacing(folder / WEIGHTS) as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    with replacing(folder / CONFIG) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


def find_bert(name: str | os.PathLike[str]) -> Path:
    """The folder of a model: as given, or the one that the hub's model of this name is brought to.

    The hub is asked for configs, safetensors and tokenizers alone, through the package of the extra `hf`.

    Args:
        name: a folder, or the name of a model on the hub, such as bert-base-multilingual-cased.

    Example:
        >>> from anymax.models import BertConfig, find_bert, save_bert
        >>> save_bert(BertConfig(16, 1, 2, 32).build(vocabulary_size=30), "small")
        >>> sorted(path.name for path in find_bert("small").iterdir())
        ['config.json', 'model.safetensors']
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    parts = str(name).split("/")
    if folder.exists() or len(parts) > 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise FileNotFoundError(
            f"{name} must be a folder with {CONFIG} and {WEIGHTS}, or the name of a model of the hub"
        )
    try:
        hub = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{name} is no folder here, and bringing a model from the hub needs the extra hf: pip install "
            "'anymax[hf]'; or give the folder that it lies in",
            name="huggingface_hub",
        ) from None
    try:
        return Path(hub.snapshot_download(str(name), allow_patterns=FILES))
    # Without a network, or where there is no such model, the package raises errors of many types.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{name} is no folder here and could not be brought from the hub ({reason}); check the name, or give the "
            "folder of a model"
        ) from error


def _there(file: Path) -> Path:
    if not file.exists():
        raise FileNotFoundError(f"{file.parent} must hold {file.name}, but does not; give the folder of a whole model")
    return file


def _read(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, in one file or in several with an index."""
    if (folder / WEIGHTS).exists():
        return load_tensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
            raise ValueError(f"{folder / INDEX} must say by weight_map which file holds which tensor, but does not")
        # Names of files alone: an index cannot lead out of its folder.
        files = sorted({Path(file).name for file in names.values()})
        return {name: tensor for file in files for name, tensor in load_tensors(_there(folder / file)).items()}
    pickles = [name for name in PICKLES if (folder / name).exists()]
    if pickles:
        raise ValueError(
            f"{folder / pickles[0]} is a pickle, which may run any program when it is read; convert it once, where you "
            f'trust it, with transformers: python -c "from transformers import BertForPreTraining as Model; '
            f"Model.from_pretrained('{folder}').save_pretrained('{folder}')\", which writes {WEIGHTS}"
        )
    raise FileNotFoundError(f"{folder} must hold {WEIGHTS}, but does not; give the folder of a whole model")


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of today: norms of early files have gamma and beta, encoders alone no prefix."""
    is_alone = not any(name.startswith("bert.") for name in tensors)
    renamed = {}
    for name, tensor in tensors.items():
        whole = f"bert.{name}" if is_alone and not name.startswith("cls.") else name
        stem, _, last = whole.rpartition(".")
        if stem.endswith("LayerNorm"):
            last = {"gamma": "weight", "beta": "bias"}.get(last, last)
        renamed[f"{stem}.{last}" if stem else whole] = tensor
    if COPIES["cls.predictions.decoder.bias"] not in renamed and "cls.predictions.decoder.bias" in renamed:
        renamed[COPIES["cls.predictions.decoder.bias"]] = renamed["cls.predictions.decoder.bias"]
    return renamed


def _by_their_names(model: Bert) -> dict[str, nn.Parameter]:
    """The parameters of a model by their names in files, tied ones once."""
    return {_their_name(name): parameter for name, parameter in model.named_parameters()}


def _their_name(name: str) -> str:
    prefix, names = "", NAMES
    if name.startswith("encoder.blocks."):
        number, _, name = name.removeprefix("encoder.blocks.").partition(".")
        prefix, names = f"bert.encoder.layer.{number}.", NAMES_IN_BLOCK
    ours = next((ours for ours in names if name.startswith(ours)), None)
    if ours is None:
        raise ValueError(f"{name} has no name in Hugging Face's layout; save the model as a run's checkpoint instead")
    return f"{prefix}{names[ours]}{name.removeprefix(ours)}"


def _shape(theirs: str, parameter: Tensor) -> tuple[int, ...]:
    """The shape that a parameter has in files, where alphas are one row."""
    return (parameter.numel(),) if theirs.endswith(ALPHAS) else tuple(parameter.shape)


def _check(
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Tensor],
    folder: Path,
    may_lack: Iterable[str],
    unread: tuple[str, ...],
) -> None:
    missing = [name for name in shapes if name not in tensors and name not in may_lack]
    unknown = [name for name in tensors if name not in shapes and name not in COPIES and not name.startswith(unread)]
    if missing or unknown:
        found = [
            f"{what} {_listed(names)}" for what, names in (("it lacks", missing), ("the model lacks", unknown)) if names
        ]
        raise ValueError(
            f"the weights in {folder} must be those of the model in its {CONFIG}, but {' and '.join(found)}; "
            f"{SUPPORTED}"
        )
    other = [
        f"{name} is {tuple(tensors[name].shape)} and should be {shape}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if other:
        raise ValueError(f"the weights in {folder} must have the shapes of its {CONFIG}, but {_listed(other)}")
    for name in shapes.keys() & tensors.keys():
        if not tensors[name].is_floating_point() or not bool(tensors[name].isfinite().all()):
            raise ValueError(f"the weights in {folder} must be finite floating-point numbers, but {name} is not")
    for copy, name in COPIES.items():
        if copy in tensors and not copy.startswith(unread) and not torch.equal(tensors[copy], tensors[name]):
            raise ValueError(
                f"{copy} in {folder} must be equal to {name}, which it is tied to, but differs; untied heads are not "
                "supported: load it with head=False, or train it again with tie_word_embeddings"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more


def _vocabulary_size(values: Mapping[str, Any], file: Path) -> int:
    size = values.get("vocab_size")
    if type(size) is not int or size < 1:
        raise ValueError(f"{file} must have vocab_size, a number of at least 1, got {size!r}")
    return size


def _mapping_in(values: Mapping[str, Any], file: Path) -> AttentionMappingConfig:
    """What config.json says of the heads; softmax where it says nothing."""
    found = values.get(MAPPING)
    if found is None:
        return SoftmaxConfig()
    try:
        if found["alpha"] != "learned":
            return EntmaxConfig(**found)
        return LearnedEntmaxConfig(**{name: value for name, value in found.items() if name != "alpha"})
    except (TypeError, LookupError, ValueError) as error:
        raise ValueError(f"{MAPPING} of {file} must say which alpha heads have, got {found!r} ({error})") from None


def _mapping_to_json(model: Bert) -> dict[str, Any]:
    """What config.json says of a model's heads, which must be alike."""
    found = [_as_json(attention.mapping) for attention in model.encoder.attentions()]
    if any(each != found[0] for each in found):
        raise ValueError(f"mapping must be the same in all blocks to be saved for transformers, got {found}")
    return {} if found[0] is None else {MAPPING: found[0]}


def _as_json(mapping: object) -> dict[str, Any] | None:
    if mapping is None:
        return None
    if isinstance(mapping, Entmax):
        return {"alpha": mapping.alpha}
    if isinstance(mapping, LearnedEntmax):
        given = {"alpha": "learned", "initial": mapping.initial, "low": mapping.low, "high": mapping.high}
        return {name: value for name, value in given.items() if value is not None}
    raise ValueError(
        f"mapping must be softmax, Entmax or LearnedEntmax to be saved for transformers, which has no other, got "
        f"{type(mapping).__name__}; keep the run's own checkpoint"
    )


def _without_clamp(mapping: LearnedEntmax) -> Tensor:
    """Parameters that give the same alphas without a clamp, which the layout has no place for."""
    assert mapping.clamp is not None
    alpha = mapping.alpha.detach()
    share = (alpha - mapping.low) / (mapping.high - mapping.low)
    return torch.where(alpha.le(mapping.clamp), torch.logit(share), mapping.pre_alpha.detach())
