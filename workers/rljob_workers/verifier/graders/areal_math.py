"""`areal-math`: the verdicts of AReaL's mathematics verifier (mode compat), or those with corrections M1 to M10.

Golds are the record's `solutions`, from the file that option `solutionPath` names, else from the record itself (its
`answer`, where the source has been read already). The reward is 1 if the answer equals any of them.
"""

import functools
import pathlib
from collections.abc import Mapping

from rljob_api import errors, names, reward_options, roles
from rljob_workers.data import gold
from rljob_workers.verifier.graders import (
    areal_extract,
    areal_ladder,
    areal_text,
    brackets,
    metadata,
    protocol,
    screen,
)
from rljob_workers.verifier.graders.answers import spans

SOLUTIONS = "solutions"
_EMPTY = "the extracted text is empty"


class ArealMathGrader:
    """Extraction and normalisation in place, symbolic equality in a worker."""

    def __init__(self, config: roles.GraderConfig) -> None:
        """Raises ManifestError for an unknown option or an unusable file of solutions."""
        options = protocol.options(reward_options.SolutionOptions, config)
        self._compat = config.mode == "compat"
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

    def num_clocks(self, columns: Mapping[str, object]) -> int:
        """Return the number of solutions: the limits are of one pair of answer and gold."""
        return len(self._golds(columns))

    def unread_golds(self, columns: Mapping[str, object]) -> list[str]:
        """Return the golds that the symbolic rung may not see."""
        golds = self._golds(columns)
        texts = [areal_text.compat(member) if self._compat else areal_text.strict(member, "=") for member in golds]
        return [text for text in texts if not screen.passes(text)]

    def warm(self) -> None:
        """Import the symbolic rung."""
        from rljob_workers.verifier.graders import areal_symbolic

        self._symbolic = functools.partial(areal_symbolic.symbolically_equal, compat=self._compat)
        self._symbolic("1/2+x", "x+0.5")

    def quick(self, answer: protocol.Answer) -> protocol.Grade | None:
        """Decide by text and numbers, or refuse text that the symbolic rung may not see."""
        return self._decide(answer, _undecided)

    def grade(self, answer: protocol.Answer) -> protocol.Grade:
        """Decide, symbolically if need be."""
        assert self._symbolic is not None, "warm was called"
        decided = self._decide(answer, self._symbolic)
        if decided is not None:
            return decided
        found = areal_extract.answer_of(answer.completion, compat=self._compat)
        return _failed(names.VerdictReason.PARSE_ERROR, found or "", "not a readable expression")

    def _decide(self, answer: protocol.Answer, symbolic: areal_ladder.Symbolic) -> protocol.Grade | None:
        found = areal_extract.answer_of(answer.completion, compat=self._compat)
        if found is None or areal_extract.is_empty(found):
            return _failed(names.VerdictReason.NO_ANSWER, found, "" if found is None else _EMPTY)
        if len(found) > spans.MAX_ANSWER_CHARS or brackets.depth(found) > screen.MAX_DEPTH:
            return _failed(names.VerdictReason.PARSE_ERROR, found, "longer or deeper nested than the bounds")
        ladder = areal_ladder.Ladder(compat=self._compat, symbolic=_screened(symbolic))
        decisions = []
        for member in self._golds(answer.columns):
            decisions.append(self._equal(ladder, found, member))
            if decisions[-1]:
                return protocol.passed(found)
        return _failed(names.VerdictReason.WRONG, found) if None not in decisions else self._open(found)

    def _equal(self, ladder: areal_ladder.Ladder, found: str, member: str) -> bool | None:
        if self._compat:
            ours, theirs = areal_text.compat(found), areal_text.compat(member)
        else:
            ours, theirs = areal_text.strict(found, member), areal_text.strict(member, found)
        if areal_extract.is_empty(ours) or areal_extract.is_empty(theirs):
            return False
        return ladder.equal(ours, theirs)

    def _open(self, found: str) -> protocol.Grade | None:
        try:
            screen.check(areal_text.compat(found) if self._compat else areal_text.strict(found, "="))
        except screen.RefusedError as refusal:
            return _failed(names.VerdictReason.PARSE_ERROR, found, str(refusal))
        return None

    def _golds(self, columns: Mapping[str, object]) -> tuple[str, ...]:
        texts = self._texts(columns)
        golds = [areal_extract.gold_of(text, compat=self._compat) for text in texts]
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


def _failed(reason: names.VerdictReason, found: str | None, detail: str = "") -> protocol.Grade:
    return protocol.failed(reason, extracted=found or "", formatted=found is not None, detail=detail)
