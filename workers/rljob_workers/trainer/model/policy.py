"""The models as the losses see them: tokens in, log-probabilities of the sampled tokens or values of states out."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rljob_api import errors, types
from rljob_workers.models import families
from rljob_workers.trainer.model import adapters, attention, batch_tensors, cpu_float32_matmul, logprobs, sight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A model's class, vocabulary, narrowest sliding window in tokens or None, the dtype of its activations, and the
    temperature that its logits are divided by.
    """

    name: str
    vocab_size: int
    window: int | None
    dtype: torch.dtype
    temperature: float


class Policy(torch.nn.Module):
    """Wraps a Hugging Face causal LM. One module, so that ZeRO-3's hooks see every parameter where it is used."""

    def __init__(self, lm: Any, *, temperature: float, chunk_tokens: int, pixels: sight.Pixels | None = None) -> None:
        """Keep the model; dropout is switched off, since ratios compare two forwards of the same weights. pixels: of a
        model that reads pictures.

        Raises EngineError for a model that packing or our head would compute wrong. config.json was asked before; code
        of the model's own may say more.
        """
        super().__init__()
        problems = families.refusals(lm.config.to_dict(), longest=0)
        if problems:
            raise errors.EngineError(f"{type(lm).__name__} cannot be trained: {problems[0]}")
        self.lm = without_dropout(lm)
        self.register_state_dict_post_hook(_leave_out_frozen)  # type: ignore[no-untyped-call]  # torch has no types here
        self._temperature, self._chunk_tokens = temperature, chunk_tokens
        self._sight = None if pixels is None else sight.Sight(self.lm, pixels)

    @property
    def facts(self) -> Facts:
        """Return what is known of the model besides its weights."""
        config = self.lm.config
        return Facts(
            name=type(self.lm).__name__,
            vocab_size=int(config.get_text_config().vocab_size),
            window=getattr(config.get_text_config(), "sliding_window", None),
            dtype=torch.float32 if cpu_float32_matmul.is_widened(self.lm) else self.lm.dtype,
            temperature=self._temperature,
        )

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        """Let the model attend by its own code, as written for one row, while the block runs."""
        self.lm.set_attn_implementation("eager")
        try:
            yield
        finally:
            self.lm.set_attn_implementation(attention.of_parts(self.lm.config))

    def without_adapter(self) -> contextlib.AbstractContextManager[None]:
        """Return what lets the model compute without its adapter."""
        return adapters.without(self.lm)

    def forward(
        self,
        tokens: torch.Tensor,
        position_ids: torch.Tensor,
        plan: attention.AttentionPlan | None,
        predictors: torch.Tensor,
        targets: torch.Tensor,
        repeats: batch_tensors.Repeats | None = None,
        pictures: Sequence[types.Picture] = (),
        lesson: logprobs.Likeliest | None = None,
        num_likeliest: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | logprobs.Likeliest | None]:
        """tokens, position_ids [1, T]; predictors, targets [N] -> log-probabilities and entropies [N], fp32 nats, and
        agreements [N] with a lesson [N], or the likeliest tokens in the places of the targets where they are asked for.

        plan None, inside `plain`: one row through the whole model, its own masks and its own head. repeats: tokens that
        are computed once and returned for each row. pictures: among the tokens; not of a plain row.
        """
        if plan is None:
            logits = self.lm(input_ids=tokens, position_ids=position_ids, use_cache=False).logits[0]
            return logprobs.selected_logprobs(
                lambda rows: rows,
                logits[predictors],
                targets,
                temperature=self._temperature,
                chunk_tokens=self._chunk_tokens,
            )
        decoder: Callable[..., Any] = self.lm.base_model
        head: Callable[[torch.Tensor], torch.Tensor] = self.lm.get_output_embeddings()
        states = decoder(
            **self._read(tokens, pictures), position_ids=position_ids, use_cache=False, attention_plan=plan
        ).last_hidden_state[0]
        if repeats is not None:
            predictors, targets = predictors[repeats.first], targets[repeats.first]
            lesson = None if lesson is None else lesson.at(repeats.first)
        scores, entropies, extra = logprobs.selected_logprobs(
            head,
            states[predictors],
            targets,
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
            lesson=lesson,
            num_likeliest=num_likeliest,
        )
        if repeats is None:
            return scores, entropies, extra
        if extra is not None:
            extra = extra.at(repeats.which) if isinstance(extra, logprobs.Likeliest) else extra[repeats.which]
        return scores[repeats.which], entropies[repeats.which], extra

    def _read(self, tokens: torch.Tensor, pictures: Sequence[types.Picture]) -> dict[str, torch.Tensor]:
        if not pictures:
            return {"input_ids": tokens}
        if self._sight is None:
            raise errors.WireError(f"a batch has pictures, and {self.facts.name} reads none")
        return {"inputs_embeds": self._sight.embeddings(tokens, pictures, dtype=self.facts.dtype)}

    def named_tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers by their Hugging Face names; names of tied weights all are in it."""
        tensors: dict[str, torch.Tensor] = dict(self.lm.named_parameters(remove_duplicate=False))
        tensors.update(self.lm.named_buffers(remove_duplicate=False))
        return tensors

    def trained_names(self) -> list[str]:
        """Return the Hugging Face names of the parameters that are trained; of tied ones the first."""
        return [name for name, parameter in self.lm.named_parameters() if parameter.requires_grad]


def _leave_out_frozen(module: torch.nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    """Keep weights that are not trained out of checkpoints: they are in the model files. Tied ones have two names."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(prefix + name, None)


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
