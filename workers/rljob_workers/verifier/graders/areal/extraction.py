"""Where AReaL's mathematics verifier finds an answer (docs/design/graders.md#s-5-1). Pure, on capped text.

Mode strict reads boxes and phrases as `math` does (`math/spans.py`): M7, an unclosed box is not an answer; M10, a
phrase ends at a line break or sentence end; what is denied, taken back or one of two alternatives is not an answer.
"""

import re

from rljob_workers.verifier.graders.math import spans

_PHRASES = ("he answer is", "final answer is")
# "the answer is", in Chinese.
_CHINESE = "\u7b54\u6848\u662f"
_NUMBER = re.compile(r"-?[0-9]{1,1000}\.?[0-9]{0,1000}")
_LINE_BREAK = re.compile(r"\n[ \t\r\f\v]{0,4096}")


def answer_of(completion: str, *, compat: bool) -> str | None:
    """Return the answer of a completion, None if no rule finds one."""
    extracted = _by_rules(completion[-spans.MAX_SCANNED_CHARS :], compat=compat)
    return None if extracted is None else _tidy(extracted)


def gold_of(solution: str, *, compat: bool) -> str | None:
    """Return the gold of a solution text: by the same rules, else its last number."""
    text = solution[-spans.MAX_SCANNED_CHARS :]
    extracted = _by_rules(text, compat=compat)
    if extracted is None:
        numbers = _NUMBER.findall(text.replace(",", ""))
        extracted = numbers[-1] if numbers else None
    return None if extracted is None else _tidy(extracted)


def is_empty(answer: str | None) -> bool:
    """Return whether an extracted, normalised answer says nothing."""
    return answer is None or answer.strip() in ("", "None", "none")


def _by_rules(text: str, *, compat: bool) -> str | None:
    if "final answer is $" in text and "$. I hope" in text:
        return text.split("final answer is $", 1)[1].split("$. I hope", 1)[0].strip()
    if "boxed" in text:
        rest = text.rsplit("boxed", 1)[1]
        if compat or not rest.startswith("{"):
            return _boxed(rest)
        box = spans.last_box(text)
        return None if box is None else box.otherwise or box.text
    for phrase in _PHRASES:
        if phrase in text:
            tail = text.rsplit(phrase, 1)[1].strip()
            return tail if compat else spans.said_first(tail.removeprefix(":"))
    if _CHINESE in text:
        if not compat:
            return spans.said_first(text.rsplit(_CHINESE, 1)[1].split("\n\n", 1)[0])
        return text.split(_CHINESE, 1)[1].strip().split("\n\n", 1)[0]
    return None


def _boxed(rest: str) -> str:
    if not rest.startswith("{"):
        return rest.split("$", 1)[0].strip()
    depth = 0
    for index, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[1:index]
    return rest[1:]


def _tidy(text: str) -> str:
    text = _LINE_BREAK.sub("", text).strip().removeprefix(":")
    return text.removesuffix(".").removesuffix("/")
