"""Models whose attention is entmax: equal to eager at alpha 1 and to formulas written out, however they are run."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")

import transformers as hf

import anymax.hf
from anymax.hf.attention import ENTMAX, SPARSEMAX, entmax_forward, sparsemax_forward
from anymax.hf.settings import learned_in
from tests.each import each
from tests.hf.tiny import GENERATORS, GROUPED, NAMES, SEQ2SEQ, build, inputs, logits, use_written_out

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


def with_learned(name: str) -> Any:
    """A model in which every head has another alpha."""
    model = anymax.hf.use_entmax(build(name), "learned")
    for _, learned in learned_in(model):
        learned.pre_alpha.data.normal_()
    return model


def generated(model: Any, **options: Any) -> Any:
    given = {name: value for name, value in inputs(model).items() if name != "decoder_input_ids"}
    return model.generate(**given, max_new_tokens=6, do_sample=False, **options)


def gradients(model: Any) -> dict[str, Tensor]:
    model.zero_grad()
    logits(model, inputs(model)).pow(2).mean().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@each("name", NAMES)
def test_alpha_1_is_eager_attention_with_and_without_padding_in_values_gradients_and_weights(name: str):
    model = build(name)
    padded, whole = inputs(model), inputs(model, is_padded=False)
    wanted = [logits(model, padded), logits(model, whole)], gradients(model), model(**whole, output_attentions=True)
    anymax.hf.use_entmax(model, 1)
    found = [logits(model, padded), logits(model, whole)], gradients(model), model(**whole, output_attentions=True)
    torch.testing.assert_close(found[0], wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-5, rtol=1e-4)
    kinds = [kind for kind in KINDS if wanted[2].get(kind) is not None]
    assert kinds
    for kind in kinds:
        torch.testing.assert_close(found[2][kind], wanted[2][kind], atol=1e-5, rtol=1e-5)


@each("name", NAMES)
def test_learned_alphas_give_what_is_written_out_in_float64(name: str):
    model = with_learned(name)
    alphas = anymax.hf.alphas(model)
    assert all(alpha.unique().numel() == alpha.numel() for alpha in alphas.values())
    for is_padded in (True, False):
        given = inputs(model, is_padded=is_padded)
        found = model(**given, output_attentions=True), logits(model, given)
        use_written_out(model, alphas)
        wanted = model(**given, output_attentions=True), logits(model, given)
        model.set_attn_implementation(ENTMAX)
        torch.testing.assert_close(found[1], wanted[1], atol=2e-5, rtol=1e-5)
        assert any(bool((weights == 0).any()) for kind in KINDS for weights in found[0].get(kind) or ())
        for kind in [kind for kind in KINDS if wanted[0].get(kind)]:
            for ours, theirs in zip(found[0][kind], wanted[0][kind], strict=True):
                # A query that is padding on the left has nothing to attend to.
                rows = given["attention_mask"] > 0 if kind == "attentions" else torch.ones(2, ours.shape[2]) > 0
                torch.testing.assert_close(ours.transpose(1, 2)[rows], theirs.transpose(1, 2)[rows])


@each("name", GENERATORS)
def test_generation_at_alpha_1_is_that_of_eager_attention_greedy_and_by_beams(name: str):
    model = build(name)
    wanted = [generated(model), generated(model, num_beams=3)]
    anymax.hf.use_entmax(model, 1)
    for found, eager in zip([generated(model), generated(model, num_beams=3)], wanted, strict=True):
        assert torch.equal(found, eager)


@each("name", GENERATORS)
def test_any_cache_or_none_generates_the_same(name: str):
    model = with_learned(name)
    scores = {"output_scores": True, "return_dict_in_generate": True, "disable_compile": True}
    ways = [{"use_cache": False}, {"use_cache": True}, {"cache_implementation": "static"}]
    without, *others = [generated(model, **way, **scores) for way in ways]
    for other in others:
        assert torch.equal(other.sequences, without.sequences)
        torch.testing.assert_close(other.scores, without.scores, atol=2e-5, rtol=1e-4)


@each("name", ["gpt2", "llama", "mistral", "gpt-oss"])
def test_later_tokens_and_padding_have_no_influence(name: str):
    # Later queries decide with others whether the keys of a block are listed, and rounding follows that. So in double
    # precision, which the experts of gpt-oss refuse.
    model, tolerance = with_learned(name), 1e-5
    if name != "gpt-oss":
        model, tolerance = model.double(), 1e-12
    given = inputs(model)
    before = logits(model, given)
    padded = given | {"input_ids": torch.where(given["attention_mask"] > 0, given["input_ids"], 17)}
    assert torch.equal(logits(model, padded), before)
    for mask in ({}, {"attention_mask": given["attention_mask"]}):
        ids = given["input_ids"].clone()
        first = model(input_ids=ids, **mask).logits[:, 2:5]
        ids[:, 5:] = 17
        after = model(input_ids=ids, **mask).logits[:, 2:5]
        torch.testing.assert_close(after, first, atol=tolerance, rtol=tolerance)


def test_every_alpha_gets_a_gradient_and_the_biases_of_t5_and_the_sinks_of_gpt_oss_too():
    for name, extra in (("t5", "relative_attention_bias"), ("gpt-oss", "sinks"), ("bert2bert", "crossattention")):
        found = gradients(with_learned(name))
        wanted = [key for key in found if key.endswith("pre_alpha") or extra in key]
        assert len(wanted) > 2 and all(bool((found[key] != 0).any()) for key in wanted), wanted


@each("name", ["llama", "t5"])
def test_gradient_checkpointing_changes_no_gradient(name: str):
    model = with_learned(name).train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
        elif isinstance(getattr(layer, "dropout", None), float):
            layer.dropout = 0.0
    wanted = gradients(model)
    model.activation_checkpointing_enable()
    torch.testing.assert_close(gradients(model), wanted, atol=1e-7, rtol=1e-5)


@each(("name", "dtype"), [(name, dtype) for name in NAMES for dtype in (torch.bfloat16, torch.float16)])
def test_half_precision_is_near_float32_and_trains(name: str, dtype: torch.dtype):
    model = with_learned(name)
    wanted = logits(model, inputs(model))
    model.to(dtype)
    assert all(bool(((alpha > 1) & (alpha < 2)).all()) for alpha in anymax.hf.alphas(model).values())
    found = logits(model, inputs(model))
    assert found.dtype == dtype and (found.float() - wanted).norm() < 0.1 * wanted.norm()
    assert all(grad.isfinite().all() for grad in gradients(model).values())


@each("name", ["llama", "t5", "gpt-oss"])
def test_autocast_is_near_float32_and_trains(name: str):
    model = with_learned(name)
    wanted = logits(model, inputs(model))
    with torch.autocast("cpu", torch.bfloat16):
        found = logits(model, inputs(model))
    assert (found.float() - wanted).norm() < 0.1 * wanted.norm()
    found.float().sum().backward()
    assert all(bool((learned.pre_alpha.grad != 0).any()) for _, learned in learned_in(model))


def test_a_compiled_model_gives_the_same():
    model = with_learned("llama")
    given = inputs(model)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**given).logits, model(**given).logits)


class Attending(torch.nn.Module):
    """What a registered function is given as the module; nothing says whether it is causal."""


def vectors(heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, heads, 5, 4), torch.randn(3, 2, 6, 4), torch.randn(3, 2, 6, 4)


def test_alpha_is_1_5_or_what_the_config_says_and_2_for_sparsemax():
    query, key, value = vectors()
    module = Attending()
    nowhere = torch.zeros(1, 1, 1, 6, dtype=torch.bool)
    for attend, config, alpha in (
        (entmax_forward, {}, 1.5),
        (entmax_forward, {"anymax": {"alpha": 1.2}}, 1.2),
        (sparsemax_forward, {"anymax": {"alpha": 1.2}}, 2.0),
    ):
        module.config = hf.LlamaConfig(**config)
        found, weights = attend(module, query, key, value, None, is_causal=False, scaling=0.7)
        wanted = anymax.entmax(0.7 * query @ key.mT, alpha) @ value
        torch.testing.assert_close(found, wanted.transpose(1, 2))
        assert found.is_contiguous() and weights is None
        assert not attend(module, query, key, value, nowhere)[0].any()


def test_keys_beyond_the_mask_are_left_out_and_a_missing_mask_is_causal_for_several_queries():
    query, key, value = vectors()
    module = Attending()
    module.config = hf.LlamaConfig(anymax={"alpha": 1.3})
    mask = torch.rand(3, 1, 5, 9) > 0.5
    bias = torch.randn(1, 2, 5, 9)
    scores = query @ key.mT / 2
    biased = scores + bias[..., :6]
    forbidden, later = ~mask[..., :6], ~torch.ones(5, 6).tril().bool()
    for options, wanted in (
        ({"attention_mask": mask}, scores.masked_fill(forbidden, -math.inf)),
        ({"attention_mask": mask.float().log()}, scores.masked_fill(forbidden, -math.inf)),
        ({"attention_mask": mask, "position_bias": bias}, biased.masked_fill(forbidden, -math.inf)),
        ({"attention_mask": mask.double().log(), "position_bias": bias}, biased.masked_fill(forbidden, -math.inf)),
        ({"attention_mask": None}, scores.masked_fill(later, -math.inf)),
        ({"attention_mask": None, "position_bias": bias}, biased.masked_fill(later, -math.inf)),
        ({"attention_mask": None, "position_bias": bias, "is_causal": False}, biased),
    ):
        found, weights = entmax_forward(module, query, key, value, **options, output_attentions=True)
        probs = anymax.entmax(wanted, 1.3, mask=wanted > -math.inf)
        torch.testing.assert_close(weights, probs)
        torch.testing.assert_close(found, (probs @ value).transpose(1, 2))
        torch.testing.assert_close(entmax_forward(module, query, key, value, **options)[0], found)
    one, _ = entmax_forward(module, query[:, :, :1], key, value, None)
    torch.testing.assert_close(one.transpose(1, 2), anymax.entmax(scores[:, :, :1], 1.3) @ value)


def test_dropout_is_that_of_the_call():
    query, key, value = vectors(heads=4)
    for options in ({}, {"output_attentions": True}):
        assert not entmax_forward(Attending(), query, key, value, None, dropout=1.0, **options)[0].any()
        # Equal weights of 1 / 6, kept at random and doubled.
        found = entmax_forward(
            Attending(), query, 0 * key, value / value, None, dropout=0.5, is_causal=False, **options
        )[0]
        torch.testing.assert_close(found * 3, (found * 3).round())
        assert 0.5 < found.mean() < 1.5 and len(found.unique()) > 2


@each("name", ["softcap", "cache", "indices", "sinks", "block_indices", "never_seen"])
def test_what_may_change_the_scores_and_is_not_known_is_refused(name: str):
    value = 30.0 if name == "softcap" else torch.zeros(1)
    with pytest.raises(ValueError, match=rf"^{name} must be None for anymax_entmax .* attn_implementation='eager'"):
        entmax_forward(Attending(), *vectors(), None, **{name: value})


def test_what_does_not_change_the_scores_is_ignored():
    given = vectors()
    options = {"position_ids": torch.arange(5), "sliding_window": 3, "use_cache": True, "softcap": None}
    options |= {
        "deterministic": True,
        "output_hidden_states": [0, 1],
        "never_seen": False,
        "num_items_in_batch": torch.tensor(3),
    }
    found, _ = entmax_forward(Attending(), *given, None, **options)
    assert torch.equal(found, entmax_forward(Attending(), *given, None)[0])


def test_a_model_that_caps_its_scores_is_refused_when_it_runs():
    model = anymax.hf.use_entmax(hf.Gemma2ForCausalLM(hf.Gemma2Config(**GROUPED, head_dim=8)))
    with pytest.raises(ValueError, match=r"^softcap must be None for anymax_entmax"):
        model(torch.tensor([[3, 4]]))


def odd_models() -> dict[str, Any]:
    """Models without torch's fused attention, which expect an additive mask, or none only if all may be attended to."""
    sizes = SEQ2SEQ | {"encoder_layers": 1, "decoder_layers": 1}
    deepseek = GROUPED | {"num_key_value_heads": 1, "q_lora_rank": 8, "head_dim": 8, "qk_rope_head_dim": 4}
    deepseek |= {"o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "n_routed_experts": 4}
    return {
        "adds its own to the mask": hf.DeepseekV4ForCausalLM(hf.DeepseekV4Config(**deepseek)),
        "routes by the mask": hf.NllbMoeForConditionalGeneration(
            hf.NllbMoeConfig(**sizes, num_experts=4, expert_capacity=2, decoder_sparse_step=1, encoder_sparse_step=1)
        ),
        "has a decoder that says it is not causal": hf.PegasusXForConditionalGeneration(
            hf.PegasusXConfig(**sizes, block_size=4, num_global_tokens=2)
        ),
        "has no module that says so and no mask": hf.Speech2TextForConditionalGeneration(
            hf.Speech2TextConfig(**sizes, max_source_positions=32, max_target_positions=32, input_feat_per_channel=8)
        ),
    }


@pytest.mark.filterwarnings("ignore:PegasusXGlobalLocalAttention")
def test_models_that_are_not_made_for_fused_attention_equal_their_eager_attention_too():
    for name, model in odd_models().items():
        model.eval().set_attn_implementation("eager")
        given = inputs(model)
        if name.startswith("has no module"):
            given = {"input_features": torch.randn(2, 14, 8), "decoder_input_ids": given["decoder_input_ids"]}
        for given_now in (given, {key: value for key, value in given.items() if key != "attention_mask"}):
            model.set_attn_implementation("eager")
            wanted = model(**given_now).logits
            found = anymax.hf.use_entmax(model, 1)(**given_now).logits
            rows = slice(2, None) if name.startswith("adds") else slice(None)
            torch.testing.assert_close(found[:, rows], wanted[:, rows], atol=1e-5, rtol=1e-5, msg=name)


def test_the_names_mean_nothing_else_to_transformers_and_each_has_its_mask():
    for name in (ENTMAX, SPARSEMAX):
        assert not any(word in name for word in ("flash", "sdpa", "flex_attention", "paged", "/", "|"))
        assert name in hf.AttentionInterface() and name in hf.AttentionMaskInterface()
    model = build("bert")
    model.set_attn_implementation(SPARSEMAX)
    found = logits(model, inputs(model))
    assert torch.equal(found, logits(anymax.hf.use_entmax(model, 2), inputs(model)))
