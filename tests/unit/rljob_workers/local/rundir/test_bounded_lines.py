"""Lines come whole up to the bound, and a longer one takes no more memory than the bound."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.local.rundir import bounded_lines


def lines(data: bytes, max_bytes: int) -> list[tuple[bytes, bool, bool]]:
    return [(one.data, one.cut, one.complete) for one in bounded_lines.read(io.BytesIO(data), max_bytes=max_bytes)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"ab\ncd\r\n", [(b"ab", False, True), (b"cd", False, True)]),
        (b"\nab", [(b"", False, True), (b"ab", False, False)]),
        (b"abcd\nef\n", [(b"abcd", False, True), (b"ef", False, True)]),
        (b"abcdefghij\nk\n", [(b"abcd", True, True), (b"k", False, True)]),
        (b"abcdefgh\nk\n", [(b"abcd", True, True), (b"k", False, True)]),
        (b"abcdefgh", [(b"abcd", True, False)]),
    ],
)
def test_lines_of_at_most_four_bytes(data: bytes, expected: list[tuple[bytes, bool, bool]]) -> None:
    assert lines(data, 4) == expected


@settings(deadline=None)
@given(st.lists(st.text("ab", max_size=9)), st.integers(1, 6))
def test_every_line_comes_once_in_order_with_its_start(texts: list[str], bound: int) -> None:
    found = lines("".join(f"{text}\n" for text in texts).encode(), bound)
    assert [data.decode() for data, _, _ in found] == [text[:bound] for text in texts]
    assert [cut for _, cut, _ in found] == [len(text) > bound for text in texts]
