"""Text to ids and back for one model. The only place of the rollout that imports transformers."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rljob_api import errors, types
from rljob_workers.data import pictures
from rljob_workers.models import vision
from rljob_workers.rollout import examples, prompts
from rljob_workers.rollout import prompts as feedbacks
from rljob_workers.rollout.gateway import tools
from rljob_workers.runtime import redaction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptTokenizer:
    """Renders records into prompt ids. Completions are only ever decoded, never encoded again."""

    def __init__(
        self,
        folder: Path,
        *,
        template: str,
        code: str = "",
        trust_remote_code: bool = False,
        picture_tokens: vision.PictureTokens | None = None,
    ) -> None:
        """Load the tokenizer in `folder`; `code` is the user's file, picture_tokens are the model's. Raises
        ManifestError if it cannot be read, has no template for chat, or the user's template cannot be imported.
        """
        from transformers import AutoTokenizer

        self._use(template, code=code, field=prompts.FIELD)
        try:
            loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError) as error:
            raise errors.ManifestError(
                f"spec.model.tokenizer: {folder} holds no tokenizer that can be loaded ({error});"
                " give a folder with tokenizer.json and tokenizer_config.json"
            ) from error
        self._tokenizer, self._folder, self._picture_tokens = loaded, folder, picture_tokens
        self._refuse_chat_without_template()

    def with_template(self, template: str, *, code: str, field: str) -> "PromptTokenizer":
        """Return the same tokenizer for prompts of another template, which `field` names. Raises ManifestError."""
        other = copy.copy(self)
        other._use(template, code=code, field=field)
        other._refuse_chat_without_template()
        return other

    def _use(self, template: str, *, code: str, field: str) -> None:
        prompts.check(template, field=field)
        self._template, self._field = template, field
        self._render = prompts.load_template(template, file=code, field=field)

    def _refuse_chat_without_template(self) -> None:
        if self._template == prompts.CHAT and not self._tokenizer.chat_template:
            raise errors.ManifestError(
                f"{self._field} is 'chat', but the tokenizer in {self._folder} has no chat template;"
                f" choose one of {', '.join(name for name in prompts.TEMPLATES if name != prompts.CHAT)}"
            )

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the ids of EOS and pad, without repetition."""
        ids = (self._tokenizer.eos_token_id, self._tokenizer.pad_token_id)
        return tuple(dict.fromkeys(token for token in ids if token is not None))

    def prompt_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
        """Return the ids of a record: its own input_ids, else what the user's template makes of it, else its prompt,
        else its messages by the chat template; of a picture as many as the model reads.

        Raises DataError that names the missing key, says that the model's chat template refuses the record, or that
        there is another number of pictures in the prompt than in the record.
        """
        if self._picture_tokens is None:
            return self._text_ids(record)
        token = str(self._tokenizer.convert_ids_to_tokens(self._picture_tokens.token_id))
        shown = dataclasses.replace(record, columns=_with_tokens(record.columns, token)) if record.pictures else record
        where = f"record {record.prompt_id} of {record.source}"
        return self._picture_tokens.expanded(self._text_ids(shown), len(record.pictures), where)

    def _text_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
        columns = record.columns
        if isinstance(input_ids := columns.get("input_ids"), Sequence) and not isinstance(input_ids, str):
            return tuple(int(token) for token in input_ids)
        if self._render is not None:
            rendered = prompts.rendered(self._render, record, field=self._field)
            return self.encode(rendered) if isinstance(rendered, str) else rendered
        prompt = columns.get("prompt")
        if isinstance(prompt, str) and self._template != prompts.CHAT:
            return self.encode(prompts.render(self._template, prompt))
        # The loader's messages are checked and their content is text; a caller's own record may lack `prompt`.
        messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or columns.get("messages")
        )
        where = f"record {record.prompt_id} of {record.source}"
        if not isinstance(messages, Sequence):
            raise errors.DataError(f"{where} has no 'prompt', 'messages' or 'input_ids'")
        try:
            return self.chat_ids(messages)
        except Exception as error:  # boundary: a chat template is a program that came with the model
            raise errors.DataError(f"{where}: the chat template: {redaction.describe(error)}") from error

    def example_ids(self, record: types.PromptRecord, sampling: types.Sampling) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids of an example's prompt and of its answer, which ends as `sampling` and the template have it:
        by the chat template, by the first stop, or by the end token. Raises DataError.
        """
        example = examples.of_record(record)
        if record.columns.get(examples.RENDERED) is True:
            return self.encode_more(str(example.prompt)), self.encode_more(example.answer)
        prompted = dataclasses.replace(record, columns={**record.columns, "prompt": example.prompt})
        prompt = self.prompt_ids(prompted)
        if self._template == prompts.CHAT and "input_ids" not in record.columns:
            messages = (
                [{"role": "user", "content": example.prompt}] if isinstance(example.prompt, str) else example.prompt
            )
            return prompt, self._closed_ids(cast("Sequence[Mapping[str, object]]", messages), example.answer)
        rules = prompts.with_stop_rules(self._template, sampling, eos_ids=self.eos_ids)
        text = examples.ended(example.answer, rules)
        if text is not None:
            return prompt, self.encode_more(text)
        return prompt, (*self.encode_more(example.answer), *self.eos_ids[:1])

    def _closed_ids(self, messages: Sequence[Mapping[str, object]], answer: str) -> tuple[int, ...]:
        """Return the ids of an answer as the chat template closes it, without what it puts between turns."""
        eos = str(self._tokenizer.eos_token or "")
        before = self._chat_text(messages, (), open_answer=True)
        after = self._chat_text([*messages, {"role": "assistant", "content": answer}], (), open_answer=False)
        if not after.startswith(before) or len(after) <= len(before):
            # A template that treats an answer in the past otherwise than the one that is asked for.
            return (*self.encode_more(answer), *self.eos_ids[:1])
        closed = after[len(before) :]
        end = closed.rfind(eos) + len(eos) if eos and eos in closed else len(closed.rstrip("\n"))
        return self.encode_more(closed[:end])

    def feedback_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids between a closed answer and the next one. Raises ManifestError if turns are not appended.

        A question is first in both renderings, for templates that want one; it cancels out.
        """
        if not self._tokenizer.chat_template:
            raise errors.ManifestError(
                "spec.workflow.type is 'multi_turn_math', but the tokenizer has no chat template to render feedback"
                " with; choose a chat model, or workflow rlvr"
            )
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        return self.continuation_ids(turns, [*turns, {"role": "user", "content": text}])

    def continuation_ids(
        self,
        before: Sequence[Mapping[str, object]],
        after: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> tuple[int, ...]:
        first = self._chat_text(before, tools, open_answer=False)
        second = self._chat_text(after, tools, open_answer=True)
        added = feedbacks.text_between_turns(first, second, eos=str(self._tokenizer.eos_token or ""))
        return self.encode_more(added)

    def lone_message_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a line break and `text` rendered as a conversation of its own.

        Whatever system prompt or BOS template and tokenizer add comes too. For repeats of published runs only.
        """
        message = [{"role": "user", "content": text}]
        rendered = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return tuple(self._tokenizer(f"\n{rendered}")["input_ids"])

    def tool_notation(self, name: str, *, field: str) -> tools.Notation | None:
        named = tools.parser_of(str(self._tokenizer.chat_template)) if name == tools.AUTO else name
        if named is None:
            return None
        # Of vLLM, which has every parser; only agents want one.
        from rljob_workers.rollout.engines.vllm import tool_parsers

        if name != tools.AUTO and named not in (there := tool_parsers.names()):
            raise errors.ManifestError(f"{field} is '{name}', but must be auto or one of {', '.join(there)}")
        return tools.Notation(parser=tool_parsers.parser(named, self._tokenizer), marks=tools.MARKS.get(named))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens and without clean-up of spaces."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def decode_exact(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text. Special tokens in it become ids; BOS comes only if the tokenizer adds it."""
        return tuple(self._tokenizer(text)["input_ids"])

    def encode_more(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def plain(self, text: str) -> str:
        # Some have runs of spaces and line breaks among them, which mean nothing else.
        specials = (token for token in self._tokenizer.get_added_vocab() if token.strip())
        for special in sorted(specials, key=len, reverse=True):
            text = text.replace(special, f"{special[:1]}\\{special[1:]}")
        return text

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[int, ...]:
        text = self._chat_text(messages, tools, open_answer=True)
        return self.encode_more(text)

    def _chat_text(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]], *, open_answer: bool
    ) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                # Its types know texts alone; calls of tools in a message are objects.
                cast("list[dict[str, str]]", [dict(message) for message in messages]),
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=open_answer,
            )
        )


def _with_tokens(columns: Mapping[str, object], token: str) -> Mapping[str, object]:
    """Return the columns with the model's own token for each mark of a picture in the prompt."""
    prompt = columns["prompt"]
    if isinstance(prompt, str):
        return {**columns, "prompt": prompt.replace(pictures.MARK, token)}
    messages = cast("Sequence[Mapping[str, object]]", prompt)
    marked = [{**each, "content": str(each["content"]).replace(pictures.MARK, token)} for each in messages]
    return {**columns, "prompt": marked}
