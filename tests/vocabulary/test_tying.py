"""Tying: one Parameter object in two layers, through training, copies and files."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    CharacterInput,
    FixedInput,
    FullOutput,
    MixtureOutput,
    OutputLayer,
    SparseOutput,
    tie_,
)

BANDS = Bands.from_sizes((4, 6, 5), dim=8, factor=2)
OUTPUTS = {
    "full": lambda: FullOutput(15, 8, bias=True),
    "sparse": lambda: SparseOutput(15, 8),
    "mixture": lambda: MixtureOutput(15, 8, num_experts=2),
}


def adaptive_model(**ties: bool) -> nn.ModuleDict:
    layers = nn.ModuleDict(
        {"input": AdaptiveInput(BANDS, 8), "output": AdaptiveOutput(BANDS, 8, head_projection=ties.get("head"))}
    )
    tie_(layers["input"], layers["output"], **ties)
    return layers


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_tied_tables_are_one_object_with_the_values_of_the_input() -> None:
    input, output = AdaptiveInput(BANDS, 8), AdaptiveOutput(BANDS, 8)
    before = [table.detach().clone() for table in input.tables]
    tie_(input, output)
    for i in range(3):
        assert output.tables[i] is input.tables[i] and output.tables[i].equal(before[i])
    for i in range(2):
        assert output.tail_projections[i] is not input.projections[i + 1]


def test_projections_and_the_head_are_shared_where_asked() -> None:
    model = adaptive_model(projections=True)
    assert model["output"].tail_projections[0] is model["input"].projections[1]
    assert model["output"].tail_projections[1] is model["input"].projections[2]
    assert model["output"].head_projection is None
    model = adaptive_model(projections=True, head=True)
    assert model["output"].head_projection is model["input"].projections[0]


def test_each_form_saves_what_it_shares() -> None:
    tables = 4 * 8 + 6 * 4 + 5 * 2
    untied = 2 * tables + 8 * (8 + 4 + 2) + 8 * (4 + 2) + 2 * 8
    assert num_parameters(adaptive_model()) == untied - tables
    assert num_parameters(adaptive_model(projections=True)) == untied - tables - 8 * 6
    assert num_parameters(adaptive_model(projections=True, head=True)) == untied - tables - 8 * 6


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_fixed_input_shares_its_table(kind: str) -> None:
    input, output = FixedInput(15, 8), OUTPUTS[kind]()
    kept = input.table.detach().clone()
    tie_(input, output)
    assert output.table is input.table and output.table.equal(kept)


def test_a_fixed_input_shares_its_projection_where_asked() -> None:
    input, output = FixedInput(15, 8, dim=3), FullOutput(15, 8, dim=3)
    tie_(input, output)
    assert output.projection is not input.projection
    tie_(input, output, projections=True)
    assert output.projection is input.projection


def test_gradients_of_both_layers_meet_in_the_shared_table() -> None:
    model = adaptive_model(projections=True, head=True).double()
    apart = copy.deepcopy(model)
    for name in ("tables", "tail_projections"):
        setattr(apart["output"], name, copy.deepcopy(getattr(apart["output"], name)))
    apart["output"].head_projection = copy.deepcopy(apart["output"].head_projection)
    ids, target = torch.randint(15, (2, 20))
    for layers in (model, apart):
        layers["output"](layers["input"](ids), target).backward()
    for i in range(3):
        expected = apart["input"].tables[i].grad + apart["output"].tables[i].grad
        torch.testing.assert_close(model["input"].tables[i].grad, expected)
    outputs = [apart["output"].head_projection, *apart["output"].tail_projections]
    for shared, input, output in zip(model["input"].projections, apart["input"].projections, outputs, strict=True):
        torch.testing.assert_close(shared.grad, input.grad + output.grad)


def test_ties_outlive_a_copy_and_a_change_of_type() -> None:
    twin = copy.deepcopy(adaptive_model(projections=True)).double()
    for i in range(3):
        assert twin["output"].tables[i] is twin["input"].tables[i]
        assert twin["output"].tables[i].dtype == torch.float64
    assert twin["output"].tail_projections[1] is twin["input"].projections[2]


@pytest.mark.parametrize("ties", [{}, {"projections": True}, {"projections": True, "head": True}], ids=str)
def test_ties_outlive_a_file_that_holds_one_copy(tmp_path: Path, ties: dict[str, bool]) -> None:
    model, fresh = adaptive_model(**ties), adaptive_model(**ties)
    file = str(tmp_path / "model.safetensors")
    save_model(model, file)
    with safe_open(file, "pt") as stored:
        num_stored = sum(stored.get_tensor(name).numel() for name in stored.keys())  # noqa: SIM118
    assert num_stored == num_parameters(model)
    missing, unexpected = load_model(fresh, file)
    assert not missing and not unexpected
    for i in range(3):
        assert fresh["output"].tables[i] is fresh["input"].tables[i]
    ids, target = torch.randint(15, (2, 20))
    losses = [layers["output"](layers["input"](ids), target) for layers in (model, fresh)]
    assert losses[0].equal(losses[1])


def test_a_tied_model_trains() -> None:
    model = adaptive_model(projections=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = torch.randint(15, (30,))
    losses = []
    for _ in range(30):
        loss = model["output"](model["input"](ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert model["output"].tables[0] is model["input"].tables[0]


def refused(input: nn.Module, output: OutputLayer, error: type[Exception], match: str, **ties: bool) -> None:
    """The call raises, and nothing has changed."""
    before = dict(output.named_parameters())
    with pytest.raises(error, match=match):
        tie_(input, output, **ties)
    after = dict(output.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)


def test_layers_that_do_not_fit_are_refused_and_left_as_they_were() -> None:
    adaptive = AdaptiveInput(BANDS, 8)
    moved = Bands(15, (5, 10), BANDS.dims)
    refused(adaptive, AdaptiveOutput(moved, 8), ValueError, r"same bands .*\(4, 10\).*\(5, 10\)")
    wider = Bands(15, BANDS.cutoffs, (8, 8, 8))
    refused(adaptive, AdaptiveOutput(wider, 8), ValueError, r"same bands .*\(8, 4, 2\).*\(8, 8, 8\)")
    refused(
        adaptive,
        AdaptiveOutput(BANDS, 9),
        ValueError,
        r"projection of band 1 .* \(8, 4\) and \(9, 4\)",
        projections=True,
    )
    refused(adaptive, AdaptiveOutput(BANDS, 8), ValueError, "head_projection=True", head=True)
    refused(adaptive, FullOutput(15, 8), TypeError, "got AdaptiveInput with FullOutput")
    fixed = FixedInput(15, 8)
    refused(fixed, AdaptiveOutput(BANDS, 8), TypeError, "got FixedInput with AdaptiveOutput")
    refused(fixed, FullOutput(16, 8), ValueError, r"the table must have the same shape .* \(15, 8\) and \(16, 8\)")
    refused(fixed, FullOutput(15, 8, dim=3), ValueError, r"the table must have the same shape")
    refused(fixed, FullOutput(15, 8), ValueError, "projections must be False", projections=True)
    refused(
        FixedInput(15, 8, dim=3),
        MixtureOutput(15, 8, num_experts=2, dim=3),
        ValueError,
        "MixtureOutput",
        projections=True,
    )
    refused(
        FixedInput(15, 9, dim=3), FullOutput(15, 8, dim=3), ValueError, "the projection must have", projections=True
    )
    refused(fixed, FullOutput(15, 8), ValueError, "head must be False for FullOutput", head=True)
    refused(fixed, FullOutput(15, 8), ValueError, "tie_ needs something to share", tables=False)
    characters = CharacterInput(["a"] * 15, 8, end_index=0, unknown_index=1, filters=((1, 4),))
    refused(characters, FullOutput(15, 8), TypeError, "got CharacterInput with FullOutput; a layer without a table")
    refused(characters, AdaptiveOutput(BANDS, 8), TypeError, "got CharacterInput with AdaptiveOutput")
