"""What the policy wrote must not act on the terminal of anyone who reads it."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.local import terminal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb", r"a\rb"),
        ("a\nb", r"a\nb"),
        ("\x07\x7f\x9b31m", r"\x07\x7f\x9b31m"),
        ("user\u202exe.py", r"user\u202exe.py"),
        ("\u2028\ud800\U000e0041", r"\u2028\ud800\U000e0041"),
        ("22 + 30 = 52 \u2713 \u6c49\u5b57 caf\u00e9", "22 + 30 = 52 \u2713 \u6c49\u5b57 caf\u00e9"),
        ("a\u00a0b", "a\u00a0b"),
    ],
)
def test_what_a_terminal_would_act_on_is_shown_as_an_escape(text: str, expected: str) -> None:
    assert terminal.line(text) == expected


def test_block_keeps_lines_and_tabs_and_nothing_else() -> None:
    assert terminal.block("a\tb\n\x1b]0;title\x07\n") == ["a\tb", r"\x1b]0;title\x07", ""]


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_no_text_whatever_leaves_a_control_or_format_character(text: str) -> None:
    shown = "".join(terminal.block(text)).replace("\t", "") + terminal.line(text)
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
