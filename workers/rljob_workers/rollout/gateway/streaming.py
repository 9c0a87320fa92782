"""An answer while it is sampled: from ids to the text that can be sent, from there to whoever writes the stream.

    engine --ids so far--> GrowingText --text--> Heard --pieces--> calls.py writes them in the dialect's events

Sent text is never taken back: half a character, and what may become a stop string, waits for the ids that decide it.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence

from rljob_workers.rollout.gateway import conversation

# What a decoder makes of bytes that are no character, or not yet.
UNREADABLE = "\ufffd"


@dataclasses.dataclass(slots=True, kw_only=True)
class GrowingText:
    """Text by ids. hold_back: how many of the last characters may turn out to be part of a stop string.

    Only the ids since the text before last are decoded again, as vLLM does: some tokens read differently at a start.
    """

    decode: Callable[[Sequence[int]], str]
    hold_back: int
    send: Callable[[str], None]
    _window_at: int = 0
    _read_to: int = 0
    _unsent: str = ""

    def read(self, ids: Sequence[int]) -> None:
        """Send what all ids so far add to the text."""
        before = self.decode(ids[self._window_at : self._read_to])
        grown = self.decode(ids[self._window_at :])
        if len(grown) <= len(before) or grown.endswith(UNREADABLE):
            return
        self._unsent += grown[len(before) :]
        self._window_at, self._read_to = self._read_to, len(ids)
        cut = max(0, len(self._unsent) - self.hold_back)
        if cut:
            self.send(self._unsent[:cut])
            self._unsent = self._unsent[cut:]


class Heard(conversation.Follower):
    """What was heard of an answer and not been written yet."""

    def __init__(self) -> None:
        self.opening: conversation.Opening | None = None
        self._text, self._over = "", False
        self._changed = asyncio.Event()

    def begun(self, opening: conversation.Opening) -> None:
        self.opening = opening

    def grew(self, text: str) -> None:
        self._text += text
        self._changed.set()

    def end(self) -> None:
        """Say that no more will come."""
        self._over = True
        self._changed.set()

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the text as it comes; a reader that is slow gets larger pieces."""
        over = False
        while not over:
            await self._changed.wait()
            self._changed.clear()
            text, self._text, over = self._text, "", self._over
            if text:
                yield text
