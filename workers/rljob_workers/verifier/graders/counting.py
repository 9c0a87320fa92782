"""`gsm8k` and `clevr_count_70k`: the number after four hashes, the last number, or the number in brackets.

Options of gsm8k: `method` strict or flexible (an extraction rule; it has nothing to do with `mode`), or math_verify,
which `gsm8k.py` serves; `formatScore`, given to an answer that was found and is wrong; `precision`, significant digits
of math_verify. Of clevr_count_70k: `answerFormat` brackets or hashes, and `method` for hashes.
Reproduces the rewards of AReaLite (mode compat). Mode strict corrects: G1 spaces, currency signs and a plus sign after
the four hashes, trailing punctuation; G2 exact decimals; G3 commas and trailing punctuation of flexible; G4 spaces and
a sign inside brackets. Pure, linear, on capped text."""

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from rljob_api import enums, errors, process_config
from rljob_api.manifest import reward_options
from rljob_workers.data import gold
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import spans

MAX_NUMBER_CHARS = 1000

_HASHES_COMPAT = re.compile(r"#### (-?[0-9.,]{1,1000})")
_HASHES = re.compile(
    r"####\s{0,64}([-+]?)\s{0,4}(?:\\?[$€£¥₹])?\s{0,4}([-+]?)\s{0,4}([0-9][0-9,]{0,1000}(?:\.[0-9]{1,1000})?|\.[0-9]{1,1000})"
)
# What follows the digits is part of the number, so that the digits alone are not the answer.
_GOES_ON = re.compile(
    r"[.,]?[0-9]|\s{0,4}(?:[/^*:!\u00d7\u00f7+=<>_]|\\times|\\cdot|\\frac|-\s{0,4}[0-9])|\s{1,4}[0-9.]"
    r"|[A-Za-z\u03c0](?![A-Za-z])"
    r"|\s{0,4}(?:hundred|thousand|million|billion|trillion|dozen|[\u767e\u5343\u4e07\u4ebf])"
    r"|\s{0,4},?\s{0,4}(?:or|and|to|\u6216)\s{0,4}[-+$]?[0-9]|,\s{0,4}[0-9]|e[-+]?[0-9]",
    re.IGNORECASE,
)
_GOES_BEFORE = re.compile(r"[0-9)]\s{0,4}(?:[-+*/^:_\u00d7\u00f7]{1,2}|or|\u6216)\s{0,4}$")
_EMPHASIS = re.compile(r"(?<![\w)*])\*\*([^*\n]{1,200})\*\*(?![\w(*])")
_BOXED = re.compile(r"\\boxed\{([^{}]{1,200})\}")
_MINUS = dict.fromkeys(map(ord, "\u2212\u2013\u2012\ufe63\uff0d"), "-")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,300}|[0-9]{1,1000}")
_FLEXIBLE = re.compile(r"-?[0-9.,]{1,1000}")
_BRACKETS_COMPAT = re.compile(r"\[([0-9.]{1,1000})\]")
_BRACKETS = re.compile(r"\[\s{0,64}([-+]?[0-9.]{1,1000})\s{0,64}\]")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]{1,1000}\.?[0-9]{0,1000}|\.[0-9]{1,1000})")


def hashes(text: str, *, compat: bool) -> str | None:
    """Return the number after the last four hashes, without the commas between its thousands.

    strict: where the digits continue as something else ("3/4", "5 million", "1,2"), that whole text, which is not a
    number.
    """
    capped = text[-spans.MAX_SCANNED_CHARS :]
    if compat:
        matches: list[str] = _HASHES_COMPAT.findall(capped)
        return matches[-1].replace(",", "") if matches else None
    plain = _plain(capped)
    last = None
    for match in _HASHES.finditer(plain):
        last = match
    if last is None:
        return None
    first, second, number = last.groups()
    whole, point, decimals = number.rstrip(",").partition(".")
    end = last.end() - (len(number) - len(number.rstrip(",")))
    if _GOES_ON.match(plain, end) or (whole and not _GROUPED.fullmatch(whole)):
        return plain[last.start() + 4 : end + 16].strip()
    return ("-" if "-" in first + second else "") + whole.replace(",", "") + point + decimals


def gold_number(text: str, *, compat: bool) -> str | None:
    """Return the number that a gold has after its last four hashes; strict falls back to the original's rule."""
    numbers = hashes(text, compat=compat)
    if not compat and (numbers is None or not _DECIMAL.fullmatch(numbers)):
        return hashes(text, compat=True) or numbers
    return numbers


