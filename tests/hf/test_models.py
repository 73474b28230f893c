"""`use_entmax`: what it changes in a model, what it refuses, and that a refused model stays as it was."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")

import transformers as hf

import anymax.hf
from anymax.hf.attention import ENTMAX
from tests.each import each
from tests.hf.tiny import CONFIGS, DECODER, ENDS, NAMES, build, inputs, logits

pytestmark = pytest.mark.usefixtures("one_thread")
ATTENTIONS = {"bert": 2, "gpt2": 2, "llama": 2, "mistral": 2, "gpt-oss": 2} | dict.fromkeys(
    ["bart", "marian", "t5", "bert2bert"], 6
)
WRONG = ["sparse", -0.5, float("nan"), float("inf"), True, None, torch.tensor([1.5])]
DEBERTA = {"pooler_hidden_size": 32, **DECODER}


@each("name", NAMES)
def test_every_attention_gets_an_alpha_per_head_which_is_a_parameter_and_is_written_in_the_config(name: str):
    model = build(name)
    before = {key for key, _ in model.named_parameters()}
    assert anymax.hf.use_entmax(model, "learned", initial=1.3) is model
    added = {key: weight for key, weight in model.named_parameters() if key not in before}
    found = anymax.hf.alphas(model)
    assert len(added) == len(found) == ATTENTIONS[name]
    assert {f"{key}.entmax.pre_alpha" for key in found} == added.keys()
    assert model.config.anymax == {"alpha": "learned", "initial": 1.3, "low": 1.0, "high": 2.0}
    for alpha in found.values():
        torch.testing.assert_close(alpha, torch.full_like(alpha, 1.3))
    heads = {len(alpha) for key, alpha in found.items() if not key.startswith("model.encoder")}
    assert heads == {2} if name in ("bart", "marian") else heads == {4}


def test_alphas_are_learned_and_are_float32_in_a_model_of_half_precision():
    model = anymax.hf.use_entmax(build("llama").bfloat16(), "learned")
    weights = [weight for name, weight in model.named_parameters() if name.endswith("pre_alpha")]
    assert all(weight.dtype == torch.float32 for weight in weights)
    optimizer = torch.optim.Adam(weights, lr=0.1)
    before = anymax.hf.alphas(model)
    losses = []
    for _ in range(5):
        loss = model(**inputs(model), labels=inputs(model)["input_ids"]).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = anymax.hf.alphas(model)
    assert losses[-1] < losses[0]
    assert all(bool((after[key] != before[key]).all()) for key in before)


def test_hooks_that_fetch_weights_when_a_module_is_called_are_called_for_alphas():
    model = anymax.hf.use_entmax(build("llama"), "learned")
    called = []
    for layer in model.model.layers:
        layer.self_attn.entmax.register_forward_pre_hook(lambda module, _: called.append(module))
    model(**inputs(model))
    assert called == [layer.self_attn.entmax for layer in model.model.layers]


def test_called_again_it_starts_anew():
    model = anymax.hf.use_entmax(build("t5"), "learned", initial=0.7, low=0.5, high=0.9)
    assert all(bool((alpha - 0.7).abs().max() < 1e-6) for alpha in anymax.hf.alphas(model).values())
    anymax.hf.use_entmax(model, "learned")
    assert all(bool((alpha - 1.1).abs().max() < 1e-6) for alpha in anymax.hf.alphas(model).values())
    anymax.hf.use_entmax(model, 1.25)
    assert not any("pre_alpha" in name for name, _ in model.named_parameters())
    assert all(alpha.tolist() == [1.25] * 4 for alpha in anymax.hf.alphas(model).values())
    assert model.config.anymax == model.decoder.config.anymax == {"alpha": 1.25}


def test_the_implementation_can_be_changed_back():
    model = build("bart")
    wanted = logits(model, inputs(model))
    anymax.hf.use_entmax(model, "learned", initial=1.9)
    assert not torch.allclose(logits(model, inputs(model)), wanted)
    model.set_attn_implementation("eager")
    assert torch.equal(logits(model, inputs(model)), wanted)
    assert anymax.hf.alphas(model) == {}


def deberta() -> hf.PreTrainedModel:
    return hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**DEBERTA)).eval()


def deberta_to_bert() -> hf.PreTrainedModel:
    decoder = hf.BertConfig(**DECODER, is_decoder=True, add_cross_attention=True)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(hf.DebertaV2Config(**DEBERTA), decoder)
    for name, value in (ENDS | {"decoder_start_token_id": 1}).items():
        setattr(config, name, value)
    return hf.EncoderDecoderModel(config).eval()


@each("make", [deberta, deberta_to_bert])
def test_a_model_or_part_that_computes_its_own_softmax_is_refused_and_left_as_it_was(make):
    model = make()
    parts = [part for part in model.modules() if isinstance(part, hf.PreTrainedModel)]
    before = [part.config._attn_implementation for part in parts]
    wanted = logits(model, inputs(model))
    for alpha in (1.5, "learned"):
        with pytest.raises(ValueError, match=r"^model must be one whose attention .* got DebertaV2.* left as it was$"):
            anymax.hf.use_entmax(model, alpha)
    assert [part.config._attn_implementation for part in parts] == before
    assert torch.equal(logits(model, inputs(model)), wanted)
    assert not any("pre_alpha" in name for name, _ in model.named_parameters())
    assert not hasattr(model.config, "anymax")


def test_layers_with_an_attention_of_their_own_are_named_in_a_warning():
    config = hf.LongT5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, local_radius=3)
    model = hf.LongT5ForConditionalGeneration(config)
    with pytest.warns(UserWarning, match="LongT5LocalAttention of LongT5ForConditionalGeneration compute attention"):
        anymax.hf.use_entmax(model)


def test_a_part_can_be_changed_alone():
    model = build("bert2bert")
    anymax.hf.use_entmax(model.decoder, "learned")
    assert model.decoder.config._attn_implementation == ENTMAX
    assert model.encoder.config._attn_implementation == model.config._attn_implementation == "eager"
    assert len(anymax.hf.alphas(model)) == 4
    assert logits(model, inputs(model)).isfinite().all()


@each(
    ("arguments", "options", "error", "message"),
    [
        *(
            ([alpha], {}, ValueError, "alpha must be a finite number of at least 0, or 'learned', got")
            for alpha in WRONG
        ),
        ([1.5], {"initial": 1.2}, ValueError, "initial, low and high must be left out with a fixed alpha"),
        (["learned"], {"initial": 2.0}, ValueError, "initial must lie strictly between 1 and 2, got 2.0"),
        (["learned"], {"initial": "1.5"}, TypeError, "initial must be a number, got '1.5'"),
        (["learned"], {"low": 2.0, "high": 1.0}, ValueError, "low and high must be finite with 0 <= low < high"),
    ],
)
def test_a_wrong_alpha_is_refused(arguments, options, error, message):
    model = build("llama")
    with pytest.raises(error, match=f"^{message}"):
        anymax.hf.use_entmax(model, *arguments, **options)
    assert model.config._attn_implementation == "eager"


def test_what_is_no_model_of_transformers_is_refused():
    with pytest.raises(TypeError, match=r"^model must be a model of transformers, got Linear"):
        anymax.hf.use_entmax(torch.nn.Linear(2, 2))


def test_learned_alphas_that_are_not_there_or_of_another_number_of_heads_are_an_error_that_says_so():
    model = build("llama")
    model.config.anymax = {"alpha": "learned"}
    model.set_attn_implementation(ENTMAX)
    with pytest.raises(ValueError, match=r"alphas of LlamaAttention must be there.*anymax.hf.from_pretrained"):
        model(**inputs(model))
    anymax.hf.use_entmax(model, "learned")
    attention = model.model.layers[0].self_attn
    attention.entmax.pre_alpha = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"one alpha for each of its 4 heads, got shape \(3,\)"):
        model(**inputs(model))


def test_every_model_of_these_tests_is_of_another_kind():
    assert len({kind for kind, _ in CONFIGS.values()}) == len(NAMES)
