"""Language modelling as a task: text to batches, the loss of the words that follow, and perplexity."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, assert_never

import torch
from torch import Tensor, nn

from anymax.attention import MultiHeadAttention, capture
from anymax.data import BlockBatches, ContiguousBatches, Prepared, SentenceBatches, prepare, reopen
from anymax.data.batches.batches import IGNORE_INDEX, Batch, Batches, fill_read
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.data.text.words import SPACE, split_line
from anymax.data.units.lexicon import UNK, Lexicon
from anymax.data.units.units import Units
from anymax.decoding import generate
from anymax.display import Texts
from anymax.distributed.ranks import Ranks, share
from anymax.evaluation import LossByFrequency, Perplexity, Scored, Windows, perplexity
from anymax.evaluation.perplexity.scoring import Window, batched
from anymax.models import LanguageModel, RecurrentState, TransformerConfig, build_language_model
from anymax.models.language_model.building import output_rates
from anymax.models.language_model.model import evaluating
from anymax.models.layers import fsdp_groups, learned_alphas
from anymax.models.sizes import check_fits_memory
from anymax.training.checkpoint.checkpoints import Checkpoints, Which
from anymax.training.checkpoint.tensors import load_model
from anymax.training.observed import Observed, Sentence
from anymax.training.progress import Totals
from anymax.training.reporting import LOSS_PER_WORD
from anymax.training.run import open_run
from anymax.training.run_folder.folder import CHECKPOINTS, read_config
from anymax.training.task import Step, Task
from anymax.training.task_config import Report, Sampling
from anymax.training.tasks.language_modeling.config import (
    SENTENCE_BLOCK,
    Blocks,
    Contiguous,
    Evaluation,
    LanguageModelingConfig,
    Sentences,
)
from anymax.vocabulary import CharacterInput

# Tokens of the windows whose weights are held at once, of all heads and layers.
OBSERVED_TOKENS = 1024
# Tokens of the sample that is shown after training.
SAMPLE = 60
# Words of the text to continue that is offered then, and the tokens of the validation split where it is looked for.
PROMPT, LOOKED_AT = 3, 20_000
# What a step logs of a model of subwords: how many words its targets end.
WORDS = "words"


def build(
    config: LanguageModelingConfig, folder: Path, ranks: Ranks, *, seed: int, announce: Announce
) -> LanguageModelingTask:
    """The task of a run in `folder`: with the units that lie there already, or with new ones of the text."""
    spell_unknown = config.model.spells_unknown
    with ranks.first_alone():
        if Prepared.saved_units(folder) is None:
            prepared = prepare(config.data, spell_unknown=spell_unknown, progress=announce)
        else:
            prepared = reopen(config.data, folder, spell_unknown=spell_unknown, progress=announce)
    prepared.split("valid")
    return LanguageModelingTask(config, prepared, _new_model(config, prepared.lexicon), ranks, seed=seed)


def _new_model(config: LanguageModelingConfig, lexicon: Lexicon) -> LanguageModel:
    check_fits_memory(lambda: build_language_model(config.model, lexicon))
    return build_language_model(config.model, lexicon)


class LanguageModelingTask(Task):
    """Predict every word of a text from those before it.

    Args:
        prepared: the text as ids, and what the ids stand for; with unknown words kept apart where the model spells
            them.
        seed: decides the order of the batches.
    """

    goal = "loss"
    item = "token"

    def __init__(
        self, config: LanguageModelingConfig, prepared: Prepared, model: LanguageModel, ranks: Ranks, *, seed: int
    ) -> None:
        if config.model.spells_unknown != (prepared.spelled is not None):
            raise ValueError(
                "prepared must keep unknown words apart where the model spells them, and only there, got a model with "
                f"spell_unknown={config.model.spells_unknown}; prepare the text with the same"
            )
        if prepared.spelled is not None:
            spell(model, prepared.spelled.lexicon)
        self.config = config
        self.prepared = prepared
        self.model: LanguageModel = model
        self.ranks = ranks
        self.seed = seed
        # Of every subword whether a word ends with it; None where the tokens are words.
        self._ends = None if prepared.subwords is None else torch.tensor(list(prepared.ends_word), dtype=torch.bool)

    def batches(self, split: Split) -> Batches:
        tokens, eos = self.prepared.split(split).tokens(), self.prepared.lexicon.eos
        read = self.prepared.as_read(split).tokens()
        rank, world_size = self.ranks.rank, self.ranks.world_size
        match self.config.batching:
            case Blocks(block, batch_size):
                return BlockBatches(
                    tokens, block, batch_size, seed=self.seed, eos=eos, rank=rank, world_size=world_size, read=read
                )
            case Sentences(max_tokens, most):
                return SentenceBatches(
                    tokens,
                    max_tokens,
                    seed=self.seed,
                    eos=eos,
                    block=most,
                    rank=rank,
                    world_size=world_size,
                    read=read,
                )
            case Contiguous(batch_size, block, random_lengths):
                return ContiguousBatches(
                    tokens,
                    batch_size,
                    block,
                    eos=eos,
                    random_lengths=random_lengths,
                    seed=self.seed,
                    rank=rank,
                    world_size=world_size,
                    read=read,
                )
            case other:
                assert_never(other)

    def step(self, model: nn.Module, batch: Batch, carry: RecurrentState | None) -> Step:
        ids, target = (part.to(self.ranks.device, non_blocking=True) for part in (batch.ids, batch.target))
        loss_sum = model(ids, target, "sum", carry)
        is_counted = batch.target != IGNORE_INDEX
        count, log = int(is_counted.sum()), dict[str, float]()
        if self._ends is not None:
            log[WORDS] = float(self._ends[batch.target[is_counted].long()].sum())
        if self.model.penalty is None:
            return Step(loss_sum, count, carry, log, lr_factor=batch.lr_factor)
        penalty = float(self.model.penalty)
        return Step(loss_sum, count, carry, log | {"penalty": penalty / max(1, count)}, penalty, batch.lr_factor)

    def logged(self, totals: Totals) -> dict[str, float]:
        log = super().logged(totals)
        # None where a few steps on short batches end no word.
        if log.pop(WORDS, 0.0):
            log[LOSS_PER_WORD] = totals.loss_sum / totals.log[WORDS]
        return log

    def new_carry(self) -> RecurrentState | None:
        return self.model.new_cache(self._block()) if self.model.carries_state else None

    def carry_state(self, carry: RecurrentState | None) -> dict[str, Tensor]:
        return {} if carry is None else carry.tensors()

    def load_carry(self, tensors: dict[str, Tensor]) -> RecurrentState | None:
        body, batching = self.config.model.body, self.config.batching
        if isinstance(body, TransformerConfig) or not isinstance(batching, Contiguous):
            raise ValueError(f"{type(body).__name__} carries no state from batch to batch, got {', '.join(tensors)}")
        state = RecurrentState.of_tensors(tensors)
        first, end = share(batching.batch_size, self.ranks.rank, self.ranks.world_size)
        state.check(end - first, body.widths)
        return state

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        return self.perplexity(model, split).metrics()

    def perplexity(
        self,
        model: nn.Module,
        split: Split,
        *,
        evaluation: Evaluation | None = None,
        each: Callable[[Scored], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Perplexity:
        """The loss per word of a split.

        Args:
            evaluation: other windows than those of the config.
            each, progress: called on the way, as in `anymax.evaluation.perplexity`.
        """
        lexicon = self.prepared.lexicon
        return perplexity(
            model,
            self.prepared.split(split).tokens(),
            self.windows(evaluation),
            eos=lexicon.eos,
            read=self.prepared.as_read(split).tokens(),
            ends_word=self._ends,
            unk=lexicon.unk,
            ranks=self.ranks,
            each=each,
            progress=progress,
        )

    def windows(self, evaluation: Evaluation | None = None) -> Windows:
        """The windows that a text is read by, with the block of the batches where the config has none."""
        how = evaluation or self.config.evaluation
        return Windows(how.block or self._block(), how.context, how.windows, how.first_window, how.rows)

    def by_frequency(self, split: Split, *, announce: Announce | None = None) -> LossByFrequency:
        """What adds up the losses of a split by training frequency; its `add` goes to `perplexity` as `each`."""
        words, tokens = self.prepared.as_words(split, progress=announce), self.prepared.split(split)
        return LossByFrequency(
            words.tokens(),
            self.prepared.words.counts,
            eos=self.prepared.words.eos,
            subwords=None if self._ends is None else tokens.tokens(),
            ends_word=self._ends,
        )

    def why_unobserved(self) -> str | None:
        if any(isinstance(module, MultiHeadAttention) for module in self.model.modules()):
            return None
        return f"{type(self.model).__name__} has no layers of attention"

    def observe(self, split: Split, *, limit: int, seed: int) -> Iterator[Observed]:
        """Where heads look in windows of whole lines, as many as fit; a line too long for one is cut.

        A window is as long as those of evaluation, begins with the "<eos>" before its first line, and is read without
        what stands before; of `Evaluation.windows` only "single" makes a difference: a window of every line.
        """
        why = self.why_unobserved()
        if why is not None:
            raise ValueError(f"the model must have attention to be observed, but {why}")
        usual, eos = self.windows(), self.prepared.lexicon.eos
        kind: Literal["single", "sentences"] = "single" if usual.kind == "single" else "sentences"
        windows = replace(usual, context=0, kind=kind, first="block")
        found = list(windows.over(self.prepared.split(split).tokens(), eos=eos))
        chosen = sorted(random.Random(seed).sample(found, min(limit, len(found))))
        for rows in batched(chosen, max(1, OBSERVED_TOKENS // windows.block)):
            yield self._observed(split, rows)

    @torch.no_grad()
    def _observed(self, split: Split, windows: Sequence[Window]) -> Observed:
        read, eos = self.prepared.as_read(split).tokens(), self.prepared.lexicon.eos
        lengths = [window.end - window.start for window in windows]
        ids_BN = torch.full((len(windows), max(lengths)), eos)
        for row, window in zip(ids_BN, windows, strict=True):
            fill_read(row, read, window.start, window.end)
        with evaluating(self.model), capture(self.model) as weights:
            self.model.hidden(ids_BN.to(self.ranks.device))
        units = self.units_read()
        rows = [Sentence.of(units, row[:length].tolist()) for row, length in zip(ids_BN, lengths, strict=True)]
        of_kinds = {kind: [layer.cpu() for layer in layers] for kind, layers in weights.items()}
        sentences = dict.fromkeys(of_kinds, rows)
        return Observed(of_kinds, sentences, sentences)

    def units_read(self) -> Units:
        """What the ids that the model reads stand for; words that it spells are among them."""
        units, spelled = self.prepared.units, self.prepared.spelled
        return units if spelled is None else Units(spelled.lexicon, spelled.lexicon, splitting=units.splitting)

    def save(self, folder: Path) -> None:
        self.prepared.save(folder)

    def identity(self) -> dict[str, str]:
        return self.prepared.identity()

    def watch(self) -> dict[str, float]:
        return learned_alphas(self.model)

    def lr_factors(self) -> dict[nn.Parameter, float]:
        return output_rates(self.config.model.output, self.model.output)

    def report(self, split: Split, options: Any = None, *, announce: Announce) -> Report:
        from anymax.training.tasks.language_modeling.report import evaluate_task

        options = options or self.config.evaluation_options
        options.check_suits(self.config.model)
        return evaluate_task(
            self,
            split,
            evaluation=options.evaluation(self.config.evaluation),
            baselines=options.baselines,
            choices=options.choices,
            adapt=options.adaptation,
            announce=announce,
        )

    def sample(self) -> str:
        return _continued(self.model, self.prepared.units, [], Sampling(SAMPLE), self.ranks.device)[0]

    def texts(self, split: Split, *, limit: int, seed: int, announce: Announce) -> list[Texts]:
        from anymax.training.tasks.language_modeling.texts import continuations

        return [continuations(self, split, limit=limit, seed=seed, announce=announce)]

    def texts_for(self, lines: Sequence[str], *, announce: Announce) -> list[Texts]:
        from anymax.training.tasks.language_modeling.texts import own_continuations

        return [own_continuations(self, lines, announce=announce)]

    def next_commands(self) -> list[list[str]]:
        beginning = self._beginning()
        return [["generate", *([] if beginning is None else [beginning])]]

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [(self.model.output, method) for method in self.model.output.forward_methods]

    def groups(self) -> list[list[nn.Module]]:
        return fsdp_groups(self.model)

    def _beginning(self) -> str | None:
        """The first words of a line of the validation split, of those that begin with words that the model knows."""
        units, eos, unk = self.prepared.units, self.prepared.lexicon.eos, self.prepared.lexicon.unk
        ids = self.prepared.split("valid").tokens()[:LOOKED_AT].tolist()
        lines = (list(line) for is_end, line in groupby(ids, eos.__eq__) if not is_end)
        begun = (units.text(line).split()[:PROMPT] for line in lines if unk not in line[:PROMPT])
        return next((" ".join(few) for few in begun if len(few) == PROMPT and all(map(str.isalpha, few))), None)

    def _block(self) -> int:
        """Windows as long as the rows of batches; sentences of any length are scored in long ones."""
        return self.config.batching.block or SENTENCE_BLOCK


class OpenedLanguageModel(NamedTuple):
    """A trained model, what its ids stand for, and whether it reads other words by their spelling.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import Sampling, open_language_model, train
        >>> _ = train(recipes.find("sotu.adaptive_tied")().toy(), "run")
        >>> opened = open_language_model("run")
        >>> (text,) = opened.continue_text("the people", Sampling(5))
        >>> text.startswith("the people")
        True
    """

    model: LanguageModel
    units: Units
    spells_unknown: bool = False

    def continue_text(self, text: str, sampling: Sampling) -> list[str]:
        """Texts that begin with `text`."""
        units, words = self.units, split_line(text, self.units.splitting)
        if self.spells_unknown:
            lexicon = units.lexicon.extended(words)
            units = Units(lexicon, lexicon, splitting=units.splitting)
            spell(self.model, lexicon)
        return _continued(self.model, units, words, sampling, next(self.model.parameters()).device)

    def unknown_words(self, text: str) -> list[str]:
        """The words of a text that the model reads as "<unk>", each once."""
        unk = self.units.lexicon.unk
        words = [] if self.spells_unknown else dict.fromkeys(split_line(text, self.units.splitting))
        return [word.replace(SPACE, "") for word in words if word != UNK and unk in self.units.encode([word])]


def _continued(
    model: LanguageModel, units: Units, words: Sequence[str], sampling: Sampling, device: torch.device | None = None
) -> list[str]:
    """Texts that begin with words, as they are, and continue with what the model draws."""
    eos, unk = units.lexicon.eos, units.lexicon.unk
    # A model has read the end of the line before, whatever it continues.
    prompt = [eos, *units.encode(words)]
    ids = generate(
        model,
        torch.tensor([prompt] * sampling.samples, device=device),
        num_tokens=sampling.num_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        generator=torch.Generator().manual_seed(sampling.seed),
        banned=() if sampling.unknown else (unk,),
        otherwise=None if sampling.unknown else eos,
    )
    return [units.text(row[len(prompt) :], after=words) for row in ids]


def spell(model: LanguageModel, lexicon: Lexicon) -> None:
    """Have a model read the words of a lexicon behind those it predicts, and no others."""
    assert isinstance(model.input, CharacterInput)
    model.input.extend(lexicon.words[model.output.vocabulary_size :])


def open_language_model(folder: str | Path, *, which: Which = "best") -> OpenedLanguageModel:
    """The language model of a run, to use; the text it was trained on is not needed.

    Args:
        folder: of the run.
        which: the step of a checkpoint, "last", or "best", which is the last where none was evaluated.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import open_language_model, train
        >>> _ = train(recipes.find("sotu.adaptive_tied")().toy(), "run")
        >>> opened = open_language_model("run")
        >>> ids = torch.tensor([[opened.units.lexicon.eos, *opened.units.encode_line("the people")]])
        >>> opened.model.hidden(ids).shape
        torch.Size([1, 3, 16])
    """
    folder = Path(folder)
    config = LanguageModelingConfig.of(read_config(folder).task)
    units = Prepared.saved_units(folder)
    if units is None:
        raise ValueError(f"folder must hold a trained run, but {folder} has no units; train or resume it first")
    checkpoint = Checkpoints(folder / CHECKPOINTS).load(which)
    model = _new_model(config, units.lexicon)
    load_model(model, checkpoint.tensors["model"], checkpoint.file("model"))
    return OpenedLanguageModel(model.eval(), units, config.model.spells_unknown)


def open_task(folder: Path, step: int | None = None, *, announce: Announce) -> LanguageModelingTask:
    """The task of a run with the weights of a checkpoint, by default the best; its text is read again."""
    config = read_config(folder)
    LanguageModelingConfig.of(config.task)
    task = open_run(folder, config=config, step=step, announce=announce).task
    assert isinstance(task, LanguageModelingTask)
    return task
