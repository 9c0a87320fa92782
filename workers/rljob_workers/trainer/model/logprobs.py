"""Log-probabilities of the taken tokens and the entropy, without keeping positions x vocabulary in fp32.

Distribution: softmax(logits / temperature), natural logarithm, at the sampling temperature, as the engine reports it.
Only positions that predict a sampled token enter the head. With more than `chunk_tokens` of them the head runs chunk
by chunk and is computed again in backward; the logits of one chunk in the model's dtype are then all that is held.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

# Rows of fp32 logits worked on at once on a CPU: 16 x 49,152 x 4 bytes stay in the cache.
_CPU_ROWS = 16


def selected_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float,
    chunk_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (logprobs [N], entropies [N]), fp32 nats, of targets [N] given hidden [N, h]; head: [n, h] -> [n, V]."""

    def score(states: torch.Tensor, taken: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # torch leaves Function.apply untyped.
        logprobs, entropies = SelectedLogSoftmax.apply(head(states), taken, temperature)  # type: ignore[no-untyped-call]
        return logprobs, entropies

    if len(targets) <= chunk_tokens:
        return score(hidden, targets)
    pairs = zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    parts = [checkpoint.checkpoint(score, states, taken, use_reentrant=False) for states, taken in pairs]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


class SelectedLogSoftmax(torch.autograd.Function):
    """(logits [n, vocab], targets [n], temperature) -> (log p(target) [n], entropy [n]), fp32.

    z = logits / T, p = softmax(z), H = lse(z) - sum p z.
    d log p(t) / d z_j = [j = t] - p_j ;   d H / d z_j = -p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the logits in their own dtype and two numbers per row."""
        # Otherwise an output that the loss does not use would cost a pass over a gradient of zeros.
        ctx.set_materialize_grads(False)
        normalizers, taken, entropies = logits.new_empty((3, len(logits)), dtype=torch.float32).unbind()
        for rows in _row_blocks(logits):
            scaled = _scaled(logits[rows], temperature)
            normalizers[rows] = torch.logsumexp(scaled, dim=-1)
            taken[rows] = scaled.gather(1, targets[rows, None]).squeeze(1)
            probs = (scaled - normalizers[rows, None]).exp_()
            entropies[rows] = normalizers[rows] - probs.mul_(scaled).sum(-1)
        ctx.save_for_backward(logits, targets, normalizers, entropies)
        ctx.temperature = temperature
        return taken - normalizers, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        """Return the gradient of the logits in their dtype."""
        logits, targets, normalizers, entropies = ctx.saved_tensors
        logprob_grad, entropy_grad = gradients
        if logprob_grad is None:
            logprob_grad = torch.zeros_like(normalizers)
        logits_grad = torch.empty_like(logits)
        for rows in _row_blocks(logits):
            log_probs = _scaled(logits[rows], ctx.temperature).sub_(normalizers[rows, None])
            grad = log_probs.exp()
            if entropy_grad is None:
                grad.mul_(-logprob_grad[rows, None])
            else:
                weights = log_probs.add_(entropies[rows, None]).mul_(entropy_grad[rows, None])
                grad.mul_(weights.add_(logprob_grad[rows, None]).neg_())
            grad.scatter_add_(1, targets[rows, None], logprob_grad[rows, None])
            logits_grad[rows] = grad.div_(ctx.temperature)
        return logits_grad, None, None


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    # A copy even of fp32: the caller continues in place, and these logits are needed again.
    return logits.to(torch.float32, copy=True).div_(temperature)


def _row_blocks(logits: torch.Tensor) -> list[slice]:
    size = _CPU_ROWS if logits.device.type == "cpu" else max(1, len(logits))
    return [slice(start, start + size) for start in range(0, len(logits), size)]
