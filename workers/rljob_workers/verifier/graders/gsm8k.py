"""`gsm8k` and `clevr_count_70k`: the number after four hashes, the last number, or the number in brackets.

Options of gsm8k: `method` strict or flexible (an extraction rule; it has nothing to do with `mode`), or math_verify,
which `gsm8k_verify.py` serves; `formatScore`, given to an answer that was found and is wrong; `precision`, significant
digits of math_verify. Of clevr_count_70k: `answerFormat` brackets or hashes, and `method` for
hashes. Reproduces the rewards of AReaLite (mode compat); mode strict corrects G1 to G4.
"""

from collections.abc import Mapping
from dataclasses import replace

from rljob_api import errors, names, roles
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import counts, protocol


class CountGrader(protocol.OneClock):
    """Compares one extracted number; decides in place and needs no worker."""

    def __init__(self, config: roles.GraderConfig) -> None:
        """Raises ManifestError for an unknown option. The type in `config` says which of the two rewards it is."""
        self._compat, self._format_score, self._rule = config.mode == "compat", 0.0, "brackets"
        if config.type == "gsm8k":
            gsm8k = protocol.options(reward_options.Gsm8kOptions, config)
            self._rule, self._format_score = gsm8k.method, gsm8k.format_score
        else:
            clevr = protocol.options(reward_options.ClevrOptions, config)
            self._rule = clevr.method if clevr.answer_format == "hashes" else "brackets"

    @property
    def needs_worker(self) -> bool:
        """`quick` always decides."""
        return False

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError without a gold, or if its last `#### number` is missing where the rule reads one."""
        self._golds(columns)

    def warm(self) -> None:
        """Nothing to import."""

    def quick(self, answer: protocol.Answer) -> protocol.Grade:
        """Decide; linear in the text."""
        found = self._extract(answer.completion)
        if found is None:
            return protocol.failed(names.VerdictReason.NO_ANSWER)
        if any(counts.same(found, member, compat=self._compat) for member in self._golds(answer.columns)):
            return protocol.passed(found)
        wrong = protocol.failed(names.VerdictReason.WRONG, extracted=found, formatted=True)
        return replace(wrong, score=self._format_score)

    def grade(self, answer: protocol.Answer) -> protocol.Grade:
        """Decide."""
        return self.quick(answer)

    def _extract(self, text: str) -> str | None:
        if self._rule == "brackets":
            return counts.brackets(text, compat=self._compat)
        if self._rule == "flexible":
            return counts.flexible(text, compat=self._compat)
        return counts.hashes(text, compat=self._compat)

    def _golds(self, columns: Mapping[str, object]) -> tuple[str, ...]:
        texts = gold.gold_texts(columns)
        if self._rule == "brackets":
            return texts
        numbers = [counts.gold(text, compat=self._compat) for text in texts]
        if None in numbers:
            raise errors.DataError(f"{gold.ANSWER!r} has no '#### number', which gsm8k and hashes read the gold from")
        return tuple(number for number in numbers if number is not None)
