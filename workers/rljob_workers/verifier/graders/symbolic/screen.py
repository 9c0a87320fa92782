"""May this answer be handed to a symbolic engine? A reader that bounds sizes and computes nothing.

It refuses text outside a small grammar (no quotes, attributes, dunders, words) and text whose value could be huge:
each part gets an upper bound on the digits of its value and of its reciprocal; powers multiply that bound, factorials
are estimated with lgamma, everything else adds. Bounds: the limits before any evaluation, and their complements.
"""

import dataclasses
import itertools
import math
import re

from rljob_workers.verifier.graders.math import brackets, glyphs

MAX_CHARS = 4096
MAX_DEPTH = 64
MAX_LITERAL_DIGITS = 1000
MAX_POWER_DIGITS = 10_000
MAX_TOWER = 2
MAX_FACTORIAL = 2000
MAX_SYMBOLS = 12
MAX_ELEMENTS = 64

_TOKEN = re.compile(
    r"""(?P<env>\\(?:begin|end)\{[pbvBV]?matrix\})
      | (?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?)
      | (?P<command>\\(?:[A-Za-z]+|[,;:! %{}()\[\]\\$|]))
      | (?P<word>[A-Za-z]+)
      | (?P<power>\^|\*\*)
      | (?P<factorial>!(?!=))
      | (?P<open>[({\[]) | (?P<close>[)}\]])
      | (?P<other>!=|[-+*/=<>,:;|&%$~\u00d7÷·\u2212\u2013≤≥≠π√∞°\s]|_(?!_))
    """,
    re.VERBOSE,
)
_FUNCTION_NAMES = "sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh log exp sqrt min max gcd lcm det mod and"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
# Products of these letters are common; any other run of three is a word, whose letters must not be multiplied.
_PRODUCT = re.compile(r"[abcxyz]{3}")
_EVALUATED_COMMANDS = (
    r"\sum \prod \int \iint \iiint \oint \lim \limsup \liminf \bigcup \bigcap \Gamma \zeta \boxed \fbox"
)
_EVALUATED = frozenset(_EVALUATED_COMMANDS.split())
_SPACING_COMMANDS = r"\, \; \: \! \left \right \( \) \[ \] \$ \quad \qquad \displaystyle"
_SPACING = frozenset((*_SPACING_COMMANDS.split(), "\\ "))
_BINOMIALS = frozenset((r"\binom", r"\dbinom", r"\tbinom"))
# What a letter or a constant such as \pi counts for; it makes a large power of a symbol count as large.
_SYMBOL_DIGITS = math.log10(2)
_COMMAND_DIGITS = math.log10(4)
_MOST_ARGUMENTS = 3


