"""Word pieces: words cut into the longest parts that a vocabulary has, from left to right, as BERT reads them.

This file does not import torch, and the tokenizers package only where pieces are learned or cut.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from anymax.data.units.lexicon import Ids
from anymax.data.units.subwords import repeated
from anymax.files import check_file, read_json, replacing

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer

PieceSplitting = Literal["bert", "spaces"]

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Two words of BERT's vocabulary that text does not have, for models that need a first and a last one.
FIRST, LAST = "<S>", "<T>"
# Stands before a piece that does not begin a word.
INSIDE = "##"
# Characters of a word that is cut; longer ones are "[UNK]".
MOST_OF_WORD = 100
TOKENIZER, VOCABULARY, SETTINGS = "tokenizer.json", "vocab.txt", "tokenizer_config.json"


@dataclass(frozen=True, repr=False)
class WordPieces:
    """Lines as word pieces, those that do not begin a word marked by "##": un ##believ ##able.

    Usually made by `train` or `load`. A word that no pieces make up is "[UNK]" as a whole. What stands in a text is
    never a special word, unless it is asked for by `encode(line, specials=True)`.

    Args:
        vocabulary: all pieces by id; "[PAD]", "[UNK]", "[CLS]", "[SEP]" and "[MASK]" are among them.
        splitting: "bert" separates punctuation, Chinese characters and whitespace, as BERT's own tokenizer; "spaces"
            takes the words of a text that is tokenized already, and changes no character.
        lowercase: whether "bert" makes letters small.
        strip_accents: whether "bert" takes accents off; by default where letters are made small.
        separate_chinese: whether "bert" takes every Chinese character for a word.

    Schuster and Nakajima 2012, Devlin et al. 2019.

    Example:
        >>> from anymax.data import WordPieces
        >>> specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        >>> pieces = WordPieces((*specials, "un", "##believ", "##able", "!"))
        >>> ids = pieces.encode("unbelievable!")
        >>> pieces.pieces(ids)
        ['un', '##believ', '##able', '!']
        >>> pieces.text(ids)
        'unbelievable !'
    """

    vocabulary: tuple[str, ...]
    splitting: PieceSplitting = "bert"
    lowercase: bool = False
    strip_accents: bool | None = None
    separate_chinese: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))
        if self.strip_accents == self.lowercase:
            # Two ways to write the same.
            object.__setattr__(self, "strip_accents", None)
        if self.splitting not in get_args(PieceSplitting):
            raise ValueError(f"splitting must be one of {', '.join(get_args(PieceSplitting))}, got {self.splitting!r}")
        missing = [word for word in SPECIALS if word not in self.ids]
        if missing:
            raise ValueError(
                f"the vocabulary must have the special tokens {', '.join(SPECIALS)}, but lacks {', '.join(missing)}; "
                "it is no vocabulary of BERT, or was cut"
            )
        if len(self.ids) != len(self.vocabulary):
            twice = next(piece for number, piece in enumerate(self.vocabulary) if self.ids[piece] != number)
            raise ValueError(f"the pieces of a vocabulary must differ from each other, but {twice!r} is there twice")

    @classmethod
    def train(
        cls,
        counts: Mapping[str, int],
        size: int,
        *,
        min_count: int = 2,
        most_characters: int | None = None,
        splitting: PieceSplitting = "bert",
        lowercase: bool = False,
    ) -> WordPieces:
        """Learn pieces from counted words, which `words` gives. The same counts give the same pieces, on any machine.

        Every character that is kept has two pieces, at the start of a word and inside; the most frequent neighbours are
        joined until there are enough. Special words come first, "<S>" and "<T>" among them.

        Args:
            size: the most pieces, special ones included; fewer where no two go together often enough.
            min_count: the least times that two neighbours must be seen to become one.
            most_characters: how many characters are kept, the most frequent; words with others are "[UNK]". By default
                all are.
        """
        protected = {*SPECIALS, FIRST, LAST}
        counts = {word: count for word, count in counts.items() if len(word) <= MOST_OF_WORD and word not in protected}
        kept = _frequent_characters(counts, most_characters)
        counts = {word: count for word, count in counts.items() if kept.issuperset(word)}
        single = [*sorted(kept), *(INSIDE + character for character in sorted(kept))]
        first = [*SPECIALS, FIRST, LAST, *single]
        if size < len(first) or not counts:
            raise ValueError(
                f"size must be at least {len(first)} for this text: {len(first) - len(single)} special words, and two "
                f"for each of its {len(kept)} characters; got {size} and {len(counts)} words"
            )
        return cls(tuple(_learn(counts, first, size, min_count)), splitting, lowercase)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        splitting: PieceSplitting | None = None,
        lowercase: bool | None = None,
    ) -> WordPieces:
        """Read a tokenizer.json or a vocab.txt, or the one in a folder, as `save` and transformers write them.

        Args:
            splitting: how lines become words; by default as the file says, and "bert" for a vocab.txt.
            lowercase: whether letters are made small; by default as the file or a tokenizer_config.json beside it says,
                and for a vocab.txt alone where no piece has a capital letter.
        """
        path = Path(path)
        if path.is_dir():
            path = next((path / name for name in (TOKENIZER, VOCABULARY) if (path / name).exists()), path / TOKENIZER)
        check_file(path, f"a {TOKENIZER} or {VOCABULARY}")
        given = {"splitting": splitting, "lowercase": lowercase}
        read = _read_tokenizer(path) if path.suffix == ".json" else _read_vocabulary(path)
        try:
            return cls(**read | {name: value for name, value in given.items() if value is not None})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a tokenizer.json, which the tokenizers package and transformers read too."""
        from tokenizers import AddedToken, decoders, processors

        tokenizer = self._new_tokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=INSIDE)
        tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(word, self.ids[word]) for word in (CLS, SEP)],
        )
        with replacing(path) as file:
            file.write(tokenizer.to_str(pretty=True).encode())

    def save_files(self, folder: str | os.PathLike[str]) -> None:
        """Write all that transformers opens a tokenizer from: tokenizer.json, tokenizer_config.json and vocab.txt."""
        folder = Path(folder)
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        settings: dict[str, Any] = dict(zip(names, SPECIALS, strict=True))
        if self.splitting == "bert":
            settings |= {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": self.lowercase,
                "strip_accents": self.strip_accents,
                "tokenize_chinese_chars": self.separate_chinese,
            }
        else:
            # BertTokenizer would separate punctuation, whatever the file says.
            settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
        self.save(folder / TOKENIZER)
        with replacing(folder / SETTINGS) as file:
            file.write(json.dumps(settings, indent=2).encode() + b"\n")
        with replacing(folder / VOCABULARY) as file:
            file.write("".join(f"{piece}\n" for piece in self.vocabulary).encode())

    def words(self, line: str) -> list[str]:
        """The words of a line, before they are cut into pieces."""
        if self.splitting == "spaces":
            return line.split()
        from tokenizers import pre_tokenizers

        normal = self._normalizer.normalize_str(line)
        return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]

    def encode(self, line: str, *, specials: bool = False) -> list[int]:
        """The ids of a line, without "[CLS]" and "[SEP]" around it.

        Args:
            specials: whether "[MASK]" and the other special words in the line stand for themselves, as in transformers.
        """
        if self.splitting == "spaces":
            words = line.split() if specials else [UNK if word in self._protected else word for word in line.split()]
            line = " ".join(words)
        tokenizer = self._tokenizer_with_specials if specials else self._tokenizer
        ids: list[int] = tokenizer.encode(line, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int] | Ids) -> list[str]:
        """The words of ids; special words stand by themselves."""
        words: list[str] = []
        for piece in self.pieces(ids):
            if piece.startswith(INSIDE) and len(piece) > len(INSIDE) and words:
                words[-1] += piece.removeprefix(INSIDE)
            else:
                words.append(piece)
        return words

    def text(self, ids: Iterable[int] | Ids) -> str:
        """Ids as text, with a space between words and without special words."""
        return " ".join(word for word in self.decode(ids) if word not in SPECIALS)

    def pieces(self, ids: Iterable[int] | Ids) -> list[str]:
        """The piece of each id, with its mark."""
        ids = list(ids.tolist() if hasattr(ids, "tolist") else ids)
        for id in ids:
            if not 0 <= id < len(self):
                raise ValueError(f"ids must be between 0 and {len(self) - 1}, got {id}; take out padding first")
        return [self.vocabulary[id] for id in ids]

    def check_fits(self, vocabulary_size: int) -> None:
        """Refuse a model whose table has no row for some piece; rows without a piece are fine."""
        if len(self) > vocabulary_size:
            raise ValueError(
                f"the model must have a row for each of the {len(self):,} word pieces, but has {vocabulary_size:,}; "
                "take the vocabulary that it was trained with"
            )

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every piece."""
        return {piece: id for id, piece in enumerate(self.vocabulary)}

    @cached_property
    def specials(self) -> frozenset[int]:
        """The ids of the special words, "<S>", "<T>" and unused ones among them where the vocabulary has those."""
        return frozenset(self.ids[word] for word in self._protected)

    @property
    def pad(self) -> int:
        """The id of "[PAD]"."""
        return self.ids[PAD]

    @property
    def unk(self) -> int:
        """The id of "[UNK]"."""
        return self.ids[UNK]

    @property
    def cls(self) -> int:
        """The id of "[CLS]", which begins a sequence."""
        return self.ids[CLS]

    @property
    def sep(self) -> int:
        """The id of "[SEP]", which ends a sentence."""
        return self.ids[SEP]

    @property
    def mask(self) -> int:
        """The id of "[MASK]", which hides a piece."""
        return self.ids[MASK]

    @property
    def first(self) -> int:
        """The id of "<S>", which stands before a sentence that is generated; a vocabulary without it is an error."""
        return self._of_generated(FIRST)

    @property
    def last(self) -> int:
        """The id of "<T>", which ends a sentence that is generated; a vocabulary without it is an error."""
        return self._of_generated(LAST)

    @cached_property
    def hash(self) -> str:
        """The sha256 of all that decides ids, in hexadecimal digits."""
        settings = [self.splitting, self.lowercase, self._strips_accents, self.separate_chinese]
        return hashlib.sha256(json.dumps([self.vocabulary, settings]).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __repr__(self) -> str:
        return f"WordPieces({len(self)} pieces, {self.splitting!r}, lowercase={self.lowercase}, {self.hash[:8]})"

    def _of_generated(self, word: str) -> int:
        if word not in self.ids:
            raise ValueError(
                f"the vocabulary must have the words {FIRST} and {LAST} for a model that writes, but lacks {word}; "
                "take one that has them, as that of bert-base-multilingual-cased, or put them in the place of two "
                "unused pieces"
            )
        return self.ids[word]

    @property
    def _strips_accents(self) -> bool:
        return self.lowercase if self.strip_accents is None else self.strip_accents

    @cached_property
    def _protected(self) -> frozenset[str]:
        made = {*SPECIALS, FIRST, LAST}
        return frozenset(piece for piece in self.vocabulary if piece in made or _is_unused(piece))

    @cached_property
    def _normalizer(self) -> BertNormalizer:
        from tokenizers.normalizers import BertNormalizer

        return BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.separate_chinese,
            strip_accents=self._strips_accents,
            lowercase=self.lowercase,
        )

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._new_tokenizer()

    @cached_property
    def _tokenizer_with_specials(self) -> Tokenizer:
        from tokenizers import AddedToken

        tokenizer = self._new_tokenizer()
        tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
        return tokenizer

    def _new_tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer, pre_tokenizers

        tokenizer = Tokenizer(_model(self.ids))
        if self.splitting == "bert":
            tokenizer.normalizer = self._normalizer
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer


def _model(ids: dict[str, int]) -> WordPiece:
    from tokenizers.models import WordPiece

    return WordPiece(vocab=ids, unk_token=UNK, max_input_chars_per_word=MOST_OF_WORD, continuing_subword_prefix=INSIDE)


def _learn(counts: Mapping[str, int], first: Sequence[str], size: int, min_count: int) -> list[str]:
    """The pieces by id: the given ones, then what neighbours were joined to, in that order."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(_model({}))
    # Words hold no line ends.
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_count,
        # Ids decide which of two pairs of one count is joined first. Left to itself, the trainer numbers the pieces
        # inside words in an order that differs from run to run.
        special_tokens=list(first),
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(repeated(counts), trainer)
    vocabulary: dict[str, int] = json.loads(tokenizer.to_str())["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _frequent_characters(counts: Mapping[str, int], most: int | None) -> set[str]:
    counted: dict[str, int] = {}
    for word, count in counts.items():
        for character in word:
            counted[character] = counted.get(character, 0) + count
    return set(sorted(counted, key=lambda character: (-counted[character], character))[:most])


def _read_tokenizer(path: Path) -> dict[str, Any]:
    """The fields of a tokenizer.json."""
    values = read_json(path)
    try:
        model, normalizer, before = values["model"], values.get("normalizer") or {}, values.get("pre_tokenizer") or {}
        # Early versions of tokenizers write no type.
        kind = model.get("type", "WordPiece" if "continuing_subword_prefix" in model else None)
        if kind != "WordPiece":
            raise ValueError(f"{path} must be of word pieces, as BERT's, got {kind}; RoBERTa's and others' do not fit")
        pieces = _by_id(model["vocab"], path)
        added = [token["content"] for token in values.get("added_tokens", ())]
    except (LookupError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a tokenizer.json of word pieces; make it again") from None
    known = set(pieces)
    beyond = [word for word in added if word not in known]
    if beyond:
        raise ValueError(f"{path} must have every added token in its vocabulary, but lacks {', '.join(beyond)}")
    if model.get("continuing_subword_prefix", INSIDE) != INSIDE or model.get("unk_token", UNK) != UNK:
        raise ValueError(f"{path} must mark pieces inside words by {INSIDE!r} and call unknown words {UNK!r}")
    if before.get("type") not in ("BertPreTokenizer", "WhitespaceSplit"):
        raise ValueError(f"{path} must split lines as BERT does, or by spaces, got {before.get('type')}")
    if before["type"] == "WhitespaceSplit":
        if normalizer:
            raise ValueError(f"{path} must not change a text that it splits by spaces, got {normalizer.get('type')}")
        return {"vocabulary": pieces, "splitting": "spaces"}
    if normalizer.get("type") != "BertNormalizer" or not normalizer.get("clean_text", True):
        raise ValueError(f"{path} must clean a text as BERT does, got {normalizer or 'nothing'}")
    return {
        "vocabulary": pieces,
        "lowercase": bool(normalizer.get("lowercase", True)),
        "strip_accents": normalizer.get("strip_accents"),
        "separate_chinese": bool(normalizer.get("handle_chinese_chars", True)),
    }


def _read_vocabulary(path: Path) -> dict[str, Any]:
    """The fields of a vocab.txt, and of a tokenizer_config.json beside it."""
    try:
        lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no vocabulary: it is not UTF-8 text ({error.reason})") from None
    pieces = [line.removesuffix("\r") for line in lines]
    beside = path.with_name(SETTINGS)
    settings = read_json(beside) if beside.exists() else {}
    has_capitals = any(piece != piece.lower() for piece in pieces if not _is_marked(piece))
    return {
        "vocabulary": pieces,
        "lowercase": bool(settings.get("do_lower_case", not has_capitals)),
        "strip_accents": settings.get("strip_accents"),
        "separate_chinese": bool(settings.get("tokenize_chinese_chars", True)),
    }


def _by_id(ids: Mapping[str, int], path: Path) -> list[str]:
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(f"{path} must number its {len(pieces)} pieces from 0 without a gap; make it again")
    return pieces


def _is_marked(piece: str) -> bool:
    return piece in (*SPECIALS, FIRST, LAST) or _is_unused(piece)


def _is_unused(piece: str) -> bool:
    return piece.startswith("[unused") and piece.endswith("]")
