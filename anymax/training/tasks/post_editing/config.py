"""The configuration of post-editing, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from anymax.checks import check_counts, given
from anymax.data.triplets.config import Triplets
from anymax.models.post_editing.config import DualSourceTransformerConfig, PostEditorConfig
from anymax.training.task_config import TaskConfig
from anymax.training.tasks.translation.config import PairTokens, Search, TranslationOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from anymax.data.prepared.prepared import Announce
    from anymax.display import Table
    from anymax.distributed.ranks import Ranks
    from anymax.training.tasks.post_editing.task import PostEditingTask

Goal = Literal["loss", "ter", "bleu"]


@dataclass(frozen=True)
class PostEditingConfig(TaskConfig):
    """A post-editor, the triplets it learns from, and how it corrects and is measured.

    Args:
        data: the triplets.
        model: the post-editor, or the dual-source Transformer.
        batching: how many tokens a batch has.
        bert: the BERT that training begins from, in the encoder and in what the decoder copies: a folder with
            config.json, model.safetensors and its word pieces, or the name of a model on the hub, which needs the
            extra `hf`. By default all weights are drawn at random.
        search: how translations are corrected for scores, and by `anymax postedit`. Its length_ratio is of the
            translation.
        decoded: of how many triplets of valid, from its start, a greedy correction is scored at each evaluation; 0 for
            none, None for all.
        goal: what the best checkpoint is chosen by: the "loss", or "ter" or "bleu" of those corrections.

    Example:
        >>> from anymax.data import Triplets
        >>> from anymax.models import BertConfig, PostEditorConfig
        >>> from anymax.training import PairTokens, PostEditingConfig
        >>> task = PostEditingConfig(Triplets("drawn"), PostEditorConfig(BertConfig(64, 2, 4, 128)), PairTokens(1000))
        >>> task.goal, task.search.beam
        ('ter', 8)
    """

    data: Triplets
    model: PostEditorConfig | DualSourceTransformerConfig
    batching: PairTokens
    _: KW_ONLY
    bert: str | None = None
    search: Search = field(default_factory=lambda: Search(beam=8, min_length=2))
    decoded: int | None = None
    goal: Goal = "ter"

    def __post_init__(self) -> None:
        check_counts(0, **given(decoded=self.decoded))
        if self.goal != "loss" and self.decoded == 0:
            raise ValueError(
                f"decoded must not be 0 with goal {self.goal!r}, which is that of decoded sentences, got 0"
            )
        if self.bert is not None and isinstance(self.model, DualSourceTransformerConfig):
            raise ValueError(
                f"bert must be None with DualSourceTransformerConfig, which has no BERT, got {self.bert!r}"
            )
        most, limit = self.model.max_positions, self.data.most_target
        if limit is not None and limit >= most:
            raise ValueError(
                f"data.most_target must be below model.max_positions, {most}, got {limit}; longer ones do not fit"
            )
        if self.search.max_length >= most:
            raise ValueError(
                f"search.max_length must be below model.max_positions, {most}, got {self.search.max_length}"
            )

    def about_to_change(self, names: Collection[str]) -> Self:
        """A named set gives way to another text, and the size of what was drawn."""
        is_other = any(f"data.{name}" in names for name in ("corpus", "path"))
        return replace(self, data=self.data.without_set()) if is_other and not self.data.is_own else self

    def why_incomparable(self, first: Self) -> str | None:
        is_same = self.data.tested_on() == first.data.tested_on()
        return None if is_same else "they are tested on other triplets"

    @property
    def evaluation_options(self) -> TranslationOptions:
        return TranslationOptions()

    @property
    def is_likelihood(self) -> bool:
        return True

    def run_name(self, recipe: str) -> str:
        return recipe if self.data.path is None else self.data.path.resolve().name

    def build(self, folder: Path, ranks: Ranks, *, seed: int, announce: Announce) -> PostEditingTask:
        """The task of a run in `folder`; triplets are read, or found as an earlier run left them."""
        from anymax.training.tasks.post_editing.task import build

        return build(self, folder, ranks, seed=seed, announce=announce)

    def comparison(self, runs: Mapping[str, Sequence[Path]]) -> list[Table]:
        from anymax.training.tasks.post_editing.report import against_leaving

        return [against_leaving(runs)]

    def toy(self) -> Self:
        """The same at a size for tests, on triplets that are drawn."""
        return replace(
            self,
            data=self.data.toy(),
            model=self.model.toy(),
            batching=replace(self.batching, max_tokens=200),
            bert=None,
            search=replace(self.search, beam=min(self.search.beam, 4), max_length=12),
            decoded=8,
        )
