"""Where the rewards `boxed` and `answer_tag` find an answer (docs/design/graders.md#s-8-1). Pure, on capped text.

Corrections of mode strict: O3, the tagged answer ends at the first `</answer>` after the last `<answer>`; O5, boxes.
"""

from rljob_workers.verifier.graders.math import spans

_BOX = r"\boxed"
_OPEN, _CLOSE = "<answer>", "</answer>"
_THINK = "</think> <answer>"


def boxed(completion: str, *, compat: bool) -> spans.Extracted | None:
    """Return the content of the last box; None, unformatted, without one that closes.

    strict: boxes that are joined by "or" are one answer, and a box that is denied is none (O5).
    """
    content = last_box(completion[-spans.MAX_SCANNED_CHARS :])
    if content is not None and not compat and r"\fbox" not in completion:
        content = spans.alternatives(completion)
    return None if content is None else spans.Extracted(text=content, formatted=True)


def tagged(completion: str, *, loose: bool, compat: bool) -> spans.Extracted | None:
    """Return what is between the last answer tags, unboxed; None, unformatted, without the tags.

    An unreadable box inside the tags is an empty, formatted answer.
    """
    text = completion[-spans.MAX_SCANNED_CHARS :]
    opening = _OPEN if loose else _THINK
    if opening not in text or _CLOSE not in text:
        return None
    tail = text.rsplit(_OPEN, 1)[1]
    tail = tail.replace(_CLOSE, "") if compat else tail.split(_CLOSE, 1)[0]
    if _BOX in tail:
        tail = last_box(tail) or ""
    return spans.Extracted(text=tail, formatted=True)


def last_box(text: str, box: str = _BOX) -> str | None:
    r"""Return the content of the last `\boxed{...}`; None if there is none, or it is not closed or has no brace."""
    start = text.rfind(box)
    if start < 0:
        return None
    rest = text[start + len(box) :].lstrip(" ")
    if not rest.startswith("{"):
        return None
    depth = 0
    for index, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[1:index]
    return None


def ungold(gold: str) -> str:
    r"""Return a gold without its `\boxed` or `\fbox`; one that cannot be read stays text."""
    content = last_box(gold) if _BOX in gold else last_box(gold, r"\fbox")
    return gold if content is None else content
