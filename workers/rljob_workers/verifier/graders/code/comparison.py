"""Is what a program printed or returned what was expected (docs/design/graders.md#s-6-3)? Pure; data alone."""

import json
import math
from collections.abc import Sequence

from rljob_workers.verifier.graders.code import cases

RELATIVE, ABSOLUTE = 1e-5, 1e-8


def same_output(printed: str, expected: str, *, compat: bool) -> bool:
    """Return whether two texts agree: trimmed, line by line trimmed, without empty lines, or as close numbers.

    compat: close is close; else a number that is expected to be an integer is met but for what arithmetic with floats
    costs, however large it is (C10).
    """
    if printed.strip() == expected.strip():
        return True
    ours, theirs = _lines(printed), _lines(expected)
    if ours == theirs or [line for line in ours if line] == [line for line in theirs if line]:
        return True
    return _close(ours, theirs, compat=compat)


def same_result(returned: object, expected: object, *, wrapped: bool, compat: bool) -> bool:
    """Return whether a call's value is the expected one. Raises TypeError for a key that JSON has no form for.

    wrapped: whether the record's expected values are each in a list of its own, which the call may leave out (C9).
    compat: as the original has it: the first member of any list will do, a tuple equals a list at the top alone, and
    `True` is 1.
    """
    if compat:
        return _same_in_compat(returned, expected)
    if same_value(returned, expected):
        return True
    return wrapped and isinstance(expected, list) and len(expected) == 1 and same_value(returned, expected[0])


def same_value(ours: object, theirs: object) -> bool:
    """Return whether a value is one that came from JSON (C6, C8). Raises TypeError for a key that JSON has no form for.

    Booleans are not numbers. Numbers are equal by value, an integer and a float too, since JSON has one kind of them.
    Tuples are lists. Keys of objects are compared by the names that JSON gives them.
    """
    if isinstance(ours, list | tuple):
        return (
            isinstance(theirs, list)
            and len(ours) == len(theirs)
            and all(same_value(our, their) for our, their in zip(ours, theirs, strict=True))
        )
    if isinstance(ours, dict):
        if not isinstance(theirs, dict) or len(ours) != len(theirs):
            return False
        named = {_key(key): member for key, member in ours.items()}
        return named.keys() == theirs.keys() and all(same_value(named[key], theirs[key]) for key in theirs)
    if _is_number(ours):
        return _is_number(theirs) and ours == theirs
    return type(ours) is type(theirs) and ours == theirs


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(key: object) -> str:
    """Return the name of a member in JSON. Raises TypeError for what cannot be one."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, int | float):
        return json.dumps(key)
    raise TypeError(f"a {type(key).__name__} is not a JSON object key")


def _same_in_compat(returned: object, expected: object) -> bool:
    ours = list(returned) if isinstance(returned, tuple) else returned
    theirs = _restored(expected)
    if ours == theirs:
        return True
    if not isinstance(theirs, list) or not theirs:
        return False
    if ours == theirs[0]:
        return True
    # A list of tuples, against the first member alone.
    has_tuples = isinstance(ours, list) and bool(ours) and all(isinstance(member, tuple) for member in ours)
    return has_tuples and [list(member) for member in ours] == theirs[0]  # type: ignore[attr-defined]  # a list


def _restored(expected: object) -> object:
    """Return the expected value with the integer keys that a lone object lost: in a list, whether it was in one or not.

    Of a list that begins with such an object nothing else is left.
    """
    first = expected[0] if isinstance(expected, list) and expected else expected
    restored = cases.with_integer_keys(first)
    return expected if restored is first else [restored]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _close(ours: Sequence[str], theirs: Sequence[str], *, compat: bool) -> bool:
    if len(ours) != len(theirs) or all(map(_is_integer, [*ours, *theirs])):
        return False
    try:
        pairs = [(float(our), float(their)) for our, their in zip(ours, theirs, strict=True)]
    except ValueError:
        return False
    sizes = (1.0 if not compat and _is_integer(line) else math.inf for line in theirs)
    return all(
        our == their or abs(our - their) <= ABSOLUTE + RELATIVE * min(abs(their), size)
        for (our, their), size in zip(pairs, sizes, strict=True)
    )


def _is_integer(line: str) -> bool:
    return line.removeprefix("-").removeprefix("+").isdecimal()
