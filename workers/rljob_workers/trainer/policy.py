"""The models as the losses see them: tokens in, log-probabilities of the sampled tokens or values of states out."""

from collections.abc import Callable
from typing import Any

import torch

from rljob_api import errors
from rljob_workers.trainer import attention, logprobs

# Config entries of models whose head is not hidden @ weight; leaving them out would train another model.
_HEAD_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class Policy(torch.nn.Module):
    """Wraps a Hugging Face causal LM. One module, so that ZeRO-3's hooks see every parameter where it is used."""

    def __init__(self, lm: Any, *, temperature: float, chunk_tokens: int) -> None:
        """Keep the model; dropout is switched off, since ratios compare two forwards of the same weights.

        Raises EngineError for a model whose head does more than a matrix product.
        """
        super().__init__()
        for setting in _HEAD_SETTINGS:
            if getattr(lm.config, setting, None) not in (None, 1.0):
                raise errors.EngineError(f"the model's config sets {setting}, which the trainer does not compute")
        self.lm = without_dropout(lm)
        self._temperature, self._chunk_tokens = temperature, chunk_tokens

    def forward(
        self,
        tokens: torch.Tensor,
        position_ids: torch.Tensor,
        plan: attention.AttentionPlan,
        predictors: torch.Tensor,
        targets: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens, position_ids [1, T]; predictors, targets [N] -> log-probabilities and entropies [N], fp32 nats."""
        decoder: Callable[..., Any] = self.lm.base_model
        head: Callable[[torch.Tensor], torch.Tensor] = self.lm.get_output_embeddings()
        states = decoder(
            input_ids=tokens, position_ids=position_ids, use_cache=False, attention_plan=plan
        ).last_hidden_state[0]
        return logprobs.selected_logprobs(
            head,
            states[predictors],
            targets,
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
        )

    def named_tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers by their Hugging Face names; names of tied weights all stand in it."""
        tensors: dict[str, torch.Tensor] = dict(self.lm.named_parameters(remove_duplicate=False))
        tensors.update(self.lm.named_buffers(remove_duplicate=False))
        return tensors


class ValueModel(torch.nn.Module):
    """The decoder of a causal LM with a scalar head: what the state before a token, or after a row, is worth.

    The head starts at zero: no value before anything was learned, and the same model on every rank and at every start.
    """

    def __init__(self, lm: Any) -> None:
        """Keep the decoder of `lm` alone."""
        super().__init__()
        self.decoder = without_dropout(lm).base_model
        self.head = ValueHead(int(lm.config.hidden_size), dtype=lm.dtype)

    def forward(
        self,
        tokens: torch.Tensor,
        position_ids: torch.Tensor,
        plan: attention.AttentionPlan,
        predictors: torch.Tensor,
        ends: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens, position_ids [1, T]; predictors [N], ends [rows] -> values [N] and [rows], fp32."""
        decoder: Callable[..., Any] = self.decoder
        states = decoder(
            input_ids=tokens, position_ids=position_ids, use_cache=False, attention_plan=plan
        ).last_hidden_state[0]
        values: torch.Tensor = self.head(states[torch.cat([predictors, ends])])
        return values[: len(predictors)], values[len(predictors) :]


class ValueHead(torch.nn.Module):
    """A linear map to one number, computed in fp32 whatever the parameters' dtype: bf16 has 3 digits."""

    def __init__(self, hidden_size: int, *, dtype: torch.dtype) -> None:
        """Start at zero."""
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """states [n, h] -> values [n], fp32."""
        return states.float() @ self.weight.float() + self.bias.float()


def without_dropout(lm: Any) -> Any:
    """Switch dropout off, in place: ratios and values compare two forwards of the same weights."""
    for module in lm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return lm
