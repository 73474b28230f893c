"""Tiny models of transformers, built from configs, and an attention by entmax that is written out in float64."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.masking_utils import eager_mask

SIZES = {"vocab_size": 40, "max_position_embeddings": 32}
DECODER = SIZES | {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = DECODER | {"num_key_value_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = SIZES | ENDS | {"d_model": 32, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
SEQ2SEQ |= {f"{side}_{size}": 2 for side in ("encoder", "decoder") for size in ("layers", "attention_heads")}
SEQ2SEQ |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def bert2bert_config() -> Any:
    encoder = hf.BertConfig(**DECODER)
    decoder = hf.BertConfig(**DECODER, is_decoder=True, add_cross_attention=True)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    for name, value in (ENDS | {"decoder_start_token_id": 1}).items():
        setattr(config, name, value)
    return config


CONFIGS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "bert": (hf.BertForMaskedLM, lambda: hf.BertConfig(**DECODER)),
    "gpt2": (hf.GPT2LMHeadModel, lambda: hf.GPT2Config(vocab_size=40, n_positions=32, n_embd=32, n_layer=2, n_head=4)),
    "llama": (hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**GROUPED)),
    "mistral": (hf.MistralForCausalLM, lambda: hf.MistralConfig(**GROUPED, sliding_window=4)),
    "gpt-oss": (
        hf.GptOssForCausalLM,
        lambda: hf.GptOssConfig(
            **GROUPED, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4, rope_parameters=ROPE
        ),
    ),
    # Heads of encoder and decoder differ.
    "bart": (hf.BartForConditionalGeneration, lambda: hf.BartConfig(**SEQ2SEQ | {"encoder_attention_heads": 4})),
    "marian": (hf.MarianMTModel, lambda: hf.MarianConfig(**SEQ2SEQ)),
    "t5": (
        hf.T5ForConditionalGeneration,
        lambda: hf.T5Config(
            **ENDS, vocab_size=40, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=1
        ),
    ),
    "bert2bert": (hf.EncoderDecoderModel, bert2bert_config),
}
NAMES = list(CONFIGS)
GENERATORS = [name for name in NAMES if name != "bert"]


def build(name: str) -> Any:
    """A model in evaluation mode, by eager attention, whose heads have something to choose between."""
    kind, config = CONFIGS[name]
    torch.manual_seed(0)
    model = kind(config()).eval()
    model.set_attn_implementation("eager")
    if hasattr(model, "generation_config"):
        for end, value in ENDS.items():
            setattr(model.generation_config, end, value)
    # T5 scales no scores and has large weights to begin with.
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | hf.pytorch_utils.Conv1D)]
    with torch.no_grad():
        for layer in layers if name != "t5" else []:
            layer.weight.normal_(std=0.3)
        for module in model.modules():
            if hasattr(module, "sinks"):
                module.sinks.normal_()
    return model


def inputs(model: Any, *, is_padded: bool = True) -> dict[str, Tensor]:
    """Two sequences of unequal length: padded on the right for encoders, on the left for what generates from them."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 40, (2, 7), generator=generator)
    mask = torch.ones_like(ids)
    if is_padded:
        mask[0, slice(5, None) if is_encoding(model) else slice(0, 2)] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 40, (2, 5), generator=generator)
    return given


def is_encoding(model: Any) -> bool:
    return model.config.is_encoder_decoder or "Masked" in type(model).__name__


def logits(model: Any, given: dict[str, Tensor]) -> Tensor:
    """Those of positions that are not padding, in one row."""
    found = model(**given).logits
    return found.flatten(0, 1) if model.config.is_encoder_decoder else found[given["attention_mask"] > 0]


def entmax_by_bisection(scores: Tensor, alpha: Tensor) -> Tensor:
    """Entmax for alpha above 1 along the last dimension of float64 scores."""
    scores = scores * (alpha - 1)
    high = scores.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(60):
        middle = (low + high) / 2
        is_large = ((scores - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(is_large, middle, low), torch.where(is_large, high, middle)
    probs = (scores - low).clamp(min=0) ** (1 / (alpha - 1))
    # A row in which everything is masked has no entry of its own.
    return (probs / probs.sum(-1, keepdim=True)).nan_to_num(0)


def written_out(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """Attention as transformers writes its eager one, with additive masks, but by entmax; the alphas are `.alpha`."""
    groups = query.shape[1] // key.shape[1]
    key, value = (vectors.double().repeat_interleave(groups, 1) for vectors in (key, value))
    scores = query.double() @ key.mT * options["scaling"]
    for added in (mask, options.get("position_bias")):
        scores = scores if added is None else scores + added
    if (sinks := options.get("s_aux")) is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(*scores.shape[:3], 1)], -1)
    weights = entmax_by_bisection(scores, module.alpha.double()[:, None, None])[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2).to(query.dtype), weights.to(query.dtype)


def use_written_out(model: Any, alphas: dict[str, Tensor]) -> None:
    hf.AttentionInterface.register("written_out", written_out)
    hf.AttentionMaskInterface.register("written_out", eager_mask)
    model.set_attn_implementation("written_out")
    for name, alpha in alphas.items():
        model.get_submodule(name).alpha = alpha
