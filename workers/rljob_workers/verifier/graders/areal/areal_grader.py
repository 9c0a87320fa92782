"""`areal-math`: the verdicts of AReaL's mathematics verifier (mode compat), or those of docs/reading_an_answer.md with
what AReaL leaves open: M1 to M10 of docs/design/graders.md#s-5-4 (mode strict).

Golds are the record's `solutions`, from the file that option `solutionPath` names, else from the record itself (its
`answer`, where the source has been read already). The reward is 1 if the answer equals any of them.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping

from rljob_api import enums, errors, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base, metadata
from rljob_workers.verifier.graders.areal import extraction, normalization
from rljob_workers.verifier.graders.areal import ladder as areal_ladder
from rljob_workers.verifier.graders.math import brackets, comparison, spans
from rljob_workers.verifier.graders.symbolic import screen

SOLUTIONS = "solutions"
_ANYWHERE = comparison.Rules(deep=False, ordered=True, percent_either=True, relative=areal_ladder.RELATIVE)
_IN_WORKER = dataclasses.replace(_ANYWHERE, deep=True)
_EMPTY = "the extracted text is empty"


class ArealMathGrader:
    """Extraction, text and exact numbers in place, evaluation in a worker."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError for an unknown option or an unusable file of solutions."""
        options = base.options(reward_options.SolutionOptions, config)
        self._compat = config.mode == "Compat"
        self._solutions: Mapping[str, tuple[str, ...]] | None = None
        if options.solution_path:
            self._solutions = metadata.solutions(pathlib.Path(options.solution_path))
        self._symbolic: areal_ladder.Symbolic | None = None

    @property
    def needs_worker(self) -> bool:
        """The symbolic rung does."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold, for an unknown query_id, or if no rule finds an answer in a solution."""
        self._golds(columns)

    def num_time_limits(self, columns: Mapping[str, object]) -> int:
        """Return the number of solutions: the limits are of one pair of answer and gold."""
        return len(self._golds(columns))

    def unparsed_references(self, columns: Mapping[str, object]) -> list[str]:
        """Return the golds that only the same text can equal."""
        golds = self._golds(columns)
        if not self._compat:
            return [member for member in golds if not comparison.is_read(member)]
        return [text for text in map(normalization.compat, golds) if not screen.passes(text)]

    def warm(self) -> None:
        """Import what evaluates: the symbolic rung, or high precision."""
        if self._compat:
            from rljob_workers.verifier.graders.symbolic import equality

            self._symbolic = equality.symbolically_equal
            self._symbolic("1/2+x", "x+0.5")
        else:
            comparison.verdict(r"\sqrt{2}", r"\frac{2}{\sqrt{2}}", _IN_WORKER)

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Decide by text and exact numbers, or refuse text that no later step may see."""
        return self._decide(answer, _undecided, _ANYWHERE)

    def grade(self, answer: base.Answer) -> base.Grade:
        """Decide, evaluating if need be."""
        decided = self._decide(answer, self._symbolic or _undecided, _IN_WORKER)
        if decided is not None:
            return decided
        extracted = extraction.answer_of(answer.completion, compat=self._compat)
        return _failed(enums.VerdictReason.PARSE_ERROR, extracted or "", "not a readable expression")

    def _decide(
        self, answer: base.Answer, symbolic: areal_ladder.Symbolic, rules: comparison.Rules
    ) -> base.Grade | None:
        extracted = extraction.answer_of(answer.completion, compat=self._compat)
        if extracted is None or extraction.is_empty(extracted):
            return _failed(enums.VerdictReason.NO_ANSWER, extracted, "" if extracted is None else _EMPTY)
        if len(extracted) > spans.MAX_ANSWER_CHARS or brackets.depth(extracted) > screen.MAX_DEPTH:
            return _failed(enums.VerdictReason.PARSE_ERROR, extracted, "longer or deeper nested than the bounds")
        ladder = areal_ladder.Ladder(symbolic=_screened(symbolic))
        decisions = []
        for member in self._golds(answer.columns):
            same = _equal_compat(ladder, extracted, member) if self._compat else _equal_strict(extracted, member, rules)
            if same:
                return base.passed(extracted)
            decisions.append(same)
        if self._compat:
            return _failed(enums.VerdictReason.WRONG, extracted) if None not in decisions else _open(extracted)
        if None in decisions:
            return None
        if comparison.is_over_bounds(extracted):
            return _failed(enums.VerdictReason.PARSE_ERROR, extracted, "not a readable expression")
        return _failed(enums.VerdictReason.WRONG, extracted)

    def _golds(self, columns: Mapping[str, object]) -> tuple[str, ...]:
        texts = self._texts(columns)
        golds = [extraction.gold_of(text, compat=self._compat) for text in texts]
        if None in golds:
            raise errors.DataError(f"{SOLUTIONS!r}: no rule finds an answer in member {golds.index(None)}")
        return tuple(member for member in golds if member is not None)

    def _texts(self, columns: Mapping[str, object]) -> tuple[str, ...]:
        if self._solutions is not None:
            query_id = metadata.query_id(columns)
            if query_id not in self._solutions:
                raise errors.DataError(f"{metadata.QUERY_ID!r} {query_id!r} is not in the file of solutions")
            return self._solutions[query_id]
        if SOLUTIONS in columns:
            return gold.gold_texts({gold.ANSWER: columns[SOLUTIONS]})
        return gold.gold_texts(columns)


def _equal_compat(ladder: areal_ladder.Ladder, extracted: str, member: str) -> bool | None:
    ours, theirs = normalization.compat(extracted), normalization.compat(member)
    if extraction.is_empty(ours) or extraction.is_empty(theirs):
        return False
    return ladder.equal(ours, theirs)


def _equal_strict(extracted: str, member: str, rules: comparison.Rules) -> bool | None:
    """Return whether the answer says what the gold says, with corrections M2, M4, M6 and M8."""
    if "j" in extracted and "i" not in extracted and "i" in member:
        extracted = extracted.replace("j", "i")
    verdict = comparison.verdict(extracted, member, rules)
    if verdict is comparison.Verdict.OPEN:
        return None
    return verdict is comparison.Verdict.SAME or areal_ladder.is_option(extracted, member)


def _open(extracted: str) -> base.Grade | None:
    try:
        screen.check(normalization.compat(extracted))
    except screen.RefusedError as refusal:
        return _failed(enums.VerdictReason.PARSE_ERROR, extracted, str(refusal))
    return None


def _undecided(ours: str, theirs: str) -> bool | None:
    del ours, theirs
    return None


def _screened(symbolic: areal_ladder.Symbolic) -> areal_ladder.Symbolic:
    """Return `symbolic` behind the bounds of the screen: over them, or outside its grammar, nothing is decided."""

    # One answer meets several golds, and a long one takes as long to screen each time.
    passes = functools.lru_cache(maxsize=8)(screen.passes)

    def screened(ours: str, theirs: str) -> bool | None:
        return symbolic(ours, theirs) if passes(ours) and passes(theirs) else None

    return screened


def _failed(reason: enums.VerdictReason, extracted: str | None, detail: str = "") -> base.Grade:
    return base.failed(reason, extracted=extracted or "", formatted=extracted is not None, detail=detail)
