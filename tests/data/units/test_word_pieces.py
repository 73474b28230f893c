"""Word pieces: the ids of transformers' tokenizer, the same pieces on every machine, and files that are none."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from anymax.data import WordPieces, pydoc
from anymax.data.units.word_pieces import SPECIALS
from tests.each import each

LINES = list(pydoc().source("train").lines())[:400]
ODD = ["Ünïcödé naïve [MASK] 你好 wörld\u200d x\x00y <S> <T> don't", "  ", "", "x" * 101 + " a", "a\u00a0b\u2028c"]
ODD += ["E\u0301clair ﬁn [SEP]x[CLS]", "[unused1] [UNK] ##ing #", "a\tb\x0bc\ufeffd"]


def counts(lowercase: bool = False) -> Counter[str]:
    cutter = WordPieces(SPECIALS, lowercase=lowercase)
    return Counter(word for line in LINES for word in cutter.words(line))


def learn(size: int = 1000, lowercase: bool = False, **options) -> WordPieces:
    return WordPieces.train(counts(lowercase), size, lowercase=lowercase, **options)


@each("lowercase", [False, True])
def test_ids_are_those_of_transformers_from_a_tokenizer_json_and_from_a_vocab_txt(lowercase, tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")
    pieces, folder = learn(lowercase=lowercase), tmp_path_factory.mktemp("saved")
    pieces.save_files(folder)
    by_itself = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=lowercase)
    for tokenizer in (transformers.AutoTokenizer.from_pretrained(folder), by_itself):
        for line in [*LINES, *ODD]:
            ids = pieces.encode(line, specials=True)
            assert ids == tokenizer.encode(line, add_special_tokens=False), line
        pair = tokenizer("a b", "c")
        assert pair["input_ids"] == [pieces.cls, *pieces.encode("a b"), pieces.sep, *pieces.encode("c"), pieces.sep]
        assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (pieces.pad, pieces.mask)


def test_words_by_spaces_are_those_of_transformers_too(tmp_path: Path):
    transformers = pytest.importorskip("transformers", reason="transformers, of the extra hf, is not installed")
    pieces = WordPieces(learn().vocabulary, "spaces")
    pieces.save_files(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for line in LINES:
        assert pieces.encode(line, specials=True) == tokenizer.encode(line, add_special_tokens=False), line
    assert pieces.decode(pieces.encode("don't the")) == ["don't", "the"]
    assert WordPieces.load(tmp_path) == pieces


def test_special_words_of_a_text_are_not_special_unless_asked_for():
    for splitting in ("bert", "spaces"):
        pieces = WordPieces((*learn().vocabulary, "[unused1]"), splitting)
        for word in (*SPECIALS, "<S>", "<T>", "[unused1]"):
            found = pieces.encode(f"the {word} a")
            assert not set(found) & (pieces.specials - {pieces.unk}), (splitting, word)
        wanted = [*pieces.encode("the"), pieces.mask, *pieces.encode("a")]
        assert pieces.encode("the [MASK] a", specials=True) == wanted


def test_pieces_come_back_as_words():
    pieces = learn()
    line = "The string is returned unchanged , if object is none ."
    ids = pieces.encode(line)
    assert len(ids) > len(line.split())
    assert pieces.decode(ids) == line.split() and pieces.text([pieces.cls, *ids, pieces.sep]) == line
    assert pieces.decode([pieces.sep, *ids[:1]])[0] == "[SEP]"
    with pytest.raises(ValueError, match="ids must be between 0 and 999, got 1000; take out padding first"):
        pieces.decode([1000])


def test_the_same_counts_give_the_same_pieces_in_any_order():
    once, shuffled = learn(), list(counts().items())
    random.Random(0).shuffle(shuffled)
    assert WordPieces.train(dict(shuffled), 1000) == once and learn() == once
    assert once.vocabulary[:7] == (*SPECIALS, "<S>", "<T>") and len(once) == 1000
    assert {"[MASK]", "##ing", "the", "##e"} <= set(once.vocabulary)


def test_rare_characters_can_be_left_out():
    few = learn(500, most_characters=30)
    assert sum(len(piece) == 1 for piece in few.vocabulary) == 30
    (kept,) = few.encode("e")
    assert few.vocabulary[kept] == "e" and few.encode("é") == [few.unk]
    with pytest.raises(ValueError, match=r"size must be at least \d+ for this text: 7 special words, and two for"):
        learn(60)
    with pytest.raises(ValueError, match="got 100 and 0 words"):
        WordPieces.train({}, 100)


def test_case_of_a_vocab_txt_is_known_by_its_pieces_or_by_the_file_beside_it(tmp_path: Path):
    for lowercase in (False, True):
        pieces = learn(lowercase=lowercase)
        folder = tmp_path / str(lowercase)
        pieces.save_files(folder)
        (folder / "tokenizer.json").unlink()
        assert WordPieces.load(folder) == pieces
        (folder / "tokenizer_config.json").unlink()
        assert WordPieces.load(folder / "vocab.txt") == pieces
        assert WordPieces.load(folder, splitting="spaces", lowercase=lowercase).splitting == "spaces"
    # Accents may stay where letters are made small.
    kept = WordPieces(pieces.vocabulary, lowercase=True, strip_accents=False)
    kept.save_files(tmp_path / "accents")
    assert WordPieces.load(tmp_path / "accents") == kept != pieces
    assert kept.words("É") == ["é"] and pieces.words("É") == ["e"]


@each(
    ("change", "match"),
    [
        (lambda v: v["model"].update(type="BPE"), "must be of word pieces, as BERT's, got BPE; RoBERTa's"),
        (lambda v: v["model"]["vocab"].pop("[MASK]"), "must number its 999 pieces from 0 without a gap"),
        (lambda v: v["model"].pop("vocab"), "is not a tokenizer.json of word pieces; make it again"),
        (lambda v: v["model"].update(continuing_subword_prefix="@@"), "must mark pieces inside words by '##'"),
        (lambda v: v["added_tokens"].append({"content": "[X]"}), "every added token in its vocabulary, but lacks .X."),
        (lambda v: v.update(pre_tokenizer={"type": "Metaspace"}), "must split lines as BERT does, or by spaces"),
        (lambda v: v.update(normalizer={"type": "NFC"}), "must clean a text as BERT does, got .*NFC"),
    ],
)
def test_a_tokenizer_json_of_another_kind_is_refused(change, match: str, tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "tokenizer.json"
    learn().save(path)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=match):
        WordPieces.load(path)


def test_a_vocabulary_without_its_special_words_is_refused(tmp_path: Path):
    lines = {
        "missing": ["[PAD]", "[UNK]", "[SEP]", "a"],
        "twice": [*SPECIALS, "a", "a"],
    }
    for name, match in (("missing", r"but lacks \[CLS\], \[MASK\]; it is no"), ("twice", "but 'a' is there twice")):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines[name]))
        with pytest.raises(ValueError, match=match):
            WordPieces.load(tmp_path / f"{name}.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is no vocabulary: it is not UTF-8 text"):
        WordPieces.load(tmp_path / "bytes.txt")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json does not exist"):
        WordPieces.load(tmp_path)
    with pytest.raises(ValueError, match=r"a row for each of the 6 word pieces, but has 5"):
        WordPieces((*SPECIALS, "a")).check_fits(5)
