"""Checkpoints of BERT: the same hidden states as transformers in both directions, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")

import transformers as hf

import anymax.hf
from anymax.attention import EntmaxConfig, LearnedEntmaxConfig, SigmoidConfig, SoftmaxConfig
from anymax.models import Bert, BertConfig, find_bert, load_bert, save_bert
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 12, "type_vocab_size": 3}
HIDDEN_SIZE = SIZES["hidden_size"]


def theirs(kind: Any = hf.BertForPreTraining, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = kind(hf.BertConfig(**SIZES | changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.4).add_(float(name.endswith("LayerNorm.weight")))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What transformers saved of a model with all its heads."""
    folder = tmp_path_factory.mktemp("theirs")
    theirs().save_pretrained(folder)
    return folder


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Rows of different lengths with segments."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 40, (3, 12), generator=generator)
    return ids, torch.arange(12) < torch.tensor([[12], [7], [1]]), torch.randint(0, 3, (3, 12), generator=generator)


def hidden_states(model: Any) -> Tensor:
    ids, mask, segments = inputs()
    with torch.no_grad():
        if isinstance(model, Bert):
            return model.encode(ids, mask, segments)
        encoder = getattr(model, "bert", model)
        return encoder(ids, attention_mask=mask.long(), token_type_ids=segments).last_hidden_state


