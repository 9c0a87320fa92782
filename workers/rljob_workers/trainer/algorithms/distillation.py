"""On-policy distillation: what a teacher's log-probabilities of the sampled tokens add to their advantages, or what its
likeliest tokens in their places add to the loss.

    A_t = coef * clamp(log q(y_t) - log pi(y_t), +-10)  [taskReward] + A_t of the task's rewards
    topK:  L = L of the task's rewards, if learned  - coef * mean over tokens of sum_k q(v_k) log pi(v_k)

pi is the policy as the update finds it, q the teacher; both at the sampling temperature. The mean of log pi - log q
over tokens that pi sampled estimates KL(pi || q), and what a policy loss makes of A_t is its gradient token by token:
no token is blamed for what comes after it (a discount of 0), and the teacher's part is not normalised.
With topK the distance is the forward KL(q || pi) at the positions that pi came to (GKD), of q's K likeliest tokens with
their shares made to add up to 1: a gradient of everything that q has to say there, where a sampled token has one word.

Sources: Lu and Thinking Machines Lab, "On-Policy Distillation" (2025), whose advantage this is; Agarwal et al., GKD
(arXiv:2306.13649); Gu et al., MiniLLM (arXiv:2306.08543). Deviation: pi is read off the update's own forward and not
off the engine, so that old samples, several updates and rounding in the engine do not count as distance, and no
forward is added. The bound is that of a KL term in rewards.
"""

import torch

from rljob_api import types
from rljob_api.manifest.model import TeacherSpec
from rljob_workers.trainer.algorithms import kl
from rljob_workers.trainer.algorithms.statistics import Sum


def gives_advantages(config: TeacherSpec) -> bool:
    """Return whether tokens that a teacher scores have advantages: with `topK` those of the task's rewards alone."""
    return config.top_k is None or config.task_reward


def advantages(logprobs: torch.Tensor, teacher: torch.Tensor, task: torch.Tensor, config: TeacherSpec) -> torch.Tensor:
    """Return advantages [N], detached. logprobs, teacher [N]: log-probabilities of the sampled tokens by policy and
    teacher, nats; task [N]: advantages of the task's rewards. A log-ratio that is not finite counts as 0.
    """
    if not gives_advantages(config):
        return torch.zeros_like(task)
    if config.top_k is not None:
        return task
    log_ratio, _ = kl.bounded_log_ratio(teacher, logprobs.detach())
    taught = config.coef * log_ratio.clamp(-kl.REWARD_BOUND, kl.REWARD_BOUND)
    return task + taught if config.task_reward else taught


def loss(
    agreements: torch.Tensor, trained: torch.Tensor, minibatch: types.Minibatch, config: TeacherSpec
) -> torch.Tensor:
    """Return a micro-batch's share of the loss. agreements [N]: sum_k q(v_k) log pi(v_k), with gradient; trained [N]
    bool. The mean is over the tokens of the minibatch on all ranks, so that shares add up however it is cut.
    """
    return -config.coef * (agreements * trained).sum() / minibatch.num_tokens


def sums(logprobs: torch.Tensor, teacher: torch.Tensor, trained: torch.Tensor) -> dict[Sum, torch.Tensor]:
    """Return what makes the mean of log pi - log q over the trained tokens: trained [N] bool."""
    log_ratio, nonfinite = kl.bounded_log_ratio(logprobs.detach(), teacher)
    return {
        Sum.TEACHER_TOKENS: (trained & ~nonfinite).sum(),
        Sum.TEACHER_KL: (log_ratio * trained).double().sum(),
    }
