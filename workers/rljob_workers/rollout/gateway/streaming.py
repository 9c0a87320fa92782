"""An answer while it is sampled: from ids to the text and calls that can be sent, from there to who writes the stream.

    engine --ids so far--> GrowingText or GrowingCalls --text, calls--> Heard --pieces--> calls.py writes their events

What was sent is never taken back: half a character, and what may become a stop string or the mark of a call, waits for
the ids that decide it; a call of a tool waits until it is whole and was read.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence

from rljob_workers.rollout.gateway import conversation, tools
from rljob_workers.rollout.gateway.dialects import fields

# What a decoder makes of bytes that are no character, or not yet.
UNREADABLE = "\ufffd"
# Of one answer, how often its beginning is read for calls: each reading takes longer than the one before.
MOST_READINGS = 16
Decode = Callable[[Sequence[int]], str]


@dataclasses.dataclass(slots=True, kw_only=True)
class GrowingDecode:
    """Text by ids, piece by piece.

    Only the ids since the text before last are decoded again, as vLLM does: some tokens read differently at a start.
    """

    decode: Decode
    _window_at: int = 0
    _read_to: int = 0

    def more(self, ids: Sequence[int]) -> str:
        """Return what all ids so far add to the text."""
        before = self.decode(ids[self._window_at : self._read_to])
        grown = self.decode(ids[self._window_at :])
        if len(grown) <= len(before) or grown.endswith(UNREADABLE):
            return ""
        self._window_at, self._read_to = self._read_to, len(ids)
        return grown[len(before) :]


class GrowingText:
    """An answer that is text alone. hold_back: how many of the last characters may turn out to be part of a stop
    string.
    """

    def __init__(self, *, decode: Decode, hold_back: int, send: Callable[[str], None]) -> None:
        self._decoded, self._hold_back, self._send = GrowingDecode(decode=decode), hold_back, send
        self._unsent = ""

    def read(self, ids: Sequence[int]) -> None:
        """Send what all ids so far add to the text."""
        self._unsent += self._decoded.more(ids)
        cut = max(0, len(self._unsent) - self._hold_back)
        if cut:
            self._send(self._unsent[:cut])
            self._unsent = self._unsent[cut:]


ReadCalls = Callable[[str], tuple[str, tuple[conversation.ToolCall, ...]] | None]


class GrowingCalls:
    """An answer that may call tools: its text up to the first call, then each call once it is whole.

    Each time a call closes, the text so far is read as the whole one will be, and what is new is sent.
    """

    def __init__(
        self,
        *,
        decode: Decode,
        decode_exact: Decode,
        hold_back: int,
        marks: tools.Marks,
        read_calls: ReadCalls,
        follower: conversation.Follower,
    ) -> None:
        """hold_back: as of a GrowingText. decode: without special tokens, which may be the marks."""
        self._plain, self._exact = GrowingDecode(decode=decode), GrowingDecode(decode=decode_exact)
        self._hold_back, self._marks, self._read_calls, self._follower = hold_back, marks, read_calls, follower
        self._whole: list[str] = []
        self._unsent, self._tail = "", ""
        self._is_text, self._num_readings = True, 0
        self.sent = fields.assistant("")

    def read(self, ids: Sequence[int]) -> None:
        """Send what can be sent of all ids so far."""
        exact, plain = self._exact.more(ids), self._plain.more(ids)
        self._whole.append(exact)
        if self._is_text and exact == plain:
            self._unsent += exact
            self._send_text()
        else:
            # After a special token only a reading says what is text.
            self._is_text = False
        closes = self._marks.closes
        self._tail += exact
        if closes in self._tail and self._num_readings < MOST_READINGS:
            self._num_readings += 1
            whole = "".join(self._whole)
            self._send_calls(whole[: whole.rindex(closes) + len(closes)])
        after = self._tail.rpartition(closes)[2]
        self._tail = after[-(len(closes) - 1) :]

    def _send_text(self) -> None:
        at = self._unsent.find(self._marks.opens)
        self._is_text = at < 0
        held_back = max(self._hold_back, _overlap(self._unsent, self._marks.opens))
        cut = max(0, len(self._unsent) - held_back) if self._is_text else at
        # Some parsers leave out the spaces before a call.
        text = self._unsent[:cut].rstrip()
        if text:
            self._tell_text(text)
            self._unsent = self._unsent[len(text) :]

    def _send_calls(self, text: str) -> None:
        read = self._read_calls(text)
        if read is None:
            return
        content, calls = read
        sent = self.sent.tool_calls
        goes_on = content == self.sent.content if sent else content.startswith(self.sent.content)
        if not goes_on or calls[: len(sent)] != sent:
            return
        if content != self.sent.content:
            self._tell_text(content[len(self.sent.content) :])
        for call in calls[len(sent) :]:
            self._follower.called(call)
        self.sent = fields.assistant(content, *calls)

    def _tell_text(self, text: str) -> None:
        self._follower.grew(text)
        self.sent = fields.assistant(self.sent.content + text)

    def settled(self, output: conversation.Message) -> conversation.Message:
        """Return the answer for `output`, as which the whole text was read: what was sent stays.

        Where a call after those that were sent cannot be read, which makes an answer that is not streamed a text as a
        whole, the calls that were sent are the answer.
        """
        sent = self.sent.tool_calls
        if not sent:
            is_text = not output.tool_calls or output.content.startswith(self.sent.content)
            return output if is_text else fields.assistant(self.sent.content, *output.tool_calls)
        calls = output.tool_calls if output.tool_calls[: len(sent)] == sent else sent
        return fields.assistant(self.sent.content, *calls)


def _overlap(text: str, mark: str) -> int:
    """Return how many of the last characters may be the beginning of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


class Heard(conversation.Follower):
    """What was heard of an answer and not been written yet."""

    def __init__(self) -> None:
        self.opening: conversation.Opening | None = None
        self._text, self._calls, self._over = "", list[conversation.ToolCall](), False
        self._changed = asyncio.Event()

    def begun(self, opening: conversation.Opening) -> None:
        self.opening = opening

    def grew(self, text: str) -> None:
        self._text += text
        self._changed.set()

    def called(self, call: conversation.ToolCall) -> None:
        self._calls.append(call)
        self._changed.set()

    def end(self) -> None:
        """Say that no more will come."""
        self._over = True
        self._changed.set()

    async def pieces(self) -> AsyncIterator[str | conversation.ToolCall]:
        """Yield the text as it comes, then the calls; a reader that is slow gets larger pieces."""
        over = False
        while not over:
            await self._changed.wait()
            self._changed.clear()
            text, calls, self._text, self._calls, over = self._text, self._calls, "", [], self._over
            if text:
                yield text
            for call in calls:
                yield call
