r"""What an answer says: a value with its unit, base and name, or a list, interval, relation, matrix, time or text.

`read` sorts a text into one `Form`; nothing is dropped that could distinguish two answers. What no rule reads is of
kind "text" (words) or "opaque" (a formula outside the grammar), and equals only the same text.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from rljob_workers.verifier.graders.math import expressions, glyphs, units, words
from rljob_workers.verifier.graders.math.expressions import Node, Token, UnreadableError

MAX_MEMBERS = 64
_MOST_NESTED = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """kind: value, list, union, without (a set without another), relation, matrix, clock, ratio, option, text, opaque.

    node: the value, or of a relation the left side less the right. name: of the variable or function that it is said
    to be, with `bound`, the letters of its arguments, or the letter of an option, whose one member is what it says.
    base: the digits' subscript. brackets: of a list, "" for none. op: of a relation; "or" of alternatives. others: what
    a chain of "=" says besides. near: what is behind "approximately". spelled: the text, for equality as such.
    """

    kind: str
    spelled: str
    node: Node | None = None
    unit: units.Unit | None = None
    percent: bool = False
    name: str = ""
    bound: tuple[str, ...] = ()
    base: str = ""
    digits: str = ""
    brackets: str = ""
    op: str = ""
    members: tuple["Form", ...] = ()
    others: tuple["Form", ...] = ()
    near: tuple["Form", ...] = ()
    minutes: tuple[int, ...] = ()
    half: str = ""


_CLOCK = re.compile(
    r"(?:(?P<hour>[0-2]?[0-9])(?::(?P<minute>[0-5][0-9]))?(?::(?P<second>[0-5][0-9]))?\s{0,4}(?P<half>[ap]\.?\s?m\b\.?)"
    r"|(?P<hour2>[0-2]?[0-9]):(?P<minute2>[0-5][0-9])(?::(?P<second2>[0-5][0-9]))?"
    r"|(?P<twelve>12)?\s{0,4}(?P<named>noon|midnight))(?:\s{0,4}o'clock)?",
    re.IGNORECASE,
)
# "(C) 12" and \textbf{(C)}\ 12: the letter of an option with what it says, which no product is written like.
_SPACE = r"(?:\s|~|\\[,;: ]|\\q?quad(?![a-z]))"
_OPTION = re.compile(
    r"(?:\\(?:text|textbf|textrm|mathbf|mathrm|mbox)\s{0,4}\{\s{0,4}\(([A-J])\)\s{0,4}\}" + _SPACE + r"{0,8}"
    r"|\(([A-J])\)" + _SPACE + r"{1,8}(?![-+*/=^<>_]))(?!(?:\\text\s{0,4}\{\s{0,4})?(?:and|or)\b)(?=.)"
)
_ANY_OPTION = re.compile(r"\([A-J]\)")
_SETTER = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit|textrm|rm)(?![A-Za-z])|[{}$~]|\\[,;:! ]")
_CURRENCY = re.compile(r"([-+]?)\s{0,4}(US\\?\$|\\\$|\$|€|£|¥|₹|Rs\.?(?=\s?[0-9]))\s{0,4}([-+]?)\s{0,4}(?=[0-9.\\({])")
_CURRENCY_AT_END = re.compile(r"(?<=[0-9])\s{0,4}(\\\$|\$|€|£|¥|₹)$")
_TEMPERATURE = re.compile(
    r"\^\s{0,4}\{?\s{0,4}\\circ\s{0,4}\}?\s{0,4}(?:\\(?:text|mathrm|rm)\s{0,4}\{\s{0,4}([CF])\s{0,4}\}|([CF])(?![A-Za-z]))"
)
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}  # fmt: skip
_BASE = re.compile(
    r"\(?(?P<digits>[0-9][0-9A-Fa-f, ]{0,400}|[A-F0-9]{2,64})\)?\s{0,4}"
    r"(?:_\s{0,4}\{?\s{0,4}(?:base\s{0,4})?(?P<sub>[0-9]{1,2}|[a-z]{3,7})\s{0,4}\}?"
    r"|\(?\s{0,4}(?:in )?base[\s-]{0,4}(?P<said>[0-9]{1,2}|[a-z]{3,7})\s{0,4}\)?)",
)
_WORD_OF_TEXT = re.compile(
    r"[A-Za-z\u00c0-\u024f\u4e00-\u9fff](?:[A-Za-z\u00c0-\u024f\u4e00-\u9fff'.-]*[A-Za-z\u00c0-\u024f\u4e00-\u9fff])?"
)
_JOINERS = frozenset(("and", "or", "或", "和", "或者", "以及", "与"))
_OR = frozenset(("or", "或", "或者"))
_OUTER = re.compile(r"\\(?:boxed|fbox|text|textbf|mathbf|boldsymbol|mathrm|mbox|displaystyle)\s{0,4}\{")
_AND_A_PART = re.compile(
    r"(?<![\w.])([0-9]{1,9})\s{1,4}(?:\\text\{\s{0,4})?and(?:\s{0,4}\})?\s{1,4}(?:(?:an?|one)[\s-](half|third|quarter)\b|([0-9]{1,3}/[0-9]{1,3}|\\frac\{[0-9]{1,3}\}\{[0-9]{1,3}\})(?![0-9/]))"
)
_HAN_PERCENT = re.compile(r"百分之\s{0,4}([0-9.]{1,20})")
_O_CLOCK = re.compile(r"(?<=[0-9])\s{0,4}o'clock$")
_HYPHEN = re.compile(r"(?<=[A-Za-z]{3})-(?=[A-Za-z]{3})")
_PARTS = {"half": "1/2", "third": "1/3", "quarter": "1/4"}
_ORDINAL = re.compile(
    r"(?<=[0-9])(?:\^\s{0,4}\{?\s{0,4})?(?:\\(?:text|mathrm)\s{0,4}\{\s{0,4})?(?:st|nd|rd|th)(?![A-Za-z])\s{0,4}\}{0,2}$"
)
_RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "le": "<=",
    "ge": ">=",
    "ne": "!=",
    "approx": "~",
    "in": "in",
    "equiv": "==",
}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "=", "~": "~", "in": "ni", "==": "=="}
_MATRICES = frozenset(("pmatrix", "bmatrix", "vmatrix", "Bmatrix", "matrix", "array", "smallmatrix"))
_LOOSE = frozenset(("either", "both", "exactly", "only", "just", "simply"))


@functools.lru_cache(maxsize=2048)
def read(text: str) -> Form:
    """Return what an answer or gold says. Never raises; linear but for nesting, which is bounded."""
    simple = _simple(text)
    if simple is not None:
        return simple
    plain = _stripped(glyphs.plain(text[: expressions.MAX_CHARS + 1]).replace("{:}", ":"))
    spelled = _spelled(plain)
    try:
        form = (
            _option(plain, spelled)
            or _special(plain, spelled)
            or _of_tokens(_merged(expressions.tokens(_prepared(plain))), spelled, 0)
        )
    except (UnreadableError, RecursionError):
        form = None
    if form is not None:
        return dataclasses.replace(form, spelled=spelled)
    in_words = _words_of(plain)
    return Form(kind="text" if in_words else "opaque", spelled=in_words or spelled)


_SIMPLE = re.compile(
    r"(-?)([0-9]{1,15}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,5})(\.[0-9]{1,15})?(?:(?: |\\,|~)?\\text\{ ?([a-z]{2,12}) ?\})?"
    r"|(-?)\\[dt]?frac\{([0-9]{1,15})\}\{([1-9][0-9]{0,14})\}|([A-Za-z])"
)


def _simple(text: str) -> Form | None:
    """Return the form of the answers that are most common, and the same form as the long way does; None of others."""
    match = _SIMPLE.fullmatch(text)
    if match is None:
        return None
    minus, whole, decimals, unit, sign, top, bottom, letter = match.groups()
    if letter:
        return None if letter in "ei" else Form(kind="value", spelled=letter, node=("sym", letter))
    if top:
        node: Node = _quotient(int(top), int(bottom))
        return Form(kind="value", spelled=text, node=("neg", node) if sign else node)
    if unit and (
        unit in _JOINERS or unit in words.NUMBER_WORDS or unit in ("am", "pm", "to", "noon", "percent", "pct")
    ):
        return None
    node = expressions.number(whole.replace(",", "") + (decimals or ""))
    known_unit = units.read(unit) if unit else None
    if unit and (known_unit is None or not known_unit.powers):
        return None
    return Form(kind="value", spelled=text.replace(" ", ""), node=("neg", node) if minus else node, unit=known_unit)


def _quotient(top: int, bottom: int) -> Node:
    return ("mul", [("num", Fraction(top), -1, 0), ("inv", ("num", Fraction(bottom), -1, 0))])


_GAP = re.compile(r"(?:\s|~|\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]){1,4096}")
_IDLE_GAP = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def _spelled(text: str) -> str:
    """Return a text without the spaces that separate nothing."""
    return _IDLE_GAP.sub("", _GAP.sub(" ", text))


def _stripped(text: str) -> str:
    """Return a text without what encloses it: spaces, mathematics delimiters, boxes, braces, a full stop."""
    for _ in range(_MOST_NESTED):
        before = text
        text = text.strip().strip("*").strip()
        if not text.endswith(("..", r"\.")):
            text = text.removesuffix(".")
        text = text.rstrip(",;\\ ") if not text.endswith("\\\\") else text[:-2]
        if text.startswith("$") and text.endswith("$") and len(text) > 2:
            text = text[2:-2] if text.startswith("$$") and text.endswith("$$") and len(text) > 4 else _undollared(text)
        if (text.startswith(r"\(") and text.endswith(r"\)")) or (text.startswith(r"\[") and text.endswith(r"\]")):
            text = text[2:-2]
        for spacing in (r"\quad", r"\qquad", r"\,", r"\;", r"\!"):
            text = text.removesuffix(spacing)
        match = _OUTER.match(text)
        start = match.end() if match else int(text.startswith("{"))
        if start and text.endswith("}") and closing(text, start) == len(text) - 1:
            text = text[start:-1]
        if text == before:
            break
    return text


def _undollared(text: str) -> str:
    return text[1:-1] if "$" not in text[1:-1] else text


def closing(text: str, start: int) -> int:
    """Return where the brace that was opened just before `start` is closed; -1 if it never is."""
    depth, index = 1, start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        depth += (char == "{") - (char == "}")
        if not depth:
            return index
        index += 1
    return -1


def _words_of(text: str) -> str:
    """Return a text of words in lower case, "" if it is none: signs of a formula are in it, or nothing but signs."""
    plain = _SETTER.sub(" ", text)
    if re.search(r"[\\^_=<>+/|]", plain) or not re.search(r"[A-Za-z\u00c0-\uffff]", plain):
        return ""
    return " ".join(re.sub(r"[\"'`.,;:!?()]", " ", plain.replace("*", " ")).casefold().split())


def _option(text: str, spelled: str) -> Form | None:
    """Return an option that is named with what it says, None if several are."""
    match = _OPTION.match(text)
    if match is None or _ANY_OPTION.search(text, match.end()):
        return None
    return Form(kind="option", spelled=spelled, name=match[1] or match[2], members=(read(text[match.end() :]),))


def _special(text: str, spelled: str) -> Form | None:
    """Return what has a notation of its own: a time of day, digits in a base."""
    bare = _SETTER.sub(" ", text).strip()
    if len(bare) > 420:
        return None
    clock = _CLOCK.fullmatch(" ".join(bare.split()))
    if clock:
        return _clock(clock, spelled)
    number = _in_words(bare, spelled)
    if number:
        return number
    match = _BASE.fullmatch(" ".join(_SETTER.sub("", text.replace("~", " ")).split()))
    if match:
        named = match["sub"] or match["said"]
        base = _BASES.get(named, named)
        if base.isdigit() and int(base) > 1:
            digits = re.sub(r"[, ]", "", match["digits"]).upper().lstrip("0") or "0"
            return Form(kind="value", spelled=spelled, base=base, digits=digits)
    return None


def _in_words(text: str, spelled: str) -> Form | None:
    """Return a number in words, perhaps with its unit: what follows names no other number and no alternative."""
    if not text[:1].isalpha() or re.search(r"[0-9\\^_=<>+/*|]", text):
        return None
    head, rest = _leading_number(text)
    behind = set(rest.lower().split())
    if head is None or behind & (words.NUMBER_WORDS | _JOINERS | {"to", "times", "of", "less", "more"}):
        return None
    unit = units.read(rest) if rest else None
    if rest and unit is None:
        return None
    percent = unit == units.PERCENT
    kept_unit = unit if unit is not None and unit.powers and not percent else None
    return Form(kind="value", spelled=spelled, node=head, unit=kept_unit, percent=percent)


def _clock(match: re.Match[str], spelled: str) -> Form:
    if match["named"]:
        half = "pm" if match["named"].lower() == "noon" else "am"
        return Form(kind="clock", spelled=spelled, minutes=(12, 0, 0), half=half)
    hour, minute, second = (match[f"{part}2"] or match[part] for part in ("hour", "minute", "second"))
    half = re.sub(r"[^apm]", "", match["half"].lower()) if match["half"] else ""
    return Form(
        kind="clock", spelled=spelled, minutes=(int(hour), int(minute or 0), int(second or 0)), half=half
    )  # fmt: skip


def _prepared(text: str) -> str:
    """Return a text whose own notations are spelled as the lexer reads them."""
    text = _TEMPERATURE.sub(lambda match: rf"\text{{ deg{match[1] or match[2]}}}", text)
    text = _AND_A_PART.sub(lambda match: f"{match[1]} {_PARTS.get(match[2]) or match[3]}", text)
    text = _O_CLOCK.sub("", text)
    text = _HAN_PERCENT.sub(r"\1\\%", text)
    text = _HYPHEN.sub(" ", _ORDINAL.sub("", text))
    money = _CURRENCY.match(text)
    if money and (money[2] != "$" or text.count("$") % 2):
        sign = money[1] or money[3]
        return rf"{sign}{text[money.end() :]}\text{{ {_currency(money[2])}}}"
    end = _CURRENCY_AT_END.search(text)
    if end and (end[1] != "$" or text.count("$") % 2):
        text = rf"{text[: end.start()]}\text{{ {_currency(end[1])}}}"
    # What the lexer does not take as a letter is a word.
    return re.sub(
        r"[\u00c0-\u024f\u4e00-\u9fff]{1,256}", lambda match: rf"\text{{{match.group()}}}", _joined_texts(text)
    )


def _currency(sign: str) -> str:
    return "dollar" if "$" in sign else {"€": "euro", "£": "gbp", "¥": "yen"}.get(sign, "rupee")


def _joined_texts(text: str) -> str:
    # Words of a \text stay inside it.
    return re.sub(
        r"\\(text|mathrm|mbox|textbf|textit|textrm)\s{0,8}\{([^{}]{0,256})\}",
        lambda match: "\\" + match[1] + "{" + re.sub(r"[\u00c0-\u024f\u4e00-\u9fff]", _escape_letter, match[2]) + "}",
        text,
    )


def _escape_letter(match: re.Match[str]) -> str:
    return "@" + format(ord(match.group()), "04x") + "@"


def _restored(text: str) -> str:
    return re.sub("@([0-9a-f]{4})@", lambda match: chr(int(match[1], 16)), text) if "@" in text else text


def _merged(tokens: list[Token]) -> list[Token]:
    """Return the tokens with words as words: what \text holds is split at "and" and "or", bare words become text."""
    out: list[Token] = []
    for place, token in enumerate(tokens):
        if token.kind == "text":
            text = _restored(token.text)
            if len(text) == 1 and text.isalpha():
                # A letter behind a value is a unit, but for the imaginary one and Euler's number.
                is_unit = text not in "ie" and place > 0 and _ends_value(tokens[place - 1])
                out.append(Token("text" if is_unit else "word", text, token.spaced))
            else:
                out += _of_text(text)
        elif token.kind == "word" and _is_bare_word(token, tokens, place):
            _add_word(out, token.text)
        else:
            out.append(token)
    return out


def _is_bare_word(token: Token, tokens: Sequence[Token], place: int) -> bool:
    word, lower = token.text, token.text.lower()
    if lower in _JOINERS or lower in ("to", "by", "of", "per"):
        return place > 0 and (token.spaced or lower in _JOINERS)
    if lower in ("a", "an"):
        behind = tokens[place + 1] if place + 1 < len(tokens) else None
        return (
            behind is not None and behind.kind == "word" and behind.spaced and behind.text.lower() in words.NUMBER_WORDS
        )
    if lower in expressions.FUNCTIONS or lower in expressions.CONSTANTS or lower == "sqrt" or len(word) < 2:
        return False
    if place and _ends_value(tokens[place - 1]) and units.is_known(word):
        return True
    if len(word) == 2:
        return lower in expressions.SHORT_WORDS and (token.spaced or place == 0)
    return token.spaced or place == 0


def _ends_value(token: Token) -> bool:
    return token.kind in ("num", "repeating", "text") or token.text in (")", "}", "]", "!", "%", "pi")


def _add_word(out: list[Token], word: str) -> None:
    joiner = word.lower() in _JOINERS or word.lower() == "to"
    if out and out[-1].kind == "text" and not joiner and out[-1].text.lower() not in (*_JOINERS, "to"):
        out[-1] = Token("text", f"{out[-1].text} {word}", out[-1].spaced)
    else:
        out.append(Token("text", word, True))


def _of_text(text: str) -> list[Token]:
    out: list[Token] = []
    position = 0
    while position < len(text):
        match = _WORD_OF_TEXT.match(text, position)
        if match:
            for word in [match.group()] if match.group().count(".") or "-" in match.group() else match.group().split():
                _add_word(out, word)
            position = match.end()
        elif text[position].isspace() or (text[position] in ".'" and out and out[-1].kind == "text"):
            position += 1
        else:
            end = position + 1
            while end < len(text) and not _WORD_OF_TEXT.match(text, end):
                end += 1
            out += expressions.tokens(text[position:end])
            position = end
    return out


# Tokens to forms.


def _of_tokens(tokens: list[Token], spelled: str, depth: int) -> Form | None:
    """Return the form of tokens; None if they are words alone. Raises UnreadableError."""
    if depth > _MOST_NESTED:
        raise UnreadableError("nested too deep")
    while tokens and tokens[0].kind == "text" and tokens[0].text.lower() in _LOOSE:
        tokens = tokens[1:]
    while len(tokens) > 1 and tokens[-1].text in (".", ",", ";") and tokens[-1].kind == "op":
        tokens = tokens[:-1]
    if not tokens:
        raise UnreadableError("nothing")
    compound = _compound(tokens, spelled)
    if compound is not None:
        return compound
    parts = _split(tokens, _is_separator)
    if len(parts) > 1:
        form = _list(parts, spelled, depth)
        is_choice = form.kind == "list" and any(tokens[place].text.lower() in _OR for place in _top_level(tokens))
        return dataclasses.replace(form, op="or") if is_choice else form
    places = [place for place in _top_level(tokens) if _relation(tokens[place])]
    if places:
        return _related(tokens, places, spelled, depth)
    for sign, kind in (("cup", "union"), ("setminus", "without")):
        parts = _split(tokens, lambda token, sign=sign: token.kind == "cmd" and token.text == sign)  # type: ignore[misc]
        if len(parts) > 1:
            members = tuple(_member(part, depth) for part in parts)
            return Form(kind=kind, spelled=spelled, members=members)
    if tokens[0].kind == "env":
        return _matrix(tokens, spelled, depth)
    if len(tokens) == 1 and tokens[0].text == "emptyset" and tokens[0].kind == "cmd":
        return Form(kind="list", spelled=spelled, brackets="{}")
    enclosed = _enclosed(tokens, spelled, depth)
    if enclosed is not None:
        return enclosed
    parts = _split(tokens, lambda token: token.kind in ("op", "text") and token.text in (":", "to"))
    if len(parts) > 1:
        return Form(kind="ratio", spelled=spelled, members=tuple(_member(part, depth) for part in parts))
    return _value(tokens, spelled)


def _compound(tokens: Sequence[Token], spelled: str) -> Form | None:
    """Return the sum that "5 feet 3 inches" is: of units that measure the same, each smaller than the one before."""
    relevant = [token for token in tokens if (token.kind, token.text) != ("text", "and")]
    if (
        len(relevant) < 4
        or len(relevant) % 2
        or any(token.kind != ("num", "text")[place % 2] for place, token in enumerate(relevant))
    ):
        return None
    read = [units.read(token.text) for token in relevant[1::2]]
    sizes = [
        unit.factor
        for unit in read
        if unit is not None and unit.powers and unit.powers == (read[0] or units.NONE).powers
    ]
    if len(sizes) < len(read) or sorted(set(sizes), reverse=True) != sizes:
        return None
    parts: list[Node] = [
        ("mul", [expressions.number(token.text), ("num", size, -1, 0)])
        for token, size in zip(relevant[::2], sizes, strict=True)
    ]
    assert read[0] is not None
    return Form(kind="value", spelled=spelled, node=("add", parts), unit=units.Unit(Fraction(1), read[0].powers))


def _member(tokens: list[Token], depth: int) -> Form:
    spelled = "".join(token.text for token in tokens)
    form = _of_tokens(tokens, spelled, depth + 1)
    return form or Form(kind="text", spelled=_words_of(" ".join(token.text for token in tokens)) or spelled)


def _top_level(tokens: Sequence[Token]) -> list[int]:
    """Return the places of the tokens that are outside every bracket."""
    depth, places = 0, []
    for place, token in enumerate(tokens):
        opens = (token.kind == "op" and token.text in "([{") or (
            token.kind == "cmd" and token.text in ("{", "langle", "lfloor", "lceil")
        )
        closes = (token.kind == "op" and token.text in ")]}") or (
            token.kind == "cmd" and token.text in ("}", "rangle", "rfloor", "rceil")
        )
        if token.kind == "env":
            depth += 1 if token.text.startswith(r"\begin") else -1
            continue
        if closes:
            depth -= 1
        elif not opens and depth == 0:
            places.append(place)
        depth += opens
    return places


def _split(tokens: list[Token], separates: Callable[[Token], bool]) -> list[list[Token]]:
    places = [place for place in _top_level(tokens) if separates(tokens[place])]
    if len(places) > MAX_MEMBERS:
        raise UnreadableError(f"more than {MAX_MEMBERS} members")
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(tokens)]
    return [tokens[start:end] for start, end in zip(starts, ends, strict=True)]


def _is_separator(token: Token) -> bool:
    if token.kind == "op":
        return token.text in (",", ";")
    if token.kind == "cmd":
        return token.text in ("and", "or")
    return token.kind == "text" and token.text.lower() in _JOINERS


def _relation(token: Token) -> str:
    return _RELATIONS.get(token.text, "") if token.kind in ("op", "cmd") else ""


def _list(parts: list[list[Token]], spelled: str, depth: int, brackets: str = "") -> Form:
    # "1, 2, and 3" has nothing between its comma and its "and".
    if any(not left and not right for left, right in itertools.pairwise(parts)) or not parts[0] or not parts[-1]:
        raise UnreadableError("a list with an empty member")
    members = [_member(part, depth) for part in parts if part]
    if len(members) == 1:
        raise UnreadableError("a list with an empty member")
    if any(member.kind == "list" and not member.brackets for member in members):
        # A member with a plus-minus sign is two.
        members = [
            value
            for member in members
            for value in (member.members if member.kind == "list" and not member.brackets else [member])
        ]
    named = [member.name for member in members]
    name = ""
    if len(members) > 1 and named[0] and all(other in ("", named[0]) for other in named[1:]):
        name = named[0]
        members = [dataclasses.replace(member, name="") for member in members]
    if not brackets and all(_is_interval(member) and member.op for member in members):
        return Form(kind="union", spelled=spelled, members=tuple(members), name=name)
    if all(member.kind == "value" and member.unit is None for member in members[:-1]) and members[-1].unit:
        members = [dataclasses.replace(member, unit=members[-1].unit) for member in members]
    return Form(kind="list", spelled=spelled, members=tuple(members), name=name, brackets=brackets)


def _is_interval(form: Form) -> bool:
    return form.kind == "list" and len(form.brackets) == 2 and len(form.members) == 2


def _enclosed(tokens: list[Token], spelled: str, depth: int) -> Form | None:
    """Return the form of what one pair of brackets encloses; None if none does, or a pair of round ones only groups."""
    first, last = tokens[0], tokens[-1]
    if len(tokens) < 2:
        return None
    opener = (
        first.text if (first.kind, first.text) in (("op", "("), ("op", "["), ("cmd", "{"), ("cmd", "langle")) else ""
    )
    closer = last.text if (last.kind, last.text) in (("op", ")"), ("op", "]"), ("cmd", "}"), ("cmd", "rangle")) else ""
    if (first.kind, first.text, last.kind, last.text) == ("op", "]", "op", "["):
        opener, closer = "(", ")"
    elif not opener or not closer or _top_level(tokens) or not _is_one_pair(tokens):
        return None
    inside = tokens[1:-1]
    brackets = {"langle": "(", "{": "{"}.get(opener, opener) + {"rangle": ")", "}": "}"}.get(closer, closer)
    if opener == "{" or closer == "}":
        if brackets != "{}":
            raise UnreadableError("brackets that do not match")
        return _set(inside, spelled, depth)
    parts = _split(inside, _is_separator)
    if len(parts) > 1:
        return _list(parts, spelled, depth, brackets)
    if brackets == "[]":
        return Form(kind="list", spelled=spelled, brackets="[]", members=(_member(inside, depth),))
    if brackets != "()":
        raise UnreadableError("brackets that do not match")
    if first.kind == "cmd":
        return Form(kind="list", spelled=spelled, brackets="()", members=(_member(inside, depth),))
    inner = _of_tokens(inside, spelled, depth + 1)
    return inner if inner is None or inner.kind != "value" or inner.unit or inner.name else None


def _is_one_pair(tokens: Sequence[Token]) -> bool:
    depth = 0
    for place, token in enumerate(tokens):
        if token.kind in ("op", "cmd"):
            depth += token.text in ("(", "[", "{", "langle", "lfloor", "lceil")
            depth -= token.text in (")", "]", "}", "rangle", "rfloor", "rceil")
        if not depth and place < len(tokens) - 1:
            return False
    return not depth


def _set(inside: list[Token], spelled: str, depth: int) -> Form:
    if not inside:
        return Form(kind="list", spelled=spelled, brackets="{}")
    if len(inside) > 2 and inside[1].kind == "op" and inside[1].text in ("|", ":") and _is_letter(inside[:1]):
        condition = _member(inside[2:], depth)
        if condition.kind in ("list", "union") and condition.name == inside[0].text:
            return dataclasses.replace(condition, name="", spelled=spelled)
    if any(token.text in ("|", ":") for token in inside):
        raise UnreadableError("a set by its condition")
    parts = _split(inside, _is_separator)
    if len(parts) > 1:
        return _list(parts, spelled, depth, "{}")
    return Form(kind="list", spelled=spelled, brackets="{}", members=(_member(inside, depth),))


def _matrix(tokens: list[Token], spelled: str, depth: int) -> Form:
    kind = re.search(r"\{([A-Za-z]+)", tokens[0].text)
    if (
        kind is None
        or kind[1] not in _MATRICES
        or tokens[-1].kind != "env"
        or any(t.kind == "env" for t in tokens[1:-1])
    ):
        raise UnreadableError("no matrix")
    rows: list[list[list[Token]]] = [[[]]]
    for token in tokens[1:-1]:
        if token.kind == "op" and token.text == "&":
            rows[-1].append([])
        elif token.kind == "op" and token.text == "\\\\":
            rows.append([[]])
        else:
            rows[-1][-1].append(token)
    if rows[-1] == [[]]:
        rows.pop()
    if sum(len(row) for row in rows) > MAX_MEMBERS:
        raise UnreadableError(f"more than {MAX_MEMBERS} members")
    members = tuple(
        Form(kind="list", spelled="", brackets="[]", members=tuple(_member(cell, depth) for cell in row))
        for row in rows
    )
    return Form(kind="matrix", spelled=spelled, members=members, op="|" if kind[1] == "vmatrix" else "")


def _related(tokens: list[Token], places: list[int], spelled: str, depth: int) -> Form:
    sides = [
        tokens[start:end] for start, end in zip([0, *(p + 1 for p in places)], [*places, len(tokens)], strict=True)
    ]
    ops = [_relation(tokens[place]) for place in places]
    if not sides[0] and ops[0] in ("=", "~"):
        # "= 5" and "≈ 5" say 5.
        sides, ops = sides[1:], ops[1:]
        if not ops:
            return _member(sides[0], depth)
    if any(not side for side in sides):
        raise UnreadableError("a relation without a side")
    if set(ops) <= {"=", "~"}:
        return _equated(sides, ops, spelled, depth)
    if ops == ["in"]:
        name, bound = _name(sides[0])
        inner = _member(sides[1], depth)
        if not name or inner.kind not in ("list", "union", "without", "value"):
            raise UnreadableError("no member of a set")
        return dataclasses.replace(inner, name=name, bound=bound)
    return _unequal(sides, ops, spelled)


def _equated(sides: list[list[Token]], ops: list[str], spelled: str, depth: int) -> Form:
    name, bound = _name(sides[0])
    if not name and len(sides) == 2 and _is_letter(sides[1]):
        name, bound = _name(sides[1])
        sides = [sides[1], sides[0]]
    if (
        not name
        and len(sides) == 2
        and ops == ["="]
        and not any(token.kind == "text" for side in sides for token in side)
    ):
        left, right = _side(sides[0]), _side(sides[1])
        if _has_letters(left) or _has_letters(right):
            return Form(kind="relation", spelled=spelled, op="=", node=("add", [left, ("neg", right)]))
    values_ = sides[1:] if name else sides
    kinds = ops if name else ["=", *ops]
    exact = [_member(side, depth) for side, op in zip(values_, kinds, strict=True) if op == "="]
    # What follows a "~" in a chain is near, and so is all behind it.
    if "~" in kinds:
        cut = kinds.index("~")
        exact, near = [_member(side, depth) for side in values_[:cut]], [_member(side, depth) for side in values_[cut:]]
    else:
        near = []
    forms = exact or near
    last = forms[-1]
    return dataclasses.replace(
        last,
        name=name or last.name,
        bound=bound or last.bound,
        others=tuple(forms[:-1]),
        near=tuple(near if exact else ()),
    )


def _unequal(sides: list[list[Token]], ops: list[str], spelled: str) -> Form:
    nodes = [_side(side) for side in sides]
    if len(sides) == 2:
        left, right = nodes
        op = ops[0]
        if op == "!=":
            return Form(kind="relation", spelled=spelled, op="!=", node=("add", [left, ("neg", right)]))
        if op == "==":
            return Form(kind="relation", spelled=spelled, op="==", node=("add", [left, ("neg", right)]))
        if _has_letters(left) and left[0] == "sym" and not _has_letters(right):
            return _half_line(left[1], op, right, spelled)
        if _has_letters(right) and right[0] == "sym" and not _has_letters(left):
            return _half_line(right[1], _FLIPPED[op], left, spelled)
        if op in ("<", "<="):
            return Form(kind="relation", spelled=spelled, op=op, node=("add", [left, ("neg", right)]))
        return Form(kind="relation", spelled=spelled, op=_FLIPPED[op], node=("add", [right, ("neg", left)]))
    if len(sides) == 3 and nodes[1][0] == "sym" and not _has_letters(nodes[0]) and not _has_letters(nodes[2]):
        rising = set(ops) <= {"<", "<="}
        if not rising and not set(ops) <= {">", ">="}:
            raise UnreadableError("a chain of relations that turns")
        first, second = ops if rising else reversed(ops)
        low, high = (nodes[0], nodes[2]) if rising else (nodes[2], nodes[0])
        brackets = ("[" if "=" in first else "(") + ("]" if "=" in second else ")")
        return _interval(brackets, low, high, nodes[1][1], spelled)
    raise UnreadableError("a chain of relations")


_INFINITY: Node = ("const", "oo")


def _half_line(name: str, op: str, bound: Node, spelled: str) -> Form:
    if op in (">", ">="):
        return _interval("[)" if op == ">=" else "()", bound, _INFINITY, name, spelled)
    return _interval("(]" if op == "<=" else "()", ("neg", _INFINITY), bound, name, spelled)


def _interval(brackets: str, low: Node, high: Node, name: str, spelled: str) -> Form:
    members = tuple(Form(kind="value", spelled="", node=node) for node in (low, high))
    return Form(kind="list", spelled=spelled, brackets=brackets, members=members, name=name, op="interval")


def _side(tokens: list[Token]) -> Node:
    return expressions.parse(tokens)


def _has_letters(node: Node) -> bool:
    if node[0] == "sym":
        return True
    if node[0] in ("num", "const"):
        return False
    rest = node[1] if node[0] in ("add", "mul") else node[1:]
    return any(_has_letters(child) for child in rest if isinstance(child, tuple))


def _is_letter(tokens: Sequence[Token]) -> bool:
    return len(tokens) == 1 and (
        (tokens[0].kind == "word" and len(tokens[0].text) == 1 and tokens[0].text not in "ei")
        or tokens[0].text in expressions.GREEK
    )


_NAMING = frozenset(
    ("angle", "overline", "triangle", "measuredangle", "widehat", "overrightarrow", "vec", "hat", "bar", "Delta")
)


def _name(tokens: list[Token]) -> tuple[str, tuple[str, ...]]:
    """Return the name that a left side gives to the right one, and its arguments' letters; "" if it is a formula."""
    if len(tokens) == 3 and (tokens[0].text, tokens[2].text) == ("{", "}") and tokens[0].kind == "op":
        tokens = tokens[1:2]
    if any(token.kind in ("num", "repeating") for token in tokens) and not any(
        token.kind == "text" or token.text in ("(", "_") for token in tokens
    ):
        return "", ()
    if any(token.kind == "text" for token in tokens):
        text = " ".join(token.text for token in tokens if token.kind == "text").casefold()
        if any(token.text in ("+", "-", "/", "^") for token in tokens) or text.split()[-1:] == ["not"]:
            return "", ()
        return "".join(token.text for token in tokens).casefold(), ()
    if any(token.kind == "cmd" and token.text in _NAMING for token in tokens):
        return "".join(token.text for token in tokens), ()
    joined = "".join(token.text for token in tokens)
    if len(tokens) == 1 and tokens[0].kind == "word" and tokens[0].text.isupper():
        return joined, ()
    if _is_letter(tokens) or re.fullmatch(
        r"(?:[A-Za-z]|[A-Za-z]{3,7})(?:_(?:\{[0-9A-Za-z]{1,8}\}|[0-9A-Za-z]{1,3}))?'{0,3}", joined
    ):
        single = joined.split("_")[0].rstrip("'")
        if len(single) == 1 and single not in "ei":
            return joined.replace("{", "").replace("}", ""), ()
        if _is_letter(tokens) or single in expressions.GREEK:
            return joined.replace("{", "").replace("}", ""), ()
        return "", ()
    call = re.fullmatch(
        r"([A-Za-z](?:_\{?[0-9A-Za-z]\}?)?'{0,3}(?:\^\{?-1\}?|\^\{\([0-9n]\)\})?)\(([^()]{1,64})\)", joined
    )
    if call:
        arguments = tuple(call[2].split(","))
        if all(len(argument) == 1 and argument.isalpha() and argument.islower() for argument in arguments):
            return call[1].replace("{", "").replace("}", ""), arguments
        return joined, ()
    if re.fullmatch(r"\|[A-Z]{2}\|", joined):
        return joined.strip("|"), ()
    if re.fullmatch(r"frac\{d[a-z]?\}\{d[a-z]\}|fracd[a-z]d[a-z]|frac\{d\}\{d[a-z]\}", joined):
        return joined, ()
    return "", ()


