"""The configuration of language modelling, as plain data that imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from anymax.checks import check_counts, given
from anymax.data.batches.config import RandomLengths as RandomLengths
from anymax.data.text.config import BPE, Text
from anymax.evaluation.adaptation.config import CachePointer, DynamicEvaluation
from anymax.models.language_model.config import LanguageModelConfig
from anymax.plain import shown
from anymax.training.task_config import EvaluationOptions, Sampling, TaskConfig
from anymax.vocabulary.config import SparseOutputConfig

if TYPE_CHECKING:
    from anymax.data.prepared.prepared import Announce
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.language_modeling.task import LanguageModelingTask


@dataclass(frozen=True)
class Blocks:
    """Rows of one length, whatever lines they cut, in an order drawn anew for each epoch.

    Args:
        block: tokens in a row.
        batch_size: rows in a batch, over all ranks.
    """

    block: int
    batch_size: int


@dataclass(frozen=True)
class Sentences:
    """Whole sentences of about one length in a batch.

    Args:
        max_tokens: the most tokens of a batch over all ranks, padding included.
        block: join neighbouring sentences into rows of at most this many tokens; None gives each a row.
    """

    max_tokens: int
    block: int | None = None


@dataclass(frozen=True)
class Contiguous:
    """Parallel rows read from left to right, for models that carry a state from batch to batch.

    Args:
        batch_size: rows, over all ranks.
        block: tokens of each row in a batch, which is how far gradients reach back.
        random_lengths: draw how many they are around `block` for each batch; None gives all the same.
    """

    batch_size: int
    block: int
    random_lengths: RandomLengths | None = None


Batching = Blocks | Sentences | Contiguous

# The tokens of a window where sentences are batches: longer than nearly all sentences.
SENTENCE_BLOCK = 256
# Settings of windows, as they must be for a model that carries a state through the text.
_WITHOUT_WINDOWS = {"context": 0, "windows": "contiguous", "first_window": "block"}


@dataclass(frozen=True)
class Evaluation:
    """How perplexity is measured; every token is scored once.

    Args:
        block: tokens in a window; None takes that of the batches.
        context: how many of them serve only as context.
        windows: windows of one length, of whole sentences up to it, or of one sentence each.
        first_window: whether the first window scores a whole "block", or no window scores more than the "stride",
            `block` - `context`, as in fairseq.
        rows: for models that carry a state: the number of rows the text is read as, each of which starts without
            one. It is quicker and a little worse; 1 is exact.
    """

    block: int | None = None
    context: int = 0
    windows: Literal["contiguous", "sentences", "single"] = "contiguous"
    first_window: Literal["block", "stride"] = "block"
    rows: int = 1

    def __post_init__(self) -> None:
        check_counts(rows=self.rows, **given(block=self.block))


@dataclass(frozen=True)
class LanguageModelOptions(EvaluationOptions):
    """Options of `anymax evaluate` for language models.

    Args:
        block: tokens in a window, context included.
        context: tokens of a window that only serve as context.
        windows: of one length, of whole sentences up to it, or of one sentence each.
        first_window: "stride" has no window score more than the block less the context, as fairseq does; "block" scores
            a whole first block.
        rows: for models that carry a state: how many parts of the text are read side by side; 1 is exact, and what
            --adapt takes.
        adapt: let the model follow the text: by a cache of its last words, or by dynamic evaluation, training on it.
        baselines: skip the models that count words.
        choices: look at what the model chooses too: how often it is right, how many words it considers, and an
            epsilon-perplexity that sparse outputs have as well. Of those it is always done.
        cache: for --adapt cache.
        dynamic: for --adapt dynamic.
    """

    additions: ClassVar[tuple[str, ...]] = ("baselines", "choices")

    block: int | None = None
    context: int | None = None
    windows: Literal["contiguous", "sentences", "single"] | None = None
    first_window: Literal["block", "stride"] | None = None
    rows: int | None = None
    adapt: Literal["cache", "dynamic"] | None = None
    baselines: bool = True
    choices: bool = False
    cache: CachePointer = field(default_factory=CachePointer)
    dynamic: DynamicEvaluation = field(default_factory=DynamicEvaluation)

    def __post_init__(self) -> None:
        for name, adaptation in (("cache", self.cache), ("dynamic", self.dynamic)):
            usual = type(adaptation)()
            changed = [
                each.name for each in fields(adaptation) if getattr(adaptation, each.name) != getattr(usual, each.name)
            ]
            if changed and self.adapt != name:
                options = " and ".join(f"--{name}.{option.replace('_', '-')}" for option in changed)
                raise ValueError(f"{options} must come with --adapt {name}, got --adapt {self.adapt}")
        if self.adapt is not None and self.choices:
            raise ValueError(
                f"--choices must be left out with --adapt {self.adapt}: they are those of a model that stays as it is"
            )
        if self.adapt is not None and self.rows not in (None, 1):
            raise ValueError(
                f"--rows must be 1 with --adapt {self.adapt}, which follows one text from front to end, got {self.rows}"
            )

    @property
    def adaptation(self) -> CachePointer | DynamicEvaluation | None:
        """How the model follows the text; None where it stays as it is."""
        return {None: None, "cache": self.cache, "dynamic": self.dynamic}[self.adapt]

    def check_suits(self, model: LanguageModelConfig) -> None:
        """Refuse windows for a model that carries a state and reads without them, and rows for one that does not."""
        if not model.carries_state:
            if self.rows not in (None, 1):
                raise ValueError(
                    f"--rows must be 1 for a model that carries no state, got {self.rows}; its windows are read many "
                    "at a time anyway"
                )
            return
        for name, only in _WITHOUT_WINDOWS.items():
            value = getattr(self, name)
            if value not in (None, only):
                raise ValueError(
                    f"--{name.replace('_', '-')} must be {only} for a model that carries a state, got {value}; drop "
                    "it, the text is read without windows"
                )

    def evaluation(self, usual: Evaluation) -> Evaluation:
        """How perplexity is measured: as usual, but for what the options change."""
        given = {name: getattr(self, name) for name in ("block", "context", "windows", "first_window", "rows")}
        return replace(usual, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class LanguageModelingConfig(TaskConfig):
    """A language model, the text it learns from, and how it is measured.

    Args:
        data: the text, and whether it is read by words or subwords.
        model: input, output, body, tying and mapping.
        batching: how the text is divided into batches.
        evaluation: how perplexity is measured.

    Example:
        >>> from anymax import recipes
        >>> task = recipes.find("sotu.adaptive_tied")().task
        >>> type(task).__name__, task.data.corpus, type(task.model.output).__name__
        ('LanguageModelingConfig', 'sotu', 'AdaptiveOutputConfig')
    """

    data: Text
    model: LanguageModelConfig
    batching: Batching
    _: KW_ONLY
    evaluation: Evaluation = Evaluation()

    def __post_init__(self) -> None:
        if self.model.spells_unknown and isinstance(self.data.units, BPE):
            raise ValueError(
                "model.input.spell_unknown must be False where units are subwords, of which words are made anyway, got "
                "True; leave it out, or take Words()"
            )
        recurrent = self.model.carries_state
        if recurrent != isinstance(self.batching, Contiguous):
            kind = "Contiguous" if recurrent else "Blocks or Sentences"
            raise ValueError(
                f"batching must be {kind} for a {type(self.model.body).__name__}, "
                f"got {type(self.batching).__name__}; a model that carries a state reads its rows in order"
            )
        for name, only in _WITHOUT_WINDOWS.items() if recurrent else ():
            value = getattr(self.evaluation, name)
            if value != only:
                raise ValueError(
                    f"evaluation.{name} must be {only!r} for a {type(self.model.body).__name__}, which carries a state "
                    f"and reads no windows, got {value!r}; leave it out"
                )
        if self.evaluation.rows > 1 and not recurrent:
            raise ValueError(
                f"evaluation.rows must be 1 for a {type(self.model.body).__name__}, which carries no state through "
                f"them, got {self.evaluation.rows}; its windows are read many at a time anyway"
            )

    @property
    def evaluation_options(self) -> LanguageModelOptions:
        return LanguageModelOptions()

    def with_context(self, share: float) -> LanguageModelOptions | None:
        if self.model.carries_state:
            return None
        block = self.evaluation.block or self.batching.block or SENTENCE_BLOCK
        context = min(round(share * block), block - 1)
        # What the config says anyway is no option, so that its results are found.
        return LanguageModelOptions(context=None if context == self.evaluation.context else context, baselines=False)

    def num_train_words(self, announce: Announce) -> int:
        from anymax.data import prepare

        return sum(prepare(self.data, progress=announce).words.counts)

    def run_name(self, recipe: str) -> str:
        return recipe if self.data.path is None else self.data.path.stem

    @property
    def is_likelihood(self) -> bool:
        """Whether the loss is a negative log-probability, so that its exponential is a perplexity."""
        return not isinstance(self.model.output, SparseOutputConfig)

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> LanguageModelingTask:
        """The task of a run in `folder`; texts are read, or found as an earlier run left them."""
        from anymax.training.tasks.language_modeling.task import build

        return build(self, folder, ranks, seed=seed, announce=announce)

    def continue_text(
        self,
        run: Path,
        text: str,
        sampling: Sampling,
        *,
        step: int | None = None,
        remark: Callable[[str], None] | None = None,
    ) -> list[str]:
        from anymax.training.tasks.language_modeling.task import open_language_model

        opened = open_language_model(run, which="best" if step is None else step)
        unknown = opened.unknown_words(text)
        if unknown and remark is not None:
            remark(f'the model does not know {", ".join(map(shown, unknown))}, and reads "<unk>" there')
        return opened.continue_text(text, sampling)

    def toy(self) -> Self:
        """The same at a size for tests, on text that needs nothing."""
        return replace(
            self,
            data=self.data.toy(),
            model=self.model.toy(),
            batching=_toy_batching(self.batching),
            evaluation=replace(
                self.evaluation,
                block=16,
                context=min(self.evaluation.context, 8),
                rows=min(self.evaluation.rows, 4),
            ),
        )


def _toy_batching(batching: Batching) -> Batching:
    match batching:
        case Blocks():
            return Blocks(block=16, batch_size=4)
        case Sentences():
            return Sentences(max_tokens=64, block=None if batching.block is None else 16)
        case Contiguous():
            lengths = batching.random_lengths
            return Contiguous(batch_size=4, block=8, random_lengths=None if lengths is None else lengths.toy())
