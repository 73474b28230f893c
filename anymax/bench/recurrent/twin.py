"""The networks of the recurrent benchmark as one would write them in plain torch, to be measured against.

Shapes: B batch, N positions, H how wide a layer is, T tokens, D how wide the table is, K experts, V words.
"""

import copy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.models import AWDLSTM
from anymax.vocabulary import FixedInput, FullOutput, MixtureOutput, tie_

# The hidden vectors and the cells of a layer, both (1, B, H), as nn.LSTM has them.
State = tuple[Tensor, Tensor]


class PlainLSTM(nn.Module):
    """A table of words, layers of `nn.LSTM`, and cross-entropy over all words by the same table; nothing is dropped.

    Args:
        dim: how wide the table and the last layer are.
        widths: of the layers.
    """

    def __init__(self, num_words: int, dim: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, dim)
        self.lstms = nn.ModuleList(nn.LSTM(into, out) for into, out in pairwise((dim, *widths)))
        self.bias = nn.Parameter(torch.zeros(num_words))
        # How many tokens have their scores at once, by `F.linear_cross_entropy`; None: all, by `F.cross_entropy`.
        self.chunk: int | None = None

    def forward(self, ids: Tensor, target: Tensor, states: list[State] | None) -> tuple[Tensor, list[State]]:
        """The mean loss of predicting `target` after `ids`, both (batch, positions), and where the layers ended."""
        hidden_NBH = self.words(ids.T)
        ends = []
        for i, lstm in enumerate(self.lstms):
            hidden_NBH, end = lstm(hidden_NBH, None if states is None else states[i])
            ends.append(end)
        return self.loss(hidden_NBH, target), ends

    def loss(self, hidden_NBH: Tensor, target: Tensor) -> Tensor:
        """The mean loss after the last layer."""
        hidden_TD, target_T = hidden_NBH.flatten(0, 1), target.T.flatten()
        weight = self.words.weight
        if self.chunk is None:
            return F.cross_entropy(F.linear(hidden_TD, weight, self.bias), target_T)
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=self.chunk)
        return F.linear_cross_entropy(hidden_TD, weight, target_T, linear_bias=self.bias, options=options)


class MixedOutput(MixtureOutput):
    """The mixture of softmaxes with the log-probabilities of all words by all experts in memory."""

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        log_prior_BNK = self.prior(hidden).log_softmax(-1)
        log_probs_BNKV = F.linear(self._experts(hidden), self.table, self.bias).log_softmax(-1)
        mixed_BNV = (log_prior_BNK[..., None] + log_probs_BNKV).logsumexp(-2)
        return F.nll_loss(mixed_BNV.flatten(0, 1), target.flatten(), reduction=reduction)


class PickedOutput(MixtureOutput):
    """The same where the target is picked before experts are mixed, which mixes one word in place of all."""

    def forward(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        log_prior_BNK = self.prior(hidden).log_softmax(-1)
        scores_RV = F.linear(self._experts(hidden), self.table, self.bias).flatten(0, 2)
        of_rows = target.flatten().repeat_interleave(self.num_experts)
        losses_BNK = F.cross_entropy(scores_RV, of_rows, reduction="none").view_as(log_prior_BNK)
        losses_BN = -(log_prior_BNK - losses_BNK).logsumexp(-1)
        return losses_BN.sum() if reduction == "sum" else losses_BN.mean()


def plain_of(model: AWDLSTM) -> PlainLSTM:
    """The same network from torch's modules, with a copy of the weights; without dropout and penalties it is equal.

    Args:
        model: with one table for input and output, and a bias for every word.
    """
    input, output = model.input, model.output
    if not isinstance(input, FixedInput) or not isinstance(output, FullOutput) or output.table is not input.table:
        raise ValueError(
            "model must have a FixedInput tied to a FullOutput to be written plainly, got "
            f"{type(input).__name__} and {type(output).__name__}, or both without tie_"
        )
    if output.bias is None or output.transform is not None or output.label_smoothing:
        raise ValueError(f"output must have a bias, no transform and no label smoothing to be plain, got {output}")
    plain = PlainLSTM(output.vocabulary_size, output.dim, model.config.widths)
    weights = {"words.weight": input.table, "bias": output.bias}
    for i, layer in enumerate(model.lstms):
        weights |= {f"lstms.{i}.{name}_l0": weight for name, weight in layer.named_parameters()}
    plain.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    return plain


def with_output(model: AWDLSTM, kind: type[MixtureOutput]) -> AWDLSTM:
    """A copy of a model whose mixture is of another kind, with the same weights."""
    twin = copy.deepcopy(model)
    ours = twin.output
    assert isinstance(ours, MixtureOutput)
    output = kind(
        ours.vocabulary_size,
        ours.model_dim,
        num_experts=ours.num_experts,
        dim=ours.dim,
        bias=ours.bias is not None,
        latent_dropout=ours.latent_dropout,
    ).to(ours.table)
    output.load_state_dict(ours.state_dict())
    tie_(twin.input, output)
    twin.output = output
    return twin
