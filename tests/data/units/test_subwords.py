"""Pieces of words: the merges of byte-pair encoding, words whole again, and a file that others read."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers

from anymax.data import Lexicon, Subwords, pydoc
from anymax.data.units import subwords as subwords_module

COUNTS = Counter(pydoc().words("valid"))


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return Subwords.train(COUNTS, 300)


def naive_merges(counts: Counter, num_merges: int, min_count: int) -> list[tuple[str, str]]:
    """Merges found by counting all pairs anew each time; of pairs with one count the one of earlier pieces wins."""
    characters = sorted(set().union(*counts))
    order = {piece: place for place, piece in enumerate([*characters, *(letter + "</w>" for letter in characters)])}
    words = {word: [*word[:-1], word[-1] + "</w>"] for word in counts}
    merges: list[tuple[str, str]] = []
    while len(merges) < num_merges:
        pairs: Counter = Counter()
        for word, pieces in words.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        pair = min(pairs, key=lambda pair: (-pairs[pair], order[pair[0]], order[pair[1]]), default=None)
        if pair is None or pairs[pair] < min_count:
            break
        merges.append(pair)
        order.setdefault("".join(pair), len(order))
        for pieces in words.values():
            for place in range(len(pieces) - 1):
                if tuple(pieces[place : place + 2]) == pair:
                    pieces[place : place + 2] = ["".join(pair), ""]
            pieces[:] = filter(None, pieces)
    return merges


def test_merges_are_those_of_the_definition():
    counts = Counter({"low": 5, "lower": 2, "newest": 6, "widest": 3, "slow": 2, "ease": 1, "well": 5, "less": 4})
    subwords = Subwords.train(counts, 100, min_count=2)
    assert list(subwords.merges) == naive_merges(counts, 100, min_count=2)
    assert len(subwords.merges) > 10


def test_words_are_cut_into_pieces_that_spell_them(subwords: Subwords):
    for word in COUNTS:
        pieces = subwords.split(word)
        assert subwords.join(pieces) == [word]
        assert [subwords.ends_word(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    lengths = [len(subwords.split(word)) for word in COUNTS]
    assert max(lengths) > 3 and subwords.split("the") == ("the</w>",)


def test_the_size_is_kept_and_more_than_the_text_gives_is_fine(subwords: Subwords):
    assert len(subwords) == len(set(subwords.vocabulary)) == 300
    few = Subwords.train({"aab": 3, "b": 1}, 1000)
    # Two special words, two characters in two forms, and a + a, then aa + b</w>.
    assert set(few.vocabulary) == {"<eos>", "<unk>", "a", "b", "a</w>", "b</w>", "aa", "aab</w>"}
    with pytest.raises(ValueError, match=r"size must be at least 6 for this text.*two for each of its 2 characters"):
        Subwords.train({"aab": 3, "b": 1}, 5)


def test_special_words_stay_whole_and_those_of_unseen_characters_become_unknown_as_a_whole(subwords: Subwords):
    assert subwords.split("<eos>") == ("<eos>",)
    assert subwords.split("<unk>") == ("<unk>",)
    for word in ("the日", "日", "日the", "a</w>b", "<unk>s"):
        assert subwords.split(word) == ("<unk>",)


def test_no_word_of_seen_characters_is_unknown(subwords: Subwords):
    characters = sorted(set().union(*(word for word in COUNTS if word not in ("<eos>", "<unk>"))))
    for word in (left + right for left in characters for right in characters):
        assert "<unk>" not in subwords.split(word)


def test_texts_that_hold_the_marks_do_not_confuse_pieces():
    counts = {"a<unk>": 9, "<unk>": 4, "x</w>y": 9, "<eos>s": 9, "ab": 5, "<u": 5}
    subwords = Subwords.train(counts, 50)
    assert subwords.count(counts) == {"<unk>": 31, "ab</w>": 5, "<u</w>": 5}


def test_pieces_join_to_words_and_an_unfinished_word_is_kept(subwords: Subwords):
    assert subwords.join(["lo", "w</w>", "<eos>", "ne", "<unk>", "x</w>", "la"]) == [
        "low",
        "<eos>",
        "ne",
        "<unk>",
        "x",
        "la",
    ]
    assert subwords.join([]) == []


def test_the_same_counts_give_the_same_file_in_any_process(tmp_path: Path, subwords: Subwords):
    subwords.save(tmp_path / "here.json")
    counts = json.dumps(list(reversed(COUNTS.items())))
    script = "import json, sys\nfrom anymax.data import Subwords\n"
    script += "Subwords.train(dict(json.load(sys.stdin)), 300).save(sys.argv[1])"
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        environment = os.environ | {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-c", script, str(path)]
        subprocess.run(command, input=counts, text=True, check=True, env=environment)
        assert path.read_bytes() == (tmp_path / "here.json").read_bytes()


def test_the_file_serves_the_tokenizers_package_with_the_ids_of_the_lexicon(tmp_path: Path, subwords: Subwords):
    subwords.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    lexicon = Lexicon.from_counts(subwords.count(COUNTS), keep=subwords.vocabulary)
    line = "the <unk> statements of a class <eos>"
    pieces = [piece for word in line.split() for piece in subwords.split(word)]
    encoded = theirs.encode(line)
    assert encoded.tokens == pieces
    assert encoded.ids == lexicon.encode(pieces)
    assert theirs.decode(theirs.encode("the statements").ids) == "the statements"


def test_pieces_are_counted_as_in_the_text(subwords: Subwords):
    in_text = Counter(piece for word in pydoc().words("valid") for piece in subwords.split(word))
    assert subwords.count(COUNTS) == in_text
    lexicon = Lexicon.from_counts(in_text, keep=subwords.vocabulary, pad_to_multiple=64)
    assert lexicon.words[:300] == subwords.vocabulary and len(lexicon) == 320
    assert lexicon.counts[299] == 0 < lexicon.counts[150]


def test_a_saved_file_comes_back_the_same(tmp_path: Path, subwords: Subwords):
    subwords.save(tmp_path / "tokenizer.json")
    loaded = Subwords.load(tmp_path / "tokenizer.json")
    assert loaded == subwords and loaded.hash == subwords.hash
    expected = hashlib.sha256(json.dumps([subwords.vocabulary, subwords.merges]).encode()).hexdigest()
    assert subwords.hash == expected
    assert Subwords.train(COUNTS, 299).hash != subwords.hash


def test_files_of_other_makers_are_read(tmp_path: Path):
    model = {"end_of_word_suffix": "</w>", "vocab": {"b</w>": 1, "a": 0, "ab</w>": 2}, "merges": ["a b</w>"]}
    (tmp_path / "old.json").write_text(json.dumps({"model": model}))
    subwords = Subwords.load(tmp_path / "old.json")
    assert subwords.vocabulary == ("<eos>", "<unk>", "a", "b</w>", "ab</w>")
    assert subwords.split("aab") == ("a", "ab</w>") and subwords.split("b") == ("b</w>",)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "WordPiece", "vocab": {"a": 0}}, "is not a tokenizer.json of byte-pair encoding"),
        (
            {"end_of_word_suffix": None, "vocab": {}, "merges": []},
            "must mark the subwords .*its mark for them is None",
        ),
        ({"end_of_word_suffix": "</w>", "vocab": {"a": 0}, "merges": [["a", "b"]]}, "merges do not fit its vocabulary"),
        ({"end_of_word_suffix": "</w>", "vocab": {"a": 0}, "merges": [["a"]]}, "is not a tokenizer.json"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path, model: dict, message: str):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    with pytest.raises(ValueError, match=rf"tokenizer\.json.*{message}"):
        Subwords.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"model": 3}', b"[" * 99_999])
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: bytes):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is not a tokenizer\.json"):
        Subwords.load(tmp_path / "a.json")


@pytest.mark.parametrize(
    "model",
    [
        {"vocab": {"\ud800": 0}, "merges": []},
        {"vocab": {"a": 10**40, "b": -1}, "merges": [["a", "b"]]},
        {"vocab": {"a": 0}, "merges": [[1, 2]]},
        {"vocab": {"a": "x", "b": 1}, "merges": []},
        {"vocab": ["a", "b"], "merges": []},
        {"vocab": {"a": 0}, "merges": 7},
        {"vocab": {"a": 0}, "merges": ["a"]},
    ],
)
def test_files_of_hostile_values_are_refused_by_name(tmp_path: Path, model: dict):
    (tmp_path / "foreign.json").write_text(json.dumps({"model": {"end_of_word_suffix": "</w>", **model}}))
    with pytest.raises(ValueError, match=r"foreign\.json"):
        Subwords.load(tmp_path / "foreign.json")


def test_a_word_of_a_million_characters_is_unknown_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    word = "".join(chr(ord("a") + (place * place) % 23) for place in range(1_000_000))
    counts = {"abab": 5, "abc": 7, word: 3}
    given: list[str] = []
    learn = subwords_module._learn
    monkeypatch.setattr(subwords_module, "_learn", lambda counts, *rest: given.extend(counts) or learn(counts, *rest))
    trained = Subwords.train(counts, 100)
    assert given == ["abab", "abc"] and trained.vocabulary == Subwords.train({"abab": 5, "abc": 7}, 100).vocabulary
    assert trained.count(counts) == {**trained.count({"abab": 5, "abc": 7}), "<unk>": 3}
    longest = "ab" * (subwords_module.MOST_OF_WORD // 2)
    assert trained.join(trained.split(longest)) == [longest] and trained.split(longest + "a") == ("<unk>",)
