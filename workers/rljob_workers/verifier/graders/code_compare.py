"""Is what a program printed or returned what was expected (graders reference, 6.2, 6.3 and C6)? Pure; data alone."""

import json
from collections.abc import Sequence

from rljob_workers.verifier.graders import code_tests

RELATIVE, ABSOLUTE = 1e-5, 1e-8


def same_output(printed: str, expected: str) -> bool:
    """Return whether two texts agree: trimmed, line by line trimmed, without empty lines, or as close numbers."""
    if printed.strip() == expected.strip():
        return True
    ours, theirs = _lines(printed), _lines(expected)
    if ours == theirs or [line for line in ours if line] == [line for line in theirs if line]:
        return True
    return _close(ours, theirs)


def same_result(returned: object, expected: object, *, compat: bool) -> bool:
    """Return whether a call's value is the expected one, or the first member of an expected list.

    compat: a tuple equals a list at the top alone; else values are compared as JSON shows them (C6).
    """
    if compat:
        ours = list(returned) if isinstance(returned, tuple) else returned
        theirs = _restored(expected)
    else:
        ours, theirs = as_json(returned), expected
    if ours == theirs:
        return True
    return isinstance(theirs, list) and bool(theirs) and bool(ours == theirs[0])


def as_json(value: object) -> object:
    """Return a value as its JSON text reads back. Raises ValueError for what JSON has no form for."""
    return json.loads(json.dumps(value))


def _restored(expected: object) -> object:
    """Return the expected value with the integer keys that a lone object lost."""
    if isinstance(expected, list) and expected:
        return [code_tests.with_integer_keys(expected[0]), *expected[1:]]
    return code_tests.with_integer_keys(expected)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _close(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    if len(ours) != len(theirs) or all(map(_is_integer, [*ours, *theirs])):
        return False
    try:
        pairs = [(float(our), float(their)) for our, their in zip(ours, theirs, strict=True)]
    except ValueError:
        return False
    return all(our == their or abs(our - their) <= ABSOLUTE + RELATIVE * abs(their) for our, their in pairs)


def _is_integer(line: str) -> bool:
    return line.removeprefix("-").removeprefix("+").isdecimal()