def copy_of(folder: Path, to: Path, **config: Any) -> Path:
    """A copy whose config.json says something else."""
    shutil.copytree(folder, to)
    values = json.loads((to / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    return to


def with_tensors(folder: Path, to: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, to / "model.safetensors")
    return to


@each("changes", [{}, {"hidden_act": "relu", "layer_norm_eps": 1e-3}, {"num_attention_heads": 4}])
def test_hidden_states_pooled_vectors_and_predictions_are_those_of_transformers(tmp_path_factory, changes):
    model, place = theirs(**changes), tmp_path_factory.mktemp("saved")
    model.save_pretrained(place)
    ours, left_out = load_bert(place)
    assert left_out == ("cls.seq_relationship.bias", "cls.seq_relationship.weight") and not ours.training
    ids, mask, segments = inputs()
    with torch.no_grad():
        found = model(ids, attention_mask=mask.long(), token_type_ids=segments)
        hidden = ours.encode(ids, mask, segments)
        pooled = model.bert(ids, attention_mask=mask.long(), token_type_ids=segments).pooler_output
    torch.testing.assert_close(hidden, hidden_states(model), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.pooled(hidden), pooled, rtol=0, atol=1e-5)
    expected = found.prediction_logits.log_softmax(-1)
    torch.testing.assert_close(ours.head.log_probs(hidden), expected, rtol=0, atol=2e-5)


def test_the_loss_and_its_gradients_are_those_of_transformers(folder: Path):
    ours, model = load_bert(folder).model, hf.BertForMaskedLM.from_pretrained(folder).eval()
    ids, mask, segments = inputs()
    target = torch.where((torch.rand(ids.shape) < 0.4) & mask, ids, -100)
    loss = ours(ids, mask, segments, target)
    found = model(ids, attention_mask=mask.long(), token_type_ids=segments, labels=target).loss
    torch.testing.assert_close(loss, found)
    loss.backward()
    found.backward()
    tables = ours.words.table.grad, model.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(*tables, rtol=1e-4, atol=1e-6)
    ours_query = ours.encoder.blocks[1].attention.query.weight.grad
    torch.testing.assert_close(
        ours_query, model.bert.encoder.layer[1].attention.self.query.weight.grad, rtol=1e-4, atol=1e-6
    )


def test_explicit_positions_are_those_of_transformers(folder: Path):
    ids, mask, segments = inputs()
    positions = torch.cat([torch.arange(5), torch.arange(7)]).expand(3, 12)
    with torch.no_grad():
        found = hf.BertModel.from_pretrained(folder).eval()(
            ids, attention_mask=mask.long(), token_type_ids=segments, position_ids=positions
        )
        hidden = load_bert(folder).model.encode(ids, mask, segments, positions)
    torch.testing.assert_close(hidden, found.last_hidden_state, rtol=0, atol=1e-5)


def test_transformers_opens_what_is_saved_whole_and_with_the_same_hidden_states(folder: Path, tmp_path: Path):
    ours, _ = load_bert(folder, pooler=False)
    save_bert(ours, tmp_path)
    model, info = hf.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(hidden_states(model.eval()), hidden_states(ours), rtol=0, atol=1e-5)
    kind = type(hf.AutoModelForMaskedLM.from_pretrained(tmp_path))
    assert kind is hf.BertForMaskedLM
    again, left_out = load_bert(tmp_path)
    assert left_out == () and again.pooler is None and again.config == ours.config
    assert torch.equal(hidden_states(again), hidden_states(ours))


def test_an_encoder_alone_is_read_and_written_without_a_head(tmp_path: Path):
    model = theirs(hf.BertModel)
    model.save_pretrained(tmp_path / "theirs")
    ours, left_out = load_bert(tmp_path / "theirs")
    assert ours.head is None and ours.pooler is not None and left_out == ()
    torch.testing.assert_close(hidden_states(ours), hidden_states(model), rtol=0, atol=1e-5)
    save_bert(ours, tmp_path / "ours")
    again, info = hf.BertModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(hidden_states(again.eval()), hidden_states(model), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"it lacks cls\.predictions\."):
        load_bert(tmp_path / "theirs", head=True)
    with pytest.raises(ValueError, match="the model must have a head for masked words, but was built or loaded"):
        ours(*inputs(), inputs()[0])


def test_parts_that_are_not_asked_for_are_named(folder: Path):
    ours, left_out = load_bert(folder, pooler=False, head=False)
    assert (ours.pooler, ours.head) == (None, None)
    assert {name.split(".")[1] for name in left_out} == {"pooler", "predictions", "seq_relationship"}
    with pytest.raises(ValueError, match="the model must have a pooler, but was built or loaded without"):
        ours.pooled(hidden_states(ours))


def test_early_names_copies_of_tied_tensors_and_half_precision_are_read(folder: Path, tmp_path: Path):
    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            early = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[early] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(12.0)
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")

    early, left_out = load_bert(with_tensors(folder, tmp_path / "early", change))
    assert "bert.embeddings.position_ids" in left_out
    assert torch.equal(hidden_states(early), hidden_states(load_bert(folder).model))
    assert torch.equal(early.head.output.bias, load_bert(folder).model.head.output.bias)

    def halve(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: tensor.half() for name, tensor in tensors.items()})

    half = load_bert(with_tensors(folder, tmp_path / "half", halve)).model
    assert half.encoder.dtype == torch.float32
    torch.testing.assert_close(hidden_states(half), hidden_states(early), rtol=0, atol=0.05)


def test_weights_in_several_files_are_read(folder: Path, tmp_path: Path):
    theirs().save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert torch.equal(hidden_states(load_bert(tmp_path).model), hidden_states(load_bert(folder).model))


@each("mapping", [EntmaxConfig(1.5), LearnedEntmaxConfig(1.3), LearnedEntmaxConfig(low=0.5, high=2.5, clamp=1.4)])
def test_a_model_with_entmax_is_opened_by_anymax_hf_with_the_same_hidden_states(
    folder: Path, tmp_path_factory, mapping
):
    saved = tmp_path_factory.mktemp("entmax")
    ours, _ = load_bert(folder, mapping=mapping, pooler=False)
    for attention in ours.encoder.attentions():
        for parameter in attention.mapping.parameters():
            torch.nn.init.normal_(parameter)
    save_bert(ours, saved)
    model = anymax.hf.from_pretrained(hf.BertForMaskedLM, saved).eval()
    torch.testing.assert_close(hidden_states(model), hidden_states(ours), rtol=0, atol=1e-5)
    softmax = hidden_states(load_bert(folder, mapping=SoftmaxConfig()).model)
    assert (hidden_states(ours) - softmax).abs().max() > 0.05
    again, left_out = load_bert(saved)
    assert left_out == () and type(again.config.mapping) is type(mapping)
    torch.testing.assert_close(hidden_states(again), hidden_states(ours), rtol=0, atol=1e-6)
    # Without anymax: softmax, so its alphas have no place.
    if isinstance(mapping, LearnedEntmaxConfig):
        with pytest.raises(ValueError, match=r"the model lacks bert\.encoder\.layer\.0\.attention\.self\.entmax"):
            load_bert(saved, mapping=SoftmaxConfig())


def test_mappings_that_transformers_has_not_are_not_saved(folder: Path, tmp_path: Path):
    sigmoid, _ = load_bert(folder, mapping=SigmoidConfig())
    assert bool(hidden_states(sigmoid).isfinite().all())
    mixed = BertConfig(HIDDEN_SIZE, 2, 2, 8).build(10)
    mixed.encoder.blocks[1].attention.mapping = anymax.Entmax(2.0)
    for model, match in ((sigmoid, "which has no other, got Sigmoid"), (mixed, "the same in all blocks")):
        with pytest.raises(ValueError, match=match):
            save_bert(model, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_pickle_is_refused_with_a_sentence_that_converts_it(folder: Path, tmp_path: Path):
    model = theirs()
    shutil.copy(folder / "config.json", tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle, which may run any program") as caught:
        load_bert(tmp_path)
    program = re.search(r'python -c "(.*)"', str(caught.value))[1]
    exec(program, {})
    torch.testing.assert_close(hidden_states(load_bert(tmp_path).model), hidden_states(model), rtol=0, atol=1e-5)


@each(
    ("config", "match"),
    [
        (
            {"model_type": "roberta"},
            "must have model_type 'bert', got 'roberta'; anymax.models.bert reads enc",
        ),
        ({"model_type": "distilbert"}, "got 'distilbert'"),
        ({"model_type": None}, "got None"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'absolute', got 'relative_key'"),
        ({"is_decoder": True}, "is_decoder False, got True"),
        ({"hidden_act": "gelu_new"}, "hidden_act 'gelu' or 'relu', got 'gelu_new'"),
        ({"hidden_size": None}, "must have hidden_size, got none"),
        ({"hidden_size": 15}, "model_dim must be a multiple of num_heads, got 15 and 2.*hidden_size is model_dim"),
        ({"num_hidden_layers": "two"}, "describes no model"),
        ({"hidden_size": 16.0}, "describes no model: model_dim must be an integer, got 16.0"),
        ({"intermediate_size": 10**15}, "model must fit into memory"),
        ({"hidden_dropout_prob": "0.1"}, "describes no model: dropout must be a number, got '0.1'"),
        ({"vocab_size": 0}, "must have vocab_size, a number of at least 1, got 0"),
        ({"vocab_size": 41}, r"word_embeddings.weight is \(40, 16\) and should be \(41, 16\)"),
        ({"num_hidden_layers": 2}, r"the model lacks bert\.encoder\.layer\.2\."),
        ({"num_hidden_layers": 4}, r"it lacks bert\.encoder\.layer\.3\..* and 10 more; anymax"),
        ({"anymax": {"alpha": "high"}}, "anymax of .* must say which alpha"),
        ({"anymax": {"alpha": "learned"}}, r"it lacks bert\.encoder\.layer\.0\.attention\.self\.entmax\.pre_alpha"),
    ],
)
def test_another_architecture_or_shape_is_refused(folder: Path, tmp_path_factory, config, match: str):
    with pytest.raises(ValueError, match=match):
        load_bert(copy_of(folder, tmp_path_factory.mktemp("other") / "copy", **config))


def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path):
    table, decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"

    def further(tensors: dict[str, Tensor]) -> None:
        tensors["bert.adapter.weight"] = torch.zeros(2)

    def missing(tensors: dict[str, Tensor]) -> None:
        del tensors["bert.encoder.layer.1.output.dense.bias"]

    def untied(tensors: dict[str, Tensor]) -> None:
        tensors[decoder] = tensors[table] + 1

    def undefined(tensors: dict[str, Tensor]) -> None:
        tensors[table][3, 3] = torch.nan

    for change, match in (
        (further, "the model lacks bert.adapter.weight"),
        (missing, "it lacks bert.encoder.layer.1.output.dense.bias"),
        (untied, f"{decoder} in .* must be equal to {table}"),
        (undefined, f"must be finite floating-point numbers, but {table} is not"),
    ):
        with pytest.raises(ValueError, match=match):
            load_bert(with_tensors(folder, tmp_path / change.__name__, change))
    headless, left_out = load_bert(tmp_path / "untied", head=False)
    assert headless.head is None and decoder in left_out
    cut = copy_of(folder, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_bert(cut)
    for name in ("model.safetensors", "config.json"):
        (cut / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"must hold {name}, but does not"):
            load_bert(cut)


def test_a_name_is_brought_from_the_hub_without_pickles(folder: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub

    asked = []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        if name != "some/bert":
            raise OSError("there is no network\nand more")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert torch.equal(hidden_states(load_bert("some/bert").model), hidden_states(load_bert(folder).model))
    ((name, patterns),) = asked
    assert name == "some/bert" and "model.safetensors" in patterns and "vocab.txt" in patterns
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in patterns)
    with pytest.raises(ValueError, match=r"could not be brought from the hub \(there is no network\); check the name"):
        find_bert("bert-base-cased")
    for wrong in ("./nowhere", "a/b/c", folder / "config.json"):
        with pytest.raises(FileNotFoundError, match=r"must be a folder with config\.json and model\.safetensors"):
            find_bert(wrong)
