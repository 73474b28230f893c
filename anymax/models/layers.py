"""The layers of a whole model: which are sharded together, and what their heads learned."""

from typing import Protocol

from torch import Tensor, nn

from anymax.mappings import LearnedEntmax


class Layered(Protocol):
    """What a model says of its layers."""

    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""
        ...

    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""
        ...


def fsdp_groups(model: Layered) -> list[list[nn.Module]]:
    """The modules that FSDP2 shards, in the order they run: each by itself, those that share parameters together.

    Args:
        model: a model with its layers in order, as all of `anymax.models` have them.

    Example:
        >>> from anymax.models import LSTMLM, LSTMConfig, fsdp_groups
        >>> from anymax.vocabulary import FixedInput, FullOutput, tie_
        >>> model = LSTMLM(FixedInput(20, 8), FullOutput(20, 8), LSTMConfig(8, 8))
        >>> tie_(model.input, model.output)
        >>> [[type(module).__name__ for module in group] for group in fsdp_groups(model)]
        [['FixedInput', 'FullOutput'], ['LSTMStack']]
    """
    groups: list[list[nn.Module]] = []
    for module in model.in_order():
        if any(module in group for group in groups):
            continue
        tied = [group for group in groups if _share(group, module)]
        if tied:
            tied[0] += [*(other for group in tied[1:] for other in group), module]
            groups = [group for group in groups if not any(group is merged for merged in tied[1:])]
        else:
            groups.append([module])
    return groups


def learned_alphas(model: Layered) -> dict[str, float]:
    """The alpha of every head that learns one; empty where none does.

    Those of language models are named as "alpha/layer_0/head_3", those of translators by the kind of attention too, as
    "alpha/encoder/layer_0/head_3", with "decoder" for the decoder's self-attention and "cross" for its attention to the
    encoder. Where a model is sharded, all ranks must call it together.

    Example:
        >>> from anymax.models import TransformerConfig, TransformerLM, learned_alphas
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> mapping = lambda: anymax.LearnedEntmax((2, 1, 1), initial=1.5)
        >>> config = TransformerConfig(16, 1, 2, 32)
        >>> model = TransformerLM(FixedInput(20, 16), FullOutput(20, 16), config, mapping=mapping)
        >>> {name: round(alpha, 3) for name, alpha in learned_alphas(model).items()}
        {'alpha/layer_0/head_0': 1.5, 'alpha/layer_0/head_1': 1.5}
    """
    alphas: dict[str, float] = {}
    for name, layers in model.attention_layers().items():
        for i, layer in enumerate(layers):
            for module in layer.modules():
                if isinstance(module, LearnedEntmax):
                    heads = _whole(module.alpha.detach()).flatten().tolist()
                    alphas |= {f"alpha/{name}_{i}/head_{j}": alpha for j, alpha in enumerate(heads)}
    return alphas


def _share(group: list[nn.Module], module: nn.Module) -> bool:
    own = {id(parameter) for parameter in module.parameters()}
    return any(id(parameter) in own for other in group for parameter in other.parameters())


def _whole(tensor: Tensor) -> Tensor:
    # Slow to import, and of no use where nothing is sharded.
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
