"""What every config of a layer, transform, mapping or estimator promises. A new one joins by one line in MEMBERS."""

import dataclasses
import importlib
import json
import subprocess
import sys
from types import ModuleType
from typing import Any, get_args

import pytest

from anymax.attention import (
    AttentionMappingConfig,
    EntmaxConfig,
    LearnedEntmaxConfig,
    RectifiedConfig,
    SigmoidConfig,
    SoftmaxConfig,
    SoftpickConfig,
)
from anymax.latent import (
    AnnealedTemperature,
    BitMappingConfig,
    DenseMarginalConfig,
    EstimatorConfig,
    GumbelConfig,
    IndependentConfig,
    NVILConfig,
    ScoreFunctionConfig,
    SparseMap,
    SparseMapConfig,
    SparseMarginalConfig,
    StraightThroughGumbel,
    SumAndSampleConfig,
    TopKSparsemax,
    TopKSparsemaxConfig,
)
from anymax.models import (
    BertConfig,
    DualSourceTransformerConfig,
    PostEditorConfig,
    Sharing,
    Tie,
    TransformerConfig,
    TransformerDecoderConfig,
    TranslatorConfig,
)
from anymax.models.post_editing.sharing import TRANSFORMER
from anymax.structured import Budget
from anymax.training import as_plain, from_plain
from anymax.transforms import (
    AttentionTransformConfig,
    LengthScaleConfig,
    MonotonicNetworkConfig,
    PLIFConfig,
    SigConfig,
    SignedLogConfig,
    SoftcapConfig,
    TransformConfig,
)
from anymax.vocabulary import (
    AdaptiveInputConfig,
    AdaptiveOutputConfig,
    CharacterInputConfig,
    FixedInputConfig,
    FullOutputConfig,
    InputConfig,
    MixtureOutputConfig,
    OutputConfig,
    SparseOutputConfig,
)
from tests.lexicons import Made
from tests.models.post_editing.test_sharing import Words

