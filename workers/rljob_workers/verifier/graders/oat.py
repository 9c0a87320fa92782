"""`boxed` and `answer_tag`: the rewards of Oat and understand-r1-zero (mode compat), or with corrections O1 to O5.

Correct = stage A (text) or B (plain text, then a simplified difference); with `verifierVersion: math_verify` also C
(math-verify). A and the textual part of B run anywhere, the rest in a worker.
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from rljob_api import names, roles
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import (
    hazards,
    oat_extract,
    oat_plain,
    oat_symbolic,
    oat_text,
    protocol,
    repetition,
    screen,
    symbolic,
)
from rljob_workers.verifier.graders.answers import comparison, spans

# Stage B takes a float within 1e-7 of an integer for it.
_RULES = comparison.Rules(deep=False, near_integer=Fraction(1, 10**7))


class OatGrader(protocol.OneClock):
    """Both rewards; the type in `config` says which of the two this is."""

    def __init__(self, config: roles.GraderConfig) -> None:
        """Raises ManifestError for an unknown option."""
        self._compat, self._tag_rule = config.mode == "compat", ""
        if config.type == "boxed":
            self._version = protocol.options(reward_options.BoxedOptions, config).verifier_version
        else:
            tagged = protocol.options(reward_options.AnswerTagOptions, config)
            self._version, self._tag_rule = tagged.verifier_version, tagged.tag_rule
        self._symbolic: oat_symbolic.Symbolic | None = None
        self._library: symbolic.MathVerify | None = None

    @property
    def needs_worker(self) -> bool:
        """Stage B may simplify."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold."""
        gold.gold_texts(columns)

    def unread_golds(self, columns: Mapping[str, object]) -> list[str]:
        """Return the golds that stage B may not simplify."""
        golds = [oat_extract.ungold(member) for member in gold.gold_texts(columns)]
        return [member for member in golds if not screen.passes(oat_plain.normalise(member, compat=self._compat))]

    def warm(self) -> None:
        """Import the symbolic stages."""
        from rljob_workers.verifier.graders import areal_symbolic

        self._symbolic = areal_symbolic.difference_is_zero
        self._symbolic("1/2+x", "x+0.5")
        if self._version == "math_verify":
            self._library = symbolic.MathVerify(box_priority=0)

    def quick(self, answer: protocol.Answer) -> protocol.Grade | None:
        """Decide by extraction and text; the grade is open if a worker could still find equality."""
        found = self._find(answer)
        if found is None:
            return protocol.failed(names.VerdictReason.NO_ANSWER)
        if not found.text.strip():
            return self._empty(found)
        if len(found.text) > spans.MAX_ANSWER_CHARS:
            return _graded(names.VerdictReason.PARSE_ERROR, found, f"longer than {spans.MAX_ANSWER_CHARS} characters")
        decisions = [self._by_text(found.text, member, _undecided) for member in _golds(answer)]
        if True in decisions:
            return protocol.passed(found.text)
        return self._open(found, undecided=None in decisions)

    def grade(self, answer: protocol.Answer) -> protocol.Grade:
        """Decide, symbolically if need be."""
        decided = self.quick(answer)
        if decided is not None:
            return decided
        found = self._find(answer)
        assert found is not None, "quick passed"
        equal = any(self._equal(found.text, member) for member in _golds(answer))
        return protocol.passed(found.text) if equal else _graded(names.VerdictReason.WRONG, found)

    def _find(self, answer: protocol.Answer) -> spans.Found | None:
        if not self._tag_rule:
            return oat_extract.boxed(answer.completion, compat=self._compat)
        return oat_extract.tagged(answer.completion, loose=self._tag_rule == "loose", compat=self._compat)

    def _empty(self, found: spans.Found) -> protocol.Grade:
        """O2: an empty answer is none; the original calls it formatted and wrong."""
        if self._compat:
            return _graded(names.VerdictReason.WRONG, found, "the extracted text is empty")
        return protocol.failed(names.VerdictReason.NO_ANSWER, detail="the extracted text is empty")

    def _by_text(self, text: str, member: str, decide: oat_symbolic.Symbolic) -> bool | None:
        if not self._compat and _is_refuted(text, member, deep=decide is not _undecided):
            return False
        if oat_text.equal(text, member, compat=self._compat):
            return True
        ours, theirs = (oat_plain.normalise(side, compat=self._compat) for side in (text, member))
        return oat_symbolic.equal(ours, theirs, decide)

    def _open(self, found: spans.Found, *, undecided: bool) -> protocol.Grade | None:
        full = self._version == "math_verify"
        if not undecided and not full:
            return _graded(names.VerdictReason.WRONG, found)
        try:
            screen.check(oat_plain.normalise(found.text, compat=self._compat))
        except screen.RefusedError as refusal:
            # A sentence inside tags is outside the grammar, and still holds what math-verify looks for.
            if not full or hazards.first(found.text):
                return _graded(names.VerdictReason.PARSE_ERROR, found, str(refusal))
        return None

    def _equal(self, text: str, member: str) -> bool:
        assert self._symbolic is not None, "warm was called"
        if self._by_text(text, member, _screened(self._symbolic)):
            return True
        if not self._compat and _is_refuted(text, member, deep=True):
            return False
        if self._library is None or repetition.is_repetitive(text) or repetition.is_repetitive(member):
            return False
        return bool(self._library.compare([member], text))


def _is_refuted(text: str, member: str, *, deep: bool) -> bool:
    """O4: an answer that says something else than the gold by docs/reading_an_answer.md is wrong.

    A sentence inside tags says what it says as prose; other text that no rule reads is no value.
    """
    rules = dataclasses.replace(_RULES, deep=deep)
    verdict = comparison.verdict(text, member, rules)
    if verdict is comparison.Verdict.UNREAD and comparison.is_read(member) and not comparison.is_read(text):
        said = spans.find_answer(text, boxed_only=False)
        verdict = comparison.Verdict.DIFFERENT if said is None else comparison.verdict(said.text, member, rules)
        return verdict in (comparison.Verdict.DIFFERENT, comparison.Verdict.UNREAD)
    return verdict is comparison.Verdict.DIFFERENT


def _golds(answer: protocol.Answer) -> tuple[str, ...]:
    return tuple(oat_extract.ungold(member) for member in gold.gold_texts(answer.columns))


def _undecided(ours: str, theirs: str) -> bool | None:
    del ours, theirs
    return None


def _screened(decide: oat_symbolic.Symbolic) -> oat_symbolic.Symbolic:
    def screened(ours: str, theirs: str) -> bool | None:
        try:
            screen.check(ours)
            screen.check(theirs)
        except screen.RefusedError:
            return False
        return decide(ours, theirs)

    return screened


def _graded(reason: names.VerdictReason, found: spans.Found, detail: str = "") -> protocol.Grade:
    return protocol.failed(reason, extracted=found.text, formatted=found.formatted, detail=detail)
