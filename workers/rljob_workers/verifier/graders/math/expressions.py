r"""LaTeX and arithmetic to a tree of tuples. Nothing is evaluated here.

Nodes: ("num", Fraction, places, digits) with places -1 unless it was written as a decimal; ("sym", name);
("const", "pi" | "e" | "i" | "oo"); ("add", nodes); ("mul", nodes); ("inv", node); ("pow", base, exponent);
("neg", node); ("deg", node) degrees of an angle; ("pct", node); ("pm", left, right, sign); ("fn", name, *nodes).

Numbers side by side are refused ("1~2" is not 12 and no product), but for mixed numbers: an integer before a proper
fraction. Commas group digits by three where no list can be meant. A run of three letters or more is a word.
"""

import re
from fractions import Fraction
from typing import Any, NamedTuple

from rljob_workers.verifier.graders.math.words import word_set

MAX_CHARS = 4096
MAX_DEPTH = 64
MAX_LITERAL_DIGITS = 1000
MAX_SCALE = 10_000

# Any: a recursive tuple.
Node = tuple[Any, ...]


class UnreadableError(Exception):
    """The text is outside the grammar; the message says where."""


class Token(NamedTuple):
    """kind: num, cmd (without its backslash), word, text (of a \\text), op, env. spaced: white space is before."""

    kind: str
    text: str
    spaced: bool


_TEXT_COMMANDS = r"text|mathrm|mbox|textbf|textit|textrm|textsf|operatorname|mathop|textnormal|rm"
_GROUP_SEPARATOR = r"\{,\}|\\,|,\\!|\\!|\{\\,\}"
_LEXER = re.compile(
    rf"""(?P<space>
          (?:\s|~|\\[,;:\ >]|\\(?:quad|qquad|thinspace|enspace|hspace\{{[^{{}}]{{0,16}}\}})(?![A-Za-z])){{1,4096}})
      | (?P<repeating>[0-9]{{0,1000}}\.[0-9]{{0,1000}}
            (?:\\(?:overline|bar)\s{{0,4}}\{{?[0-9]{{1,1000}}\}}?
             | \\dot\s{{0,4}}\{{?[0-9]\}}?(?:[0-9]{{0,1000}}\\dot\s{{0,4}}\{{?[0-9]\}}?)?
             | [0-9]\s{{0,4}}(?:\\ldots|\\dots|\\cdots|\.\.\.)) | [0-9]{{1,1000}}\.\([0-9]{{1,1000}}\))
      | (?P<num>[0-9]{{1,3}}(?:({_GROUP_SEPARATOR})[0-9]{{3}}(?:\4[0-9]{{3}}){{0,400}}(?![0-9]))(?:\.[0-9]{{1,1000}})?
            | [0-9]{{1,5000}}(?:\.[0-9]{{1,5000}})?(?:[eE][-+]?[0-9]{{1,5}}(?![0-9A-Za-z]))?
            | \.[0-9]{{1,5000}}(?:[eE][-+]?[0-9]{{1,5}}(?![0-9A-Za-z]))?)
      | (?P<text>\\(?:{_TEXT_COMMANDS})\s{{0,8}}\{{(?:[^{{}}]|\{{[^{{}}]{{0,256}}\}}){{0,1024}}\}})
      | (?P<env>\\(?:begin|end)\{{[A-Za-z*]{{1,16}}\}}(?:\{{[lcr|\s]{{1,64}}\}})?)
      | (?P<cmd>\\(?:[A-Za-z]{{1,32}}|[!%{{}}|$()\[\]\\\#&_]))
      | (?P<word>[A-Za-z]{{1,4096}})
      | (?P<power>\*\*)
      | (?P<op>[-+*/^_=<>(){{}}\[\],;:|!%&'.?"@])""",
    re.VERBOSE,
)
_SKIPPED = word_set(
    "left right big Big bigl bigr Bigl Bigr bigg Bigg biggl biggr displaystyle textstyle limits nolimits ! ( ) [ ] $"
    " mathstrut strut hfill mathsf mathit mathbf boldsymbol bm bold bf it underline mathnormal"
)
_ALIASES = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "geq": "ge", "leqslant": "le", "geqslant": "ge",
    "neq": "ne", "lt": "<", "gt": ">", "ast": "*", "div": "/", "colon": ":", "dbinom": "binom", "tbinom": "binom",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "varnothing": "emptyset", "rightarrow": "to",
    "dots": "ldots", "cdots": "ldots", "degree": "degree", "fbox": "boxed", "lbrack": "[", "rbrack": "]",
    "lbrace": "{", "rbrace": "}", "sim": "approx", "simeq": "approx", "thickapprox": "approx", "varphi": "phi",
    "varepsilon": "epsilon", "vartheta": "theta", "land": "and", "wedge": "and", "lor": "or", "vee": "or",
    "textpm": "pm", "iff": "or",
}  # fmt: skip
_OPERATORS = frozenset(("<", ">", "*", "/", ":", "|", "[", "]", "%", "\\", "&"))
FUNCTIONS = word_set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp gcd lcm max min det mod abs asin acos"
    " atan"
)
_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_MANY = frozenset(("gcd", "lcm", "max", "min", "mod"))
CONSTANTS = {"pi": "pi", "infty": "oo", "infinity": "oo", "inf": "oo", "imath": "i"}
GREEK = word_set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega Delta"
    " Gamma Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar"
)
# Two letters that are a word and no product.
SHORT_WORDS = word_set("no on so if in is it up us we me my be by do go he at an am as or of to ok hi pm")
_SETS = frozenset("RZNQC")
_WORD_IN_PRODUCT = 4
_COMMA_RUN = re.compile(r"[0-9]{1,1000}(?:,[0-9]{1,1000}){1,1000}(?:\.[0-9]{1,1000})?")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,333}(?:\.[0-9]{1,1000})?")
_SPACED_LIST = re.compile(r"[0-9)\]}],[\s\\~]")


