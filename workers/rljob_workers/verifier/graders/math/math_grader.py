"""`math`: the answer says what the gold says. docs/reading_an_answer.md has the rules.

The last boxed answer counts, else the one that prose names (`spans.py`); both sides are read into typed forms
(`forms.py`) and compared kind by kind (`comparison.py`). Text, exact numbers and rational functions are
decided anywhere; roots and functions are evaluated in a worker. `mode` has one meaning, strict. Option `boxedOnly`
(default false): an answer outside a box is not an answer.
"""

import re
from collections.abc import Mapping
from decimal import Decimal

from rljob_api import enums, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import comparison, expressions, forms, spans, values

_ANYWHERE = comparison.Rules(deep=False)
_IN_WORKER = comparison.Rules(deep=True)
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?")
_CHOICE = re.compile(r"(?:\\text(?:bf)?\{)?\(?([A-J])(?:\)|[.:](?=[\s}]))\s?\}?[\s\\~]{0,8}\S.{0,400}", re.DOTALL)


class MathGrader(base.SingleTimeLimit):
    """Mathematical equality of typed answers."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError for an unknown option."""
        self._options = base.options(reward_options.MathOptions, config)

    @property
    def needs_worker(self) -> bool:
        """Roots and functions do."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold."""
        gold.check_gold("math", columns)

    def unparsed_references(self, columns: Mapping[str, object]) -> list[str]:
        """Return the golds that only the same text can equal: formulas outside the grammar or over a bound."""
        return [member for member in _golds(columns) if not comparison.is_read(member)]

    def warm(self) -> None:
        """Import what evaluates roots and functions."""
        comparison.equal(forms.read(r"\sqrt{2}"), forms.read(r"\frac{2}{\sqrt{2}}"), _IN_WORKER)

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Decide by text, exact numbers and rational functions."""
        return self._decide(answer, _ANYWHERE)

    def grade(self, answer: base.Answer) -> base.Grade:
        """Decide, evaluating roots and functions if need be."""
        grade = self._decide(answer, _IN_WORKER)
        assert grade is not None, "deep rules leave nothing open"
        return grade

    def _decide(self, answer: base.Answer, rules: comparison.Rules) -> base.Grade | None:
        extracted = spans.find_answer(answer.completion, boxed_only=self._options.boxed_only)
        if extracted is None:
            return base.failed(enums.VerdictReason.NO_ANSWER)
        undecided = False
        refusal = ""
        for member in _golds(answer.columns):
            try:
                equal = _equal(extracted.text, member, rules)
                if not equal and extracted.otherwise:
                    equal = _equal(extracted.otherwise, member, rules)
            except values.TooLargeError as error:
                equal, refusal = _same_text(extracted.text, member), str(error)
            if equal:
                return base.passed(extracted.text, formatted=extracted.formatted)
            undecided |= equal is None
        if undecided:
            return None
        if not refusal and not _is_plain(extracted.text) and forms.read(extracted.text).kind == "opaque":
            refusal = "not a readable expression"
        reason = enums.VerdictReason.PARSE_ERROR if refusal else enums.VerdictReason.WRONG
        return base.failed(reason, extracted=extracted.text, formatted=extracted.formatted, detail=refusal)


def _golds(columns: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(spans.unbox(member) for member in gold.gold_texts(columns))


def _is_plain(text: str) -> bool:
    return _DECIMAL.fullmatch(text) is not None


def _equal(text: str, member: str, rules: comparison.Rules) -> bool | None:
    """Return whether answer and gold are equal, None if only an evaluation could say. Raises TooLargeError."""
    if len(text) > expressions.MAX_CHARS:
        return text == member
    if _INTEGER.fullmatch(text) and _INTEGER.fullmatch(member):
        return int(text) == int(member)
    if _is_plain(text) and _is_plain(member):
        return Decimal(text) == Decimal(member)
    choice = _CHOICE.fullmatch(text) if len(member) == 1 and "A" <= member <= "J" else None
    return comparison.equal(forms.read(choice[1] if choice else text), forms.read(member), rules)


def _same_text(text: str, member: str) -> bool:
    return forms.read(text).spelled == forms.read(member).spelled
