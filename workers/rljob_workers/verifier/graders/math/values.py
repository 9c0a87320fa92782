"""Do two trees of `expressions.py` have the same value? By exact numbers, residues, or high-precision evaluation.

Whatever is built of + - * / and whole powers is evaluated in the integers modulo a prime, at points that stand for
letters, pi and e; an imaginary unit exists there. Two such expressions are the same rational function if they agree at
two points (a wrong agreement has a chance below 2^-100), and surely differ if not. All else (roots, functions, letters
in exponents) is evaluated with mpmath to more digits than the texts hold, at several points. All sizes are bounded
before anything is computed.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rljob_workers.verifier.graders.math.expressions import Node

MAX_DIGITS = 10_000
MAX_FACTORIAL = 2000
MAX_TOWER = 2
MAX_LETTERS = 12
# Leaves of a tree whose roots and functions may be evaluated: seconds at worst, in a worker.
MAX_NODES = 1500
_PRIME = 2**521 - 1
# 2^521 - 1 is 3 modulo 4: -1 has no root, so a pair stands for a + bi.
_SEEDS = (0x9E3779B97F4A7C15F39CC0605CEDC835, 0xC2B2AE3D27D4EB4F165667B19E3779F9)
_BITS = 320
_MOST_BITS = 40_000


class TooLargeError(Exception):
    """A value, or the work to get it, is over a bound; the message says which."""


class _OtherwiseError(Exception):
    """This way of evaluating does not apply."""


class _UndefinedError(Exception):
    """There is no value at this point."""


def exact(node: Node) -> Fraction | None:
    """Return the value of a rational number, None if the tree or a part of it is none. Raises TooLargeError."""
    try:
        return _exact(node)
    except (_OtherwiseError, _UndefinedError):
        return None


def letters(node: Node) -> set[str]:
    """Return the names of a tree's letters."""
    if node[0] == "sym":
        return {node[1]}
    return set().union(*(letters(child) for child in children(node)), set())


def children(node: Node) -> Sequence[Node]:
    kind = node[0]
    if kind in ("num", "sym", "const"):
        return ()
    if kind in ("add", "mul"):
        return tuple(node[1])
    if kind == "fn":
        return node[2:]
    return node[1:3] if kind in ("pow", "pm") else node[1:2]


def check(node: Node) -> None:
    """Raise TooLargeError if a power, factorial or literal of a tree is over its bound, or letters are too many."""
    _size(node)
    if len(letters(node)) > MAX_LETTERS:
        raise TooLargeError(f"more than {MAX_LETTERS} letters")


def same_exactly(ours: Node, theirs: Node) -> bool | None:
    """Return whether two trees are the same rational function of their letters; None if a tree is none.

    Raises TooLargeError. Linear but for big numbers, which are bounded.
    """
    check(ours)
    check(theirs)
    defined = 0
    for seed in _SEEDS:
        try:
            if _residue(ours, seed) != _residue(theirs, seed):
                return False
            defined += 1
        except _OtherwiseError:
            return None
        except _UndefinedError:
            continue
    return bool(defined)


def same(ours: Node, theirs: Node) -> bool:
    """Return whether two trees have the same value wherever they are looked at. Raises TooLargeError."""
    decided = same_exactly(ours, theirs)
    if decided is not None:
        return decided
    names = sorted(letters(ours) | letters(theirs))
    return _agree(ours, theirs, names, lambda left, right: left - right)


def proportional(ours: Node, theirs: Node) -> bool:
    """Return whether one tree is the other times a constant other than 0: the equations `tree = 0` are the same."""
    check(ours)
    check(theirs)
    names = sorted(letters(ours) | letters(theirs))
    ratio: list[Any] = []

    def rest(left: Any, right: Any) -> Any:
        if not ratio:
            if not left or not right:
                raise _UndefinedError
            ratio.append(left / right)
        return left - ratio[0] * right

    return bool(names) and _agree(ours, theirs, names, rest, least=3)


