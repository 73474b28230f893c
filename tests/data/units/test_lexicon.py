"""The lexicon: order, counts, hash, and a file that tells when it was changed."""

import hashlib
import os
import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from anymax.data import Lexicon
from anymax.vocabulary import Bands

TEXT = ["b", "a", "c", "a", "<eos>", "a", "b", "<unk>", "d", "<eos>", "e", "e", "<eos>"]


def test_words_fall_by_count_and_ties_go_by_text():
    lexicon = Lexicon.from_words(TEXT)
    assert lexicon.words == ("<eos>", "<unk>", "a", "b", "e", "c", "d")
    assert lexicon.counts == (3, 1, 3, 2, 2, 1, 1)
    assert (lexicon.eos, lexicon.unk, lexicon.num_specials, len(lexicon)) == (0, 1, 2, 7)


def test_the_order_does_not_depend_on_the_order_of_the_text():
    words = [f"w{i % 50}" for i in range(500)] + ["ä", "z", "Z", "é"]
    lexicon = Lexicon.from_words(words)
    random.Random(0).shuffle(words)
    assert Lexicon.from_words(words) == lexicon
    assert Lexicon.from_words(words).hash == lexicon.hash


@pytest.mark.parametrize("options", [{"min_count": 2}, {"max_size": 5}, {"max_size": 2}, {"min_count": 9}])
def test_words_left_out_count_as_unknown_so_that_counts_add_up_to_the_text(options):
    lexicon = Lexicon.from_words(TEXT, **options)
    assert sum(lexicon.counts) == len(TEXT)
    encoded = Counter(lexicon.encode(TEXT))
    assert [encoded[id] for id in range(len(lexicon))] == list(lexicon.counts)


def test_a_largest_size_above_the_text_keeps_everything_and_one_below_the_specials_is_refused():
    assert Lexicon.from_words(TEXT, max_size=1000) == Lexicon.from_words(TEXT)
    assert Lexicon.from_words(TEXT, max_size=4).words == ("<eos>", "<unk>", "a", "b")
    with pytest.raises(ValueError, match="max_size must be at least 2, got 1"):
        Lexicon.from_words(TEXT, max_size=1)


def test_padding_adds_words_that_never_occur_and_takes_no_name_that_does():
    lexicon = Lexicon.from_words([*TEXT, "<made-up-1>"], pad_to_multiple=8)
    assert len(lexicon) == 8
    lexicon = Lexicon.from_words([*TEXT, "<made-up-1>"], pad_to_multiple=5)
    assert lexicon.words[-3:] == ("d", "<made-up-0>", "<made-up-2>")
    assert lexicon.counts[-2:] == (0, 0)


def test_other_specials_keep_their_order_and_those_not_seen_have_count_zero():
    lexicon = Lexicon.from_words(TEXT, specials=["<s>", "<pad>", "<eos>", "<unk>"], pad_to_multiple=8)
    assert lexicon.specials == ("<s>", "<pad>", "<eos>", "<unk>")
    assert lexicon.counts[:4] == (0, 0, 3, 1)
    assert (lexicon.eos, lexicon.unk, len(lexicon)) == (2, 3, 16)


def test_words_to_keep_are_there_however_rare():
    lexicon = Lexicon.from_words(TEXT)
    counts = dict(zip(lexicon.words, lexicon.counts, strict=True))
    kept = Lexicon.from_counts(counts, min_count=2, keep=["d", "never", "<eos>"], pad_to_multiple=4)
    assert kept.words == ("<eos>", "<unk>", "a", "b", "e", "d", "never", "<made-up-0>")
    assert kept.counts == (3, 2, 3, 2, 2, 1, 0, 0)


def test_an_extended_lexicon_keeps_every_id_and_names_the_other_words_behind():
    lexicon = Lexicon.from_counts({"b": 3, "a": 2, "<unk>": 1}, max_size=3)
    extended = lexicon.extended(["z", "b", "c", "<unk>", "z"])
    assert extended.words == ("<eos>", "<unk>", "b", "c", "z") and extended.counts == (*lexicon.counts, 0, 0)
    assert extended.encode(["b", "z", "<unk>", "new"]) == [2, 4, 1, 1]
    assert lexicon.extended(["b"]) == lexicon


def test_known_words_come_back_and_others_become_unknown():
    lexicon = Lexicon.from_words(TEXT)
    assert lexicon.decode(lexicon.encode(TEXT)) == TEXT
    assert lexicon.decode(lexicon.encode(["a", "never"])) == ["a", "<unk>"]
    assert lexicon.decode(torch.tensor([2, 0])) == ["a", "<eos>"]
    assert "a" in lexicon and "never" not in lexicon
    for wrong in (-100, 7):
        with pytest.raises(ValueError, match=f"ids must be between 0 and 6, got {wrong}"):
            lexicon.decode([wrong])


