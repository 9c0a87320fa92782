"""The tests of a record with a program (docs/design/graders.md#s-4-1): read once, every fault is an error."""

import dataclasses
import json
from collections.abc import Mapping

from rljob_api import errors
from rljob_workers.data.record_task import INPUT_OUTPUT
from rljob_workers.runtime import redaction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """Inputs and expected outputs [N], texts. `fn_name` empty: a program between stdin and stdout.

    num_visible: the first of them are those that the prompt shows, the others are hidden; 0 where that is not reported.
    """

    fn_name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    num_visible: int = 0

    def arguments(self, index: int) -> list[object]:
        """Return the positional arguments of a call: one JSON value a line; integer-like keys of a lone object back."""
        values = [json.loads(line) for line in self.inputs[index].split("\n")]
        return [with_integer_keys(values[0]), *values[1:]]

    def expected(self, index: int) -> object:
        return json.loads(self.outputs[index])

    def wraps_results(self) -> bool:
        """Return whether each result is in a list of its own, as some data sets have it
        (correction C9).

        One expected list of another length says that lists are what is returned.
        """
        expected = (self.expected(index) for index in range(len(self.outputs))) if self.fn_name else ()
        return bool(self.fn_name) and all(isinstance(value, list) and len(value) == 1 for value in expected)


def with_integer_keys(value: object) -> object:
    """Return an object whose keys are all integers in text with integers as keys, anything else as it is."""
    if not isinstance(value, dict):
        return value
    try:
        return {int(key): member for key, member in value.items()}
    except ValueError:
        return value


def tests_of(columns: Mapping[str, object]) -> Tests:
    """Raises DataError that names the key."""
    value = columns.get(INPUT_OUTPUT)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise errors.DataError(f"{INPUT_OUTPUT!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise errors.DataError(f"{INPUT_OUTPUT!r} must be an object with inputs and outputs, not {_kind(value)}")
    inputs, outputs = _texts(value, "inputs"), _texts(value, "outputs")
    if len(inputs) != len(outputs):
        raise errors.DataError(f"{INPUT_OUTPUT!r} has {len(inputs)} inputs, but {len(outputs)} outputs")
    fn_name = value.get("fn_name") or ""
    if not isinstance(fn_name, str) or (fn_name and not fn_name.isidentifier()):
        raise errors.DataError(f"'{INPUT_OUTPUT}.fn_name' is {_name(fn_name)}, which is not a function name")
    if fn_name:
        _check_json(inputs, outputs)
    return Tests(fn_name=fn_name, inputs=inputs, outputs=outputs, num_visible=_num_visible(value, len(inputs)))


def _num_visible(value: Mapping[str, object], num_cases: int) -> int:
    num_visible = value.get("num_visible", 0)
    if isinstance(num_visible, bool) or not isinstance(num_visible, int) or not 0 <= num_visible < num_cases:
        raise errors.DataError(
            f"'{INPUT_OUTPUT}.num_visible' is {redaction.brief(num_visible)}, but must be a number from 0 to"
            f" {num_cases - 1}: how many of the {num_cases} cases the prompt shows"
        )
    return num_visible


def _texts(value: Mapping[str, object], key: str) -> tuple[str, ...]:
    texts = value.get(key)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise errors.DataError(f"'{INPUT_OUTPUT}.{key}' must be a list of texts that is not empty, not {_kind(texts)}")
    return tuple(texts)


def _check_json(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    lines = [("inputs", index, line) for index, text in enumerate(inputs) for line in text.split("\n")]
    for key, index, text in [*lines, *(("outputs", index, text) for index, text in enumerate(outputs))]:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise errors.DataError(
                f"'{INPUT_OUTPUT}.{key}[{index}]' holds {len(text)} characters that are not JSON:"
                " a call needs one value a line"
            ) from error


def _name(value: object) -> str:
    return repr(value[:60]) if isinstance(value, str) else f"a {type(value).__name__}"


def _kind(value: object) -> str:
    return "an empty list" if value == [] else type(value).__name__