UNIONS = {
    "transforms": [TransformConfig, AttentionTransformConfig],
    "vocabulary": [InputConfig, OutputConfig],
    "attention": [AttentionMappingConfig],
    "latent": [EstimatorConfig, BitMappingConfig],
}
# Every one with the arguments of its `build`.
MEMBERS: list[tuple[Any, tuple[Any, ...]]] = [
    (PLIFConfig(10, 5.0, rate=0.1, random_start=True), ()),
    (SigConfig(shift=0.5, slope=3.0), ()),
    (MonotonicNetworkConfig(5, bound=3.0, chunk=2, rate=0.1), ()),
    (SoftcapConfig(5.0), ()),
    (SignedLogConfig(), ()),
    (LengthScaleConfig(0.3, delta=1.0, gamma=2.0, learned=("beta", "gamma")), (2,)),
    (FixedInputConfig(3), (Made(20), 4)),
    (AdaptiveInputConfig((5, 9), dim=8, factor=2), (Made(20), 4)),
    (CharacterInputConfig(3, ((1, 4), (2, 5)), num_highways=2, max_bytes=3, windows="padded"), (Made(20), 4)),
    (FullOutputConfig(3, bias=True, label_smoothing=0.1, smoothing="opennmt", transform=PLIFConfig(10)), (20, 4)),
    (AdaptiveOutputConfig(shares=(0.2, 0.5), dim=8, factor=2, tail_dropout=0.1, head_projection=True), (20, 4)),
    (MixtureOutputConfig(2, dim=3, bias=False, latent_dropout=0.1, variational=True, transform=SigConfig()), (20, 4)),
    (SparseOutputConfig(1.3, learn_alpha=True, dim=3, bias=True, label_smoothing=0.1, smoothing="opennmt"), (20, 4)),
    (SoftmaxConfig(), (2,)),
    (EntmaxConfig(1.3), (2,)),
    (EntmaxConfig(0.0), (2,)),
    (LearnedEntmaxConfig(1.3), (2,)),
    (LearnedEntmaxConfig(0.5, low=0.0, high=3.0), (2,)),
    (LearnedEntmaxConfig(1.3, clamp=1.01), (2,)),
    (SigmoidConfig(-1.5), (2,)),
    (SigmoidConfig(), (2,)),
    (RectifiedConfig(2.0), (2,)),
    (SoftpickConfig(1e-6), (2,)),
    (DenseMarginalConfig(), (4,)),
    (SparseMarginalConfig(), (4,)),
    (ScoreFunctionConfig("sample", published=True), (4,)),
    (NVILConfig(3), (4,)),
    (GumbelConfig(0.1, floor=0.2, every=3, published=True), (4,)),
    (SumAndSampleConfig(2, baseline="average"), (4,)),
    (IndependentConfig(), ()),
    (TopKSparsemaxConfig(3), ()),
    (SparseMapConfig(2, decomposition="systematic"), ()),
    (
        TranslatorConfig(
            FixedInputConfig(3),
            FullOutputConfig(3, bias=True),
            TransformerConfig(4, 1, 2, 8),
            source_input=AdaptiveInputConfig(shares=(0.5,), factor=2),
            tie=Tie(projections=True),
            decoder_layers=2,
            encoder_mapping=EntmaxConfig(1.3),
            decoder_mapping=LearnedEntmaxConfig(clamp=1.01),
            cross_mapping=SoftpickConfig(),
            max_positions=9,
        ),
        (Made(20), Made(10)),
    ),
    (
        PostEditorConfig(
            BertConfig(4, 1, 2, 8, mapping=EntmaxConfig(1.3)),
            Sharing("tied", "random", "copied", "random", "random", cross_attention_of="encoder"),
            decoder=BertConfig(4, 1, 2, 6, mapping=LearnedEntmaxConfig()),
            cross_mapping=SoftpickConfig(),
            label_smoothing=0.2,
        ),
        (Words(20),),
    ),
    (
        PostEditorConfig(
            BertConfig(4, 1, 2, 8),
            TRANSFORMER,
            decoder=TransformerDecoderConfig(
                TransformerConfig(4, 2, 1, 6, norm_first=False), mapping=EntmaxConfig(1.3), max_positions=9
            ),
        ),
        (Words(20),),
    ),
    (
        DualSourceTransformerConfig(
            TransformerConfig(4, 1, 2, 8),
            encoder_mapping=EntmaxConfig(1.3),
            decoder_mapping=LearnedEntmaxConfig(clamp=1.01),
            cross_mapping=SoftpickConfig(),
            label_smoothing=0.2,
            max_positions=9,
        ),
        (Words(20),),
    ),
    (BertConfig(4, 1, 2, 8, max_positions=9, num_segments=3, activation="relu", mapping=EntmaxConfig(1.3)), (20,)),
]


def config_file(folder: str) -> ModuleType:
    return importlib.import_module(f"anymax.{folder}.config")


def test_every_config_of_a_folder_is_frozen_public_in_its_union_and_a_member_here() -> None:
    for folder, unions in UNIONS.items():
        classes = {value for value in vars(config_file(folder)).values() if dataclasses.is_dataclass(value)}
        own = {kind for kind in classes if kind.__module__ == f"anymax.{folder}.config"}
        assert own == {kind for union in unions for kind in get_args(union)}
        assert own == {type(config) for config, _ in MEMBERS if type(config).__module__ == f"anymax.{folder}.config"}
        for kind in own:
            assert kind.__dataclass_params__.frozen
            assert getattr(importlib.import_module(f"anymax.{folder}"), kind.__name__) is kind


@pytest.mark.parametrize(("config", "arguments"), MEMBERS, ids=lambda value: type(value).__name__)
def test_a_config_builds_what_it_is_named_for_and_comes_back_from_json(config: Any, arguments: tuple[Any, ...]) -> None:
    assert from_plain(type(config), json.loads(json.dumps(as_plain(config)))) == config
    built = config.build(*arguments)
    if isinstance(config, SoftmaxConfig):
        # Attention takes None for softmax.
        assert built is None
        return
    assert type(config).__name__ == f"{type(built).__name__}Config"
    # Mappings have their own folder, as attention is not all that they are for.
    home = "mappings" if isinstance(config, get_args(AttentionMappingConfig)) else config.__module__.split(".")[1]
    assert type(built).__module__.split(".")[1] == home