def real(node: Node, bits: int = 200) -> Any | None:
    """Return the value of a number without letters as an mpmath real; None if it is none. Raises TooLargeError."""
    import mpmath

    check(node)
    if letters(node) or _count(node) > MAX_NODES:
        return None
    with mpmath.workprec(bits):
        try:
            value = _numeric(node, {})
        except (_UndefinedError, _OtherwiseError, ZeroDivisionError, OverflowError, ValueError):
            return None
        if isinstance(value, mpmath.mpc):
            if abs(value.imag) > mpmath.mpf(2) ** (-bits // 2) * max(1, abs(value.real)):
                return None
            value = value.real
        return value if mpmath.isfinite(value) else None


def _agree(ours: Node, theirs: Node, names: Sequence[str], rest: Callable[[Any, Any], Any], *, least: int = 1) -> bool:
    import mpmath

    if _count(ours) + _count(theirs) > MAX_NODES:
        raise TooLargeError(f"more than {MAX_NODES} parts in formulas with roots or functions")
    digits = _literal_bits(ours) + _literal_bits(theirs)
    bits = min(_BITS + 2 * digits, _MOST_BITS)
    agreed = 0
    with mpmath.workprec(bits):
        for point in _points(names, mpmath):
            try:
                left, right = _numeric(ours, point), _numeric(theirs, point)
                difference = abs(rest(left, right))
            except (_UndefinedError, ZeroDivisionError, OverflowError, ValueError):
                continue
            except _OtherwiseError:
                return False
            scale = max(abs(left), abs(right)) if left and right else mpmath.mpf(1)
            if not (mpmath.isfinite(difference) and mpmath.isfinite(scale)):
                if left == right and not names:
                    return True
                continue
            if difference > scale * mpmath.mpf(2) ** (-(bits // 2)):
                return False
            agreed += 1
    return agreed >= (max(least, 2) if names else 1)


def _points(names: Sequence[str], mpmath: Any) -> list[Mapping[str, Any]]:
    """Values for letters, some positive, some of either sign; the same on every machine."""
    if not names:
        return [{}]
    points: list[Mapping[str, Any]] = []
    for number in range(6):
        point = {}
        for place, name in enumerate(names):
            noise = _draw(f"{number} {name}", _SEEDS[0]) % 1_000_003
            size = (mpmath.mpf(noise) + mpmath.mpf(1) / 3) / 1_000_003 * 2 + mpmath.mpf(1) / 7
            point[name] = -size if number >= 3 and (noise + place) % 2 else size
        points.append(point)
    # Every letter negative once: the root of a square is not a letter there.
    points.append({name: -value for name, value in points[0].items()})
    return points


# Exact rational numbers.


def _exact(node: Node) -> Fraction:
    kind = node[0]
    if kind == "num":
        return Fraction(node[1])
    if kind == "neg":
        return -_exact(node[1])
    if kind == "add":
        return sum((_exact(part) for part in node[1]), Fraction(0))
    if kind == "mul":
        value = Fraction(1)
        for part in node[1]:
            value = _bounded(value * _exact(part))
        return value
    if kind == "inv":
        value = _exact(node[1])
        if not value:
            raise _UndefinedError
        return 1 / value
    if kind == "pct":
        return _exact(node[1]) / 100
    if kind == "pow":
        return _exact_power(_exact(node[1]), _exact(node[2]))
    if kind == "fn":
        return _exact_function(node[1], [_exact(part) for part in node[2:]])
    raise _OtherwiseError


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * MAX_DIGITS / math.log10(2):
        raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
    return value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _exact_root(base, exponent)
    if not base and exponent <= 0:
        raise _UndefinedError
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and abs(exponent) * size * math.log10(2) > 2 * MAX_DIGITS:
        raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
    return base ** int(exponent)


def _exact_root(base: Fraction, exponent: Fraction) -> Fraction:
    degree = exponent.denominator
    if base < 0 or degree > 64:
        raise _OtherwiseError
    top, bottom = _integer_root(base.numerator, degree), _integer_root(base.denominator, degree)
    if top**degree != base.numerator or bottom**degree != base.denominator:
        raise _OtherwiseError
    return _exact_power(Fraction(top, bottom), Fraction(exponent.numerator))


def _integer_root(value: int, degree: int) -> int:
    if degree == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low


def _exact_function(name: str, values: Sequence[Fraction]) -> Fraction:
    value = values[0]
    whole = all(argument.denominator == 1 for argument in values)
    if name == "root":
        if values[1].denominator != 1 or values[1] < 1:
            raise _OtherwiseError
        if value < 0 and values[1] % 2:
            return -_exact_root(-value, 1 / values[1])
        return _exact_power(value, 1 / values[1])
    if name == "factorial":
        if not whole or not 0 <= value <= MAX_FACTORIAL:
            raise TooLargeError(f"the factorial of something else than 0 to {MAX_FACTORIAL}")
        return Fraction(math.factorial(int(value)))
    if name == "binom" and whole and 0 <= values[0] <= MAX_FACTORIAL and values[1] >= 0:
        return Fraction(math.comb(int(values[0]), int(values[1])))
    simple: Mapping[str, Callable[[], Fraction]] = {
        "abs": lambda: abs(value),
        "floor": lambda: Fraction(math.floor(value)),
        "ceil": lambda: Fraction(math.ceil(value)),
        "max": lambda: max(values),
        "min": lambda: min(values),
    }
    if name in simple:
        return simple[name]()
    if name in ("gcd", "lcm") and whole:
        return Fraction((math.gcd if name == "gcd" else math.lcm)(*(int(argument) for argument in values)))
    raise _OtherwiseError


# Bounds: log10 of the magnitude that a part can have, from above, and how many exponents are stacked.


def _size(node: Node) -> tuple[float, int, bool]:
    kind = node[0]
    if kind == "num":
        value = node[1]
        return (max(value.numerator.bit_length(), value.denominator.bit_length()) * math.log10(2), 0, False)
    if kind in ("sym", "const"):
        return (0.5, 0, False)
    if kind == "pow":
        return _power_size(node)
    sizes = [_size(child) for child in children(node)]
    digits = sum(size[0] for size in sizes) + 0.31
    tower, factorial = max(size[1] for size in sizes), any(size[2] for size in sizes)
    if kind == "fn":
        if node[1] == "factorial":
            return _factorial_size(node, tower, factorial=factorial)
        if node[1] == "exp" and digits > math.log10(MAX_DIGITS):
            raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
        if node[1] == "binom" and max(sizes[0][0], sizes[1][0]) > math.log10(MAX_FACTORIAL) + 0.4:
            raise TooLargeError(f"a binomial coefficient of more than {MAX_FACTORIAL}")
        digits = {"exp": 10 ** min(digits, 4), "binom": MAX_FACTORIAL / 3}.get(node[1], digits)
    if digits > 4 * MAX_DIGITS:
        raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
    return (digits, tower, factorial)


def _power_size(node: Node) -> tuple[float, int, bool]:
    base, exponent = _size(node[1]), _size(node[2])
    tower = max(base[1], exponent[1] + 1)
    if tower > MAX_TOWER:
        raise TooLargeError(f"a tower of more than {MAX_TOWER} exponents")
    if exponent[0] > math.log10(MAX_DIGITS) + 2:
        raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
    value = _try_exact(node[2])
    times = abs(float(value)) if value is not None else 10 ** exponent[0]
    digits = base[0] * max(1.0, times)
    if digits > MAX_DIGITS + 1:
        raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
    return (digits, tower, base[2] or exponent[2])


def _try_exact(node: Node) -> Fraction | None:
    value = exact(node)
    return value if value is not None and abs(value) < 10 ** (MAX_DIGITS // 10) else None


def _factorial_size(node: Node, tower: int, *, factorial: bool) -> tuple[float, int, bool]:
    if factorial:
        raise TooLargeError("a factorial of a factorial")
    value = exact(node[2])
    if value is None or value > MAX_FACTORIAL:
        if value is None and letters(node[2]):
            return (MAX_DIGITS / 2, tower, True)
        raise TooLargeError(f"the factorial of more than {MAX_FACTORIAL}")
    return (math.lgamma(max(0.0, float(value)) + 1) / math.log(10), tower, True)


def _count(node: Node) -> int:
    return 1 + sum(_count(child) for child in children(node))


def _literal_bits(node: Node) -> int:
    if node[0] == "num":
        return int(node[1].numerator.bit_length() + node[1].denominator.bit_length())
    return sum(_literal_bits(child) for child in children(node))


# Residues: a pair (a, b) is a + bi modulo the prime.

_Residue = tuple[int, int]


@functools.lru_cache(maxsize=1024)
def _draw(name: str, seed: int) -> int:
    value = seed
    for char in name:
        value = (value * 6364136223846793005 + ord(char) * 1442695040888963407 + 1) % _PRIME
    return pow(value, 3, _PRIME) or 1


def _residue(node: Node, seed: int) -> _Residue:
    kind = node[0]
    if kind == "num":
        return _of_fraction(node[1])
    if kind == "sym":
        return (_draw(node[1], seed), 0)
    if kind == "const":
        if node[1] == "oo":
            raise _OtherwiseError
        return (0, 1) if node[1] == "i" else (_draw(f"\\{node[1]}", seed), 0)
    if kind == "add":
        parts = [_residue(part, seed) for part in node[1]]
        return (sum(part[0] for part in parts) % _PRIME, sum(part[1] for part in parts) % _PRIME)
    if kind == "neg":
        value = _residue(node[1], seed)
        return (-value[0] % _PRIME, -value[1] % _PRIME)
    if kind == "mul":
        product = (1, 0)
        for part in node[1]:
            product = _times(product, _residue(part, seed))
        return product
    if kind == "inv":
        return _over(_residue(node[1], seed))
    if kind == "pct":
        return _times(_residue(node[1], seed), (_inverse(100), 0))
    if kind == "pow":
        return _residue_power(node, seed)
    if kind == "fn":
        return _of_fraction(_exact(node))
    raise _OtherwiseError


def _of_fraction(value: Fraction) -> _Residue:
    return (value.numerator * _inverse(value.denominator) % _PRIME, 0)


def _residue_power(node: Node, seed: int) -> _Residue:
    exponent = _exact(node[2])
    if exponent.denominator != 1:
        return _of_fraction(_exact(node))
    base = _residue(node[1], seed)
    if base == (0, 0) and exponent <= 0:
        raise _UndefinedError
    times = abs(int(exponent))
    result = (1, 0)
    while times:
        if times & 1:
            result = _times(result, base)
        base = _times(base, base)
        times >>= 1
    return result if exponent >= 0 else _over(result)


def _times(left: _Residue, right: _Residue) -> _Residue:
    if not left[1] and not right[1]:
        return (left[0] * right[0] % _PRIME, 0)
    return ((left[0] * right[0] - left[1] * right[1]) % _PRIME, (left[0] * right[1] + left[1] * right[0]) % _PRIME)


def _over(residue: _Residue) -> _Residue:
    norm = (residue[0] * residue[0] + residue[1] * residue[1]) % _PRIME
    if not norm:
        raise _UndefinedError
    inverse = _inverse(norm)
    return (residue[0] * inverse % _PRIME, -residue[1] * inverse % _PRIME)


@functools.lru_cache(maxsize=4096)
def _inverse(value: int) -> int:
    return 1 if value == 1 else pow(value, -1, _PRIME)


# High precision. Any: mpmath ships no types.


def _numeric(node: Node, point: Mapping[str, Any]) -> Any:
    import mpmath

    kind = node[0]
    if kind == "num":
        return mpmath.mpf(node[1].numerator) / node[1].denominator
    if kind == "sym":
        if node[1].startswith("set "):
            raise _OtherwiseError
        return point[node[1]]
    if kind == "const":
        return {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "oo": mpmath.inf}[node[1]] * mpmath.mpf(1)
    if kind == "add":
        return mpmath.fsum([_numeric(part, point) for part in node[1]])
    if kind == "neg":
        return -_numeric(node[1], point)
    if kind == "mul":
        value = mpmath.mpf(1)
        for part in node[1]:
            value *= _numeric(part, point)
        return value
    if kind == "inv":
        return 1 / _numeric(node[1], point)
    if kind == "pct":
        return _numeric(node[1], point) / 100
    if kind == "deg":
        return _numeric(node[1], point) * mpmath.pi / 180
    if kind == "pow":
        return _numeric_power(_numeric(node[1], point), _numeric(node[2], point), mpmath)
    if kind == "fn":
        return _numeric_function(node[1], [_numeric(part, point) for part in node[2:]], mpmath)
    raise _OtherwiseError


def _numeric_power(base: Any, exponent: Any, mpmath: Any) -> Any:
    if not base:
        if mpmath.re(exponent) > 0:
            return mpmath.mpf(0)
        raise _UndefinedError
    if abs(exponent * mpmath.log(base)) > MAX_DIGITS * 3:
        raise TooLargeError(f"a value of more than {MAX_DIGITS} digits")
    return base**exponent


def _numeric_function(name: str, values: Sequence[Any], mpmath: Any) -> Any:
    value = values[0]
    if name == "root":
        degree = values[1]
        if not degree:
            raise _UndefinedError
        if mpmath.im(value) == 0 and mpmath.re(value) < 0 and mpmath.isint(degree) and int(degree.real) % 2:
            return -((-value) ** (1 / degree))
        return _numeric_power(value, 1 / degree, mpmath)
    if name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp"):
        if abs(value) > (MAX_DIGITS if name in ("sinh", "cosh", "tanh", "exp") else mpmath.mpf(10) ** 100):
            raise TooLargeError(f"a function of more than {MAX_DIGITS}")
        result = getattr(mpmath, name)(value)
        if name in ("tan", "cot", "sec", "csc") and abs(result) > mpmath.mpf(2) ** (mpmath.mp.prec // 2):
            raise _UndefinedError
        return result
    if name in ("arcsin", "arccos", "arctan"):
        return getattr(mpmath, "a" + name[3:])(value)
    if name in ("ln", "log"):
        if not value or (len(values) > 1 and (not values[1] or values[1] == 1)):
            raise _UndefinedError
        return mpmath.log(value) / (mpmath.log(values[1]) if len(values) > 1 else 1)
    if name == "abs":
        return abs(value)
    if name in ("floor", "ceil", "max", "min"):
        if any(mpmath.im(argument) for argument in values):
            raise _UndefinedError
        if name in ("max", "min"):
            return (max if name == "max" else min)(values)
        near = mpmath.nint(value)
        if abs(value - near) < mpmath.mpf(2) ** (-mpmath.mp.prec // 2):
            return near
        return getattr(mpmath, name)(value)
    if name in ("factorial", "binom"):
        if any(abs(argument) > MAX_FACTORIAL for argument in values):
            raise TooLargeError(f"the factorial of more than {MAX_FACTORIAL}")
        return mpmath.factorial(value) if name == "factorial" else mpmath.binomial(value, values[1])
    raise _OtherwiseError
