"""`exact`: the trimmed completion equals the trimmed answer, character for character.

Options: `ignoreCase` (default false) compares case-folded text; `firstLine` (default false) compares only the first
line of the completion that is not blank, for policies that continue writing after the answer.
"""

from collections.abc import Mapping

from rljob_api import enums, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base


class ExactGrader(base.SingleTimeLimit):
    """Text equality; needs no worker."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError for an unknown option."""
        self._options = base.options(reward_options.ExactOptions, config)

    @property
    def needs_worker(self) -> bool:
        """`quick` always decides."""
        return False

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold."""
        gold.check_gold("exact", columns)

    def warm(self) -> None:
        """Nothing to import."""

    def quick(self, answer: base.Answer) -> base.Grade:
        """Decide; linear in the text."""
        extracted = self._extract(answer.completion)
        if not extracted:
            return base.failed(enums.VerdictReason.NO_ANSWER)
        golds = {self._fold(member) for member in gold.gold_texts(answer.columns)}
        if self._fold(extracted) in golds:
            return base.passed(extracted)
        return base.failed(enums.VerdictReason.WRONG, extracted=extracted, formatted=True)

    def grade(self, answer: base.Answer) -> base.Grade:
        return self.quick(answer)

    def _extract(self, completion: str) -> str:
        text = completion.strip()
        return text.split("\n", 1)[0].strip() if self._options.first_line else text

    def _fold(self, text: str) -> str:
        return text.casefold() if self._options.ignore_case else text
