"""Bands: a vocabulary cut by cutoffs or by sizes, and nothing bent in silence."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from anymax.vocabulary import Bands


def test_cutoffs_and_sizes_describe_the_same_bands() -> None:
    by_sizes = Bands.from_sizes((20_000, 40_000, 207_744), dim=1024)
    assert by_sizes == Bands.from_cutoffs((20_000, 60_000), 267_744, dim=1024)
    assert by_sizes.edges == (0, 20_000, 60_000, 267_744)
    assert by_sizes.sizes == (20_000, 40_000, 207_744)
    assert by_sizes.num_bands == 3


def test_dimensions_shrink_by_the_factor() -> None:
    assert Bands.from_sizes((1, 1, 1), dim=1024).dims == (1024, 256, 64)
    assert Bands.from_sizes((1, 1, 1), dim=1000, factor=3).dims == (1000, 333, 111)
    assert Bands.from_sizes((1, 1), dim=512, factor=1).dims == (512, 512)
    assert Bands.from_sizes((1, 1), dims=[7, 9]).dims == (7, 9)


def test_the_published_word_tables_are_counted() -> None:
    bands = Bands.from_sizes((20_000, 40_000, 207_744), dim=1024)
    assert sum(size * dim for size, dim in zip(bands.sizes, bands.dims, strict=True)) == 44_015_616


def test_no_cutoff_is_one_band() -> None:
    bands = Bands.from_cutoffs((), 9, dim=4)
    assert bands.sizes == (9,) and bands.dims == (4,)
    assert (bands.band_of(torch.arange(9)) == 0).all()


def test_a_dimension_of_zero_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"8 // 4\*\*2 is 0; use fewer bands"):
        Bands.from_sizes((1, 1, 1), dim=8)
    with pytest.raises(ValueError, match="dims must be at least 1"):
        Bands.from_sizes((1, 1), dims=(4, 0))


def test_either_dim_or_dims_is_given() -> None:
    for options in ({}, {"dim": 8, "dims": (8, 2)}):
        with pytest.raises(ValueError, match="give either dim"):
            Bands.from_sizes((3, 4), **options)
    with pytest.raises(ValueError, match="one dimension for each of the 2 bands"):
        Bands.from_sizes((3, 4), dims=(8,))
    with pytest.raises(ValueError, match="factor must be at least 1"):
        Bands.from_sizes((3, 4), dim=8, factor=0)


@pytest.mark.parametrize("cutoffs", [(0, 5), (5, 5), (7, 3), (5, 11), (-2,), (3, 20)])
def test_cutoffs_that_do_not_rise_within_the_vocabulary_are_refused(cutoffs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cutoffs must rise strictly and lie from 1 to 9"):
        Bands.from_cutoffs(cutoffs, 10, dim=64)


def test_usual_mistakes_get_advice() -> None:
    with pytest.raises(ValueError, match="leave out the last"):
        Bands.from_cutoffs((20, 60, 100), 100, dim=64)
    with pytest.raises(ValueError, match=r"use Bands\.from_sizes"):
        Bands.from_cutoffs((40, 20, 40), 100, dim=64)


def test_bands_without_words_are_refused() -> None:
    for sizes in ((), (3, 0), (-1, 4)):
        with pytest.raises(ValueError, match="sizes must give at least one band"):
            Bands.from_sizes(sizes, dim=4)
    with pytest.raises(ValueError, match="vocabulary_size must be at least 1"):
        Bands.from_cutoffs((), 0, dim=4)


def test_numbers_that_are_not_integers_are_refused() -> None:
    for make in (
        lambda: Bands.from_sizes((2.0, 3), dim=4),
        lambda: Bands.from_cutoffs((2.5,), 4, dim=4),
        lambda: Bands.from_cutoffs((2,), 4.0, dim=4),
        lambda: Bands.from_sizes((2, 3), dim=4.0),
        lambda: Bands(5, (2,), (4, True)),
    ):
        with pytest.raises(TypeError, match="must be integers"):
            make()


def test_a_plain_dict_and_json_give_the_bands_back() -> None:
    bands = Bands.from_sizes((3, 4, 5), dim=64)
    plain = dataclasses.asdict(bands)
    assert plain == {"vocabulary_size": 12, "cutoffs": (3, 7), "dims": (64, 16, 4)}
    again = Bands(**json.loads(json.dumps(plain)))
    assert again == bands and hash(again) == hash(bands)
    with pytest.raises(ValueError, match="cutoffs must rise"):
        Bands(**{**plain, "cutoffs": [7, 3]})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_word_is_told_its_band(dtype: torch.dtype) -> None:
    bands = Bands.from_sizes((3, 1, 4), dim=64)
    band = bands.band_of(torch.arange(8, dtype=dtype).view(2, 4))
    assert band.tolist() == [[0, 0, 0, 1], [2, 2, 2, 2]]


def test_counts_that_fall_are_accepted_from_anything() -> None:
    counts = [9, 5, 5, 1, 0]
    for given in (counts, tuple(counts), torch.tensor(counts), np.array(counts)):
        assert Bands.from_cutoffs((2,), 5, dim=4, counts=given).num_bands == 2


def test_counts_that_rise_are_refused_at_the_word_where_they_do() -> None:
    with pytest.raises(ValueError, match="rise from 5 to 6 at word 3; sort the vocabulary"):
        Bands.from_sizes((2, 3), dim=4, counts=[9, 7, 5, 6, 1])


def test_special_words_at_the_front_need_not_fall() -> None:
    counts = [0, 3, 50, 9, 8]
    with pytest.raises(ValueError, match="at word 1"):
        Bands.from_sizes((2, 3), dim=4, counts=counts)
    assert Bands.from_sizes((2, 3), dim=4, counts=counts, num_specials=2).sizes == (2, 3)
    with pytest.raises(ValueError, match="at word 2"):
        Bands.from_sizes((2, 3), dim=4, counts=counts, num_specials=1)
    with pytest.raises(ValueError, match="num_specials must be between 0 and the vocabulary size 5"):
        Bands.from_sizes((2, 3), dim=4, counts=counts, num_specials=6)


def test_counts_that_are_no_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="one number for each of the 5 words, got 2"):
        Bands.from_sizes((2, 3), dim=4, counts=[2, 1])
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"finite and not negative, got .* for word 1"):
            Bands.from_sizes((1, 1), dim=4, counts=[3.0, wrong])


def test_bands_are_made_without_importing_torch() -> None:
    script = "import sys; from anymax.vocabulary import Bands; Bands.from_sizes((2, 3), dim=4, counts=[3, 3, 2, 1, 0])"
    check = "assert 'torch' not in sys.modules and 'CharacterInput' in dir(sys.modules['anymax.vocabulary'])"
    result = subprocess.run([sys.executable, "-c", f"{script}; {check}"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    import anymax.vocabulary

    with pytest.raises(AttributeError, match="no attribute 'Bandz'"):
        _ = anymax.vocabulary.Bandz