def test_counts_serve_the_bands_of_an_adaptive_vocabulary():
    lexicon = Lexicon.from_counts({f"w{i}": 1000 // (i + 1) for i in range(200)}, pad_to_multiple=8)
    bands = Bands.optimal(lexicon.counts, 3, dim=16, factor=2, num_specials=lexicon.num_specials)
    assert bands.vocabulary_size == len(lexicon) == 208


def test_a_saved_lexicon_comes_back_the_same(tmp_path: Path):
    lexicon = Lexicon.from_words([*TEXT, "naïve", "日本", "a\u2028b", "x\x0cy", "x y", "\x85"], pad_to_multiple=8)
    lexicon.save(tmp_path / "below" / "lexicon.txt")
    loaded = Lexicon.load(tmp_path / "below" / "lexicon.txt")
    assert loaded == lexicon and loaded.hash == lexicon.hash
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["lexicon.txt"]


def test_the_file_is_readable_and_its_hash_can_be_checked_by_hand(tmp_path: Path):
    Lexicon.from_words(["a", "a", "b", "<eos>"]).save(tmp_path / "lexicon")
    body = "<eos>\t1\n<unk>\t0\na\t2\nb\t1\n"
    digest = hashlib.sha256(f"1 2 4\n{body}".encode()).hexdigest()
    expected = f"anymax-lexicon 1\tspecials 2\twords 4\tsha256 {digest}\n{body}"
    assert (tmp_path / "lexicon").read_bytes() == expected.encode()


def test_the_hash_changes_with_words_counts_and_specials():
    lexicon = Lexicon(("<eos>", "<unk>", "a", "b"), (1, 1, 1, 1))
    others = [
        Lexicon(("<eos>", "<unk>", "b", "a"), (1, 1, 1, 1)),
        Lexicon(("<eos>", "<unk>", "a", "b"), (1, 1, 2, 1)),
        Lexicon(("<eos>", "<unk>", "a", "b"), (1, 1, 1, 1), num_specials=3),
    ]
    assert len({lexicon.hash, *(other.hash for other in others)}) == 4


def damaged(text: str) -> dict[str, tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    return {
        "a word changed": (text.replace("e\t2", "f\t2"), "was changed since"),
        "a count changed": (text.replace("a\t3", "a\t4"), "was changed since"),
        "last line cut": ("".join(lines[:-1]), "holds 6 of its 7 lines"),
        "last byte cut": (text[:-1], "holds 6 of its 7 lines"),
        "only the head": ("".join(lines[:1]), "holds 0 of its 7 lines"),
        "head cut": (text[:30], "first line is damaged"),
        "specials changed": (text.replace("specials 2", "specials 3"), "was changed since"),
        "later version": (text.replace("lexicon 1", "lexicon 2"), "version 2, this anymax reads version 1"),
        "no head": ("".join(lines[1:]), "is not a lexicon"),
        "empty": ("", "is not a lexicon"),
    }


@pytest.mark.parametrize("damage", list(damaged("")))
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str):
    path = tmp_path / "lexicon.txt"
    Lexicon.from_words(TEXT).save(path)
    text, message = damaged(path.read_text())[damage]
    path.write_text(text)
    with pytest.raises(ValueError, match=f"lexicon.txt.*{message}"):
        Lexicon.load(path)


def test_a_file_of_other_bytes_is_refused_by_name(tmp_path: Path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="bytes is not a lexicon: it is not UTF-8"):
        Lexicon.load(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("num_specials", "body", "message"),
    [
        (2, "<eos>\t1\n<unk>\n", "invalid literal for int"),
        (2, "<eos>\t1\n<unk>\tmany\n", "invalid literal for int"),
        (2, f"<eos>\t1\n<unk>\t{'9' * 4000}\n", "counts must be below 2"),
        (2, f"<eos>\t1\n<unk>\t{'9' * 5000}\n", "is no lexicon that anymax wrote"),
        (-1, "<eos>\t1\n<unk>\t1\na\t1\n", "num_specials must be at least 0, got -1"),
        (10**30, "<eos>\t1\nb\t1\n", "specials must hold"),
        (2, "", "specials must hold"),
    ],
)
def test_a_file_with_a_right_hash_that_is_no_lexicon_is_refused_by_name(
    tmp_path: Path, num_specials: int, body: str, message: str
):
    num_words = body.count("\n")
    digest = hashlib.sha256(f"1 {num_specials} {num_words}\n{body}".encode()).hexdigest()
    head = f"anymax-lexicon 1\tspecials {num_specials}\twords {num_words}\tsha256 {digest}\n"
    (tmp_path / "foreign").write_text(head + body)
    with pytest.raises(ValueError, match=f"foreign is no lexicon that anymax wrote.*{message}|foreign {message}"):
        Lexicon.load(tmp_path / "foreign")


def test_no_pipe_device_or_folder_is_read_as_a_lexicon(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (("pipe", "must be a lexicon, got a pipe"), ("/dev/zero", "must be a lexicon, got a device")):
        with pytest.raises(ValueError, match=message):
            Lexicon.load(tmp_path / path)
    with pytest.raises(IsADirectoryError, match="is a folder, a lexicon is needed"):
        Lexicon.load(tmp_path)


@pytest.mark.parametrize("word", ["", "a\tb", "a\nb", "a\rb"])
def test_words_that_would_break_the_file_are_refused(word: str):
    with pytest.raises(ValueError, match="words must not be empty or hold tabs"):
        Lexicon.from_words(["a", word])


def test_what_is_no_lexicon_is_refused():
    with pytest.raises(TypeError, match="words must be strings, got 3"):
        Lexicon.from_words(["a", 3])
    with pytest.raises(ValueError, match="add <unk>"):
        Lexicon.from_words(["a"], specials=["<eos>"])
    with pytest.raises(ValueError, match="specials must differ"):
        Lexicon.from_words(["a"], specials=["<eos>", "<unk>", "<eos>"])
    with pytest.raises(ValueError, match="'a' is there 2 times"):
        Lexicon(("<eos>", "<unk>", "a", "a"), (0, 0, 1, 1))
    with pytest.raises(ValueError, match="rise from 1 to 2 at 'b'"):
        Lexicon(("<eos>", "<unk>", "a", "b"), (0, 0, 1, 2))
    with pytest.raises(ValueError, match="one number for each of the 2 words, got 1"):
        Lexicon(("<eos>", "<unk>"), (0,))
    with pytest.raises(TypeError, match=r"counts must be integers, got 1\.5"):
        Lexicon(("<eos>", "<unk>"), (1.5, 0))
    with pytest.raises(ValueError, match="min_count must be at least 1"):
        Lexicon.from_words(["a"], min_count=0)
