"""`boxed` and `answer_tag`: the rewards of Oat and understand-r1-zero (mode compat), or with corrections O1 to O5.

Correct = stage A (text) or B (plain text, then a simplified difference); with `verifierVersion: math_verify` also C
(math-verify). A and the textual part of B run anywhere, the rest in a worker.
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from rljob_api import enums, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import comparison, spans
from rljob_workers.verifier.graders.oat import equality, extraction, normalization
from rljob_workers.verifier.graders.symbolic import library, screen

# Stage B takes a float within 1e-7 of an integer for it.
_RULES = comparison.Rules(deep=False, near_integer=Fraction(1, 10**7))


class OatGrader(base.SingleTimeLimit):
    """Both rewards; the type in `config` says which of the two this is."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError for an unknown option."""
        self._compat, self._tag_rule = config.mode == "Compat", ""
        if config.type == "boxed":
            self._version = base.options(reward_options.BoxedOptions, config).verifier_version
        else:
            tagged = base.options(reward_options.AnswerTagOptions, config)
            self._version, self._tag_rule = tagged.verifier_version, tagged.tag_rule
        self._symbolic: equality.Symbolic | None = None
        self._library: library.MathVerify | None = None

    @property
    def needs_worker(self) -> bool:
        """Stage B may simplify."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold."""
        gold.gold_texts(columns)

    def unparsed_references(self, columns: Mapping[str, object]) -> list[str]:
        """Return the golds that stage B may not simplify."""
        golds = [extraction.ungold(member) for member in gold.gold_texts(columns)]
        return [member for member in golds if not screen.passes(normalization.normalise(member, compat=self._compat))]

    def warm(self) -> None:
        """Import the symbolic stages."""
        from rljob_workers.verifier.graders.symbolic import equality as symbolic_equality

        self._symbolic = symbolic_equality.difference_is_zero
        self._symbolic("1/2+x", "x+0.5")
        if self._version == "math_verify":
            self._library = library.MathVerify(box_priority=0)

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Decide by extraction and text; the grade is open if a worker could still find equality."""
        answer_ = self._find(answer)
        if answer_ is None:
            return base.failed(enums.VerdictReason.NO_ANSWER)
        if not answer_.text.strip():
            return self._empty(answer_)
        if len(answer_.text) > spans.MAX_ANSWER_CHARS:
            return _graded(enums.VerdictReason.PARSE_ERROR, answer_, f"longer than {spans.MAX_ANSWER_CHARS} characters")
        decisions = [self._by_text(answer_.text, member, _undecided) for member in _golds(answer)]
        if True in decisions:
            return base.passed(answer_.text)
        return self._open(answer_, undecided=None in decisions)

    def grade(self, answer: base.Answer) -> base.Grade:
        """Decide, symbolically if need be."""
        decided = self.quick(answer)
        if decided is not None:
            return decided
        extracted = self._find(answer)
        assert extracted is not None, "quick passed"
        equal = any(self._equal(extracted.text, member) for member in _golds(answer))
        return base.passed(extracted.text) if equal else _graded(enums.VerdictReason.WRONG, extracted)

    def _find(self, answer: base.Answer) -> spans.Extracted | None:
        if not self._tag_rule:
            return extraction.boxed(answer.completion, compat=self._compat)
        return extraction.tagged(answer.completion, loose=self._tag_rule == "loose", compat=self._compat)

    def _empty(self, extracted: spans.Extracted) -> base.Grade:
        """O2: an empty answer is none; the original calls it formatted and wrong."""
        if self._compat:
            return _graded(enums.VerdictReason.WRONG, extracted, "the extracted text is empty")
        return base.failed(enums.VerdictReason.NO_ANSWER, detail="the extracted text is empty")

    def _by_text(self, text: str, member: str, decide: equality.Symbolic) -> bool | None:
        if not self._compat and _is_refuted(text, member, deep=decide is not _undecided):
            return False
        if normalization.equal_text(text, member, compat=self._compat):
            return True
        ours, theirs = (normalization.normalise(side, compat=self._compat) for side in (text, member))
        return equality.equal(ours, theirs, decide)

    def _open(self, extracted: spans.Extracted, *, undecided: bool) -> base.Grade | None:
        full = self._version == "math_verify"
        if not undecided and not full:
            return _graded(enums.VerdictReason.WRONG, extracted)
        try:
            screen.check(normalization.normalise(extracted.text, compat=self._compat))
        except screen.RefusedError as refusal:
            # A sentence inside tags is outside the grammar, and still holds what math-verify looks for.
            if not full or screen.first_hazard(extracted.text):
                return _graded(enums.VerdictReason.PARSE_ERROR, extracted, str(refusal))
        return None

    def _equal(self, text: str, member: str) -> bool:
        assert self._symbolic is not None, "warm was called"
        if self._by_text(text, member, _screened(self._symbolic)):
            return True
        if not self._compat and _is_refuted(text, member, deep=True):
            return False
        if self._library is None or screen.is_repetitive(text) or screen.is_repetitive(member):
            return False
        return bool(self._library.compare([member], text))


def _is_refuted(text: str, member: str, *, deep: bool) -> bool:
    """O4: an answer that says something else than the gold by docs/reading_an_answer.md is wrong.

    A sentence inside tags says what it says as prose; other text that no rule reads is not a value.
    """
    rules = dataclasses.replace(_RULES, deep=deep)
    verdict = comparison.verdict(text, member, rules)
    if verdict is comparison.Verdict.UNREAD and comparison.is_read(member) and not comparison.is_read(text):
        answer = spans.find_answer(text, boxed_only=False)
        verdict = comparison.Verdict.DIFFERENT if answer is None else comparison.verdict(answer.text, member, rules)
        return verdict in (comparison.Verdict.DIFFERENT, comparison.Verdict.UNREAD)
    return verdict is comparison.Verdict.DIFFERENT


def _golds(answer: base.Answer) -> tuple[str, ...]:
    return tuple(extraction.ungold(member) for member in gold.gold_texts(answer.columns))


def _undecided(ours: str, theirs: str) -> bool | None:
    del ours, theirs
    return None


def _screened(decide: equality.Symbolic) -> equality.Symbolic:
    def screened(ours: str, theirs: str) -> bool | None:
        try:
            screen.check(ours)
            screen.check(theirs)
        except screen.RefusedError:
            return False
        return decide(ours, theirs)

    return screened


def _graded(reason: enums.VerdictReason, extracted: spans.Extracted, detail: str = "") -> base.Grade:
    return base.failed(reason, extracted=extracted.text, formatted=extracted.formatted, detail=detail)
