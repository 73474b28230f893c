"""The config of a run: its rules, its way to JSON and back, and a toy of it."""

import dataclasses
import json
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

import anymax
from anymax.training import (
    AdagradConfig,
    AdamWConfig,
    AtEpoch,
    AveragedSGDConfig,
    Constant,
    CosineCycles,
    NonMonotone,
    as_plain,
    from_plain,
    run_config,
)
from anymax.training.run_folder.folder import CONFIG_FORMAT, changes, read_config, read_plain_config, write_config
from tests.training.toys import Toy, toy_config


@dataclass(frozen=True)
class Leaf:
    size: int
    _: KW_ONLY
    share: float = 0.5


@dataclass(frozen=True)
class Twig:
    leaves: tuple[Leaf, ...] = ()


@dataclass(frozen=True)
class Tree:
    trunk: Leaf | Twig
    path: Path
    pair: tuple[int, str] = (1, "a")
    filters: tuple[tuple[int, int], ...] = ()
    mood: Literal["dry", "wet"] = "dry"
    name: str | None = None
    depth: int | str = 3
    flag: bool = False
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.depth == 0:
            raise ValueError("depth must not be 0")


TREE = Tree(
    Twig((Leaf(1), Leaf(2, share=0.25))), Path("a/b"), (2, "b"), ((1, 2), (3, 4)), "wet", "x", "deep", True, {"k": 1}
)


def through_json(value):
    return json.loads(json.dumps(as_plain(value)))


@pytest.mark.parametrize("tree", [TREE, Tree(Leaf(3), Path("c"))])
def test_a_config_comes_back_from_json_as_it_was(tree: Tree):
    assert from_plain(Tree, through_json(tree)) == tree


def test_plain_values_name_their_class_and_hold_no_python():
    assert through_json(Tree(Leaf(3), Path("c")))["trunk"] == {"kind": "Leaf", "size": 3, "share": 0.5}
    assert through_json(TREE)["path"] == "a/b"
    with pytest.raises(TypeError, match="configs must be made of dataclasses"):
        as_plain(Tree(object(), Path("c")))


def test_defaults_stand_for_what_is_left_out_and_numbers_may_be_whole():
    tree = from_plain(Tree, {"trunk": {"kind": "Leaf", "size": 1, "share": 1}, "path": "c"})
    assert tree == Tree(Leaf(1, share=1.0), Path("c")) and isinstance(tree.trunk.share, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trunk": {"size": 1}}, "trunk.kind must be one of Leaf, Twig, got None"),
        ({"trunk": {"kind": "Root"}}, "trunk.kind must be one of Leaf, Twig, got 'Root'"),
        ({"trunk": {"kind": "Leaf"}}, r"trunk \(Leaf\) lacks the field 'size'; add it"),
        (
            {"trunk": {"kind": "Leaf", "size": 1, "sise": 2}},
            "has no field 'sise'; its fields are size, share",
        ),
        ({"trunk": {"kind": "Leaf", "size": "1"}}, "trunk.size must be an integer, got '1'"),
        ({"trunk": {"kind": "Leaf", "size": True}}, "trunk.size must be an integer, got True"),
        ({"trunk": {"kind": "Leaf", "size": 1.5}}, "trunk.size must be an integer, got 1.5"),
        ({"trunk": {"kind": "Twig", "leaves": [{"size": 1}, 5]}}, r"trunk.leaves\[1\] must be an object"),
        (
            {"trunk": {"kind": "Twig", "leaves": [{"kind": "Twig"}]}},
            r"leaves\[0\].kind must be 'Leaf', got 'Twig'",
        ),
        ({"trunk": 5}, "trunk must be one of Leaf, Twig, got 5"),
        ({"path": 5}, "path must be a path as a string, got 5"),
        ({"pair": [1]}, "pair must have 2 entries, got 1"),
        ({"pair": 1}, "pair must be a list, got 1"),
        ({"filters": [[1, 2], [3, "4"]]}, r"filters\[1\]\[1\] must be an integer, got '4'"),
        ({"mood": "damp"}, "mood must be one of 'dry', 'wet', got 'damp'"),
        ({"name": 5}, "name must be a string, got 5"),
        ({"depth": 1.5}, "depth must be one of an integer, a string, got 1.5"),
        ({"depth": 0}, "depth must not be 0"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"sizes": {"k": "v"}}, "sizes.k must be an integer, got 'v'"),
        ({"sizes": 3}, "sizes must be an object, got 3"),
        ({"extra": 1}, "Tree has no field 'extra'"),
    ],
)
def test_a_mistake_is_named_by_its_place(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        from_plain(Tree, {**through_json(TREE), **change})


def test_what_a_class_refuses_is_told_with_its_place():
    values = through_json(toy_config())
    values["optimizer"]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"optimizer: lr must be above 0 and finite, got -1\.0"):
        run_config(values, [Toy])


def test_a_run_config_comes_back_from_its_folder(tmp_path: Path):
    config = toy_config(optimizer=AdagradConfig(0.1), schedule=CosineCycles(1, period=4, shrink=0.5), tensorboard=True)
    write_config(tmp_path, config)
    assert read_config(tmp_path, [Toy]) == config
    (tmp_path / "config.json").write_text('{"task": ')
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        read_config(tmp_path)
    with pytest.raises(ValueError, match=r"folder must hold a run, but .*config.json is missing"):
        read_config(tmp_path / "elsewhere")


