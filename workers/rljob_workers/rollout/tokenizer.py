"""Text to ids and back for one model. The only place of the rollout that imports transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api import errors, types
from rljob_workers.rollout import templates
from rljob_workers.rollout.episodes import feedback as feedbacks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptTokenizer:
    """Renders records into prompt ids. Completions are only ever decoded, never encoded again."""

    def __init__(self, folder: Path, *, template: str, trust_remote_code: bool = False) -> None:
        """Load the tokenizer in `folder`. Raises ManifestError if it cannot be read or has no template for chat."""
        from transformers import AutoTokenizer

        templates.check(template)
        try:
            loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError) as error:
            raise errors.ManifestError(
                f"spec.model.tokenizer: {folder} holds no tokenizer that can be loaded ({error});"
                " give a folder with tokenizer.json and tokenizer_config.json"
            ) from error
        if template == templates.CHAT and not loaded.chat_template:
            raise errors.ManifestError(
                f"spec.data.template is 'chat', but the tokenizer in {folder} has no chat template;"
                f" choose one of {', '.join(name for name in templates.KNOWN if name != templates.CHAT)}"
            )
        self._tokenizer, self._template = loaded, template

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the ids of EOS and pad, without repetition."""
        found = (self._tokenizer.eos_token_id, self._tokenizer.pad_token_id)
        return tuple(dict.fromkeys(token for token in found if token is not None))

    def prompt_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
        """Return the ids of a record: its own input_ids, else its prompt, else its messages by the chat template.

        Raises DataError that names the missing key.
        """
        columns = record.columns
        if isinstance(given := columns.get("input_ids"), Sequence) and not isinstance(given, str):
            return tuple(int(token) for token in given)
        if isinstance(prompt := columns.get("prompt"), str):
            return self._encode_prompt(prompt)
        if isinstance(messages := columns.get("messages"), Sequence):
            return self._encode_chat(messages)
        where = f"record {record.prompt_id} of {record.source}"
        raise errors.DataError(f"{where} has no 'prompt', 'messages' or 'input_ids'")

    def feedback_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids between a closed answer and the next one. Raises ManifestError if turns are not appended.

        A question stands first in both renderings, for templates that want one; it cancels out.
        """
        if not self._tokenizer.chat_template:
            raise errors.ManifestError(
                "spec.workflow.type is 'multi_turn_math', but the tokenizer has no chat template to render feedback"
                " with; choose a chat model, or workflow rlvr"
            )
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        feedback = {"role": "user", "content": text}
        before = self._tokenizer.apply_chat_template(turns, tokenize=False)
        after = self._tokenizer.apply_chat_template([*turns, feedback], tokenize=False, add_generation_prompt=True)
        added = feedbacks.between(str(before), str(after), eos=str(self._tokenizer.eos_token or ""))
        return tuple(self._tokenizer(added, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens and without clean-up of spaces."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def decode_exact(self, ids: Sequence[int]) -> str:
        """Return the text with special tokens."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _encode_prompt(self, prompt: str) -> tuple[int, ...]:
        if self._template == templates.CHAT:
            return self._encode_chat([{"role": "user", "content": prompt}])
        # Special tokens in the text become ids; BOS comes only if the tokenizer adds it by itself.
        return tuple(self._tokenizer(templates.render(self._template, prompt))["input_ids"])

    def _encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
