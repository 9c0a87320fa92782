"""A user's own say in which groups are trained: `spec.data.filterGroups.predicate`, module:function.

It runs here and not in the coordinator because a user's code and the rows' tokens are here. It gets the group as padded
arrays (`episodes/export.py`) with the record's columns under `record`, and returns True to keep it. Source: workflow
reference 6.2, and AReaL's should_accept_fn.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from rljob_api import errors, types
from rljob_workers.rollout.episodes import export
from rljob_workers.runtime import user_code, withheld

logger = logging.getLogger(__name__)

FIELD = "spec.data.filterGroups.predicate"
Predicate = Callable[[Mapping[str, object]], bool]


def load(reference: str, *, file: str) -> Predicate | None:
    """Return the user's function, None where `reference` is empty. Raises ManifestError with file and line."""
    if not reference:
        return None
    found = user_code.load(reference, file=file, field=FIELD)
    if not callable(found):
        raise errors.ManifestError(f"{FIELD} is '{reference}', which is {type(found).__name__} and not a function")
    return cast("Predicate", found)


def keeps(predicate: Predicate, record: types.PromptRecord, rows: Sequence[types.Trajectory]) -> bool:
    """Return whether the group of these rows, at least one, is to be trained. Raises EpisodeError if the function
    raises or returns anything but a truth value.
    """
    try:
        said = predicate({**export.padded(rows), "record": dict(record.columns)})
    except Exception as error:  # boundary: a user's function may raise anything
        withheld.log(logger, FIELD, error)
        raise errors.EpisodeError(f"{FIELD} raised {withheld.told(error)}") from error
    if not isinstance(said, bool):
        raise errors.EpisodeError(f"{FIELD} returned {withheld.shown(said)}, but must return True or False")
    return said
