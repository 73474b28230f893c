"""Named sets: found in the layouts that are documented, and refused by what they do not have."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from anymax.data import DrawnPairs, ParallelText
from anymax.data.text.named import AbsentCorpus
from anymax.plain import as_plain, from_plain


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def first_pairs(text: ParallelText) -> dict[str, tuple[str, str]]:
    corpus = text.open()
    pairs = {split: next(corpus.pairs(split)) for split in corpus.sources}
    return {split: (pair.source, pair.target) for split, pair in pairs.items()}


def lay(root: Path, stems: dict[str, str], languages: tuple[str, ...], ending: str = "") -> None:
    """A file for each stem and language that holds both."""
    for stem, split in stems.items():
        for language in languages:
            write(root / f"{stem}.{language}{ending}", f"{split} {language}\n")


def expected(source: str, target: str, test: str = "test") -> dict[str, tuple[str, str]]:
    return {
        split: (f"{what} {source}", f"{what} {target}")
        for split, what in (("train", "train"), ("valid", "valid"), ("test", test))
    }


def test_multi30k_has_three_languages_two_forms_and_three_test_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tests = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
    for folder, tail in (("raw", ""), ("tok", ".lc.norm.tok")):
        stems = {"train": "train", "val": "valid", **{test: test for test in tests}}
        lay(
            tmp_path / "multi30k" / folder,
            {f"{stem}{tail}": f"{folder} {split}" for stem, split in stems.items()},
            ("en", "de", "fr"),
            ".gz",
        )
    monkeypatch.setenv("ANYMAX_DATA", str(tmp_path))
    assert first_pairs(ParallelText())["test"] == ("raw test_2016_flickr en", "raw test_2016_flickr de")
    assert ParallelText().open().splitting == "marked"
    text = ParallelText(languages=("fr", "en"), form="tokenized", test_set="test_2017_mscoco")
    assert first_pairs(text) == {
        "train": ("tok train fr", "tok train en"),
        "valid": ("tok valid fr", "tok valid en"),
        "test": ("tok test_2017_mscoco fr", "tok test_2017_mscoco en"),
    }
    assert (text.open().splitting, text.open().languages, text.open().name) == ("spaces", ("fr", "en"), "multi30k")
    (tmp_path / "multi30k" / "raw" / "train.en.gz").unlink()
    with pytest.raises(
        AbsentCorpus, match=r"multi30k must lie in .*has no raw/train\.en and raw/train\.de or train\.en"
    ):
        ParallelText().open()


def test_talks_are_read_without_their_tags_from_either_order_of_the_languages(tmp_path: Path):
    folder = tmp_path / "iwslt17" / "de-en"
    for language, line in (("de", "Danke."), ("en", "Thank you.")):
        tags = f"<url>http</url>\n<title>{language}</title>\n {line} \n<reviewer></reviewer>\n < 3\n"
        write(folder / f"train.tags.de-en.{language}", tags.replace(" < 3", "3 < 4"))
        segments = (
            f'<mteval>\n<doc docid="1">\n<title>x</title>\n<seg id="1"> {line} > 2 </seg>\n  <seg id="2">b</seg>\n'
        )
        for name in ("dev2010", "tst2015", "tst2012"):
            write(folder / f"IWSLT17.TED.{name}.de-en.{language}.xml", segments)
    corpus = ParallelText(corpus="iwslt17", root=tmp_path).open()
    assert corpus.lines("train") == (["Danke.", "3 < 4"], ["Thank you.", "3 < 4"])
    assert corpus.lines("test") == (["Danke. > 2", "b"], ["Thank you. > 2", "b"])
    assert [place.rpartition("/")[2] for place in corpus.places("test", 1)] == [
        "IWSLT17.TED.tst2015.de-en.de.xml line 5",
        "IWSLT17.TED.tst2015.de-en.en.xml line 5",
    ]
    back = ParallelText(corpus="iwslt17", root=tmp_path, languages=("en", "de"), test_set="tst2012").open()
    assert back.lines("train") == (["Thank you.", "3 < 4"], ["Danke.", "3 < 4"])
    assert "tst2012" in back.source("test").place()


def test_the_other_sets_are_found_as_they_are_packed_and_as_plain_files(tmp_path: Path):
    data = "kftt/kftt-data-1.0/data"
    lay(tmp_path / data / "tok", {"kyoto-train.cln": "train", "kyoto-dev": "valid", "kyoto-test": "test"}, ("ja", "en"))
    lay(tmp_path / data / "orig", {"kyoto-train": "o", "kyoto-dev": "o", "kyoto-test": "o"}, ("ja", "en"))
    roman = {"train": "train", "newsdev2016": "valid", "newstest2016": "test"}
    lay(tmp_path / "wmt16-roen", roman, ("ro", "en"), ".gz")
    german = {"train": "train", "newstest2013": "valid", "newstest2014": "test", "newstest2015": "newer"}
    lay(tmp_path / "wmt14-ende", german, ("en", "de"))
    for name, source, target, splitting in (
        ("kftt", "ja", "en", "spaces"),
        ("wmt16-roen", "ro", "en", "marked"),
        ("wmt14-ende", "en", "de", "spaces"),
    ):
        text = ParallelText(corpus=name, root=tmp_path)
        assert first_pairs(text) == expected(source, target)
        assert text.open().splitting == splitting
        other = ParallelText(corpus=name, root=tmp_path, languages=(target, source), splitting="prose")
        assert first_pairs(other) == expected(target, source) and other.open().splitting == "prose"
        lay(tmp_path / "plain" / name, {"train": "train", "valid": "valid", "test": "test"}, (source, target))
        assert first_pairs(ParallelText(corpus=name, root=tmp_path / "plain")) == expected(source, target)
    newer = ParallelText(corpus="wmt14-ende", root=tmp_path, test_set="newstest2015")
    assert first_pairs(newer) == expected("en", "de", "newer")
    assert first_pairs(ParallelText(corpus="kftt", form="raw", root=tmp_path))["train"] == ("o ja", "o en")
    # A test set that was asked for by its name is not replaced by another.
    with pytest.raises(AbsentCorpus, match=r"has no newstest2014\.en and newstest2014\.de \(or those with \.gz\)"):
        ParallelText(corpus="wmt14-ende", root=tmp_path / "plain", test_set="newstest2014").open()


def test_without_a_root_it_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANYMAX_DATA", raising=False)
    with pytest.raises(ValueError, match=r"kftt needs the folder it lies in; give root, or set .* ANYMAX_DATA"):
        ParallelText(corpus="kftt").open()


def test_what_a_set_does_not_have_is_refused_before_anything_is_read():
    for options, match in (
        (
            {"corpus": "multi40k"},
            "corpus must be one of multi30k, iwslt17, kftt, wmt16-roen, wmt14-ende, copy, reverse,",
        ),
        ({"languages": ("en", "ro")}, "languages of multi30k must be two of en, de, fr, got en ro; give another pair"),
        ({"languages": ("en", "en")}, "languages of multi30k must be two of en, de, fr, got en en"),
        (
            {"corpus": "iwslt17", "languages": ("de", "fr")},
            "two of de, en, ar, fr, ja, ko, zh, one of them en, got de fr",
        ),
        (
            {"corpus": "wmt14-ende", "languages": ("en", "fr")},
            "languages of wmt14-ende must be two of en, de, got en fr",
        ),
        ({"corpus": "wmt14-ende", "form": "raw"}, "form of wmt14-ende must be tokenized, got 'raw'; leave it out"),
        (
            {"test_set": "test_2018"},
            "test_set of multi30k must be one of test_2016_flickr, test_2017_flickr, test_2017",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            ParallelText(**options)


def test_an_option_that_has_no_effect_is_refused():
    own = {"path": Path("a.tsv")}
    for options, match in (
        ({"source": Path("a.en")}, "must be source and target, or path, or hub, got source; give one of the three"),
        ({**own, "hub": "opus"}, "must be source and target, or path, or hub, got path, hub"),
        ({**own, "root": Path()}, "root is for named sets, got .* with a.tsv; leave it out"),
        ({**own, "form": "raw"}, "form is for named sets, got 'raw' with a.tsv"),
        ({**own, "test_set": "tst2015"}, "test_set is for named sets, got 'tst2015'"),
        ({**own, "drawn": DrawnPairs(seed=2)}, "drawn is for copy and reverse"),
        ({"drawn": DrawnPairs(seed=2)}, "drawn is for copy and reverse, got .* with multi30k"),
        ({"corpus": "copy", "languages": ("en", "de")}, "languages is for texts in languages, got .* with copy"),
        ({"corpus": "copy", "splitting": "prose"}, "splitting is for texts in languages, got 'prose' with copy"),
        ({"subset": "de-en"}, "subset is for hub, got 'de-en' with multi30k"),
        ({"encoding": "latin-1"}, "encoding is for your own files, got 'latin-1' with multi30k"),
        ({"hub": "opus", "encoding": "latin-1"}, "encoding is for your own files, got 'latin-1' with opus"),
        ({"held_out": 0.1}, "held_out is for your own text, got 0.1 with multi30k"),
        ({**own, "held_out": 1.5}, "held_out must be between 0 and 1, got 1.5"),
        ({**own, "languages": ("en", "en")}, "languages must be two that differ"),
        ({"target_units": ParallelText().units}, "target_units must be None where units are joint, got BPE"),
        ({"most_source": 1}, "most_source must be at least 2, got 1"),
    ):
        with pytest.raises(ValueError, match=match):
            ParallelText(**options)


def test_a_config_comes_back_from_plain_values():
    for text in (
        ParallelText(languages=("de", "fr"), form="raw", root=Path("/x"), most_source=None),
        ParallelText(corpus="copy", drawn=DrawnPairs(5, 2), joint=False, target_units=ParallelText().units),
        ParallelText(source=Path("a"), target=Path("b"), drop_empty=True, held_out=0.2),
        ParallelText().toy(),
    ):
        assert from_plain(ParallelText, as_plain(text)) == text


def test_drawn_pairs_differ_from_each_other_and_are_the_same_every_time():
    drawn = DrawnPairs(pairs=300, held_out=50, symbols=8, shortest=3, longest=5, seed=3)
    texts = {task: ParallelText(corpus=task, drawn=drawn).open() for task in ("copy", "reverse")}
    sentences = []
    for split, number in (("train", 300), ("valid", 50), ("test", 50)):
        copies, reverses = texts["copy"].lines(split), texts["reverse"].lines(split)
        assert len(copies.sources) == number and copies.sources == copies.references == reverses.sources
        assert reverses.references == [" ".join(line.split()[::-1]) for line in reverses.sources]
        sentences += copies.sources
    assert len(set(sentences)) == 400
    assert {len(line.split()) for line in sentences} == {3, 4, 5}
    assert len({word for line in sentences for word in line.split()}) == 8
    assert ParallelText(corpus="copy", drawn=drawn).open().lines("test") == texts["copy"].lines("test")
    more = DrawnPairs(pairs=400, held_out=50, symbols=8, shortest=3, longest=5, seed=3).open("copy")
    assert more.lines("test") == texts["copy"].lines("test") and more.lines("train").sources[:300] == sentences[:300]
    assert DrawnPairs(pairs=300, held_out=50, seed=4).open("copy").lines("test") != texts["copy"].lines("test")
    # Decided by the numbers alone, on any machine.
    assert DrawnPairs().open("copy").lines("valid").sources[0] == "he de ka ta"


def test_drawn_pairs_that_cannot_all_differ_are_refused():
    for options, match in (
        ({"symbols": 2}, "symbols must give twice the 4,400 sentences that are drawn, got 2 and a shortest"),
        ({"symbols": 101}, "symbols must be at most 100, got 101"),
        ({"longest": 2}, "longest must be at least shortest, 3, got 2"),
        ({"pairs": 0}, "pairs must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=match):
            DrawnPairs(**options)


def test_a_text_is_chosen_and_read_without_torch():
    script = """
import sys
from anymax.data import DrawnPairs, ParallelText

assert next(ParallelText(corpus="reverse", drawn=DrawnPairs(pairs=5, held_out=1)).open().pairs("train")).source
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