def flexible(text: str, *, compat: bool) -> str | None:
    """Return the last run of digits, dots and commas; strict takes a run of commas that group no thousands for a list,
    of which the last counts.

    strict: where the digits are part of something else ("3/4", "5 million", "5 or 6"), that whole text, which is no
    number.
    """
    capped = text[-spans.MAX_SCANNED_CHARS :]
    if compat:
        runs = [run for run in _FLEXIBLE.findall(capped) if run not in ("", ".")]
        return runs[-1] if runs else None
    plain, last = _plain(capped), None
    for match in _FLEXIBLE.finditer(plain):
        last = match if any(char.isdigit() for char in match.group()) else last
    if last is None:
        return None
    run = last.group().rstrip(".,")
    end = last.start() + len(run)
    before = plain[max(0, last.start() - 16) : last.start()]
    is_factor = before[-1:].isdigit() if run.startswith("-") else _GOES_BEFORE.search(before) is not None
    # In prose an exclamation mark ends a sentence.
    if is_factor or (plain[end : end + 1] != "!" and _GOES_ON.match(plain, end)):
        return f"{before}{plain[last.start() : end + 16]}".strip()
    return _last_member(run)


def _last_member(run: str) -> str:
    sign, body = ("-", run[1:]) if run.startswith("-") else ("", run)
    whole, _, _ = body.partition(".")
    if _GROUPED.fullmatch(whole):
        return sign + body.replace(",", "")
    return body.rpartition(",")[2] if "," in body else run


def _plain(text: str) -> str:
    """Return a text with ASCII signs, without marks of emphasis and boxes around numbers."""
    signed = text if text.isascii() else text.translate(_MINUS)
    return _BOXED.sub(r"\1", _EMPHASIS.sub(r"\1", signed)) if "*" in text or "\\" in text else signed


def brackets(text: str, *, compat: bool) -> str | None:
    """Return the last number in square brackets."""
    matches: list[str] = (_BRACKETS_COMPAT if compat else _BRACKETS).findall(text[-spans.MAX_SCANNED_CHARS :])
    return matches[-1] if matches else None


def same(ours: str, theirs: str, *, compat: bool) -> bool:
    """Return whether two extracted numbers are equal: as text, or in strict mode as exact decimals."""
    if compat or not (_DECIMAL.fullmatch(ours) and _DECIMAL.fullmatch(theirs)):
        return ours == theirs
    return Decimal(ours) == Decimal(theirs)


class CountGrader(base.SingleTimeLimit):
    """Compares one extracted number; decides in place and needs no worker."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError for an unknown option. The type in `config` says which of the two rewards it is."""
        self._compat, self._format_score, self._rule = config.mode == "Compat", 0.0, "brackets"
        if config.type == "gsm8k":
            gsm8k = base.options(reward_options.Gsm8kOptions, config)
            self._rule, self._format_score = gsm8k.method, gsm8k.format_score
        else:
            clevr = base.options(reward_options.ClevrOptions, config)
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

    def quick(self, answer: base.Answer) -> base.Grade:
        """Decide; linear in the text."""
        numbers = self._extract(answer.completion)
        if numbers is None:
            return base.failed(enums.VerdictReason.NO_ANSWER)
        if any(same(numbers, member, compat=self._compat) for member in self._golds(answer.columns)):
            return base.passed(numbers)
        wrong = base.failed(enums.VerdictReason.WRONG, extracted=numbers, formatted=True)
        return replace(wrong, score=self._format_score)

    def grade(self, answer: base.Answer) -> base.Grade:
        return self.quick(answer)

    def _extract(self, text: str) -> str | None:
        if self._rule == "brackets":
            return brackets(text, compat=self._compat)
        if self._rule == "flexible":
            return flexible(text, compat=self._compat)
        return hashes(text, compat=self._compat)

    def _golds(self, columns: Mapping[str, object]) -> tuple[str, ...]:
        texts = gold.gold_texts(columns)
        if self._rule == "brackets":
            return texts
        numbers = [gold_number(text, compat=self._compat) for text in texts]
        if None in numbers:
            raise errors.DataError(f"{gold.ANSWER!r} has no '#### number', which gsm8k and hashes read the gold from")
        return tuple(number for number in numbers if number is not None)
