"""What `save_pretrained` saves of a changed model, and what loading it gives, by us and by transformers alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")

import transformers as hf
from safetensors.torch import load_file, save_file

import anymax.hf
from anymax.hf.attention import ENTMAX
from anymax.hf.settings import learned_in
from tests.each import each
from tests.hf.tiny import NAMES, build, inputs, logits

pytestmark = pytest.mark.usefixtures("one_thread")
AUTOMATIC = {"bert": hf.AutoModelForMaskedLM, "llama": hf.AutoModelForCausalLM, "t5": hf.AutoModelForSeq2SeqLM}


def saved(name: str, folder: Path, alpha: float | str = "learned", part: str = "") -> Any:
    """A model in which every head has another alpha, saved."""
    model = build(name)
    anymax.hf.use_entmax(model.get_submodule(part), alpha, **({"initial": 1.7} if alpha == "learned" else {}))
    for _, learned in learned_in(model):
        learned.pre_alpha.data.normal_()
    model.save_pretrained(folder)
    return model


def assert_the_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted) and not found.training
    ours, theirs = anymax.hf.alphas(found), anymax.hf.alphas(wanted)
    assert ours.keys() == theirs.keys() and ours
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert {name for name, _ in found.named_parameters()} == {name for name, _ in wanted.named_parameters()}
    assert torch.equal(logits(found, inputs(found)), logits(wanted, inputs(wanted)))


@each(("name", "alpha"), [(name, alpha) for name in NAMES for alpha in ("learned", 1.3)])
def test_mapping_and_alphas_come_back_exactly(name: str, alpha: float | str, tmp_path: Path):
    wanted = saved(name, tmp_path, alpha)
    found = anymax.hf.from_pretrained(type(wanted), tmp_path)
    assert_the_same(found, wanted)
    # And again, from what was loaded.
    found.save_pretrained(tmp_path)
    assert_the_same(anymax.hf.from_pretrained(AUTOMATIC.get(name, type(wanted)), str(tmp_path)), wanted)


def test_a_plain_load_is_softmax_and_of_a_fixed_alpha_the_name_is_enough(tmp_path: Path):
    for alpha in ("learned", 1.3):
        model = saved("llama", tmp_path, alpha)
        wanted = logits(model, inputs(model))
        plain = hf.LlamaForCausalLM.from_pretrained(tmp_path)
        assert plain.config._attn_implementation == "sdpa"
        model.set_attn_implementation("eager")
        torch.testing.assert_close(logits(plain, inputs(plain)), logits(model, inputs(model)), atol=1e-5, rtol=1e-5)
        named = hf.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation=ENTMAX)
        if alpha == 1.3:
            assert torch.equal(logits(named, inputs(named)), wanted)
        else:
            with pytest.raises(ValueError, match="alphas of LlamaAttention must be there"):
                named(**inputs(named))


@each("ignored", [None, ["self_attn"], ["^model"]])
def test_alphas_that_the_files_lack_start_from_initial_with_a_warning(
    ignored: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    saved("llama", tmp_path)
    # A plain load drops alphas, and saves the config as it is.
    hf.LlamaForCausalLM.from_pretrained(tmp_path).save_pretrained(tmp_path)
    # Such weights are not reported as missing by a class that says so.
    monkeypatch.setattr(hf.LlamaForCausalLM, "_keys_to_ignore_on_load_missing", ignored)
    with pytest.warns(UserWarning, match=r"has no alphas for model.layers.0.self_attn, .*; they start from 1.7"):
        found = anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path)
    assert all((alpha - 1.7).abs().max() < 1e-6 for alpha in anymax.hf.alphas(found).values())


def test_one_missing_alpha_changes_no_other(tmp_path: Path):
    wanted = saved("llama", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.self_attn.entmax.pre_alpha"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"no alphas for model.layers.1.self_attn; they start"):
        found = anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path)
    first, second = anymax.hf.alphas(found).values()
    assert torch.equal(first, next(iter(anymax.hf.alphas(wanted).values())))
    assert (second - 1.7).abs().max() < 1e-6


def test_an_alpha_of_another_number_of_heads_is_refused_or_set_where_that_is_asked_for(tmp_path: Path):
    wanted = saved("llama", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.self_attn.entmax.pre_alpha"] = torch.zeros(7)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path)
    with pytest.warns(UserWarning, match=r"no alphas for model.layers.1.self_attn; they start"):
        found = anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path, ignore_mismatched_sizes=True)
    first, second = anymax.hf.alphas(found).values()
    assert torch.equal(first, next(iter(anymax.hf.alphas(wanted).values())))
    assert (second - 1.7).abs().max() < 1e-6


@each("dtype", [torch.bfloat16, torch.float16])
def test_alphas_stay_exact_in_a_model_that_is_loaded_in_half_precision(dtype: torch.dtype, tmp_path: Path):
    wanted = anymax.hf.alphas(saved("t5", tmp_path))
    found = anymax.hf.from_pretrained(hf.T5ForConditionalGeneration, tmp_path, dtype=dtype)
    assert found.dtype == dtype
    assert all(torch.equal(alpha, wanted[name]) for name, alpha in anymax.hf.alphas(found).items())
    assert all(learned.pre_alpha.dtype == torch.float32 for _, learned in learned_in(found))
    # Saved in half precision, and loaded in that of the files.
    found.save_pretrained(tmp_path)
    again = anymax.hf.from_pretrained(hf.T5ForConditionalGeneration, tmp_path)
    assert again.dtype == dtype
    assert_the_same(again, found)


def test_a_model_without_its_head_and_files_in_several_parts_are_loaded(tmp_path: Path):
    model = saved("llama", tmp_path)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*-of-*.safetensors"))) > 1
    assert_the_same(anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path), model)
    found = anymax.hf.from_pretrained(hf.LlamaModel, tmp_path)
    wanted = anymax.hf.alphas(model)
    assert all(torch.equal(alpha, wanted[f"model.{name}"]) for name, alpha in anymax.hf.alphas(found).items())
    given = inputs(model)
    assert torch.equal(found(**given).last_hidden_state, model.model(**given).last_hidden_state)


def test_a_part_with_a_config_of_its_own_comes_back_alone_and_another_is_refused(tmp_path: Path):
    wanted = saved("bert2bert", tmp_path, part="decoder")
    wanted.encoder.set_attn_implementation("sdpa")
    found = anymax.hf.from_pretrained(hf.EncoderDecoderModel, tmp_path)
    assert found.encoder.config._attn_implementation == "sdpa"
    assert_the_same(found, wanted)
    # Parts that differ.
    anymax.hf.use_entmax(wanted.encoder, 1.2)
    wanted.save_pretrained(tmp_path)
    assert_the_same(anymax.hf.from_pretrained(hf.EncoderDecoderModel, tmp_path), wanted)
    t5 = anymax.hf.use_entmax(build("t5"), 1.2)
    anymax.hf.use_entmax(t5.decoder, "learned")
    t5.save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match=r"must speak of all alphas of the weights, got none of decoder.block.0"):
        anymax.hf.from_pretrained(hf.T5ForConditionalGeneration, tmp_path / "t5")


def test_arguments_of_theirs_are_passed_on(tmp_path: Path):
    wanted = saved("bert", tmp_path)
    found = anymax.hf.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path, num_labels=5)
    assert found.classifier.out_features == 5
    ours, theirs = anymax.hf.alphas(found), anymax.hf.alphas(wanted)
    assert len(ours) == 2 and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    config = hf.AutoConfig.from_pretrained(tmp_path, num_labels=4)
    assert anymax.hf.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path, config=config).num_labels == 4


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path):
    saved("llama", tmp_path)
    marker = tmp_path / "it ran"
    (tmp_path / "theirs.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(anymax.hf.from_pretrained(hf.AutoModelForCausalLM, tmp_path)) is hf.LlamaForCausalLM
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "theirs"}))
    with pytest.raises(ValueError, match="trust_remote_code"):
        anymax.hf.from_pretrained(hf.AutoModelForCausalLM, tmp_path)
    with pytest.raises(ValueError, match=r"^trust_remote_code must be False, got True"):
        anymax.hf.from_pretrained(hf.AutoModelForCausalLM, tmp_path, trust_remote_code=True)
    assert not marker.exists()


@each(
    ("written", "message"),
    [
        (None, "config.json must have 'anymax', which use_entmax writes"),
        ("entmax", "anymax of LlamaConfig must have keys of"),
        ({"alpha": 1.5, "beta": 2}, "anymax of LlamaConfig must have keys of .*'beta': 2"),
        ({"alpha": "open('x')"}, "alpha must be a finite number of at least 0, or 'learned'"),
        ({"alpha": -1}, "alpha must be a finite number"),
        ({"alpha": "learned", "low": 3}, "low and high must be finite"),
    ],
)
def test_a_config_that_says_nothing_or_nonsense_is_refused(written: Any, message: str, tmp_path: Path):
    saved("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["anymax"]
    (tmp_path / "config.json").write_text(json.dumps(config | ({} if written is None else {"anymax": written})))
    with pytest.raises(ValueError, match=f"^{message}"):
        anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path)


def test_what_is_no_class_of_a_model_or_would_be_ignored_is_refused(tmp_path: Path):
    model = saved("llama", tmp_path)
    for wrong in (model, dict, "LlamaForCausalLM"):
        with pytest.raises(TypeError, match=r"^cls must be a model class of transformers"):
            anymax.hf.from_pretrained(wrong, tmp_path)
    with pytest.raises(ValueError, match=r"^cls must have a model for LlamaConfig, .* got AutoModelForMaskedLM"):
        anymax.hf.from_pretrained(hf.AutoModelForMaskedLM, tmp_path)
    for option in ({"attn_implementation": "eager"}, {"output_loading_info": True}):
        with pytest.raises(ValueError, match=f"^{next(iter(option))} must be left out"):
            anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path, **option)


def test_loading_leaves_the_class_of_transformers_as_it_was(tmp_path: Path):
    saved("llama", tmp_path)
    before = dict(vars(hf.LlamaForCausalLM))
    found = anymax.hf.from_pretrained(hf.LlamaForCausalLM, tmp_path)
    changed = {name for name, value in vars(hf.LlamaForCausalLM).items() if before.get(name) is not value}
    assert changed <= {"_can_set_attn_implementation_cached_value"}
    fresh = hf.LlamaForCausalLM(found.config.__class__(**found.config.to_dict() | {"anymax": None}))
    assert not any("pre_alpha" in name for name, _ in fresh.named_parameters())


def test_weights_given_as_a_state_are_loaded_too(tmp_path: Path):
    wanted = saved("llama", tmp_path)
    state: dict[str, Tensor] = load_file(tmp_path / "model.safetensors")
    fresh = anymax.hf.use_entmax(build("llama"), "learned")
    fresh.load_state_dict(state)
    assert_the_same(fresh, wanted)
