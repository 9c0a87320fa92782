"""`math`: the last boxed answer, or the final number or expression, has the value of the gold.

The first decisive stage wins: equal text, equal normalised text, exact rationals, polynomials, then symbolic equality.
All but the last are bounded and run anywhere; the last runs in a worker, on screened text. `mode` has one meaning,
strict. Option `boxedOnly` (default false): an answer outside a box is no answer.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from rljob_api import names, reward_options, roles
from rljob_workers.data import gold
from rljob_workers.verifier.graders import extract, normalise, polynomials, protocol, screen, symbolic

# Below this distance math-verify's rounding to six decimals may still call two numbers equal.
_SURELY_DIFFERENT = Fraction(1, 10_000)
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,']{2,255}")
_FORMULA = re.compile(r"[abcxyz]+")


class MathGrader(protocol.OneClock):
    """Mathematical equality in stages."""

    def __init__(self, config: roles.GraderConfig) -> None:
        """Raises ManifestError for an unknown option."""
        self._options = protocol.options(reward_options.MathOptions, config)
        self._symbolic: symbolic.MathVerify | None = None

    @property
    def needs_worker(self) -> bool:
        """The symbolic stage does."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold."""
        gold.check_gold("math", columns)

    def unread_golds(self, columns: Mapping[str, object]) -> list[str]:
        """Return the golds that the symbolic stage may not see."""
        golds = [extract.unbox(member) for member in gold.gold_texts(columns)]
        return [member for member in golds if not screen.passes(normalise.without_unit(member))]

    def warm(self) -> None:
        """Import the symbolic engine."""
        self._symbolic = symbolic.MathVerify()

    def quick(self, answer: protocol.Answer) -> protocol.Grade | None:
        """Decide by text and exact numbers, or refuse text that no later stage may see."""
        found = self._find(answer)
        if found is None:
            return protocol.failed(names.VerdictReason.NO_ANSWER)
        golds = _golds(answer)
        decisions = [_compare(found.text, member) for member in golds]
        if True in decisions:
            return protocol.passed(found.text, formatted=found.formatted)
        if None not in decisions:
            return _wrong(found)
        return _screened(found)

    def grade(self, answer: protocol.Answer) -> protocol.Grade:
        """Decide, symbolically if need be."""
        decided = self.quick(answer)
        if decided is not None:
            return decided
        found = self._find(answer)
        assert found is not None, "quick passed"
        assert self._symbolic is not None, "warm was called"
        golds = [normalise.without_unit(member) for member in _golds(answer)]
        equal = self._symbolic.compare(golds, normalise.without_unit(found.text))
        if equal is None:
            return _unreadable(found, "not a readable expression")
        return protocol.passed(found.text, formatted=found.formatted) if equal else _wrong(found)

    def _find(self, answer: protocol.Answer) -> extract.Found | None:
        return extract.find_answer(answer.completion, boxed_only=self._options.boxed_only)


def _golds(answer: protocol.Answer) -> tuple[str, ...]:
    return tuple(extract.unbox(member) for member in gold.gold_texts(answer.columns))


def _compare(text: str, member: str) -> bool | None:
    """Return whether answer and gold are equal, None if only a symbolic engine can say."""
    if len(text) > extract.MAX_ANSWER_CHARS:
        return text == member or None
    ours, theirs = normalise.normalise(text), normalise.normalise(member)
    if ours and (text == member or ours == theirs):
        return True
    if _is_word(ours) and _is_word(theirs):
        return ours.casefold() == theirs.casefold()
    ours_value, theirs_value = normalise.rational(ours), normalise.rational(theirs)
    if ours_value is None or theirs_value is None:
        return _compare_formulas(ours, theirs)
    if ours_value == theirs_value:
        return True
    percent = ours.endswith("%") or theirs.endswith("%")
    return False if not percent and abs(ours_value - theirs_value) > _SURELY_DIFFERENT else None


def _compare_formulas(ours: str, theirs: str) -> bool | None:
    """Return whether two polynomials are the same; None where the symbolic engine may see more in them.

    It rounds decimals, so only what differs in a letter's coefficient or clearly in the constant is called different.
    """
    left, right = polynomials.read(ours), polynomials.read(theirs)
    if left is None or right is None:
        return None
    rest = polynomials.difference(left, right)
    if not rest:
        return True
    if "." in ours + theirs:
        return None
    constant_alone = set(rest) == {()}
    return None if constant_alone and abs(rest[()]) <= _SURELY_DIFFERENT else False


def _is_word(text: str) -> bool:
    return bool(_WORDS.fullmatch(text)) and not _FORMULA.fullmatch(text)


def _screened(found: extract.Found) -> protocol.Grade | None:
    try:
        screen.check(normalise.without_unit(found.text))
    except screen.RefusedError as refusal:
        return _unreadable(found, str(refusal))
    return None


def _wrong(found: extract.Found) -> protocol.Grade:
    return protocol.failed(names.VerdictReason.WRONG, extracted=found.text, formatted=found.formatted)


def _unreadable(found: extract.Found, detail: str) -> protocol.Grade:
    return protocol.failed(
        names.VerdictReason.PARSE_ERROR, extracted=found.text, formatted=found.formatted, detail=detail
    )