def _value(tokens: list[Token], spelled: str) -> Form | None:
    """Return a value with the unit that ends it; None if the tokens are words that name no number."""
    scale, unit, end = Fraction(1), None, len(tokens)
    head: Node | None = None
    if tokens[0].kind == "text":
        head, rest = _leading_number(tokens[0].text)
        if head is None:
            if len(tokens) == 1:
                return None
            raise UnreadableError("a word before a value")
        if len(tokens) > 1:
            raise UnreadableError("a value behind a number in words")
        unit = _unit_of(rest) if rest else None
        return Form(kind="value", spelled=spelled, node=head, unit=unit)
    start = next((place for place in range(1, len(tokens)) if tokens[place].kind == "text"), len(tokens))
    if start < len(tokens):
        scale, rest = _leading_scale(tokens[start].text)
        behind = rest + " " + "".join(_unit_text(token) for token in tokens[start + 1 :])
        # A slash or a fraction may set the first unit apart: \frac{m}{s}.
        if behind.strip():
            unit = _unit_of(behind)
        end = start
    if end > 2 and tokens[end - 1].kind == "op" and tokens[end - 1].text == "-" and tokens[end - 1] == tokens[-1]:
        raise UnreadableError("nothing behind a minus sign")
    if end > 1 and tokens[end - 1].kind == "cmd" and tokens[end - 1].text in ("cdot", "times"):
        end -= 1
    node = expressions.parse(tokens[:end])
    if scale != 1:
        node = ("mul", [node, ("num", scale, -1, 0)])
    percent = node[0] == "pct"
    if percent:
        node = node[1]
    elif node[0] == "neg" and node[1][0] == "pct":
        percent, node = True, ("neg", node[1][1])
    elif node[0] == "mul" and node[1][-1][0] == "pct":
        percent, node = True, ("mul", [*node[1][:-1], node[1][-1][1]])
    if unit == units.PERCENT:
        percent, unit = True, None
    stripped = _without_degrees(node) if unit is None else None
    if stripped is not None:
        node, unit = stripped, units.DEGREE
    num_signs = _count(node, "pm")
    if num_signs > 1:
        raise UnreadableError("two ambiguous signs")
    if num_signs:
        both = [Form(kind="value", spelled="", node=_signed(node, sign), unit=unit, percent=percent) for sign in "+-"]
        return Form(kind="list", spelled=spelled, members=tuple(both))
    return Form(kind="value", spelled=spelled, node=node, unit=unit, percent=percent)


