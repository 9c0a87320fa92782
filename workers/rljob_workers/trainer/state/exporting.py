"""The exported model in an object store: `<uri>/<uid of the job>/export`, with the list of its files last."""

import json
import logging
import pathlib
from collections.abc import Callable

from rljob_api import process_config
from rljob_workers.objects import files, stores
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import remote

logger = logging.getLogger(__name__)

# Size and digest of every file; without it the folder is not whole.
LISTING = "COMPLETE.json"
_RETRY_FOR_S = 600.0


def sender(config: process_config.TrainerConfig) -> Callable[[pathlib.Path], None] | None:
    """Return what sends an exported folder, None where it stays where it is written."""
    folder = remote.folder_of(config)
    return None if folder is None else lambda source: send(source, folder.below("export"))


def send(source: pathlib.Path, target: stores.Folder, *, retry_for_s: float = _RETRY_FOR_S) -> None:
    """Send a folder; what an earlier one of that name has more is removed. Raises StorageError after a while."""
    sent: dict[str, files.Content] = {}

    def send_rest() -> None:
        target.delete([LISTING])
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name = path.relative_to(source).as_posix()
            if name not in sent:
                target.send(name, path)
                sent[name] = files.content_of(path)
        target.delete([entry.key for entry in target.entries() if entry.key not in sent])
        listing = {name: {"size": content.size, "digest": content.digest} for name, content in sent.items()}
        target.write(LISTING, json.dumps(listing, indent=1).encode())

    retry.retry_moving(
        send_rest,
        lambda: len(sent),
        idle_timeout_s=retry_for_s,
        backoff=retry.Backoff(first_s=1.0, most_s=30.0),
    )
    logger.info("exported the model to %s", target.uri, extra={"event": "export"})
