"""`module:function`: a reward function of the user's own (docs/design/graders.md#s-2-3).

Called in a worker as f(query_id, prompt, completion, prompt_ids, completion_ids, **row), where row is every other
column of the record; sync or async. It returns a finite number, or a mapping of names to finite numbers, whose sum
weighted by `config.weights` (default 1 each) is the score and whose members become parts. Other keys of `config` are
handed on as the keyword `config`. An exception in it is a verdict, `crash`; a return value of another kind is the
function's error and refuses the call.
"""

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import cast

from rljob_api import enums, errors, process_config
from rljob_api.manifest import reward_options
from rljob_workers.runtime import redaction, user_code
from rljob_workers.verifier.graders import base, metadata

GIVEN = ("query_id", "prompt", "completion", "prompt_ids", "completion_ids")
WEIGHTS, CONFIG = "weights", "config"
_PART_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")

Reward = Callable[..., object]


class CustomGrader(base.SingleTimeLimit):
    """Runs one function; it is imported by `warm`, in the worker, never in the serving process."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError if `config.weights` is not a mapping of names to finite numbers."""
        self._name, self._type, self._file = config.name, config.type, config.user_code
        self._weights = base.options(reward_options.CustomOptions, config).weights
        self._config = {key: value for key, value in config.config.items() if key != WEIGHTS}
        self._function: Reward | None = None

    @property
    def needs_worker(self) -> bool:
        """Foreign code runs where it can be killed."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError for a record without an id; what else it must hold is the function's affair."""
        metadata.query_id(columns)

    def warm(self) -> None:
        """Import the function. Raises ManifestError with file and line, or if its parameters do not fit."""
        loaded = user_code.load(self._type, file=self._file, field=f"reward {self._name!r}: type")
        if not callable(loaded):
            raise errors.ManifestError(f"reward {self._name!r}: {self._type} is not a function")
        self._check_parameters(loaded)
        self._function = cast("Reward", loaded)

    def quick(self, answer: base.Answer) -> base.Grade | None:  # noqa: ARG002  # the Protocol's signature
        """Decide nothing in place."""
        return None

    def grade(self, answer: base.Answer) -> base.Grade:
        """Return the function's score. Raises GraderError for a return value that is not a score."""
        assert self._function is not None, "warm was called"
        returned = self._function(**self._arguments(answer))
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        if not isinstance(returned, Mapping):
            return _grade(self._number("", returned), {})
        self._check_names(returned)
        parts = {str(name): self._number(str(name), value) for name, value in returned.items()}
        unknown = sorted(set(self._weights) - set(parts))
        if not parts or unknown:
            raise errors.GraderError(
                f"{self._type} returned {sorted(parts)}, but config.weights names {unknown or 'something'}"
            )
        return _grade(sum(self._weights.get(name, 1.0) * value for name, value in parts.items()), parts)

    def _arguments(self, answer: base.Answer) -> dict[str, object]:
        row = {key: value for key, value in answer.columns.items() if key not in GIVEN}
        arguments: dict[str, object] = {
            "query_id": metadata.query_id(answer.columns),
            "prompt": answer.prompt,
            "completion": answer.completion,
            "prompt_ids": list(answer.prompt_ids),
            "completion_ids": list(answer.completion_ids),
        }
        return row | arguments | ({CONFIG: self._config} if self._config else {})

    def _check_names(self, returned: Mapping[object, object]) -> None:
        """A part's name becomes a label of a metric and is in reports: no text of an answer may."""
        if not all(isinstance(name, str) and _PART_NAME.fullmatch(name) for name in returned):
            raise errors.GraderError(
                f"{self._type} returned a part whose name is not 1 to 63 letters, digits, '_', '.' or '-',"
                " beginning with a letter or '_'"
            )

    def _number(self, name: str, value: object) -> float:
        # bool is an int, and numpy's scalars have __float__: both are what people return.
        try:
            number = float(value)  # type: ignore[arg-type]  # what is no number raises
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, str | bytes) or not math.isfinite(number):
            where = f"{name!r}: " if name else ""
            raise errors.GraderError(f"{self._type} returned {where}{redaction.brief(value)}, not a finite number")
        return number

    def _check_parameters(self, function: Reward) -> None:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise errors.ManifestError(
                f"reward {self._name!r}: {self._type} must take {', '.join(GIVEN)} and **row by keyword,"
                f" but its parameters are {', '.join(parameters) or 'none'}"
            )


async def _awaited(returned: object) -> object:
    assert inspect.isawaitable(returned)
    result: object = await returned
    return result


def _grade(score: float, parts: Mapping[str, float]) -> base.Grade:
    right = score > 0
    return base.Grade(
        score=score,
        reason=enums.VerdictReason.OK if right else enums.VerdictReason.WRONG,
        outcome=enums.VerifyOutcome.PASS if right else enums.VerifyOutcome.FAIL,
        formatted=True,
        parts=parts,
    )
