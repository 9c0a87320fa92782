r"""What AReaL's published sample of 160 answers asks a grader to decide: facts of it, in words of our own.

Source: tests/reward/math_answers_sample_cases.jsonl of AReaL (inclusionAI, Apache-2.0), 10 problems with 16 answers
each, of which 83 are right; its own test wants these verdicts of `realhf.impl.dataset.math_parser`. Kept are, answer by
answer, the gold, what is in the last `\boxed{}`, how it is set (in line, in dollars, displayed, with a box before
it, with words after it) and the verdict. The prose around it is ours, and so are the words of the three answers that
are sentences: none of it is what a grader decides by.
"""

import dataclasses
from collections.abc import Iterator, Sequence

# How a box is set.
INLINE, DOLLARS, DISPLAYED, BARE, FENCED = "inline", "dollars", "displayed", "bare", "fenced"
_SET = {
    INLINE: "Thus, the value that was asked for is \\(BOX\\).",
    DOLLARS: "Thus, the value that was asked for is:\n\n$$\nBOX\n$$",
    DISPLAYED: "### Conclusion:\n\nThus, the value that was asked for is:\n\n\\[\nBOX\n\\]",
    BARE: "3. **Check**: each step holds.\n\nThus, we have:\n\nBOX",
    FENCED: "Therefore, the largest value is:\n\n$$\nBOX\n```",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One answer. right: the published verdict."""

    gold: str
    completion: str
    right: bool


def _box(text: str, how: str = DISPLAYED, *, before: str = "", after: str = "") -> str:
    """Return an answer that ends in a box."""
    thought = f"so I take \\boxed{{{before}}}.\n</think>\n\n" if before else "1. **Setting up**: let \\(k = 1\\).\n"
    box = f"\\boxed{{{text}}}"
    return f"{thought}\n{_SET[how].replace('BOX', box)}{after}"


# Answers that were cut off before they came to a box.
_CUT_OPTIONS = (
    "The sum is about 1003, so of (A) 2006 (B) 2005 (C) 1006 (D) 1005\n\nperhaps (C) 1006: \\( \\frac{1}{m^{3"
)
_CUT_WORDS = (
    "The points lie on lines that are perpendicular to ABC.\n\nThus, perhaps take the formula for the volume in"
)
_CUT_FRACTION = "Set it to zero, and multiply both sides by 2 sqrt(1 -b +b^2 /n):\n\n(-1 + (2b)/n )"
_NO_TALER, _NO_TALER_SPACED = (
    "No taler was lost; the sum is wrong.",
    r"No \ taler \ was \ lost; \ the \ sum \ is \ wrong",
)
_ROOT, _SPACED_ROOT = r"\sqrt{n+1}", r"\sqrt{n + 1}"
_SQUARE = {over: rf"\dfrac{{S^2}}{{{over}}}" for over in ("R", "3R", "4R")}

# Gold; the answers; which of them, counted from 1, are right.
_PROBLEMS: Sequence[tuple[str, Sequence[str], frozenset[int]]] = (
    (
        "4",
        [
            _box("2", before="2"), *[_box("4")] * 5, _box("4", BARE), *[_box("4")] * 4, _box("4", BARE), _box("4"),
            _box("4", BARE), *[_box("4")] * 2,
        ],
        frozenset(range(2, 17)),
    ),
    (
        r"9\sqrt{2}",
        [
            _box("18"), _box("18", INLINE), _box("18"), _box(r"9\sqrt{2}"), _box(r"9\sqrt{2}"), _box("18", INLINE),
            _box("18"), _box(r"9\sqrt{2}", INLINE), _box("18"), _box("9", INLINE), _box("9", INLINE),
            _box(r"18(\sqrt{2} - 1)"), _box("9", INLINE), _box("9"), _box("9"), _box("9"),
        ],
        frozenset((4, 5, 8)),
    ),
    (
        "C",
        [
            _box("C"), _CUT_OPTIONS, _box("C"), _box("C", before="C"), _box("C"), _box("C", INLINE), _box("C", BARE),
            _box("C", BARE), _box("C"), _box("C", BARE), *[_box("C")] * 6,
        ],
        frozenset({1, *range(3, 17)}),
    ),
    (
        "45",
        [
            _box("37.5", BARE, after=" minutes on the journey."), _box("45", INLINE), _box(r"\dfrac{3}{4}", INLINE),
            *[_box("45", BARE, after=" minutes on the journey.")] * 3, _box("45", INLINE),
            _box(r"\dfrac{3}{4}", INLINE), _box(r"\dfrac{5}{8}", INLINE), *[_box("45", INLINE)] * 4,
            _box(r"\dfrac{3}{4}", INLINE), _box("45", BARE, after=" minutes."), _box("45", INLINE),
        ],
        frozenset((2, 4, 5, 6, 7, 10, 11, 12, 13, 15, 16)),
    ),
    (
        r"\dfrac{4 S_{\triangle} R}{3}",
        [
            _box(_SQUARE["4R"]), _CUT_WORDS, _box(_SQUARE["R"]),
            _box(r"\dfrac{S \cdot h_a \cdot h_b \cdot h_c}{6R}", after="\n where \\(R\\) is the circumradius."),
            _box(r"\dfrac{2 S h_a h_b h_c}{3(h_a + h_b + h_c)}"), _box(_SQUARE["R"]), _box(_SQUARE["3R"]),
            _box(_SQUARE["3R"]), _box(_SQUARE["R"]), _box(_SQUARE["R"], INLINE),
            _box(r"\dfrac{S \cdot ha \cdot hb \cdot hc}{6R}"), _box(_SQUARE["3R"], INLINE), _box(_SQUARE["4R"]),
            _box(_SQUARE["3R"], BARE, after="."), _box(_SQUARE["R"]), _box(r"\dfrac{S h_A h_B h_C}{4R}", INLINE),
        ],
        frozenset(),
    ),
    (
        "2002",
        [
            _box("2001", before="2001"), _box("2004"), _box("2005", BARE), _box("2009", BARE),
            _box("2001", BARE, after="\n\n(Note: without the figures of each year this is a guess.)"), _box("2002"),
            _box("2001", BARE), _box("2007", BARE, before="2007", after="."), _box("2000"), _box("2004", BARE),
            _box("2004"), _box("2007", before="2007"), _box("2002", before="2002"), _box("2001", INLINE),
            _box("2004", BARE), _box("1999", before="1999"),
        ],
        frozenset((6, 13)),
    ),
    (
        "25",
        [
            _box("25", BARE, after=" talers."), _box("1"), _box("1", BARE), _box(_NO_TALER, BARE), _box("25", BARE),
            _box("25"), f"5. **Sum**: 20 and 5.\n\n$\\boxed{{{_NO_TALER_SPACED}}}$", _box("25", BARE), _box("25"),
            _box("26", BARE), *[_box("25", BARE)] * 2, _box("25", after=" talers."), _box("25", BARE), _box("25"),
            _box(_NO_TALER),
        ],
        frozenset((1, 5, 6, 8, 9, 11, 12, 13, 14, 15)),
    ),
    (
        "192",
        [
            _box("B"), *[_box("B", INLINE)] * 2, _box("A", INLINE), _box("B", before="B"), *[_box("B")] * 2,
            _box("B", INLINE), _box("A", BARE), _box("B", INLINE), _box("B", BARE), _box("B", INLINE), *[_box("B")] * 2,
            _box("B", INLINE), _box("C", BARE),
        ],
        frozenset(),
    ),
    (
        "420",
        [
            _box("420"), *[_box("420", INLINE)] * 3, _box("420"), *[_box("420", INLINE)] * 5, _box("240", INLINE),
            *[_box("420", INLINE)] * 2, _box("1680", INLINE), _box("360"), _box("420", INLINE),
        ],
        frozenset({*range(1, 11), 12, 13, 16}),
    ),
    (
        _SPACED_ROOT,
        [
            _box(_ROOT, FENCED), _box(_SPACED_ROOT), _box(_ROOT, DOLLARS), _box(_SPACED_ROOT),
            _box(_SPACED_ROOT, DOLLARS), _box(_ROOT), _box(_SPACED_ROOT),
            _box(r"\dfrac{n + 2}{\sqrt{n + 1}}", DOLLARS), _box(_ROOT, INLINE), _box(_SPACED_ROOT, DOLLARS),
            _box(_ROOT, DOLLARS), _CUT_FRACTION, _box(_ROOT, INLINE), _box(_SPACED_ROOT, DOLLARS), _box(_SPACED_ROOT),
            _box(_SPACED_ROOT, INLINE),
        ],
        frozenset({*range(1, 8), 9, 10, 11, *range(13, 17)}),
    ),
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield all answers, problem after problem."""
    for gold, answers, right in _PROBLEMS:
        for number, completion in enumerate(answers, 1):
            yield Case(f"\\boxed{{{gold}}}", completion, number in right)