def _count(node: Node, kind: str) -> int:
    below = node[1] if node[0] in ("add", "mul") else () if node[0] in ("num", "sym", "const") else node[1:]
    return int(node[0] == kind) + sum(_count(child, kind) for child in below if isinstance(child, tuple))


def _signed(node: Node, sign: str) -> Node:
    """Return a tree with its plus-minus sign read as one of the two."""
    if node[0] == "pm":
        return ("add", [node[1], node[2] if sign == "+" else ("neg", node[2])])
    if node[0] in ("num", "sym", "const"):
        return node
    if node[0] in ("add", "mul"):
        return (node[0], [_signed(child, sign) for child in node[1]])
    return tuple(_signed(child, sign) if isinstance(child, tuple) else child for child in node)


def _without_degrees(node: Node) -> Node | None:
    if node[0] == "deg":
        return tuple(node[1])
    if node[0] == "neg":
        inner = _without_degrees(node[1])
        return None if inner is None else ("neg", inner)
    if node[0] == "mul" and node[1][-1][0] == "deg":
        return ("mul", [*node[1][:-1], node[1][-1][1]])
    return None


def _unit_text(token: Token) -> str:
    if token.kind == "text":
        return f" {token.text} "
    return {"cdot": "*", "times": "*"}.get(token.text, token.text)


