"""Log-probabilities of the taken tokens and the entropy, without keeping positions x vocabulary in fp32.

Distribution: softmax(logits / temperature), natural logarithm, at the sampling temperature, as the engine reports it.
Only positions that predict a sampled token enter the head. With more than `chunk_tokens` of them the head runs chunk
by chunk and is computed again in backward; the logits of one chunk in the model's dtype are then all that is held.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

# Rows of fp32 logits worked on at once on a CPU: 16 x 49,152 x 4 bytes stay in the cache.
_CPU_ROWS = 16


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """What a model finds likeliest at N positions: ids [N, K], and shares [N, K] of them, fp32, which add up to 1."""

    ids: torch.Tensor
    shares: torch.Tensor

    def at(self, positions: torch.Tensor | slice) -> "Likeliest":
        """Return some of the positions."""
        return Likeliest(self.ids[positions], self.shares[positions])


def likeliest(logits: torch.Tensor, *, count: int, temperature: float) -> Likeliest:
    """Return the `count` likeliest tokens of logits [N, V], or the whole vocabulary. Without gradient."""
    with torch.no_grad():
        top = logits.topk(min(count, logits.shape[-1]), dim=-1)
        return Likeliest(top.indices, torch.softmax(top.values.float() / temperature, dim=-1))


def selected_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float,
    chunk_tokens: int,
    lesson: Likeliest | None = None,
    num_likeliest: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | Likeliest | None]:
    """Return (logprobs [N], entropies [N], agreements [N]), fp32 nats, of targets [N] given hidden [N, h].

    head: [n, h] -> [n, V]. An agreement is the mean log-probability of a lesson's tokens by their shares, minus a
    cross-entropy; None without a lesson. In their place: the likeliest tokens of the same logits, where they are asked
    for and there is no lesson.
    """

    def score(states: torch.Tensor, taken: torch.Tensor, *taught: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = head(states)
        # torch leaves Function.apply untyped.
        scored = SelectedLogSoftmax.apply(logits, taken, temperature, *(taught or (None, None)))  # type: ignore[no-untyped-call]
        if num_likeliest:
            top = likeliest(logits, count=num_likeliest, temperature=temperature)
            scored = (*scored, top.ids, top.shares)
        return tuple(part for part in scored if part is not None)

    inputs = (hidden, targets) if lesson is None else (hidden, targets, lesson.ids, lesson.shares)
    if len(targets) <= chunk_tokens:
        scored = score(*inputs)
    else:
        chunks = zip(*(part.split(chunk_tokens) for part in inputs), strict=True)
        parts = [checkpoint.checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
        scored = tuple(torch.cat(part) for part in zip(*parts, strict=True))
    logprobs, entropies, *more = scored
    if lesson is None and num_likeliest:
        return logprobs, entropies, Likeliest(*more)
    return logprobs, entropies, more[0] if more else None


class SelectedLogSoftmax(torch.autograd.Function):
    """(logits [n, vocab], targets [n], temperature, ids [n, k], shares [n, k]) -> (log p(target) [n], entropy [n],
    agreement [n]), fp32; without ids and shares None.

    z = logits / T, p = softmax(z), H = lse(z) - sum p z, A = sum_k shares_k log p(ids_k), of shares that add up to 1.
    d log p(t) / d z_j = [j = t] - p_j ;   d H / d z_j = -p_j (log p_j + H) ;
    d A / d z_j = sum_k [j = ids_k] shares_k - p_j.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        ids: torch.Tensor | None = None,
        shares: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keep the logits in their own dtype and two numbers per row."""
        # Otherwise an output that the loss does not use would cost a pass over a gradient of zeros.
        ctx.set_materialize_grads(False)
        normalizers, taken, entropies, taught = logits.new_empty((4, len(logits)), dtype=torch.float32).unbind()
        work = _WorkSpace(logits)
        for rows in work.blocks:
            scaled, exponentials = work.scaled(rows, temperature), work.other(rows)
            greatest = scaled.amax(-1)
            totals = torch.sub(scaled, greatest[:, None], out=exponentials).exp_().sum(-1)
            normalizers[rows] = greatest + totals.log()
            taken[rows] = scaled.gather(1, targets[rows, None]).squeeze(1)
            if ids is not None and shares is not None:
                taught[rows] = (scaled.gather(1, ids[rows]) * shares[rows]).sum(-1)
            entropies[rows] = normalizers[rows] - exponentials.mul_(scaled).sum(-1) / totals
        ctx.save_for_backward(logits, targets, normalizers, entropies, ids, shares)
        ctx.temperature = temperature
        return taken - normalizers, entropies, None if ids is None else taught - normalizers

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None, None, None]:
        """Return the gradient of the logits in their dtype."""
        logits, targets, normalizers, entropies, ids, shares = ctx.saved_tensors
        logprob_grad, entropy_grad, agreement_grad = gradients
        if logprob_grad is None:
            logprob_grad = torch.zeros_like(normalizers)
        whole_grad = logprob_grad if agreement_grad is None else logprob_grad + agreement_grad
        logits_grad = torch.empty_like(logits)
        work = _WorkSpace(logits)
        for rows in work.blocks:
            log_probs = work.scaled(rows, ctx.temperature).sub_(normalizers[rows, None])
            grad = torch.exp(log_probs, out=work.other(rows))
            if entropy_grad is None:
                grad.mul_(-whole_grad[rows, None])
            else:
                weights = log_probs.add_(entropies[rows, None]).mul_(entropy_grad[rows, None])
                grad.mul_(weights.add_(whole_grad[rows, None]).neg_())
            grad.scatter_add_(1, targets[rows, None], logprob_grad[rows, None])
            if agreement_grad is not None:
                grad.scatter_add_(1, ids[rows], shares[rows] * agreement_grad[rows, None])
            logits_grad[rows] = grad.div_(ctx.temperature)
        return logits_grad, None, None, None, None


class _WorkSpace:
    """Room for two fp32 tensors of a block of rows, which all blocks use in turn: on a CPU the pages of a new tensor
    cost several times what is done with it.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        """logits [n, vocab]: in any number format, never written to."""
        size = _CPU_ROWS if logits.device.type == "cpu" else max(1, len(logits))
        self.blocks = [slice(start, min(start + size, len(logits))) for start in range(0, len(logits), size)]
        self._logits = logits
        room = logits.new_empty((2, min(size, len(logits)), logits.shape[-1]), dtype=torch.float32)
        self._first: torch.Tensor = room[0]
        self._second: torch.Tensor = room[1]

    def scaled(self, rows: slice, temperature: float) -> torch.Tensor:
        """Return a block's logits / temperature, valid until the next block."""
        return self._first[: rows.stop - rows.start].copy_(self._logits[rows]).div_(temperature)

    def other(self, rows: slice) -> torch.Tensor:
        """Return room for as many numbers, with anything in it."""
        return self._second[: rows.stop - rows.start]