class RefusedError(Exception):
    """The text is outside the grammar or over a bound; the message says which."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """Digits: at least log10 of the value's and its reciprocal's magnitude. `exact`: a single positive literal."""

    digits: float = 0.0
    tower: int = 0
    factorial: bool = False
    exact: bool = False

    def combined(self, other: "Bound") -> "Bound":
        """Return the bound of both parts added, multiplied or divided."""
        return Bound(
            digits=_checked(self.loose + other.loose),
            tower=max(self.tower, other.tower),
            factorial=self.factorial or other.factorial,
        )

    @property
    def loose(self) -> float:
        """Return log10(value + 1): a sum is at most the product of its terms plus one each."""
        return math.log10(10**self.digits + 1) if self.exact and self.digits < 300 else self.digits


def check(text: str) -> None:
    """Raise RefusedError unless `text` is inside the grammar and every bound."""
    if len(text) > MAX_CHARS:
        raise RefusedError(f"longer than {MAX_CHARS} characters")
    tokens = _tokens(text)
    _check_counts(tokens)
    reader = _Reader([token for token in tokens if not _is_idle(token)])
    reader.sequence(0)
    if not reader.at_end():
        raise RefusedError("brackets do not match")


def passes(text: str) -> bool:
    """Return whether `check` lets a text through."""
    try:
        check(text)
    except RefusedError:
        return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise RefusedError(f"{text[position]!r} is outside the grammar")
        kind = str(match.lastgroup)
        _check_token(kind, match.group())
        tokens.append(_Token(kind, match.group()))
        position = match.end()
    return tokens


def _check_token(kind: str, text: str) -> None:
    if kind == "word" and len(text) > 2 and text.lower() not in _FUNCTIONS and not _PRODUCT.fullmatch(text):
        raise RefusedError(f"{text[:32]!r} is a word, not a formula")
    if kind == "number" and sum(char.isdigit() for char in text) > MAX_LITERAL_DIGITS:
        raise RefusedError(f"a literal of more than {MAX_LITERAL_DIGITS} digits")
    if kind == "command" and text in _EVALUATED:
        raise RefusedError(f"{text} is not evaluated")


def _is_idle(token: _Token) -> bool:
    return token.kind == "env" or token.text in _SPACING or token.text.isspace()


def _check_counts(tokens: list[_Token]) -> None:
    if sum(token.text in (",", ";", "&", "\\\\") for token in tokens) >= MAX_ELEMENTS:
        raise RefusedError(f"more than {MAX_ELEMENTS} elements")
    letters = {char for token in tokens if token.kind == "word" for char in token.text if token.text not in _FUNCTIONS}
    if len(letters) > MAX_SYMBOLS:
        raise RefusedError(f"more than {MAX_SYMBOLS} symbols")


def _checked(digits: float) -> float:
    if digits > MAX_POWER_DIGITS:
        raise RefusedError(f"a value of more than {MAX_POWER_DIGITS} digits")
    return digits


class _Reader:
    """Recursive descent over tokens: sequence = item*, item = atom ('^' item | '!')*, atom = literal or group."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._next = tokens, 0

    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    def _peek(self) -> str:
        return "" if self.at_end() else self._tokens[self._next].kind

    def sequence(self, depth: int) -> Bound:
        if depth > MAX_DEPTH:
            raise RefusedError(f"nested deeper than {MAX_DEPTH}")
        bounds = []
        while self._peek() not in ("", "close"):
            if self._peek() == "other":
                self._next += 1
            else:
                bounds.append(self._item(depth))
        total = bounds[0] if bounds else Bound()
        for bound in bounds[1:]:
            total = total.combined(bound)
        return total

    def _item(self, depth: int) -> Bound:
        if self._peek() in ("power", "factorial"):
            raise RefusedError("an operator without its left side")
        bound = self._atom(depth)
        while self._peek() in ("power", "factorial"):
            kind = self._peek()
            self._next += 1
            bound = _power(bound, self._exponent(depth)) if kind == "power" else _factorial(bound)
        return bound

    def _exponent(self, depth: int) -> Bound:
        while self._peek() == "other":
            self._next += 1
        # One level deeper: "2^2^2^..." nests as brackets would.
        if depth >= MAX_DEPTH or self._peek() in ("", "close"):
            raise RefusedError("a power without exponent, or nested too deep")
        return self._item(depth + 1)

    def _atom(self, depth: int) -> Bound:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            return _literal(token.text)
        if token.kind == "open":
            return self._group(depth)
        if token.text in _BINOMIALS:
            return _binomial(self._argument(depth), self._argument(depth))
        if token.kind == "word":
            return Bound(digits=_SYMBOL_DIGITS * len(token.text))
        return self._command(depth)

    def _command(self, depth: int) -> Bound:
        # \frac, \sqrt and the like own what follows: in 10^\frac{a}{b} both groups belong to the exponent.
        bound = Bound(digits=_COMMAND_DIGITS)
        for _ in range(_MOST_ARGUMENTS):
            if self._peek() not in ("open", "number"):
                break
            bound = bound.combined(self._atom(depth))
        return bound

    def _group(self, depth: int) -> Bound:
        bound = self.sequence(depth + 1)
        if self.at_end():
            raise RefusedError("brackets do not match")
        self._next += 1
        return bound

    def _argument(self, depth: int) -> Bound:
        if self._peek() != "open":
            raise RefusedError("a binomial without braces")
        return self._atom(depth)