def _unit_of(text: str) -> units.Unit | None:
    """Return the unit that a text names, None if its words name none ("in all"). Raises UnreadableError."""
    unit = units.read(text.strip())
    if unit is None:
        raise UnreadableError("what follows the value is not a unit")
    return unit if unit.powers else None


def _leading_scale(text: str) -> tuple[Fraction, str]:
    """Return the product of the scales that a text begins with ("million"), and the rest."""
    scale, rest = Fraction(1), text.split()
    while rest and rest[0].lower() in words.SCALES:
        scale *= words.SCALES[rest.pop(0).lower()]
    rest_text = " ".join(rest)
    if scale == 1 and rest_text:
        part = words.part(rest[0])
        if part and part != 4:
            return Fraction(1, part), " ".join(rest[1:])
        for size in (2, 1):
            if rest_text[:size] in words.SCALES and "\u4e00" <= rest_text[0] <= "\u9fff":
                return Fraction(words.SCALES[rest_text[:size]]), rest_text[size:]
    return scale, rest_text


def _leading_number(text: str) -> tuple[Node | None, str]:
    """Return the longest number in words that a text begins with, and the rest."""
    parts = text.split()
    for size in range(min(len(parts), 24), 0, -1):
        number = words.value(" ".join(parts[:size]))
        if number is not None:
            return ("num", number[0], number[1], 9), " ".join(parts[size:])
    han = words.leading_han(text)
    return (("num", han[0], han[1], 9), text[han[2] :]) if han is not None else (None, text)