def without_group_commas(text: str) -> str:
    """Return a text without the commas that group digits by three.

    At the top level, or among list members that are apart ("1,234, 5"), a tight run of groups is one number. In
    brackets a tight comma separates: (1,234) is a pair.
    """
    if "," not in text:
        return text
    spaced = _SPACED_LIST.search(text) is not None
    out, last, depth, counted = [], 0, 0, 0
    for run in _COMMA_RUN.finditer(text):
        for index in range(counted, run.start()):
            if text[index] in "([" or text.startswith(r"\{", index):
                depth += 1
            elif text[index] in ")]" or text.startswith(r"\}", index):
                depth -= 1
        counted = run.end()
        before, after = text[: run.start()][-2:], text[run.end() :][:2]
        tight = after[:1] == "," and after[1:] not in ("", " ", "\\", "~")
        part = before[-1:] == "," or (before[-1:] in "._^" and before != "") or before[-1:].isalpha()
        if (depth <= 0 or spaced) and not tight and not part and _GROUPED.fullmatch(run.group()):
            out += [text[last : run.start()], run.group().replace(",", "")]
            last = run.end()
    return "".join((*out, text[last:]))


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text without Unicode (`glyphs.plain`). Raises UnreadableError."""
    if len(text) > MAX_CHARS:
        raise UnreadableError(f"longer than {MAX_CHARS} characters")
    text = without_group_commas(text)
    result: list[Token] = []
    position, spaced = 0, False
    match = _LEXER.match
    while position < len(text):
        if text[position] == "$":
            position += 1
            continue
        hit = match(text, position)
        if hit is None:
            raise UnreadableError("a character outside the grammar")
        position, kind, text_ = hit.end(), str(hit.lastgroup), hit.group()
        if kind == "space":
            spaced = True
            continue
        if kind == "cmd":
            if text_[1:] in _SKIPPED:
                continue
            name = _ALIASES.get(text_[1:], text_[1:])
            kind, text_ = ("op", "\\\\" if name == "\\" else name) if name in _OPERATORS else ("cmd", name)
        elif kind == "power":
            kind, text_ = "op", "^"
        elif kind == "text":
            text_ = text_[text_.index("{") + 1 : -1].strip()
        elif kind == "num":
            text_ = re.sub(r"[^0-9.eE+-]", "", text_)
        result.append(Token(kind, text_, spaced))
        spaced = False
    return result


def number(text: str) -> Node:
    """Return the node of a literal, repeating decimals included. Raises UnreadableError over the bounds."""
    mantissa, _, scale = text.lower().partition("e")
    if len(mantissa) > MAX_LITERAL_DIGITS:
        raise UnreadableError(f"a literal of more than {MAX_LITERAL_DIGITS} digits")
    if scale and abs(int(scale)) > MAX_SCALE:
        raise UnreadableError(f"a value of more than {MAX_SCALE} digits")
    whole, point, decimals = mantissa.partition(".")
    if not scale and not point:
        return ("num", Fraction(int(whole)), -1, 0)
    value = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals)) * Fraction(10) ** int(scale or 0)
    return ("num", value, len(decimals) - int(scale or 0), len((whole + decimals).lstrip("0")))


def _repeating(text: str) -> Node:
    whole, _, rest = text.partition(".")
    digits = re.sub(r"[^0-9]", "", rest)
    if "dot" in rest and "dots" not in rest:
        fixed = rest[: rest.index("\\")]
        block = digits[len(fixed) :]
    elif "overline" in rest or "bar" in rest or "(" in rest:
        fixed = re.sub(r"[\\(].*$", "", rest, flags=re.DOTALL)
        block = digits[len(fixed) :]
    else:
        fixed, block = _block(digits)
    if not block or len(digits) > MAX_LITERAL_DIGITS:
        raise UnreadableError("a decimal that continues without a repeated block")
    value = int(whole or 0) + (int(fixed or 0) + Fraction(int(block), 10 ** len(block) - 1)) / 10 ** len(fixed)
    return ("num", Fraction(value), -1, 0)


def _block(digits: str) -> tuple[str, str]:
    """Return what is before, and once, the block that ends a decimal: three times, or twice if it is longer."""
    for size in range(1, min(7, len(digits) // 2 + 1)):
        block, times = digits[-size:], 3 if size == 1 else 2
        if digits.endswith(block * times):
            start = len(digits)
            while start >= size and digits[start - size : start] == block:
                start -= size
            return digits[:start], block
    return digits, ""


def parse(sequence: list[Token]) -> Node:
    """Return the tree of one expression. Raises UnreadableError."""
    reader = _Reader(sequence)
    node = reader.sum(0)
    reader.expect_end()
    return node


_END = Token("end", "", False)
_STOPPERS = frozenset(")]},;:=<>&|.") | {"\\\\", "end"}
_STOP_COMMANDS = word_set("} pm mp le ge ne approx in cup cap setminus rfloor rceil rangle to or and equiv")
_OPENERS = {"(": ")", "[": "]", "{": "}"}


class _Reader:
    """Recursive descent: sum = term (sign term)*, term = factor (factor | operator factor)*, factor = sign* power."""

    def __init__(self, sequence: list[Token]) -> None:
        self._tokens, self._next, self._bars = sequence, 0, 0

    def _peek(self) -> Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _ahead(self, count: int) -> Token:
        place = self._next + count
        return self._tokens[place] if place < len(self._tokens) else _END

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _is(self, text: str, kind: str = "op") -> bool:
        token = self._peek()
        return token.text == text and token.kind == kind

    def _expect(self, text: str, kind: str = "op") -> None:
        if not self._is(text, kind):
            raise UnreadableError("another token where a bracket should close")
        self._next += 1

    def expect_end(self) -> None:
        if self._peek() is not _END:
            raise UnreadableError("a token out of place")

    def sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise UnreadableError(f"nested deeper than {MAX_DEPTH}")
        if self._peek().kind == "cmd" and self._peek().text in ("pm", "mp"):
            sign = self._take().text
            return ("pm", ("num", Fraction(0), -1, 0), self._term(depth), sign)
        terms = [self._term(depth)]
        while True:
            token = self._peek()
            if token.kind == "op" and token.text in "+-":
                self._next += 1
                part = self._term(depth)
                terms.append(part if token.text == "+" else ("neg", part))
            elif token.kind == "cmd" and token.text in ("pm", "mp"):
                self._next += 1
                left = terms[0] if len(terms) == 1 else ("add", terms)
                terms = [("pm", left, self._term(depth), token.text)]
            else:
                return terms[0] if len(terms) == 1 else ("add", terms)

    def _term(self, depth: int) -> Node:
        factors = [self._factor(depth)]
        divided = False
        while True:
            token = self._peek()
            if token.kind == "end" or (token.kind == "op" and (token.text in _STOPPERS or token.text in "+-")):
                # A bar closes what a bar opened, else it opens a factor.
                if token.text == "|" and token.kind == "op" and not self._bars:
                    factors.append(self._factor(depth))
                    continue
                break
            if token.kind == "cmd" and token.text in _STOP_COMMANDS:
                break
            if (token.kind == "op" and token.text in "*/") or (token.kind == "cmd" and token.text in ("cdot", "times")):
                self._next += 1
                divided = token.text == "/"
                factor = self._factor(depth)
                factors.append(("inv", factor) if divided else factor)
                continue
            if token.kind == "num" and not (factors[-1][0] == "pow" and self._ahead(1)[:2] == ("op", "^")):
                raise UnreadableError("a number next to another value")
            if divided and not (factors[-1][1][0] == "num" and factors[0][0] == "num" and len(factors) == 2):
                raise UnreadableError("what is divided by a product without brackets")
            factors.append(self._power(depth))
            divided = False
        return factors[0] if len(factors) == 1 else ("mul", factors)

    def _factor(self, depth: int) -> Node:
        negative = False
        while self._peek().kind == "op" and self._peek().text in "+-":
            negative ^= self._take().text == "-"
        node = self._power(depth)
        return ("neg", node) if negative else node

    def _power(self, depth: int) -> Node:
        return self._postfix(self._atom(depth), depth)

    def _postfix(self, node: Node, depth: int) -> Node:
        while True:
            token = self._peek()
            if token.kind == "op" and token.text == "^":
                self._next += 1
                if self._is_degree():
                    node = ("deg", node)
                    continue
                if node[0] == "pow":
                    raise UnreadableError("two exponents in a row")
                node = ("pow", node, self._exponent(depth))
            elif token.kind == "op" and token.text == "!":
                self._next += 1
                node = ("fn", "factorial", node)
            elif token.kind == "op" and token.text == "%":
                self._next += 1
                node = ("pct", node)
            elif token.kind == "cmd" and token.text == "degree":
                self._next += 1
                node = ("deg", node)
            else:
                return node

    def _is_degree(self) -> bool:
        if self._is("circ", "cmd") or self._is("degree", "cmd"):
            self._next += 1
            return True
        if self._is("{") and self._ahead(1)[:2] == ("cmd", "circ") and self._ahead(2)[:2] == ("op", "}"):
            self._next += 3
            return True
        return False

    def _exponent(self, depth: int) -> Node:
        if depth >= MAX_DEPTH:
            raise UnreadableError(f"nested deeper than {MAX_DEPTH}")
        if self._is("{"):
            return self._group(depth)
        negative = self._is("-")
        self._next += negative
        token = self._peek()
        node = number(self._take().text) if token.kind == "num" else self._atom(depth + 1)
        if self._is("^"):
            self._next += 1
            node = ("pow", node, self._exponent(depth + 1))
        return ("neg", node) if negative else node

    def _group(self, depth: int) -> Node:
        closer = _OPENERS[self._take().text]
        bars, self._bars = self._bars, 0
        node = self.sum(depth + 1)
        self._bars = bars
        self._expect(closer)
        return node

    def _atom(self, depth: int) -> Node:
        token = self._peek()
        if token.kind == "num":
            return self._number(depth)
        if token.kind == "repeating":
            return _repeating(self._take().text)
        if token.kind == "word":
            return self._word(self._take().text, depth)
        if token.kind == "text":
            return self._text(self._take().text)
        if token.kind == "op":
            if token.text in _OPENERS:
                return self._group(depth)
            if token.text == "|":
                return self._bars_of(depth)
        if token.kind == "cmd":
            return self._command(self._take().text, depth)
        raise UnreadableError("a token out of place")

    def _bars_of(self, depth: int) -> Node:
        self._next += 1
        self._bars += 1
        inner = self.sum(depth + 1)
        self._bars -= 1
        self._expect("|")
        return ("fn", "abs", inner)

    def _number(self, depth: int) -> Node:
        node = number(self._take().text)
        if node[2] >= 0:
            return node
        place, token = self._next, self._peek()
        if token.kind == "cmd" and token.text == "frac":
            self._next += 1
            top, bottom = self._argument(depth), self._argument(depth)
            if top[0] == bottom[0] == "num":
                return _mixed(node, top, bottom)
            self._next = place
        elif token.kind == "num" and token.spaced and self._ahead(1)[:2] == ("op", "/") and self._ahead(2)[0] == "num":
            top, bottom = number(token.text), number(self._ahead(2).text)
            self._next += 3
            return _mixed(node, top, bottom)
        return node

    def _word(self, word: str, depth: int) -> Node:
        lower = word.lower()
        if lower == "sqrt":
            return self._root(depth)
        if lower in FUNCTIONS and (len(word) > 2 or lower == "ln"):
            return self._function(_NAMES.get(lower, lower), depth)
        if lower in CONSTANTS and len(word) > 1:
            return ("const", CONSTANTS[lower])
        if word in ("e", "i"):
            return ("const", word)
        tight = self._next > 1 and not self._tokens[self._next - 1].spaced
        if (lower in SHORT_WORDS and not tight) or len(word) > _WORD_IN_PRODUCT:
            raise UnreadableError("a word in a formula")
        if len(word) > 2 and (len(self._tokens) == 1 or not word.islower() or len(set(word)) < len(word)):
            raise UnreadableError("a word in a formula")
        letters: list[Node] = [("const", char) if char in "ei" else ("sym", char) for char in word]
        letters[-1] = self._subscripted(word[-1], depth) if self._is("_") or self._is("'") else letters[-1]
        # An exponent belongs to the last letter.
        letters[-1] = self._postfix(letters[-1], depth) if len(letters) > 1 else letters[-1]
        return letters[0] if len(letters) == 1 else ("mul", letters)

    def _text(self, text: str) -> Node:
        if text in ("i", "e"):
            return ("const", text)
        if re.fullmatch(r"[0-9]{1,1000}(?:\.[0-9]{1,1000})?", text):
            return number(text)
        if len(text) == 1 and text.isalpha():
            return ("sym", text)
        if text in FUNCTIONS:
            return self._function(text, 0)
        raise UnreadableError("a word in a formula")

    def _subscripted(self, name: str, depth: int) -> Node:
        del depth
        if self._is("_"):
            self._next += 1
            name += "_" + self._index()
        while self._is("'"):
            self._next += 1
            name += "'"
        return ("sym", name)

    def _index(self) -> str:
        token = self._take()
        if token.kind in ("num", "word", "cmd", "text"):
            return token.text
        if token.text != "{":
            raise UnreadableError("an empty subscript")
        parts = []
        while not self._is("}"):
            if self._peek() is _END or self._is("{"):
                raise UnreadableError("a subscript that does not end")
            parts.append(self._take().text)
        self._next += 1
        return "".join(parts)

    def _argument(self, depth: int) -> Node:
        if self._is("{"):
            return self._group(depth)
        token = self._peek()
        if token.kind == "num" and token.text.isdigit() and len(token.text) > 1:
            # LaTeX takes one digit: \frac12 is one half.
            self._tokens = [
                *self._tokens[: self._next],
                Token("num", token.text[0], False),
                Token("num", token.text[1:], False),
                *self._tokens[self._next + 1 :],
            ]
        if self._peek().kind == "num":
            return number(self._take().text)
        if token.kind == "word" and len(token.text) > 1:
            self._tokens = [
                *self._tokens[: self._next],
                Token("word", token.text[0], False),
                Token("word", token.text[1:], False),
                *self._tokens[self._next + 1 :],
            ]
        return self._atom(depth + 1)

    def _root(self, depth: int) -> Node:
        degree: Node = ("num", Fraction(2), -1, 0)
        if self._is("["):
            degree = self._group(depth)
        if not self._is("{") and not self._is("("):
            token = self._peek()
            if token.kind == "num" and len(token.text) > 1 and not token.spaced:
                raise UnreadableError("a root of several digits without braces")
            return ("fn", "root", self._argument(depth), degree)
        return ("fn", "root", self._group(depth), degree)

    def _function(self, name: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise UnreadableError(f"nested deeper than {MAX_DEPTH}")
        base = exponent = None
        if name == "log" and self._is("_"):
            self._next += 1
            base = self._argument(depth)
        if self._is("^"):
            self._next += 1
            exponent = self._exponent(depth)
            if exponent[0] == "neg" and name in ("sin", "cos", "tan"):
                name, exponent = "arc" + name, None
        arguments = self._arguments(name, depth)
        if name == "lg" or (name == "log" and base is None):
            base = ("num", Fraction(10), -1, 0)
        node: Node = ("fn", "log", arguments[0], base) if base is not None else ("fn", name, *arguments)
        return node if exponent is None else ("pow", node, exponent)

    def _arguments(self, name: str, depth: int) -> list[Node]:
        if self._peek().kind == "op" and self._peek().text in _OPENERS:
            if name not in _MANY:
                return [self._group(depth)]
            closer = _OPENERS[self._take().text]
            arguments = [self.sum(depth + 1)]
            while self._is(","):
                self._next += 1
                arguments.append(self.sum(depth + 1))
            self._expect(closer)
            return arguments
        factors = [self._power(depth + 1)]
        while self._peek().kind in ("word", "cmd") and not self._starts_function() and self._peek().text not in (
            "cdot", "times", *_STOP_COMMANDS,
        ):  # fmt: skip
            factors.append(self._power(depth + 1))
        if self._peek().kind == "op" and self._peek().text in "([|":
            raise UnreadableError("a function whose argument ends nowhere")
        return [factors[0] if len(factors) == 1 else ("mul", factors)]

    def _starts_function(self) -> bool:
        token = self._peek()
        return token.text.lower() in FUNCTIONS and len(token.text) > 1

    def _command(self, name: str, depth: int) -> Node:
        if name == "frac":
            top = self._argument(depth)
            return ("mul", [top, ("inv", self._argument(depth))])
        if name == "sqrt":
            return self._root(depth)
        if name == "binom":
            return ("fn", "binom", self._argument(depth), self._argument(depth))
        if name in FUNCTIONS:
            return self._function(name, depth)
        if name in CONSTANTS:
            return ("const", CONSTANTS[name])
        if name in GREEK:
            return self._subscripted(name, depth)
        if name in ("lfloor", "lceil"):
            inner = self.sum(depth + 1)
            self._expect("rfloor" if name == "lfloor" else "rceil", "cmd")
            return ("fn", "floor" if name == "lfloor" else "ceil", inner)
        if name == "boxed":
            return self._group(depth) if self._is("{") else self._atom(depth)
        if name == "mathbb" and self._is("{"):
            index = self._index()
            if index in _SETS:
                return ("sym", f"set {index}")
        raise UnreadableError("a command outside the grammar")


def _mixed(whole: Node, top: Node, bottom: Node) -> Node:
    if top[2] >= 0 or bottom[2] >= 0 or not 0 < top[1] < bottom[1]:
        raise UnreadableError("an integer next to a fraction that is not proper")
    return ("num", whole[1] + top[1] / bottom[1], -1, 0)