def _literal(text: str) -> Bound:
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    significant = (whole + decimals).lstrip("0")
    if len(exponent) > 7:
        raise RefusedError(f"a value of more than {MAX_POWER_DIGITS} digits")
    value = math.log10(int(significant[:16])) + len(significant[16:]) if significant else 0.0
    digits = _checked(value + len(decimals) + abs(int(exponent or 0)))
    return Bound(digits=digits, exact=True)


def _power(base: Bound, exponent: Bound) -> Bound:
    tower = max(base.tower, exponent.tower + 1)
    if tower > MAX_TOWER:
        raise RefusedError(f"a tower of more than {MAX_TOWER} exponents")
    if exponent.digits > math.log10(MAX_POWER_DIGITS) + 2:
        raise RefusedError(f"a value of more than {MAX_POWER_DIGITS} digits")
    digits = _checked(base.digits * max(1.0, 10**exponent.digits))
    return Bound(digits=digits, tower=tower, factorial=base.factorial or exponent.factorial)


def _factorial(argument: Bound) -> Bound:
    if argument.factorial:
        raise RefusedError("a factorial of a factorial")
    if argument.digits > math.log10(MAX_FACTORIAL) + 1e-9:
        raise RefusedError(f"the factorial of more than {MAX_FACTORIAL}")
    digits = math.lgamma(10**argument.digits + 1) / math.log(10)
    return Bound(digits=_checked(digits), tower=argument.tower, factorial=True)


def _binomial(top: Bound, bottom: Bound) -> Bound:
    if top.factorial or bottom.factorial or max(top.digits, bottom.digits) > math.log10(MAX_FACTORIAL) + 1e-9:
        raise RefusedError(f"a binomial coefficient of more than {MAX_FACTORIAL}")
    return Bound(digits=10**top.digits * math.log10(2), tower=max(top.tower, bottom.tower), factorial=True)


_RUN = re.compile(r"(?:\\[A-Za-z]{1,32}|\\.|[-+*/^!()\[\]{}0-9.,%=<>$|& ]|(?<![A-Za-z])[A-Za-z]{1,2}(?![A-Za-z]))+")
_LARGE = re.compile(
    rf"[0-9A-Za-z)\]}}]\s{{0,64}}(?:!|\^|\*\*)|[0-9]{{{MAX_LITERAL_DIGITS}}}|[eE][0-9]{{3}}|\\[dt]?binom"
)
_DELIMITERS = re.compile(r"\\boxed|\$|\\[()\[\]]|(?<=[0-9)}])!(?=\s*$)")


def first_hazard(text: str) -> str:
    """Return why a library that looks for expressions in prose may not see this text, or an empty string. Linear.

    Such a library may find any run of digits, operators and LaTeX. Each run that could be large (it has a power, a
    factorial or a long literal) must pass `check` on its own.
    """
    if "__" in text:
        return "two underscores are outside the grammar"
    if brackets.depth(text) > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    for run in _RUN.finditer(glyphs.plain(text)):
        if not _LARGE.search(run.group()):
            continue
        try:
            check(_balanced(_DELIMITERS.sub(" ", run.group())))
        except RefusedError as refusal:
            return str(refusal)
    return ""


def _balanced(run: str) -> str:
    """Return the run with brackets added that prose closes elsewhere; their number bounds nothing here."""
    depth = missing = 0
    for char in run:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            missing, depth = missing + 1, 0
    return "(" * missing + run + ")" * depth


MIN_REPETITIVE_CHARS = 128
_LIMIT = 0.2


def is_repetitive(text: str) -> bool:
    """Return whether a text of more than 128 characters repeats itself: slow for a symbolic library, and never right.

    Score = 2 * sum of the common prefixes of neighbors among the sorted suffixes / (n (n + 1)); above 0.2 is
    repetitive. Quadratic at worst: give at most 4,096 characters. Source: docs/design/graders.md#s-8-2 C.
    """
    count = len(text)
    if count <= MIN_REPETITIVE_CHARS:
        return False
    suffixes = sorted(text[start:] for start in range(count))
    shared = sum(_common(left, right) for left, right in itertools.pairwise(suffixes))
    return 2 * shared / (count * (count + 1)) > _LIMIT


def _common(left: str, right: str) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low
