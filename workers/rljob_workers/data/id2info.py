"""Columns that AReaL's records imply: `problem_id` of code, and `base_score` from the scores of an earlier model. Pure.

Environments, workflows and rewards of a user's own read them as columns of the record.
"""

import math
import statistics
from collections.abc import Mapping

from rljob_api import errors

SCORES, BASE_SCORE, PROBLEM_ID, QUERY_ID = "scores", "base_score", "problem_id", "query_id"


def implied(columns: Mapping[str, object], *, is_code: bool) -> dict[str, object]:
    """Return the columns to add to a record that has a query_id. Raises DataError naming the column.

    `problem_id` is the query_id unless the record has its own; `base_score` is the mean of `scores`.
    """
    added: dict[str, object] = {}
    if is_code and PROBLEM_ID not in columns:
        added[PROBLEM_ID] = str(columns[QUERY_ID])
    if SCORES in columns:
        added[BASE_SCORE] = statistics.fmean(_scores(columns[SCORES]))
    return added


def _scores(value: object) -> list[float]:
    if not isinstance(value, list) or not value:
        raise errors.DataError(f"column {SCORES!r} must be a list of at least one number, not {type(value).__name__}")
    for index, score in enumerate(value):
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise errors.DataError(f"{SCORES}[{index}] must be a finite number, not {type(score).__name__}")
    return [float(score) for score in value]
