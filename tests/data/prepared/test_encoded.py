"""Encoded corpora: the ids of the text, made once, made again when anything changed, never held whole."""

import hashlib
import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest
import torch

from anymax.data import Corpus, Lexicon, corpus_of_files, corpus_of_lines, default_cache, encode
from anymax.data.prepared import encoded

TEXT = "b a <unk>\n\na c\u2028c zebra\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "train.txt").write_text(TEXT)
    return corpus_of_files(tmp_path / "train.txt")


@pytest.fixture
def lexicon(corpus: Corpus) -> Lexicon:
    return Lexicon.from_words(word for word in corpus.words("train") if word != "zebra")


def must_not_encode(num_lines: int, num_tokens: int) -> None:
    raise AssertionError("the cache was not used")


def test_the_ids_are_those_of_the_text(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    result = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    assert lexicon.decode(result.tokens()) == ["b", "a", "<unk>", "<eos>", "<eos>", "a", "c", "c", "<unk>", "<eos>"]
    assert (result.num_tokens, result.num_lines, result.num_unknown) == (10, 3, 2)
    assert len(result) == len(result.tokens()) == 10
    assert result.lexicon_hash == lexicon.hash
    ids = torch.tensor(lexicon.encode(corpus.words("train")), dtype=torch.int16)
    assert result.tokens_hash == hashlib.sha256(ids.numpy().tobytes()).hexdigest()


def test_a_second_call_reads_the_cache(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    first = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    again = encode(corpus, "train", lexicon, cache=tmp_path / "cache", progress=must_not_encode)
    assert again == first
    assert torch.equal(again.tokens(), first.tokens())
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if path.suffix != ".verified"] == [".tokens"]


def test_a_changed_text_is_encoded_again_in_the_same_place(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    first = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    before = first.tokens()
    (tmp_path / "train.txt").write_text(TEXT.replace("b a", "a b"))
    os.utime(tmp_path / "train.txt", ns=(1, 1))
    second = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    assert lexicon.decode(second.tokens()[:2]) == ["a", "b"]
    assert second.path == first.path and second.tokens_hash != first.tokens_hash
    assert lexicon.decode(before[:2]) == ["b", "a"], "what is mapped already stays as it was"


def test_another_lexicon_or_splitting_does_not_share_a_file(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    other = Lexicon.from_words(corpus.words("train"), pad_to_multiple=8)
    prose = corpus_of_files(tmp_path / "train.txt", splitting="prose")
    results = [
        encode(*args, cache=tmp_path / "cache")
        for args in [(corpus, "train", lexicon), (corpus, "train", other), (prose, "train", lexicon)]
    ]
    assert len({result.path for result in results}) == 3
    assert results[0] == encode(corpus, "train", lexicon, cache=tmp_path / "cache", progress=must_not_encode)


def test_splits_cut_from_one_text_do_not_share_a_file(tmp_path: Path):
    corpus = corpus_of_lines("made", [f"w{i}" for i in range(20)])
    lexicon = Lexicon.from_words(corpus.words("train"))
    sizes = {split: len(encode(corpus, split, lexicon, cache=tmp_path)) for split in ("train", "valid", "test")}
    assert sizes == {"train": 36, "valid": 2, "test": 2}


@pytest.mark.parametrize("damage", [lambda data: data[:-2], lambda data: b"", lambda data: b"x" + data[1:]])
def test_a_damaged_cache_is_made_again(tmp_path: Path, corpus: Corpus, lexicon: Lexicon, damage):
    first = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    first.path.write_bytes(damage(first.path.read_bytes()))
    again = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    assert lexicon.decode(again.tokens()[:2]) == ["b", "a"]


def change(path: Path, content: bytes) -> None:
    """Change a file in place and set its time of modification back, as soon as its time of change can differ."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        with open(path, "r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("settled", [-1, 1 << 62])
def test_ids_that_were_changed_are_encoded_anew_whatever_was_remembered(
    tmp_path: Path, corpus: Corpus, lexicon: Lexicon, settled: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(encoded, "SETTLED", settled)

    def opened() -> encoded.Encoded:
        return encode(corpus, "train", lexicon, cache=tmp_path / "cache")

    first, whole = opened(), opened().path.read_bytes()
    head, ids = whole[: encoded.HEAD_BYTES], whole[encoded.HEAD_BYTES :]
    fields = json.loads(head)
    zeroed = ids[: len(ids) // 2].ljust(len(ids), b"\0")
    lying = {**fields, "tokens_hash": hashlib.sha256(zeroed).hexdigest()}
    for damaged in (
        head + zeroed,
        json.dumps(lying).encode().ljust(len(head), b"\n") + zeroed,
        json.dumps({**fields, "num_tokens": 1 << 60}).encode().ljust(len(head), b"\n") + ids,
    ):
        # Hashed and, where settled, remembered before the change.
        assert opened() == first
        change(first.path, damaged)
        assert opened() == first and first.path.read_bytes() == whole
        assert lexicon.decode(opened().tokens()[:2]) == ["b", "a"]


def test_ids_are_hashed_once_for_each_change_of_their_file(
    tmp_path: Path, corpus: Corpus, lexicon: Lexicon, monkeypatch: pytest.MonkeyPatch
):
    hashed, hash_of_ids = [], encoded._hash_of_ids
    monkeypatch.setattr(encoded, "_hash_of_ids", lambda file: hashed.append(1) or hash_of_ids(file))

    def times(settled: int) -> int:
        """How often three openings hash."""
        monkeypatch.setattr(encoded, "SETTLED", settled)
        hashed.clear()
        for _ in range(3):
            encode(corpus, "train", lexicon, cache=tmp_path, progress=must_not_encode)
        return len(hashed)

    path = encode(corpus, "train", lexicon, cache=tmp_path).path
    memory = path.with_name(f"{path.name}.verified")
    # A file that was changed a moment ago could change again without another time.
    assert times(1 << 62) == 3 and not memory.exists()
    assert times(-1) == 1 and times(-1) == 0
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        path.touch()
    assert times(-1) == 1
    for nonsense in (b"", b"[" * 99_999, b"\xff", b"[1]", b'{"bytes": 1}'):
        memory.write_bytes(nonsense)
        assert times(-1) == 1 and times(-1) == 0
    # Where nothing can be remembered, everything is hashed.
    memory.unlink()
    memory.mkdir()
    assert times(-1) == 3


def test_any_bytes_in_the_place_of_a_cache_are_encoded_anew(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    first = encode(corpus, "train", lexicon, cache=tmp_path)
    whole, generator = first.path.read_bytes(), random.Random(0)
    heads = [b"[" * 4096, b"[1]", b"null", b"{}", b'{"source": 1}', json.dumps({"num_tokens": 10**30}).encode()]
    random_bytes = [generator.randbytes(generator.randrange(5000)) for _ in range(10)]
    cuts = [whole[: generator.randrange(len(whole))] for _ in range(10)]
    places = [*range(0, 300, 20), *range(encoded.HEAD_BYTES, len(whole), 3)]
    flipped = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in places]
    for content in (*heads, *(head.ljust(4096) + whole[4096:] for head in heads), *random_bytes, *cuts, *flipped):
        first.path.write_bytes(content)
        assert encode(corpus, "train", lexicon, cache=tmp_path) == first
        assert first.path.read_bytes() == whole


def test_a_file_that_was_replaced_since_it_was_opened_is_not_taken_for_it(
    tmp_path: Path, corpus: Corpus, lexicon: Lexicon
):
    first = encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    (tmp_path / "train.txt").write_text("c c c\n")
    encode(corpus, "train", lexicon, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="must hold the ids it was opened with, but was replaced; open it again"):
        first.tokens()


@pytest.mark.parametrize("name", [b"x" * 251 + b".txt", "ж".encode() * 125, b"caf\xe9 \x1b[31m.txt"])
def test_texts_of_any_name_are_encoded(tmp_path: Path, name: bytes):
    path = tmp_path / os.fsdecode(name)
    path.write_text(TEXT)
    corpus = corpus_of_files(path)
    result = encode(corpus, "train", Lexicon.from_words(corpus.words("train")), cache=tmp_path / "cache")
    assert len(result.tokens()) == 10 and len(os.fsencode(result.path.name)) < 200


def test_a_failure_leaves_nothing_behind(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    def interrupt(num_lines: int, num_tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(corpus, "train", lexicon, cache=tmp_path / "cache", progress=interrupt)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path: Path, corpus: Corpus, lexicon: Lexicon):
    def write_more(num_lines: int, num_tokens: int) -> None:
        (tmp_path / "train.txt").write_text("other\n")

    with pytest.raises(ValueError, match="train was changed while it was read"):
        encode(corpus, "train", lexicon, cache=tmp_path / "cache", progress=write_more)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, torch.uint16), ((1 << 16) + 1, torch.int32)])
def test_ids_take_two_bytes_where_the_lexicon_fits(tmp_path: Path, size: int, dtype: torch.dtype):
    lexicon = Lexicon.from_counts({f"w{i:05}": 1 for i in range(size - 2)})
    corpus = corpus_of_lines("made", [lexicon.words[-1]], valid=0, test=0)
    result = encode(corpus, "train", lexicon, cache=tmp_path)
    assert result.tokens().dtype == dtype
    assert result.tokens().long().tolist() == [size - 1, 0]


def test_the_text_is_never_held_whole(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(encoded, "HELD_TOKENS", 1 << 12)
    path = tmp_path / "train.txt"
    path.write_text("".join(f"{' '.join(f'w{j}' for j in range(100))}\n" for _ in range(10_000)))
    corpus = corpus_of_files(path)
    lexicon = Lexicon.from_words(f"w{j}" for j in range(90))
    seen = []
    tracemalloc.start()
    result = encode(corpus, "train", lexicon, cache=tmp_path, progress=lambda *counts: seen.append(counts))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 3_500_000 and result.path.stat().st_size > 2_000_000
    assert peak < 300_000
    assert seen == sorted(seen) and len(seen) > 100
    assert seen[-1] == (10_000, 1_010_000) == (result.num_lines, result.num_tokens)
    assert result.num_unknown == 100_000


def test_the_cache_folder_can_be_chosen_by_the_environment(tmp_path: Path, monkeypatch, corpus: Corpus, lexicon):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ANYMAX_CACHE", raising=False)
    assert default_cache() == tmp_path / "home" / "anymax"
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "chosen"))
    assert encode(corpus, "train", lexicon).path.parent == tmp_path / "chosen"


def test_a_name_with_slashes_stays_in_the_cache(tmp_path: Path):
    corpus = corpus_of_lines("../a b", ["x"], valid=0, test=0)
    result = encode(corpus, "train", Lexicon.from_words(["x"]), cache=tmp_path)
    assert result.path.parent == tmp_path and result.path.exists()
