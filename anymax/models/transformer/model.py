"""TransformerLM: a decoder that predicts the next word, with any input layer, output layer and mapping.

Shapes: B batch, N positions, D the model's dimension.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from anymax.attention import KeyValueCache
from anymax.models.language_model.model import LanguageModel, check_ids, check_output
from anymax.models.transformer.block import MakeMapping, TransformerBlock, build_norm, check_makers
from anymax.models.transformer.config import TransformerConfig
from anymax.models.transformer.embedding import embed
from anymax.vocabulary import OutputLayer


class TransformerLM(LanguageModel):
    """Words in, the loss of the words that follow out.

    Vectors of the input are scaled by the root of their dimension and get their positions; then follow causal blocks of
    attention and feed-forward layers (`TransformerBlock`).

    Args:
        input: a layer from ids to vectors of model_dim, as in `anymax.vocabulary`.
        output: a layer from vectors of model_dim to a loss.
        config: sizes, dropout rates and choices.
        mapping: called once for every block, makes the mapping of its attention:
            `lambda: anymax.LearnedEntmax(shape=(num_heads, 1, 1))` learns an alpha for every head of every block. By
            default, or where it gives None, softmax.

    Baevski and Auli 2019.

    Example:
        >>> from anymax.models import TransformerConfig, TransformerLM
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> config = TransformerConfig(model_dim=16, num_layers=2, num_heads=4, ffn_dim=32)
        >>> mapping = lambda: anymax.LearnedEntmax(shape=(4, 1, 1))
        >>> model = TransformerLM(FixedInput(20, 16), FullOutput(20, 16), config, mapping=mapping)
        >>> ids = torch.randint(20, (2, 6))
        >>> model(ids[:, :-1], ids[:, 1:], "none").shape
        torch.Size([2, 5])
    """

    carries_state = False

    def __init__(
        self,
        input: nn.Module,
        output: OutputLayer,
        config: TransformerConfig,
        *,
        mapping: MakeMapping | None = None,
    ) -> None:
        super().__init__()
        check_output(output, "model_dim", config.model_dim)
        check_makers(mapping=mapping)
        self.config = config
        self.input = input
        self.blocks = nn.ModuleList(
            TransformerBlock(config, mapping=None if mapping is None else mapping()) for _ in range(config.num_layers)
        )
        self.final_norm = build_norm(config) if config.final_norm else None
        self.output = output

    def hidden(self, ids: Tensor, cache: Sequence[KeyValueCache] | None = None) -> Tensor:
        """The vectors that the output layer reads, (batch, positions, model_dim).

        Args:
            ids: (batch, positions).
            cache: of `new_cache`, with the positions before these; these are added to it.
        """
        check_ids(ids)
        caches = self._caches(cache)
        # The vectors that blocks add to stay in the parameters' type under autocast too.
        dtype = next(self.blocks.parameters()).dtype
        start = 0 if caches[0] is None else caches[0].length
        hidden_BND = embed(self.input, ids, self.config, dtype=dtype, start=start, training=self.training)
        for block, of_block in zip(self.blocks, caches, strict=True):
            hidden_BND = block(hidden_BND, is_causal=True, cache=of_block)
        return hidden_BND if self.final_norm is None else self.final_norm(hidden_BND)

    def new_cache(self, max_length: int) -> list[KeyValueCache]:
        """An empty cache for every block, with room for `max_length` positions."""
        return [KeyValueCache(max_length) for _ in self.blocks]

    def layers(self) -> list[nn.Module]:
        return list(self.blocks)

    def _caches(self, cache: Sequence[KeyValueCache] | None) -> Sequence[KeyValueCache | None]:
        if cache is None:
            return [None] * len(self.blocks)
        if len(cache) != len(self.blocks):
            raise ValueError(
                f"cache must hold one for each of the {len(self.blocks)} blocks, got {len(cache)}; "
                "make it with new_cache"
            )
        return cache
