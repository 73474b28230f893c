"""Checkpoints: whole or not at all, damage is named, and a full disk leaves the last one."""

import json
import os
import resource
import shutil
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from anymax.training import (
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    AtEpoch,
    AveragedSGDConfig,
    NesterovConfig,
    Ranks,
    SGDConfig,
    resume,
    train,
)
from anymax.training.checkpoint.checkpoints import Checkpoints, DamagedError
from anymax.training.checkpoint.tensors import (
    are_finite,
    gathered,
    load_model,
    load_optimizer,
    model_tensors,
    num_bytes,
    optimizer_tensors,
)
from anymax.training.optim.updater import Updater
from anymax.training.progress import Evaluated
from tests.training.toys import StoppingAt, toy_config

TENSORS = {"model": {"a.weight": torch.arange(6.0).view(2, 3)}, "optimizer": {}, "carry": {"state": torch.ones(2)}}
MADE_BY_ADAM = {"step": torch.zeros(()), "exp_avg": torch.zeros(1, 1), "exp_avg_sq": torch.zeros(1, 1)}
STATE = {"identity": {"lexicon": "1f"}, "data": {"epoch": 1, 3: "three"}, "value": 0.1}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (10, 20):
        made.save(step, STATE, TENSORS)
    return made


def test_a_checkpoint_comes_back_as_it_was(checkpoints: Checkpoints):
    loaded = checkpoints.load()
    assert (loaded.step, loaded.path.name) == (20, "step_0000020")
    assert {name: list(held) for name, held in loaded.tensors.items()} == {"model": ["a.weight"], "carry": ["state"]}
    assert torch.equal(loaded.tensors["model"]["a.weight"], TENSORS["model"]["a.weight"])
    assert loaded.state["data"] == {"epoch": 1, "3": "three"} and loaded.state["value"] == 0.1
    assert {"version", "format", "step", "files"} <= loaded.state.keys()
    assert checkpoints.load(10).step == 10


def test_nothing_but_safetensors_and_json_is_written(checkpoints: Checkpoints):
    names = {path.name for path in checkpoints.folder.rglob("*") if path.is_file()}
    assert names == {"model.safetensors", "carry.safetensors", "state.json"}


def test_files_can_be_read_by_those_who_share_the_folder(checkpoints: Checkpoints):
    umask = os.umask(0)
    os.umask(umask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in checkpoints.folder.rglob("*") if path.is_file()}
    assert modes == {0o666 & ~umask}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