def test_every_field_reaches_the_estimator() -> None:
    score = ScoreFunctionConfig("sample", published=True).build(4)
    assert (score.baseline, score.published) == ("sample", True)
    assert ScoreFunctionConfig("average").build(4).average is not None
    network = NVILConfig(3).build(4).baseline
    assert [tuple(layer.weight.shape) for layer in network if hasattr(layer, "weight")] == [
        (3, 4),
        (3, 3),
        (3, 3),
        (1, 3),
    ]
    for hard in (False, True):
        gumbel = GumbelConfig(0.1, hard=hard, floor=0.2, every=3, published=True).build(4)
        assert isinstance(gumbel, StraightThroughGumbel) == hard and gumbel.published
        assert gumbel.annealed == AnnealedTemperature(0.1, floor=0.2, every=3)
    summed = SumAndSampleConfig(2, baseline="average").build(4)
    assert summed.top == 2 and summed.average is not None
    assert SumAndSampleConfig(2).build(4).average is None


def test_every_field_reaches_the_transform_and_the_mapping_of_attention() -> None:
    assert SoftcapConfig(5.0).build().cap == 5
    scale = LengthScaleConfig(0.3, delta=1.0, gamma=2.0, learned=("beta", "gamma")).build(2)
    assert scale.initial == {"delta": 1.0, "beta": 0.3, "gamma": 2.0}
    assert {name: tuple(value.shape) for name, value in scale.named_parameters()} == dict.fromkeys(
        ("beta", "gamma"), (2, 1, 1)
    )
    assert SigmoidConfig(-1.5).build(2).bias == -1.5 and RectifiedConfig(2.0).build(2).power == 2
    assert SoftpickConfig(1e-6).build(2).eps == 1e-6
    for make, match in (
        (lambda: SigmoidConfig(float("nan")), "bias must be finite, got nan"),
        (lambda: RectifiedConfig(0.5), "power must be finite and at least 1, got 0.5"),
        (lambda: SoftpickConfig(0.0), "eps must be above 0 and finite, got 0"),
        (lambda: LengthScaleConfig(float("inf")), "beta must be a finite number, got inf"),
        (lambda: LengthScaleConfig(learned="beta"), "learned must be a tuple of 'delta', 'beta' and 'gamma', got"),
        (lambda: SoftcapConfig(-1.0), "cap must be above 0 and finite, got -1"),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_every_field_reaches_the_mapping_with_an_alpha_for_each_head() -> None:
    built = LearnedEntmaxConfig(0.5, low=0.0, high=3.0, clamp=0.25).build(2)
    assert (built.pre_alpha.shape, built.initial, built.low, built.high, built.clamp) == (
        (2, 1, 1),
        0.5,
        0.0,
        3.0,
        0.25,
    )
    for make, match in (
        (lambda: LearnedEntmaxConfig(clamp=1.0), "clamp must lie strictly between 1 and 2, got 1.0; leave it out"),
        (lambda: LearnedEntmaxConfig(1.1, clamp=1.1), "initial must lie strictly between 1.1 and 2, got 1.1"),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_every_field_reaches_the_mapping_of_bits() -> None:
    assert TopKSparsemaxConfig(3).build() == TopKSparsemax(3)
    assert SparseMapConfig().build() == SparseMap()
    assert SparseMapConfig(2, decomposition="systematic").build() == SparseMap(Budget(2), "systematic")


def test_configs_are_made_without_torch() -> None:
    names = {
        f"anymax.{folder}": sorted(k.__name__ for u in unions for k in get_args(u)) for folder, unions in UNIONS.items()
    }
    lines = [f"from {home} import {', '.join(classes)}" for home, classes in names.items()]
    script = "\n".join(["import sys", *lines, "assert 'torch' not in sys.modules"])
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
