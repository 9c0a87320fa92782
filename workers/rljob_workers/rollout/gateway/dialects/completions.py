"""POST /v1/completions of OpenAI: a plain prompt, as text or as token ids, goes on. Pure."""

from collections.abc import Iterator

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields, openai_form

_SERVED = openai_form.LABELS | {"prompt", "max_tokens", "stop", "stream", "stream_options"}
_NEUTRAL = {
    "n": 1, "best_of": 1, "echo": False, "suffix": "", "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {},
}  # fmt: skip


class Completions(openai_form.Refusals):
    """One prompt, one answer."""

    def read(self, body: object, sampling: types.Sampling) -> conversation.Call:
        """Return the call. Raises BadCallError."""
        values = fields.checked(body, served=_SERVED, neutral=_NEUTRAL, sampling=sampling)
        return conversation.Call(
            prompt=_prompt(values.get("prompt")),
            max_tokens=fields.max_tokens(values, "max_tokens"),
            stops=fields.stops(values, "stop"),
            stream=fields.flag(values, "stream"),
            include_usage=fields.include_usage(values),
            model=fields.model(values),
        )

    def answer(self, call: conversation.Call, answer: conversation.Answer) -> fields.Json:
        """Return the whole answer."""
        head = openai_form.head(call, answer, "text_completion")
        choice = _choice(answer.output.content, openai_form.ending(answer))
        return {**head, "choices": [choice], "usage": openai_form.usage(answer)}

    def stream(self, call: conversation.Call, opening: conversation.Opening) -> "_Chunks":
        """Return what writes the chunks."""
        return _Chunks(call, opening)


class _Chunks:
    """Pieces of text, the ending, the counts if asked for, and the end mark."""

    def __init__(self, call: conversation.Call, opening: conversation.Opening) -> None:
        self._call, self._head = call, openai_form.head(call, opening, "text_completion")

    def begin(self) -> Iterator[str]:
        return iter(())

    def text(self, text: str) -> Iterator[str]:
        yield fields.event({**self._head, "choices": [_choice(text, None)]})

    def called(self, call: conversation.ToolCall) -> Iterator[str]:
        raise AssertionError(f"a plain prompt declares no tools, and {call.name} was called")

    def end(self, answer: conversation.Answer) -> Iterator[str]:
        yield fields.event({**self._head, "choices": [_choice("", openai_form.ending(answer))]})
        if self._call.include_usage:
            yield fields.event({**self._head, "choices": [], "usage": openai_form.usage(answer)})
        yield openai_form.END


def _choice(text: str, ending: str | None) -> fields.Json:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": ending}


def _prompt(value: object) -> str | tuple[int, ...]:
    """Return a text or ids; a list that holds one of them is the same. Raises BadCallError."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise fields.BadCallError("prompt must be one text or one list of token ids, and not empty")
