"""From a call to the ids that the model is asked with: those of the call it goes on from, and what the client added.

Text is tokenised once, where it is new. What was sampled, or went before it, is ids from then on.
"""

import json
from collections.abc import Mapping, Sequence

from rljob_api import errors
from rljob_workers.rollout.episodes import turns
from rljob_workers.rollout.gateway import conversation, interactions
from rljob_workers.rollout.gateway.dialects import fields


def prompt_ids(call: conversation.Call, place: interactions.Place, asker: turns.Asker) -> tuple[int, ...]:
    """Return the ids, which begin with those of `place.base` unless the chat template does not append turns: then all
    are new. Raises BadCallError for tools that the template does not show.
    """
    if call.prompt is not None:
        return _plain(call.prompt, place, asker)
    shown = json.loads(call.tools or "[]")
    if place.base is not None:
        try:
            return _continued(call, place.base, place.num_shared, shown, asker)
        except errors.ManifestError:
            # E.g. one that leaves out earlier thoughts: `begin` sees ids that do not go on, and makes a fork of it.
            pass
    messages = as_template_reads(call.messages)
    ids = asker.tokens.chat_ids(messages, tools=shown)
    if shown and ids == asker.tokens.chat_ids(messages):
        raise fields.BadCallError("tools: the chat template of the model does not show them to it")
    return ids


def _continued(
    call: conversation.Call,
    base: interactions.Interaction,
    num_shared: int,
    shown: Sequence[Mapping[str, object]],
    asker: turns.Asker,
) -> tuple[int, ...]:
    before = as_template_reads(call.messages[:num_shared])
    between = asker.tokens.continuation_ids(before, as_template_reads(call.messages), tools=shown)
    return base.ids + asker.closing_ids(base.ids) + between


def _plain(prompt: str | tuple[int, ...], place: interactions.Place, asker: turns.Asker) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        return prompt
    if place.base is None:
        return asker.tokens.encode(prompt)
    return place.base.ids + asker.tokens.encode_more(prompt[place.num_shared :])


def as_template_reads(messages: Sequence[conversation.Message]) -> list[Mapping[str, object]]:
    """Return messages with the arguments of a tool as an object, not as its text."""
    return [
        {"role": message.role, "content": message.content}
        | ({"tool_calls": [_call(call) for call in message.tool_calls]} if message.tool_calls else {})
        | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})
        for message in messages
    ]


def _call(call: conversation.ToolCall) -> Mapping[str, object]:
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}
