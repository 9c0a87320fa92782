"""Are two short polynomials with rational coefficients the same? Exact, bounded, and enough for most formulas.

Grammar: numbers, single letters, + - * juxtaposition, whole powers, brackets, \\frac and / with a constant below.
Anything else is not read. A polynomial is {monomial: coefficient}, a monomial the sorted letters with their powers.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

MAX_CHARS = 200
MAX_POWER = 16
MAX_TERMS = 64
MAX_DEPTH = 16
MAX_COEFFICIENT_BITS = 1024
# Not e, i (constants), not l and o (too often a 1 and a 0).
LETTERS = frozenset("abcdfghjkmnpqrstuvwxyzABCDFGHJKLMNPQRSTUVWXYZ")

Monomial = tuple[tuple[str, int], ...]
Polynomial = Mapping[Monomial, Fraction]

_TOKEN = re.compile(r"[0-9]{1,40}(?:\.[0-9]{1,40})?|\\frac|\\times|\\div|[A-Za-z]|[-+*/^(){}\[\]]")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ONE: Monomial = ()


class _NotReadError(Exception):
    """Outside the grammar or over a bound."""


def read(text: str) -> Polynomial | None:
    """Return the polynomial that a normalised text spells, None if it is none or is over a bound."""
    if len(text) > MAX_CHARS:
        return None
    tokens = _TOKEN.findall(text)
    if sum(map(len, tokens)) != len(text) or not tokens:
        return None
    reader = _Reader(tokens)
    try:
        found = reader.sum(0)
    except _NotReadError:
        return None
    return found if reader.at_end() else None


def difference(ours: Polynomial, theirs: Polynomial) -> Polynomial:
    """Return ours - theirs without zero terms; empty exactly if both are the same."""
    return _added(ours, _scaled(theirs, Fraction(-1)))


class _Reader:
    """Recursive descent: sum = term (sign term)*, term = factor ('*'? factor | '/' constant)*, factor = atom '^' n."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._next = tokens, 0

    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    def _peek(self) -> str:
        return "" if self.at_end() else self._tokens[self._next]

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def sum(self, depth: int) -> Polynomial:
        if depth > MAX_DEPTH:
            raise _NotReadError
        total = self._signed(depth)
        while self._peek() in ("+", "-"):
            total = _checked(_added(total, self._signed(depth)))
        return total

    def _signed(self, depth: int) -> Polynomial:
        sign = 1
        while self._peek() in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return _scaled(self._term(depth), Fraction(sign))

    def _term(self, depth: int) -> Polynomial:
        product = self._factor(depth)
        while self._peek() not in ("", "+", "-", ")", "]", "}"):
            if self._peek() in ("/", r"\div"):
                self._take()
                product = _divided(product, self._factor(depth))
                # 1/2x is (1/2)x to one reader and 1/(2x) to another.
                if self._peek() not in ("", "+", "-", ")", "]", "}", "*", r"\times"):
                    raise _NotReadError
                continue
            if self._peek() in ("*", r"\times"):
                self._take()
            elif self._peek()[0].isdigit():
                # "x2" and "3 4" are not products to every reader.
                raise _NotReadError
            product = _product(product, self._factor(depth))
        return product

    def _factor(self, depth: int) -> Polynomial:
        base = self._atom(depth)
        if self._peek() != "^":
            return base
        self._take()
        exponent = self._atom(depth)
        power = exponent.get(_ONE, Fraction(0))
        if set(exponent) - {_ONE} or power.denominator != 1 or not 0 <= power <= MAX_POWER or self._peek() == "^":
            raise _NotReadError
        result: Polynomial = {_ONE: Fraction(1)}
        for _ in range(int(power)):
            result = _product(result, base)
        return result

    def _atom(self, depth: int) -> Polynomial:
        token = self._take()
        if token[:1].isdigit():
            return {_ONE: Fraction(token)}
        if token in LETTERS:
            return {((token, 1),): Fraction(1)}
        if token == r"\frac":
            return _divided(self._braced(depth), self._braced(depth))
        if token not in _CLOSING:
            raise _NotReadError
        inner = self.sum(depth + 1)
        if self._take() != _CLOSING[token]:
            raise _NotReadError
        return inner

    def _braced(self, depth: int) -> Polynomial:
        if self._peek() != "{":
            raise _NotReadError
        return self._atom(depth)


def _added(one: Polynomial, other: Polynomial) -> Polynomial:
    total = dict(one)
    for monomial, coefficient in other.items():
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def _scaled(one: Polynomial, factor: Fraction) -> Polynomial:
    return {monomial: factor * coefficient for monomial, coefficient in one.items()}


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    if len(one) * len(other) > MAX_TERMS * MAX_POWER:
        raise _NotReadError
    total: dict[Monomial, Fraction] = {}
    for left, left_coefficient in one.items():
        for right, right_coefficient in other.items():
            monomial = _merged(left, right)
            total[monomial] = total.get(monomial, Fraction(0)) + left_coefficient * right_coefficient
    return _checked({monomial: coefficient for monomial, coefficient in total.items() if coefficient})


def _merged(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for letter, power in right:
        powers[letter] = powers.get(letter, 0) + power
    return tuple(sorted(powers.items()))


def _divided(one: Polynomial, by: Polynomial) -> Polynomial:
    if set(by) != {_ONE} or not by[_ONE]:
        raise _NotReadError
    return _checked(_scaled(one, 1 / by[_ONE]))


def _checked(one: Polynomial) -> Polynomial:
    sizes = (value.numerator.bit_length() + value.denominator.bit_length() for value in one.values())
    if len(one) > MAX_TERMS or max(sizes, default=0) > MAX_COEFFICIENT_BITS:
        raise _NotReadError
    return one
