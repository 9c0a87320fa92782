"""`gsm8k` with `method: math_verify`: whole completion and gold read by math-verify, as AReaL does since 2026.

Plain expressions, then LaTeX, math-verify's default fallback, compared with `precision` significant digits. A text in
which the library would meet a huge value is not given to it. Both modes agree (docs/design/graders.md#s-9).
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from rljob_api import enums, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base, counting
from rljob_workers.verifier.graders.math import spans
from rljob_workers.verifier.graders.symbolic import screen


def gsm8k_grader(config: process_config.GraderConfig) -> base.Grader:
    """Return the grader of the method that `config` names. Raises ManifestError for an unknown option."""
    options = base.options(reward_options.Gsm8kOptions, config)
    return Gsm8kVerifyGrader(options) if options.method == "math_verify" else counting.CountGrader(config)


class Gsm8kVerifyGrader(base.SingleTimeLimit):
    """Decides in a worker."""

    def __init__(self, options: reward_options.Gsm8kOptions) -> None:
        """Import nothing yet."""
        self._options = options
        self._library: _Library | None = None

    @property
    def needs_worker(self) -> bool:
        """The library does."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold."""
        gold.gold_texts(columns)

    def warm(self) -> None:
        self._library = _Library(self._options.precision)

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Refuse text that the library may not see, and find no answer in text without a digit or letter."""
        text = answer.completion[-spans.MAX_SCANNED_CHARS :]
        if not any(char.isalnum() for char in text):
            return base.failed(enums.VerdictReason.NO_ANSWER)
        refusal = screen.first_hazard(text)
        return base.failed(enums.VerdictReason.PARSE_ERROR, detail=refusal) if refusal else None

    def grade(self, answer: base.Answer) -> base.Grade:
        refused = self.quick(answer)
        if refused is not None:
            return refused
        assert self._library is not None, "warm was called"
        parsed = self._library.parse(answer.completion[-spans.MAX_SCANNED_CHARS :])
        if not parsed:
            return base.failed(enums.VerdictReason.NO_ANSWER)
        extracted = str(parsed[-1])
        if any(self._library.equal(member, parsed) for member in gold.gold_texts(answer.columns)):
            return base.passed(extracted)
        score = self._options.format_score
        return base.Grade(
            score=score,
            reason=enums.VerdictReason.WRONG,
            outcome=enums.VerifyOutcome.FAIL,
            formatted=True,
            extracted=extracted,
        )


class _Library:
    """math-verify 0.8 with its alarms switched off: the supervisor's clock is the limit."""

    def __init__(self, precision: int) -> None:
        import math_verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)
        logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
        self._math_verify, self._precision = math_verify, precision
        self._targets = (
            math_verify.ExprExtractionConfig(try_extract_without_anchor=True),
            math_verify.LatexExtractionConfig(),
        )
        self._parse_gold = functools.lru_cache(maxsize=256)(lambda text: tuple(self.parse(text)))
        self.equal("1/2", self.parse("0.5"))

    # Any: SymPy objects and matrices have no common base.
    def parse(self, text: str) -> list[Any]:
        return list(self._math_verify.parse(text, extraction_config=self._targets, parsing_timeout=None))

    def equal(self, member: str, parsed: list[Any]) -> bool:
        golds = list(self._parse_gold(member))
        verify = self._math_verify.verify
        return bool(golds) and bool(verify(golds, parsed, float_rounding=self._precision, timeout_seconds=None))