def test_a_config_of_another_format_is_refused_by_its_number(tmp_path: Path):
    write_config(tmp_path, toy_config())
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    assert values.pop("format") == CONFIG_FORMAT
    for given, told in (
        ({}, "none"),
        ({"format": None}, "none"),
        ({"format": CONFIG_FORMAT - 1}, CONFIG_FORMAT - 1),
        ({"format": CONFIG_FORMAT + 1}, CONFIG_FORMAT + 1),
        ({"format": True}, True),
        ({"format": float(CONFIG_FORMAT)}, float(CONFIG_FORMAT)),
        ({"format": "new\nline"}, r"'new\nline'"),
    ):
        # What stands in the rest is not looked at: old names must not be told as mistakes.
        file.write_text(json.dumps({**given, **values, "optimizer": {"kind": "Renamed"}}))
        for read in (read_config, read_plain_config):
            with pytest.raises(ValueError) as caught:
                read(tmp_path)
            assert str(caught.value) == (
                f"{file} must have format {CONFIG_FORMAT}, which this anymax {anymax.__version__} reads, got {told}; "
                "train anew, or use the anymax that wrote it"
            )


@pytest.mark.parametrize("every", ["epoch", 3, None])
def test_stages_and_averages_come_back_from_a_folder(tmp_path: Path, every):
    config = toy_config(
        optimizer=AveragedSGDConfig(0.1, begin=AtEpoch(3), decay=0.1, start=2, published=True),
        evaluate_every=every,
        start=Path("runs/first"),
        stop=None if every is None else NonMonotone(4),
    )
    write_config(tmp_path, config)
    assert read_config(tmp_path, [Toy]) == config
    values = read_plain_config(tmp_path)
    with pytest.raises(ValueError, match=r"evaluate_every must be one of an integer, 'epoch', null, got 'year'"):
        run_config({**values, "evaluate_every": "year"}, [Toy])


def test_steps_are_added_up_over_epochs_of_different_lengths():
    lengths = [7, 5, 9]
    config = toy_config(steps=None, epochs=2.5, accumulate=2)
    assert config.total_steps(lengths.__getitem__) == 4 + 3 + 3
    assert replace(config, epochs=2.0).total_steps(lengths.__getitem__) == 4 + 3


def test_a_toy_averages_from_its_first_step_and_begins_by_itself():
    toy = toy_config(optimizer=AveragedSGDConfig(0.1, decay=0.1), start=Path("first")).toy()
    assert toy.optimizer == AveragedSGDConfig(0.1, decay=0.1, begin=AtEpoch(0)) and toy.start is None


def test_changes_between_configs_are_listed_by_place():
    before, after = toy_config(), toy_config(steps=9, optimizer=AdamWConfig(0.01))
    assert list(changes(as_plain(before), as_plain(after))) == ["optimizer.lr 0.05 -> 0.01", "steps 7 -> 9"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": None}, "exactly one of steps and epochs must be given, got None and None"),
        ({"epochs": 1.0}, "exactly one of steps and epochs must be given, got 7 and 1.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": None, "epochs": -1.0}, "epochs must be above 0"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"clip": 0.0}, "clip must be above 0 and finite, got 0.0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"keep": 0}, "keep must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
        ({"evaluate_every": "year"}, "evaluate_every must be a number of steps, 'epoch' or None, got 'year'"),
        (
            {"evaluate_every": None, "stop": NonMonotone(3)},
            r"evaluate_every must be given for stop NonMonotone\(window=3\), which waits for evaluations, got None",
        ),
        (
            {"evaluate_every": None, "optimizer": AveragedSGDConfig(0.1)},
            r"evaluate_every must be given for optimizer.begin NonMonotone\(window=5\)",
        ),
        ({"threads": 0}, "threads must be at least 1"),
        ({"precision": "half"}, "precision must be one of"),
        ({"parallel": "tpu"}, "parallel must be one of"),
        ({"device": "tpu"}, "device must be one of"),
        (
            {"precision": "float16", "parallel": "fsdp"},
            "must be 'float32' or 'bfloat16' with parallel 'fsdp'",
        ),
        ({"schedule": Constant(7)}, "schedule.warmup must be less than the 7 steps of the run, got 7"),
    ],
)
def test_what_is_no_run_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        toy_config(**fields)


def test_a_toy_has_the_recipe_and_a_handful_of_steps():
    config = toy_config(
        steps=None, epochs=40, accumulate=16, precision="float16", compile=True, schedule=CosineCycles(900, period=5000)
    )
    toy = config.toy()
    assert toy.task == Toy(num_tokens=60) and toy.optimizer == config.optimizer
    assert (
        toy.total_steps(lambda epoch: 1000) <= 6
        and toy.accumulate == 2
        and toy.precision == "float32"
        and not toy.compile
    )
    assert isinstance(toy.schedule, CosineCycles)


def test_configs_are_made_without_torch():
    script = (
        "import sys\n"
        "from anymax.training import AdamWConfig, Cosine, LanguageModelingConfig, RunConfig\n"
        "from anymax.training import as_plain, from_plain, read_config\n"
        "assert 'torch' not in sys.modules, 'imported torch'\n"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
