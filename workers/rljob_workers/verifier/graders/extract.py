"""Where in a completion the answer stands. Linear time: text is capped first, and braces are counted, not matched.

Order: the last readable `\\boxed{...}`; else what follows the last "answer is", "answer:" or "####"; else the last
expression between dollar signs, or in LaTeX brackets, if it ends the text; else the last number.
"""

import dataclasses
import re

MAX_SCANNED_CHARS = 64 << 10
MAX_BOXES = 16
MAX_ANSWER_CHARS = 4096

_BOX = re.compile(r"\\f?boxed\s{0,4}\{")
_MARK = re.compile(r"answer\s{1,4}is\s{0,4}:?|answer\s{0,4}:|####", re.IGNORECASE)
_PERCENT = r"(?:\s?\\?%|\s(?:percent|pct)\b)?"
_NUMBER = re.compile(
    rf"(?<![\w.])[-+]?[$€£¥]?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?{_PERCENT}|(?<![\w.])[-+]?\.[0-9]+{_PERCENT}"
)
_DELIMITERS = ((r"\(", r"\)"), (r"\[", r"\]"))
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3}")
_MATH_END = re.compile(r"\$([^$\n]{1,4096})\$[\s.]{0,8}$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The text to compare. `formatted`: it stood in a box or after a mark, not merely somewhere."""

    text: str
    formatted: bool


def find_answer(completion: str, *, boxed_only: bool) -> Found | None:
    """Return the answer of a completion, or None. An empty or unclosed last box is no answer at all."""
    text = completion[-MAX_SCANNED_CHARS:]
    starts = [match.end() for match in _BOX.finditer(text)][-MAX_BOXES:]
    if starts:
        return _boxed(text, starts)
    if boxed_only:
        return None
    return _marked(text) or _last_expression(text)


def unbox(gold: str) -> str:
    """Return the content of a gold's last box, or what follows its last `####`, or the gold itself."""
    starts = [match.end() for match in _BOX.finditer(gold)][-MAX_BOXES:]
    found = _boxed(gold, starts) if starts else None
    if found:
        return found.text
    return gold.rsplit("####", 1)[1].strip() if "####" in gold else gold


def _boxed(text: str, starts: list[int]) -> Found | None:
    content = balanced(text, starts[-1])
    return Found(text=content.strip(), formatted=True) if content and content.strip() else None


def balanced(text: str, start: int) -> str | None:
    """Return the text from `start` to the brace that closes the one before it; None if it is never closed."""
    depth, index = 1, start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[start:index]
        index += 1
    return None


def _marked(text: str) -> Found | None:
    ends = [match.end() for match in _MARK.finditer(text)]
    if not ends:
        return None
    line = text[ends[-1] :].lstrip().split("\n", 1)[0].replace("**", "").strip().rstrip(".").strip()
    return Found(text=_expression_of(line), formatted=True) if line else None


def _expression_of(line: str) -> str:
    # "the answer is $x+1$, since ..." means the expression, "72 apples, because 5+7" the number, "$5" the price.
    first = line.find("$")
    second = line.find("$", first + 1)
    if first >= 0 and second > first + 1:
        return line[first + 1 : second].strip()
    number = _NUMBER.search(line) if _WORD.search(line) else None
    return number.group().rstrip(",") if number else line


def _last_expression(text: str) -> Found | None:
    ending = _MATH_END.search(text[-(MAX_ANSWER_CHARS + 16) :])
    if ending:
        return Found(text=ending.group(1).strip(), formatted=False)
    closed = text[-(MAX_ANSWER_CHARS + 16) :].rstrip(" \t\r\n.")
    for opening, closing in _DELIMITERS:
        start = closed.rfind(opening)
        if closed.endswith(closing) and start >= 0 and closed[start + 2 : -2].strip():
            return Found(text=closed[start + 2 : -2].strip(), formatted=False)
    numbers = _NUMBER.findall(text)
    return Found(text=numbers[-1].rstrip(","), formatted=False) if numbers else None
