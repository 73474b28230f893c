"""Attention by entmax in plain torch: the definition the other backends are held to. It holds all scores at once.

With the scores z = scale <q, k> + mask and a sink's score beside them, p is entmax's row, D what dropout multiplies it
with, and

    out = sum over k of D p v.

Its gradient by p is D <v, grad>, zero for the sink; the gradient by z is that of entmax. Shapes as in `protocol.py`; R
rows, one per query of each head of the batch, and N entries, the keys and the sink.
"""

import torch
from torch import Tensor

from anymax.kernels.attention.protocol import Choice, Gathered, Gradients
from anymax.kernels.dropout import reference as dropout
from anymax.kernels.entmax import reference as entmax
from anymax.kernels.rows import computed_in

IS_FUSED = False


def why_unsupported(query_BHQE: Tensor) -> str | None:
    return None


def forward(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice, *, keeps_lists: bool) -> Gathered:
    """The values gathered for each query; nothing is listed."""
    scores_BHQN = scores_of(query_BHQE, key_BGKE, choice)
    probs_BHQN = _probs(scores_BHQN, choice)
    num_keys = key_BGKE.shape[2]
    kept_BHQK = _dropped(probs_BHQN[..., :num_keys], choice)
    out_BHQF = kept_BHQK @ _per_head(value_BGKF, query_BHQE).to(kept_BHQK.dtype)
    lists = torch.empty(0, dtype=torch.uint8, device=query_BHQE.device)
    return Gathered(out_BHQF.to(value_BGKF.dtype), _shift(scores_BHQN, probs_BHQN, choice), lists)


def backward(
    grad_BHQF: Tensor,
    query_BHQE: Tensor,
    key_BGKE: Tensor,
    value_BGKF: Tensor,
    choice: Choice,
    gathered: Gathered,
    *,
    wants_alpha: bool,
) -> Gradients:
    """Gradients by queries, keys, values, alpha and sink, from scores that are computed again."""
    probs_BHQN = _probs(scores_of(query_BHQE, key_BGKE, choice), choice)
    num_keys, dtype = key_BGKE.shape[2], probs_BHQN.dtype
    grad_BHQF = grad_BHQF.to(dtype)
    grad_value_BHKF = _dropped(probs_BHQN[..., :num_keys], choice).mT @ grad_BHQF
    by_probs_BHQN = torch.zeros_like(probs_BHQN)
    by_probs_BHQN[..., :num_keys] = _dropped(grad_BHQF @ _per_head(value_BGKF, query_BHQE).to(dtype).mT, choice)
    by_scores_BHQN, by_alpha_R = entmax.backward_both(by_probs_BHQN, probs_BHQN, _alpha_of_rows(probs_BHQN, choice))
    by_scores_BHQK = by_scores_BHQN[..., :num_keys] * choice.scale
    grad_query_BHQE = by_scores_BHQK @ _per_head(key_BGKE, query_BHQE).to(dtype)
    grad_key_BHKE = by_scores_BHQK.mT @ query_BHQE.to(dtype)
    per_head = torch.zeros_like(choice.alpha_BH)
    return Gradients(
        grad_query_BHQE.to(query_BHQE.dtype),
        _per_group(grad_key_BHKE, key_BGKE),
        _per_group(grad_value_BHKF, value_BGKF),
        by_alpha_R.view(*probs_BHQN.shape[:3]).sum(-1) if wants_alpha else per_head,
        per_head if choice.sink_BH is None else by_scores_BHQN[..., num_keys:].sum((2, 3)),
    )


def scores_of(query_BHQE: Tensor, key_BGKE: Tensor, choice: Choice) -> Tensor:
    """Scores of keys and, after them, of the sink, (B, H, Q, N); -inf where a query may not attend."""
    dtype = computed_in(query_BHQE.dtype)
    scores_BHQK = (query_BHQE.to(dtype) * choice.scale) @ _per_head(key_BGKE, query_BHQE).to(dtype).mT
    num_queries, num_keys = scores_BHQK.shape[2:]
    if choice.mask is not None and choice.mask.dtype == torch.bool:
        scores_BHQK = scores_BHQK.masked_fill(~choice.mask, -torch.inf)
    elif choice.mask is not None:
        scores_BHQK = scores_BHQK + choice.mask
    if choice.causal_offset is not None:
        causal_QK = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query_BHQE.device)
        scores_BHQK = scores_BHQK.masked_fill(~causal_QK.tril(choice.causal_offset), -torch.inf)
    if choice.sink_BH is None:
        return scores_BHQK
    sink_BHQ1 = choice.sink_BH[..., None, None].expand(*scores_BHQK.shape[:3], 1)
    return torch.cat([scores_BHQK, sink_BHQ1.to(scores_BHQK.dtype)], -1)


def _probs(scores_BHQN: Tensor, choice: Choice) -> Tensor:
    return entmax.forward(scores_BHQN, _alpha_of_rows(scores_BHQN, choice))


def _alpha_of_rows(scores_BHQN: Tensor, choice: Choice) -> Tensor:
    return choice.alpha_BH[..., None].expand(scores_BHQN.shape[:3]).reshape(-1)


def _dropped(entries_BHQK: Tensor, choice: Choice) -> Tensor:
    """Entries times D."""
    if choice.seed is None:
        return entries_BHQK
    entries_RK = entries_BHQK.flatten(0, 2)
    seed_R = choice.seed + torch.arange(len(entries_RK), device=entries_RK.device)
    return dropout.forward(entries_RK, seed_R, choice.dropout).view_as(entries_BHQK)


def _shift(scores_BHQN: Tensor, probs_BHQN: Tensor, choice: Choice) -> Tensor:
    """Lambda by the largest entry of each row, where it is the most exact."""
    if scores_BHQN.shape[-1] == 0:
        return scores_BHQN.new_full(scores_BHQN.shape[:3], torch.inf)
    a_BH1 = choice.alpha_BH.double()[..., None] - 1
    log_top_BHQ = probs_BHQN.amax(-1).double().log()
    # (p^a - 1) / a, which is log p at a = 0.
    safe_a_BH1 = torch.where(a_BH1 == 0, 1, a_BH1)
    above_BHQ = torch.where(a_BH1 == 0, log_top_BHQ, torch.expm1(a_BH1 * log_top_BHQ) / safe_a_BH1)
    top_BHQ = scores_BHQN.amax(-1).double()
    return torch.where(top_BHQ == -torch.inf, torch.inf, top_BHQ - above_BHQ).to(scores_BHQN.dtype)


def _per_head(of_groups_BGKE: Tensor, query_BHQE: Tensor) -> Tensor:
    return of_groups_BGKE.repeat_interleave(query_BHQE.shape[1] // of_groups_BGKE.shape[1], 1)


def _per_group(of_heads_BHKE: Tensor, like_BGKE: Tensor) -> Tensor:
    num_groups = like_BGKE.shape[1]
    return of_heads_BHKE.unflatten(1, (num_groups, -1)).sum(2).to(like_BGKE.dtype)
