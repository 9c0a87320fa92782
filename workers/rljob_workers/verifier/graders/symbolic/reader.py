"""Our own reader of LaTeX and arithmetic: text -> SymPy nodes from a fixed list, or None. It evaluates no text.

Grammar: relation = sum (relop sum)?; sum = term (('+'|'-') term)*; term = factor (('*'|'/') factor | factor)*;
factor = '-' factor | power; power = postfix ('^' argument)?; postfix = atom '!'*. Unknown names are products of plain
one-letter symbols; attributes, calls of unknown names, quotes and subscripts with two underscores do not exist.
Bounds are `screen.py`'s, checked first. Runs in a grading worker: building a node may take time.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import sympy

from rljob_workers.verifier.graders.symbolic import screen

# Any: SymPy ships no types; nodes are its Basic objects and matrices.
Node = Any

_TOKEN = re.compile(
    r"(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)|(?P<command>\\[A-Za-z]+)|(?P<word>[A-Za-z]+)|(?P<space>\s+|\\[,;:! ]|~)"
    r"|(?P<power>\*\*|\^)|(?P<sign>\\\\|\\[{}]|[-+*/=<>!(){}\[\],|_&])"
)
_FUNCTIONS: Mapping[str, Callable[[Node], Node]] = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "tanh": sympy.tanh, "exp": sympy.exp, "ln": sympy.log, "log": sympy.log, "sqrt": sympy.sqrt, "abs": sympy.Abs,
}  # fmt: skip
_CONSTANTS: Mapping[str, Node] = {"pi": sympy.pi, "infty": sympy.oo, "inf": sympy.oo, "infinity": sympy.oo}
_LETTERS: Mapping[str, Node] = {"e": sympy.E, "i": sympy.I}
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega"
)
_GREEK = frozenset(_GREEK_NAMES.split())
_RELATIONS: Mapping[str, str] = {
    "=": "=", "<": "<", ">": ">", r"\le": "<=", r"\leq": "<=", r"\ge": ">=", r"\geq": ">=", r"\ne": "!=",
}  # fmt: skip
_TIMES = frozenset(("*", r"\cdot", r"\times"))
_OVER = frozenset(("/", r"\div"))
_CLOSERS = frozenset((")", "]", "}", ",", "", "&", "\\\\", "|", r"\}", r"\end", r"\rfloor", r"\rceil"))


class _UnreadableError(Exception):
    """The text is outside the grammar."""


def read(text: str) -> Node | None:
    """Return the node of a text, None if it is outside the grammar or over a bound of `screen`."""
    try:
        screen.check(text)
        return _Reader(_tokens(text)).whole()
    except (screen.RefusedError, _UnreadableError, ZeroDivisionError, TypeError, ValueError, AttributeError):
        return None


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise _UnreadableError(text[position])
        position = match.end()
        if match.lastgroup == "power":
            tokens.append("^")
        elif match.lastgroup != "space":
            tokens.append(match.group())
    return tokens


class _Reader:
    """Recursive descent over tokens; depth and sizes were bounded by the screen."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._next = tokens, 0

    def whole(self) -> Node:
        node = self._list("")
        if self._next != len(self._tokens):
            raise _UnreadableError(self._peek())
        return node

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise _UnreadableError(token)

    def _list(self, closer: str) -> Node:
        parts = [self._relation()]
        while self._peek() == ",":
            self._take()
            parts.append(self._relation())
        if closer:
            self._expect(closer)
        return parts[0] if len(parts) == 1 else sympy.Tuple(*parts)

    def _relation(self) -> Node:
        left = self._sum()
        if self._peek() not in _RELATIONS:
            return left
        relation = _RELATIONS[self._take()]
        return _related(left, relation, self._sum())

    def _sum(self) -> Node:
        total = self._term()
        while self._peek() in ("+", "-"):
            positive = self._take() == "+"
            part = self._term()
            total = total + part if positive else total - part
        return total

    def _term(self) -> Node:
        product = self._factor()
        while (token := self._peek()) not in _CLOSERS and token not in ("+", "-") and token not in _RELATIONS:
            if token in _OVER:
                self._take()
                product = product / _divisor(self._factor())
                continue
            if token in _TIMES:
                self._take()
            product = product * self._factor()
        return product

    def _factor(self) -> Node:
        if self._peek() in ("+", "-"):
            return self._factor() if self._take() == "+" else -self._factor()
        return self._power(self._postfix())

    def _power(self, base: Node) -> Node:
        if self._peek() != "^":
            return base
        self._take()
        negative = self._peek() == "-"
        if negative:
            self._take()
        exponent = self._power(self._postfix())
        return base ** (-exponent if negative else exponent)

    def _postfix(self) -> Node:
        node = self._atom()
        while self._peek() == "!":
            self._take()
            node = sympy.factorial(node)
        return node

    def _atom(self) -> Node:
        token = self._take()
        if token[:1].isdigit() or (token.startswith(".") and len(token) > 1):
            value = Fraction(token.rstrip(".") if token.endswith(".") else token)
            return sympy.Rational(value.numerator, value.denominator)
        if token == r"\{":
            return self._set()
        if token in ("(", "[", "{"):
            return self._list({"(": ")", "[": "]", "{": "}"}[token])
        if token == "|":
            inner = self._sum()
            self._expect("|")
            return sympy.Abs(inner)
        if token[:1].isalpha():
            return self._word(token)
        if token.startswith("\\") and token[1:].isalpha():
            return self._command(token[1:])
        raise _UnreadableError(token)

    def _set(self) -> Node:
        inner = self._list(r"\}")
        return sympy.FiniteSet(*(inner.args if isinstance(inner, sympy.Tuple) else (inner,)))

    def _word(self, word: str) -> Node:
        if word.lower() in _FUNCTIONS:
            return self._function(word.lower())
        if word.lower() in _CONSTANTS:
            return _CONSTANTS[word.lower()]
        *first, last = [_LETTERS.get(letter, sympy.Symbol(letter)) for letter in word]
        last = self._subscripted(word[-1], last)
        # In "2xy^2" the power belongs to the last letter.
        return sympy.Mul(*first, self._power(last)) if first else last

    def _subscripted(self, name: str, node: Node) -> Node:
        if self._peek() != "_":
            return node
        self._take()
        index = self._take()
        if index == "{":
            index = self._take()
            self._expect("}")
        if not index.isalnum():
            raise _UnreadableError(index)
        return sympy.Symbol(f"{name}_{index}")

    def _command(self, name: str) -> Node:
        if name in ("frac", "dfrac", "tfrac"):
            top = self._argument()
            return top / _divisor(self._argument())
        if name == "sqrt":
            return self._root()
        if name in _FUNCTIONS:
            return self._function(name)
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _GREEK:
            return self._subscripted(name, sympy.Symbol(name))
        if name == "begin":
            return self._matrix()
        if name in ("binom", "dbinom", "tbinom"):
            return sympy.binomial(self._argument(), self._argument())
        if name in ("lfloor", "lceil"):
            inner = self._sum()
            self._expect(r"\rfloor" if name == "lfloor" else r"\rceil")
            return (sympy.floor if name == "lfloor" else sympy.ceiling)(inner)
        raise _UnreadableError(name)

    def _argument(self) -> Node:
        token = self._peek()
        if token == "{":
            self._take()
            return self._list("}")
        if token.isdigit() and len(token) > 1:
            # LaTeX takes one digit: \frac12 is one half.
            self._tokens[self._next : self._next + 1] = [token[0], token[1:]]
        return self._atom()

    def _root(self) -> Node:
        degree: Node = sympy.Integer(2)
        if self._peek() == "[":
            self._take()
            degree = self._list("]")
        return self._argument_of_function() ** (1 / _divisor(degree))

    def _argument_of_function(self) -> Node:
        return self._argument() if self._peek() == "{" else self._postfix()

    def _function(self, name: str) -> Node:
        exponent = base = None
        if self._peek() == "_" and name == "log":
            self._take()
            base = self._argument()
        if self._peek() == "^":
            self._take()
            exponent = self._argument()
        argument = self._argument_of_function()
        value = sympy.log(argument) / sympy.log(base) if base is not None else _FUNCTIONS[name](argument)
        return value if exponent is None else value**exponent

    def _matrix(self) -> Node:
        for token in ("{", "pmatrix", "}"):
            self._expect(token)
        rows = [[self._sum()]]
        while self._peek() in ("&", "\\\\"):
            if self._take() == "&":
                rows[-1].append(self._sum())
            elif self._peek() != r"\end":
                rows.append([self._sum()])
        for token in (r"\end", "{", "pmatrix", "}"):
            self._expect(token)
        return sympy.Matrix(rows)


def _divisor(node: Node) -> Node:
    if node == 0:
        raise ZeroDivisionError("divisor 0")
    return node


def _related(left: Node, relation: str, right: Node) -> Node:
    makers = {"=": sympy.Eq, "<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge, "!=": sympy.Ne}
    return makers[relation](left, right, evaluate=False)