@pytest.mark.parametrize("name", ["model.safetensors", "carry.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
def test_damage_to_the_last_is_named_and_the_one_before_is_offered(checkpoints: Checkpoints, name: str, damage):
    file = checkpoints.path(20) / name
    damage(file)
    what = "is missing" if damage is Path.unlink else "is damaged"
    with pytest.raises(DamagedError, match=rf"{file} {what}.*; that of step 10 is whole: choose it with --step 10"):
        checkpoints.load()
    assert checkpoints.load(10).step == 10


def test_where_nothing_is_whole_it_says_so(checkpoints: Checkpoints):
    for step in (10, 20):
        flip(checkpoints.path(step) / "model.safetensors")
    with pytest.raises(ValueError, match="its hash differs; no other checkpoint is whole, so train anew"):
        checkpoints.load()


def test_a_state_moved_to_another_step_is_damage(checkpoints: Checkpoints):
    shutil.copy(checkpoints.path(10) / "state.json", checkpoints.path(20) / "state.json")
    with pytest.raises(DamagedError, match="damaged"):
        checkpoints.load()


def test_a_newer_format_is_refused_and_is_no_damage(checkpoints: Checkpoints):
    file = checkpoints.path(20) / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    with pytest.raises(ValueError, match=rf"{file} has format 2, and this anymax .* reads up to 1; use a newer anymax"):
        checkpoints.load()


def test_another_identity_is_refused_with_both_hashes(checkpoints: Checkpoints):
    loaded = checkpoints.load()
    loaded.check_identity({"lexicon": "1f"})
    with pytest.raises(ValueError, match=r"step_0000020 must belong to this lexicon, but .* with 1f and this is 2e"):
        loaded.check_identity({"lexicon": "2e"})
    with pytest.raises(ValueError, match="must belong to this text, but was trained with None and this is 3d"):
        loaded.check_identity({"lexicon": "1f", "text": "3d"})


def test_a_step_that_was_not_saved_is_refused(checkpoints: Checkpoints, tmp_path: Path):
    with pytest.raises(ValueError, match="step must be one that was saved, 10, 20, got 15"):
        checkpoints.load(15)
    with pytest.raises(ValueError, match="must hold a checkpoint, but none was saved yet"):
        Checkpoints(tmp_path / "none").load()


def test_the_best_is_kept_and_found(checkpoints: Checkpoints):
    assert checkpoints.find("best") == 20
    for step in (30, 40):
        checkpoints.save(step, STATE, TENSORS)
        checkpoints.settle(Evaluated(10, {"loss": 1.0}))
    assert checkpoints.steps() == [10, 30, 40] and checkpoints.find("best") == 10
    for damage in ("{", "[]", '{"step": "10", "metrics": {}}', '{"step": 10}', "[" * 100_000):
        (checkpoints.folder / "best.json").write_text(damage)
        with pytest.raises(DamagedError, match=r"best.json is damaged: .*; remove it and choose a step"):
            checkpoints.load("best")
    checkpoints.settle(None)
    assert checkpoints.steps() == [30, 40] and checkpoints.best() is None


def test_a_checkpoint_behind_a_link_is_read_and_only_the_link_removed(checkpoints: Checkpoints, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    checkpoints.path(10).rename(elsewhere)
    checkpoints.path(10).symlink_to(elsewhere)
    assert checkpoints.load(10).step == 10
    checkpoints.save(30, STATE, TENSORS)
    checkpoints.settle(None)
    assert checkpoints.steps() == [20, 30] and (elsewhere / "state.json").exists()


def test_leftovers_of_killed_writes_and_removals_go(checkpoints: Checkpoints):
    for name in (".step_0000030.part", ".removed_0000005.part"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "model.safetensors").write_bytes(b"half")
    (checkpoints.folder / ".best.json.x1.part").write_text("half")
    assert checkpoints.steps() == [10, 20]
    checkpoints.remove_leftovers()
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step_0000010", "step_0000020"]


@pytest.mark.parametrize("limit", [100, 700], ids=["at the weights", "at the state"])
def test_a_full_disk_leaves_the_last_checkpoint(checkpoints: Checkpoints, limit: int):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match=r"could not write .* step 30 .*File too large.*step 20 is intact"):
            checkpoints.save(30, {**STATE, "long": "x" * 1000}, TENSORS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step_0000010", "step_0000020"]
    assert checkpoints.load().step == 20


def test_a_disk_that_fills_up_ends_a_run_that_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = toy_config(evaluate_every=None)
    train(config, tmp_path / "whole")

    def full(tensors, file) -> None:
        if "step_0000006" in str(file):
            raise OSError(28, "No space left on device")
        save_file(tensors, file)

    with monkeypatch.context() as patched:
        patched.setattr("anymax.training.checkpoint.checkpoints.save_file", full)
        with pytest.raises(OSError, match=r"step 6 .*No space left on device; that of step 4 is intact; make room"):
            train(config, tmp_path / "run")
    resume(tmp_path / "run", config=config)
    one, other = (Checkpoints(tmp_path / name / "checkpoints").load(7) for name in ("run", "whole"))
    for name, tensor in one.tensors["model"].items():
        assert torch.equal(tensor, other.tensors["model"][name])


def test_a_run_with_a_damaged_last_checkpoint_is_refused_and_resumes_from_the_one_named(tmp_path: Path):
    config = toy_config(evaluate_every=None)
    train(config, tmp_path / "run", reporter=StoppingAt(3))
    flip(tmp_path / "run" / "checkpoints" / "step_0000004" / "optimizer.safetensors")
    with pytest.raises(ValueError, match="choose it with --step 2"):
        resume(tmp_path / "run", config=config)
    assert resume(tmp_path / "run", config=config, step=2).step == 7


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("lost", torch.ones(2), persistent=False)


def test_tied_parameters_are_saved_once_and_only_buffers_that_belong_to_the_state():
    assert list(model_tensors(Tied())) == ["first.weight", "first.bias", "kept"]


def test_a_model_and_its_optimizer_resume_from_their_tensors(tmp_path: Path):
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.second(model.first(torch.ones(2, 3))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, other = Tied(), Tied()
    optimizers = [AdamConfig(0.1).build(each.parameters()) for each in (model, other)]
    step(model, optimizers[0])
    held = [model_tensors(model), optimizer_tensors(model, optimizers[0])]
    saved = [{name: tensor.clone() for name, tensor in gathered(each, Ranks()).items()} for each in held]
    assert {*saved[1]} == {f"first.{p}.{s}" for p in ("weight", "bias") for s in ("step", "exp_avg", "exp_avg_sq")}
    assert saved[1]["first.bias.step"].dim() == 0
    load_model(other, saved[0], tmp_path)
    load_optimizer(other, optimizers[1], MADE_BY_ADAM, saved[1], tmp_path)
    for _ in range(3):
        step(model, optimizers[0])
        step(other, optimizers[1])
    assert torch.equal(model.first.weight, other.first.weight) and other.first.weight is other.second.weight
    assert torch.equal(saved[1]["first.weight.step"], torch.tensor(1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first.bias": None}, "it lacks first.bias; build it as the run's config.json says"),
        ({"third": torch.ones(1)}, "the model lacks third"),
        ({"kept": torch.ones(3)}, r"kept is \(3,\) float32 there and \(2,\) float32 here"),
        ({"kept": torch.ones(2).double()}, r"kept is \(2,\) float64 there and \(2,\) float32 here"),
    ],
)
def test_tensors_of_another_model_are_refused(change, message: str):
    model = Tied()
    tensors = {name: tensor for name, tensor in {**model_tensors(model), **change}.items() if tensor is not None}
    with pytest.raises(ValueError, match=f"model.safetensors must fit the model, but {message}"):
        load_model(model, tensors, Path("model.safetensors"))


@pytest.mark.parametrize(
    ("entry", "changed", "message"),
    [
        ("third.step", torch.ones(()), "but the model lacks third.step"),
        ("first.bias.exp_avg", None, "but it lacks first.bias.exp_avg"),
        ("first.bias.exp_avg", torch.ones(4), r"exp_avg is \(4,\) float32 and should be \(3,\) float32"),
        ("first.weight.exp_avg_sq", torch.ones(()), r"exp_avg_sq is \(\) float32 and should be \(3, 3\) float32"),
        ("first.weight.exp_avg", torch.ones(3, 3).half(), r"is \(3, 3\) float16 and should be \(3, 3\) float32"),
        ("first.weight.step", torch.ones(1), r"step is \(1,\) float32 and should be \(\) float32"),
        ("first.weight.step", torch.tensor(-1.0), "step is -1.0, no count or learning rate"),
        ("first.weight.step", torch.tensor(torch.nan), "step is nan, no count or learning rate"),
    ],
)
def test_a_state_that_the_optimizer_would_not_make_is_refused(entry: str, changed: Tensor | None, message: str):
    model = Tied()
    state = {
        f"first.{name}.{key}": torch.zeros(made.shape if made.dim() == 0 else getattr(model.first, name).shape)
        for name in ("weight", "bias")
        for key, made in MADE_BY_ADAM.items()
    }
    tensors = {name: tensor for name, tensor in {**state, entry: changed}.items() if tensor is not None}
    optimizer = AdamConfig(0.1).build(model.parameters())
    with pytest.raises(ValueError, match=rf"optimizer.safetensors must fit.*{message}"):
        load_optimizer(model, optimizer, MADE_BY_ADAM, tensors, Path("optimizer.safetensors"))
    load_optimizer(model, optimizer, MADE_BY_ADAM, state, Path("optimizer.safetensors"))


@pytest.mark.parametrize(
    ("optimizer", "made"),
    [
        (NesterovConfig(0.1), {"momentum_buffer": (2, 3)}),
        (AdagradConfig(0.1), {"step": (), "sum": (2, 3)}),
        (AdamConfig(0.1), {"step": (), "exp_avg": (2, 3), "exp_avg_sq": (2, 3)}),
        (AdamWConfig(0.1), {"step": (), "exp_avg": (2, 3), "exp_avg_sq": (2, 3)}),
        (SGDConfig(0.1), {}),
        (AveragedSGDConfig(0.1, begin=AtEpoch(0)), {"iterate": (2, 3), "step": ()}),
        (AveragedSGDConfig(0.1, begin=AtEpoch(0), published=True), {"iterate": (2, 3), "step": (), "eta": ()}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_an_optimizer_makes_is_known_before_it_has_taken_a_step(optimizer, made, tmp_path: Path):
    config = toy_config(optimizer=optimizer, steps=3)
    found = Updater(nn.Linear(2, 2), config, Ranks()).state_made(averaging=True)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == made
    # And it is what a checkpoint of such a run has.
    train(config, tmp_path / "run")
    saved = Checkpoints(tmp_path / "run" / "checkpoints").load().tensors.get("optimizer", {})
    assert {name.rpartition(".")[2] for name in saved} == made.keys()
    assert {tensor.dtype for name, tensor in saved.items() if name.endswith(".step")} == {
        tensor.dtype for name, tensor in found.items() if name == "step"
    }


def test_weights_that_are_not_finite_are_refused():
    model = Tied()
    tensors = {**model_tensors(model), "first.bias": torch.tensor([0.0, torch.inf, 0.0])}
    with pytest.raises(ValueError, match=r"must hold finite numbers, but first.bias does not"):
        load_model(model, tensors, Path("model.safetensors"))


def test_the_size_of_a_checkpoint_is_known_before(tmp_path: Path):
    config = toy_config(evaluate_every=None, checkpoint_every=3, steps=3)
    train(config, tmp_path / "run")
    files = (tmp_path / "run" / "checkpoints" / "step_0000003").glob("*.safetensors")
    from tests.training.toys import Toy, ToyModel

    estimate = num_bytes(ToyModel(Toy()), config.optimizer.held)
    assert estimate <= sum(file.stat().st_size for file in files) <= estimate + 4000


def test_numbers_that_are_not_finite_are_found():
    assert are_finite({"a": torch.ones(3), "b": torch.empty(0), "c": torch.tensor(1)}, Ranks())
    for wrong in (torch.inf, -torch.inf, torch.nan):
        assert not are_finite({"a": torch.tensor([1.0, wrong, 2.0])}, Ranks())
