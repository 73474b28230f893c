"""What a model must offer for words to be decoded from it, a sentence at a time or many."""

from typing import Any, Protocol

from torch import Tensor

from anymax.vocabulary import OutputLayer


class Generator(Protocol):
    """A model that predicts the next word of several sentences, each in one row, and keeps what it has read.

    Language models and translators are generators. What they keep, the state, only they need to know; it may be
    changed in place, and is not used again once another was given for it.

    Example:
        >>> from anymax.decoding import greedy
        >>> from anymax.vocabulary import FullOutput
        >>> class Counting:
        ...     output = FullOutput(5, 5)
        ...     first_words = lambda self, inputs, eos: inputs
        ...     start = lambda self, inputs, *, max_length: None
        ...     reorder = lambda self, state, index: state
        ...     def next(self, ids, state):  # the vector of the number after each
        ...         return self.output.table.detach()[(ids + 1) % 5] * 100, state
        >>> [found.best.words for found in greedy(Counting(), torch.tensor([1, 3]), eos=0, max_length=9)]
        [(2, 3, 4), (4,)]
    """

    @property
    def output(self) -> OutputLayer:
        """What turns a hidden vector into a choice among the words."""

    def first_words(self, inputs: Any, eos: int) -> Tensor:
        """The word that each sentence is decoded after, (batch,), for the first call of `next`.

        A translator gives `eos`, a language model the last word of each prompt.
        """

    def start(self, inputs: Any, *, max_length: int) -> Any:
        """The state before the first word of each sentence.

        Args:
            inputs: what is decoded from, one row for each sentence: source sentences and their mask for a translator,
                prompts for a language model.
            max_length: how often `next` may be called.
        """

    def next(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one more word of each sentence.

        Args:
            ids: (batch,), the words that were chosen last.

        Returns:
            The vectors that the output layer reads, (batch, its model_dim), and the state after these words.
        """

    def reorder(self, state: Any, index: Tensor) -> Any:
        """The state of the rows that `index` names, (new batch,), in its order: a row may be named often or never."""
