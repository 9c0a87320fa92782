"""Symbolic equality by math-verify. Runs in a grading worker only, on text that `screen` let through.

Model text meets math-verify's LaTeX reader, which builds SymPy nodes, and its expression pattern, which hands digits
and operators alone to an evaluator (a test pins that). Its own time limits are alarms and are switched off: the
supervisor's clock is the limit. Box and anchor patterns stay off where the answer has been extracted already.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any


class MathVerify:
    """math-verify 0.8. Construct it where its imports (about 1 s) may be paid."""

    def __init__(self, *, box_priority: int = -1) -> None:
        """Import math-verify and compile its patterns. `box_priority` -1 ignores boxes, 0 takes them first."""
        import math_verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)
        logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
        self._library = math_verify
        self._targets = (
            math_verify.LatexExtractionConfig(boxed_match_priority=box_priority),
            math_verify.ExprExtractionConfig(),
        )
        # One gold serves a whole group of samples.
        self._parse_gold = functools.lru_cache(maxsize=256)(self._parse)
        self.compare(["1/2"], "0.5")

    def compare(self, golds: Sequence[str], answer: str) -> bool | None:
        """Return whether the answer has the value or structure of any gold; None if the reader makes nothing of it."""
        parsed = list(self._parse(answer))
        if not parsed:
            return None
        return any(self._verify(self._parse_gold(gold), parsed) for gold in golds)

    def _verify(self, gold: tuple[Any, ...], answer: list[Any]) -> bool:
        return bool(gold) and bool(self._library.verify(list(gold), answer, timeout_seconds=None))

    def _parse(self, text: str) -> tuple[Any, ...]:
        # Any: SymPy objects and matrices have no common base.
        return tuple(
            self._library.parse(
                f"${text}$",
                extraction_config=self._targets,
                fallback_mode="no_fallback",
                extraction_mode="first_match",
                parsing_timeout=None,
            )
        )
