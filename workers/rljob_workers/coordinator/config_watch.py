"""Takes over what may change while a job runs, from the config file that this process was started with.

A mounted ConfigMap changes by the swap of a link, often within the second and to a file whose times are older: so the
content is compared, and a file that changed is compared with the config in force, field by field (`live_changes.py`).
"""

import asyncio
import logging
import pathlib

import pydantic

from rljob_api import process_config
from rljob_workers.coordinator import context
from rljob_workers.coordinator.ledger import database, groups
from rljob_workers.coordinator.policy import live_changes

logger = logging.getLogger(__name__)
_EVERY_S = 3.0


class ConfigWatch:
    """Looks at the file every few seconds. What is wrong with it is reported once and changes nothing."""

    def __init__(self, parts: context.CoordinatorContext, path: pathlib.Path) -> None:
        """`path` is what --config named."""
        self._context, self._path = parts, path
        self._content, self._readable = b"", True

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._context.clock.sleep(_EVERY_S)

    async def look(self) -> None:
        """Take over what has changed since the last look."""
        try:
            content = await asyncio.to_thread(self._path.read_bytes)
        except OSError as error:
            if self._readable:
                logger.warning("kept the previous config: %s: %s", self._path, error.strerror)
            self._readable = False
            return
        self._readable = True
        if content == self._content:
            return
        self._content = content
        try:
            new = process_config.CoordinatorConfig.model_validate_json(content)
        except pydantic.ValidationError as error:
            problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
            logger.warning("kept the previous config: %s: %s", self._path, "; ".join(problems))
            return
        await self._follow(new)

    async def _follow(self, new: process_config.CoordinatorConfig) -> None:
        change = live_changes.live_changes(self._context.config, new)
        for sentence in change.refused:
            logger.warning("refused a change of the config: %s", sentence)
        if change.ignored:
            logger.warning("ignored changes of the config until the next start: %s", ", ".join(change.ignored))
        if not change.taken and change.config == self._context.config:
            return
        now = self._context.clock.now()

        def take_over(ledger: database.Ledger) -> int | None:
            groups.take_over(ledger, change.config, now=now)
            return groups.announced_end(ledger)

        ended = await self._context.ledger.run(take_over)
        if change.config.log_level != self._context.config.log_level:
            logging.getLogger().setLevel(change.config.log_level.upper())
        self._context.config = change.config
        # Who waits for capacity or for a batch may have room now.
        self._context.changes.notify()
        if change.taken:
            logger.info("took over %s", ", ".join(change.taken), extra={"event": "config"})
        if ended is not None and ended < change.config.spec.max_steps:
            logger.warning("spec.maxSteps %d came too late: step %d ended the run", change.config.spec.max_steps, ended)
