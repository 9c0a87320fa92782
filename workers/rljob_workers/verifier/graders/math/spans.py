r"""Where in a completion the answer is: the whole of it, with its sign, unit and alternatives.

Order: the last readable `\boxed{...}`; else what follows the last "answer is", "answer:", "####" or the like; else the
last formula of the last line that has one. Never a part of a formula: what cannot be distinguished is given as it is,
and then equals only the same text. Linear: texts are capped first, braces are counted, sentences are short.
"""

import dataclasses
import re
from collections.abc import Sequence

from rljob_workers.verifier.graders.math import expressions, forms, glyphs, units, words

MAX_SCANNED_CHARS = 64 << 10
MAX_BOXES = 16
MAX_ANSWER_CHARS = expressions.MAX_CHARS
MAX_SENTENCE_CHARS = 4096
MAX_CLAUSE_CHARS = 200
_MOST_PIECES = 400
_MOST_UNIT_WORDS = 5
_MOST_MARKS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The text to compare. `formatted`: it was in a box or after a mark, not merely somewhere.

    otherwise: another reading of the same answer, "" if there is none: a percent sign behind a box may be the unit that
    the question asks for.
    """

    text: str
    formatted: bool
    otherwise: str = ""


_BOX = re.compile(r"\\f?boxed\s{0,4}\{")
# The one box of a text, with a number, at its end.
_PLAIN_BOX = re.compile(r"\\boxed\{(-?[0-9]{1,24}(?:\.[0-9]{1,12})?)\}[.\s$]{0,4}$")
_MARK = re.compile(
    r"answers?\*{0,2}\s{1,4}(?:is|are|would be|should be|must be|equals|will be|was)\b(?!['\u2019])\*{0,2}\s{0,4}:?"
    r"|answers?\*{0,2}\s{0,4}[:\uff1a]"
    r"|answer\s{0,4}=(?!=)|(?<=<)answer>|####|\u7b54\u6848\s{0,4}(?:\u5e94\u8be5)?(?:\u662f|\u4e3a|[:\uff1a])|\u7b54\s{0,2}[:\uff1a]",
    re.IGNORECASE,
)
# What is in tags ends with them, and so does what is thought.
_TAGS = re.compile(r"</answer>|</?think>", re.IGNORECASE)
_DENIAL = re.compile(r"not|n['\u2019]t|neve|neither|nor|wrong|instead|rather|\u4e0d", re.IGNORECASE)
_NEGATED = re.compile(
    r"(?:\bnot|n['\u2019]t|\bnever|\bneither|\bnor|\bcannot|\bwrong|\binstead of|\brather than"
    r"|\u4e0d\u662f|\u4e0d\u7b49\u4e8e|\u4e0d\u4e3a)"
    r"(?:\s{1,4}(?:equal|equal to|be|is|to|the|answer|a|simply|just)){0,4}[\s:=$*\"]{0,8}$",
    re.IGNORECASE,
)
_SPACING_COMMAND = re.compile(r"\\(?:q?quad|[,;:! ]|\\|text|mathrm|mbox|textbf)(?![A-Za-z])")
_BETWEEN_BOXES = words.word_set(
    "and or either maybe perhaps possibly alternatively also but else it could be is even otherwise a an answer another"
    " \u6216 \u6216\u8005 \u548c \u4e0e \u53ef\u80fd"
)
_HEDGE_BEHIND = re.compile(
    r"[\s$*)\]]{0,8}[,;(]?\s{0,4}(?:or|and|either|\u6216\u8005?|\u548c|\\text\{\s{0,4}(?:or|and)\s{0,4}\})\s{0,4}"
    r"(?:(?:maybe|possibly|perhaps|even|else|it is|also)\s{1,4}){0,2}(?=[-+$(\\0-9\u2212\u221a])",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"[\s$*)\]]{0,8}(?:,?\s{0,4}which\s{1,4})?"
    r"(?:\(?(?:is|was|would be|cannot be)\s{1,4}(?:not|wrong|incorrect|false|never)\b"
    r"|(?:isn|wasn)['\u2019]t\b|\(?(?:wrong|incorrect)\b|\u662f\u9519|\u4e0d\u5bf9)",
    re.IGNORECASE,
)
_PERCENT_BEHIND = re.compile(r"\$?\s{0,4}(?:\\?%|percent\b|per cent\b)", re.IGNORECASE)
_UNIT_BEHIND = re.compile(
    r"\$?\s{1,4}(?:\\text\{\s{0,4})?([A-Za-z\u00b0\u4e00-\u9fff]{1,24}(?:\s(?:per\s)?[A-Za-z]{2,16})?)(?:\^\{?([23])\}?|([\u00b2\u00b3]))?\s{0,4}\}?(?![A-Za-z])"
)
_RETRACTED = re.compile(
    r"(?:^|[.!?\n]\s{0,8})\W{0,4}(?:no|wait|actually|alternatively|correction|sorry|hmm|oops|or|maybe|perhaps|possibly|rather|either)\b[^\n.]{0,60}[0-9]",
    re.IGNORECASE,
)


def find_answer(completion: str, *, boxed_only: bool) -> Extracted | None:
    """Return the answer of a completion, or None. An empty or unclosed last box is not an answer at all."""
    text = completion[-MAX_SCANNED_CHARS:]
    cut = len(completion) > len(text)
    plain = _PLAIN_BOX.search(text, max(0, len(text) - 48)) if text.find("boxed") == text.rfind("boxed") else None
    if plain and not is_negated(text[max(0, plain.start() - 60) : plain.start()]):
        return Extracted(text=plain[1], formatted=True)
    starts = [match.end() for match in _BOX.finditer(text)][-MAX_BOXES:]
    if starts:
        return _boxed(text, starts)
    if boxed_only or (cut and _closes_unopened(text)):
        return None
    text = _TAGS.sub("\n", text)
    mark = _last_mark(text)
    if mark is not None and text[mark.end() :].strip("* \n:"):
        # What a mark announces and then denies is not an answer, wherever else a number is.
        return _marked(text, mark)
    return _last(text, cut=cut)


def unbox(gold: str) -> str:
    """Return the content of a gold's last box, or what follows its last `####`, or the gold itself."""
    starts = [match.end() for match in _BOX.finditer(gold)][-MAX_BOXES:]
    content = balanced(gold, starts[-1]) if starts else None
    if content and content.strip():
        joined = _with_neighbours(gold, starts, content)
        return joined.strip()
    return gold.rsplit("####", 1)[1].strip() if "####" in gold else gold


def balanced(text: str, start: int) -> str | None:
    """Return the text from `start` to the brace that closes the one before it; None if it is never closed."""
    end = forms.closing(text, start)
    return None if end < 0 else text[start:end]


def last_box(completion: str) -> Extracted | None:
    """Return the last box of a completion with what is said next to it; None without one, or if it is open or
    denied.
    """
    return find_answer(completion, boxed_only=True)


def alternatives(completion: str) -> str | None:
    """Return the last box of a completion, or several that are joined; None without one, or if it is open or denied."""
    text = completion[-MAX_SCANNED_CHARS:]
    starts = [match.end() for match in _BOX.finditer(text)][-MAX_BOXES:]
    content = balanced(text, starts[-1]) if starts else None
    if content is None or is_negated(_before_box(text, starts[-1])):
        return None
    if _DENIED_BEHIND.match(text, starts[-1] + len(content) + 1):
        return None
    return _with_neighbours(text, starts, content)


def is_negated(before: str) -> bool:
    """Return whether a text ends by saying that what follows is not so."""
    close = before[-60:]
    return _DENIAL.search(close) is not None and (
        _NEGATED.search(close) is not None or _disbelieves(_clause_before(close))
    )


def _boxed(text: str, starts: list[int]) -> Extracted | None:
    content = balanced(text, starts[-1])
    if not content or not content.strip() or is_negated(_before_box(text, starts[-1])):
        return None
    if _DENIED_BEHIND.match(text, starts[-1] + len(content) + 1):
        return None
    joined = _with_neighbours(text, starts, content)
    if joined != content:
        return Extracted(text=joined.strip(), formatted=True)
    behind = text[starts[-1] + len(content) + 1 :][:200]
    otherwise = rf"{content.strip()}\%" if _PERCENT_BEHIND.match(behind) else ""
    return Extracted(text=content.strip() + _suffix(behind), formatted=True, otherwise=otherwise)


def _before_box(text: str, start: int) -> str:
    return text[max(0, start - 100) : text.rfind("\\", 0, start)]


def _with_neighbours(text: str, starts: list[int], content: str) -> str:
    """Return a box's content with what is said next to it: boxes joined by a comma, "and" or "or", and "or 6"
    behind.
    """
    members, last = [content], starts[-1]
    for start in reversed(starts[:-1]):
        inner = balanced(text, start)
        if inner is None or start + len(inner) >= last:
            break
        between = text[start + len(inner) + 1 : text.rfind("\\", 0, last)]
        if len(between) > 60 or not _joins(between):
            break
        members.insert(0, inner)
        last = start
    if len(set(members)) == 1:
        members = members[:1]
    behind = text[starts[-1] + len(content) + 1 :][:200]
    hedge = _HEDGE_BEHIND.match(behind)
    if hedge:
        rest = _first_sentence(behind[hedge.end() :])
        if any(char.isdigit() for char in rest[:24]) or rest[:1] in "$\\":
            members.append(rest.strip("$ "))
    return ", ".join(members) if len(members) > 1 else members[0]


def _joins(between: str) -> bool:
    """Return whether what is between two boxes makes them one answer: signs, "or", "x =", nothing that decides."""
    cleaned = re.sub(r"(?:(?<=\s)|^|(?<=\$))[A-Za-z](?:_[0-9])?\s{0,4}=", " ", _SPACING_COMMAND.sub(" ", between))
    return set(re.findall(r"[A-Za-z]+|[\u4e00-\u9fff]+", cleaned.lower())) <= _BETWEEN_BOXES and not re.search(
        r"[0-9=]", cleaned
    )


def _suffix(behind: str) -> str:
    """Return the unit that is behind a box, as text; "" if none does."""
    match = None if _PERCENT_BEHIND.match(behind) else _UNIT_BEHIND.match(behind)
    if not match:
        return ""
    power = match[2] or {"\u00b2": "2", "\u00b3": "3"}.get(match[3] or "", "")
    for suffix in (match[1], match[1].split()[0]):
        if (
            all(units.is_known(word) or word in ("per", "square", "cubic") for word in suffix.split())
            and len(suffix) > 1
        ):
            # "in" and "at" are units only where they are nothing else.
            if suffix.lower() in ("in", "at", "a", "as", "am", "min", "bar", "mole", "second", "may"):
                return ""
            return rf"\text{{ {suffix}}}" + (f"^{power}" if power else "")
    return ""


def _closes_unopened(text: str) -> bool:
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += (match.group() == "{") - (match.group() == "}")
        if depth < 0:
            return True
    return False


# Prose.


def _marked(text: str, mark: re.Match[str]) -> Extracted | None:
    if _disbelieves(_clause_before(text[max(0, mark.start() - MAX_CLAUSE_CHARS) : mark.start()])):
        return None
    simple = _SIMPLE.fullmatch(text, mark.end())
    if simple and (simple[2] is None or simple[2] not in _SPECIAL):
        return Extracted(text=simple[1] + (rf"\text{{ {simple[2]}}}" if simple[2] else ""), formatted=True)
    answer = said_first(text[mark.end() :])
    return Extracted(text=answer, formatted=True) if answer else None


def said_first(rest: str) -> str:
    """Return the answer that is behind a mark, "" if that text denies it, takes it back or gives none."""
    rest = rest.lstrip().removeprefix("**").lstrip()
    display = _display(rest)
    if display is not None:
        return display
    line = rest.split("\n", 1)[0][:MAX_SENTENCE_CHARS]
    sentence = _first_sentence(_clean(line))
    if not sentence.strip() or _RETRACTED.search(rest[len(sentence) :][:400]):
        return ""
    return _first_run(_pieces(sentence))


def _last_mark(text: str) -> re.Match[str] | None:
    """Return the last mark: looked for at the last few places where one can begin."""
    small = text.lower()
    if len(small) != len(text):
        small = text
    last: re.Match[str] | None = None
    for first in ("answer", "####", "\u7b54"):
        place = len(text)
        for _ in range(_MOST_MARKS):
            place = small.rfind(first, last.start() if last else 0, place)
            if place < 0:
                break
            match = _MARK.match(text, place)
            if match is not None:
                last = match
                break
    return last


def _display(rest: str) -> str | None:
    """Return the displayed formula that a text begins with, None if it begins otherwise or continues in the same
    line.
    """
    for opening, closing in (("$$", "$$"), (r"\[", r"\]")):
        if rest.startswith(opening):
            end = rest.find(closing, len(opening))
            inner = rest[len(opening) : end].strip() if 0 < end <= MAX_SENTENCE_CHARS else ""
            return inner or None
    return None


def _last(text: str, *, cut: bool) -> Extracted | None:
    ending = text.rstrip()
    for opening, closing in (("$$", "$$"), (r"\[", r"\]")):
        body = ending.rstrip(". ")
        if body.endswith(closing) and len(body) > 4:
            start = body.rfind(opening, 0, len(body) - 2)
            if start >= 0 and len(body) - start <= MAX_SENTENCE_CHARS and not is_negated(body[:start]):
                inner = body[start + 2 : -2].strip()
                if inner:
                    return Extracted(text=inner, formatted=False)
    lines = ending.split("\n")
    for number in range(len(lines) - 1, max(-1, len(lines) - 12), -1):
        if cut and number == 0:
            return None
        line = _clean(lines[number])
        if len(line) > MAX_SENTENCE_CHARS:
            line = line[-MAX_SENTENCE_CHARS:]
            line = line[line.find(" ") + 1 :] if " " in line else ""
        for sentence in reversed(_sentences(line)):
            pieces = _pieces(sentence)
            if any(piece.kind == "math" for piece in pieces):
                run = _last_run(pieces)
                return Extracted(text=run, formatted=False) if run else None
    return None


_MIXED_HAN = re.compile(r"([0-9])\u53c8([0-9]{1,4}/[0-9]{1,4})")
# What joins, denies or bounds an answer, longest first.
_HAN_WORD = re.compile(
    "(\u4e0d\u7b49\u4e8e|\u4e0d\u662f|\u6216\u8005|\u6216\u8bb8|\u53ef\u80fd|\u4e5f\u8bb8|\u5927\u6982|\u56e0\u4e3a|\u6240\u4ee5|\u5176\u4e2d|\u7b49\u4e8e|\u81f3\u5c11|\u6700\u591a|\u5c0f\u4e8e|\u5927\u4e8e|\u8d85\u8fc7"
    "|\u4e0d\u8db3|\u4e4b\u95f4|\u4ee5\u53ca|\u9519\u8bef|\u6216)"
)
_HAN_RUN = re.compile(r"([\u4e00-\u9fff]{1,64})")


def _clean(line: str) -> str:
    """Return a line without marks of emphasis, Chinese set apart."""
    line = line.replace("**", "").replace("__", " ").replace("`", "")
    if not line.isascii():
        line = _MIXED_HAN.sub(r"\1 \2", line)
        line = re.sub(r"\u767e\u5206\u4e4b\s{0,4}([0-9.]{1,20})", r"\1%", line)
        line = re.sub(r"\u8d1f(?=[0-9])", "-", glyphs.plain(line))
        line = _HAN_WORD.sub(r" \1 ", _HAN_RUN.sub(r" \1 ", line))
    return line


_SENTENCE_END = re.compile(
    r"(?<![\s.][A-Za-z])(?<!approx)(?<!\.[A-Za-z])[.!?](?=\s+[A-Z\"'(\u4e00-\u9fff$\\]|\s*$)|[\u3002]|(?<=[0-9a-z)$}])\.(?=\s)"
)


def _sentences(line: str) -> list[str]:
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(line):
        end = match.end() if match.group() != "." else match.start()
        sentences.append(line[start:end])
        start = match.end()
    return [sentence for sentence in (*sentences, line[start:]) if sentence.strip()]


def _first_sentence(text: str) -> str:
    return (_sentences(text) or [""])[0]


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """kind: math, word, comma or stop."""

    kind: str
    text: str


_MATH_SPAN = re.compile(r"\$\$?([^$\n]{1,4096}?)\$\$?|\\\((.{1,4096}?)\\\)|\\\[(.{1,4096}?)\\\]")
_PRICE = re.compile(r"\$\s?[0-9][0-9,]*(?:\.[0-9]+)?(?![0-9A-Za-z^_\\{+*/=-])")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_CHUNK = re.compile(r"\S+")
_WORDLIKE = re.compile(r"[A-Za-z\u00c0-\u024f\u4e00-\u9fff][A-Za-z\u00c0-\u024f\u4e00-\u9fff'-]+\.?")
_FUNCTIONS = re.compile(r"(?:sin|cos|tan|log|ln|sqrt|exp|pi)(?![a-z])", re.IGNORECASE)
_HALF_OF_DAY = re.compile(r"(?:[ap]\.?m\.?|noon|midnight|o'clock)", re.IGNORECASE)


def _pieces(sentence: str) -> list[_Piece]:
    """Return a sentence as formulas, words and punctuation; adjacent chunks of a formula are one."""
    pieces: list[_Piece] = []
    position = 0
    while position < len(sentence) and len(pieces) < _MOST_PIECES:
        next_math = _next_span(sentence, position)
        if next_math is None:
            _add_chunks(pieces, sentence[position:])
            break
        start, end, inner = next_math
        _add_chunks(pieces, sentence[position:start])
        _add_math(pieces, inner)
        position = end
    return pieces


def _next_span(sentence: str, position: int) -> tuple[int, int, str] | None:
    while True:
        dollar, bracket = sentence.find("$", position), _bracket(sentence, position)
        if dollar < 0 and bracket < 0:
            return None
        if bracket >= 0 and (dollar < 0 or bracket < dollar):
            match = _MATH_SPAN.match(sentence, bracket)
            if match is None:
                position = bracket + 2
                continue
            return bracket, match.end(), match[2] or match[3]
        if dollar and sentence[dollar - 1] == "\\":
            # An escaped sign is a price; its chunk is read with the others.
            position = dollar + 1
            continue
        price = _PRICE.match(sentence, dollar)
        match = _MATH_SPAN.match(sentence, dollar)
        if price and (
            match is None
            or _PROSE.search(re.sub(r"\\text\{[^{}]*\}", "", match[1]))
            or sentence[match.end() : match.end() + 1].isdigit()
        ):
            return dollar, price.end(), "\\" + price.group().replace(" ", "")
        if match is None:
            position = dollar + 1
            continue
        return dollar, match.end(), match[1]


def _bracket(sentence: str, position: int) -> int:
    places = [place for place in (sentence.find(r"\(", position), sentence.find(r"\[", position)) if place >= 0]
    return min(places, default=-1)


def _add_math(pieces: list[_Piece], text: str) -> None:
    text = text.strip()
    if not text:
        return
    if pieces and pieces[-1].kind == "math":
        pieces[-1] = _Piece("math", f"{pieces[-1].text} {text}")
    else:
        pieces.append(_Piece("math", text))


def _add_chunks(pieces: list[_Piece], text: str) -> None:
    chunks = _CHUNK.findall(text)
    depth = 0
    for place, chunk in enumerate(chunks):
        if (
            chunk != ":"
            and depth <= 0
            and _is_word(chunk, chunks[place + 1] if place + 1 < len(chunks) else "", pieces)
        ):
            body = chunk.strip("\"'(),;:!?*[]")
            if chunk[:1] == "(":
                pieces.append(_Piece("stop", "("))
            if body:
                pieces.append(_Piece("word", body.rstrip(".") if not _HALF_OF_DAY.fullmatch(body) else body))
            if chunk[-1:] in ",;":
                pieces.append(_Piece("comma", chunk[-1]))
            elif chunk[-1:] in ":?!)":
                pieces.append(_Piece("stop", chunk[-1]))
            continue
        if (
            chunk == ":"
            and pieces
            and pieces[-1].kind == "math"
            and chunks[place + 1 : place + 2]
            and chunks[place + 1][0].isdigit()
        ):
            _add_math(pieces, chunk)
            continue
        if chunk in ("-", "\u2014", "--", "\u2013") and not (
            pieces and pieces[-1].kind == "math" and place + 1 < len(chunks)
        ):
            pieces.append(_Piece("stop", chunk))
            continue
        body, ends = chunk, ""
        depth += sum(char in "([{" for char in chunk) - sum(char in ")]}" for char in chunk)
        if depth < 0:
            # The bracket was opened before a word.
            body, depth, ends = body.rstrip(")]}"), 0, ")"
        if not body or body == ":":
            pieces.append(_Piece("stop", ends or body))
            continue
        if depth == 0 and body[-1:] in ",;:":
            body, ends = body[:-1], body[-1]
        if body in ("\u2014", "--"):
            pieces.append(_Piece("stop", body))
            continue
        _add_math(pieces, body.strip('"*') or body)
        if ends:
            pieces.append(_Piece("comma" if ends in ",;" else "stop", ends))
        elif "\u2014" in body:
            pieces.append(_Piece("stop", "\u2014"))


def _is_word(chunk: str, behind: str, pieces: Sequence[_Piece]) -> bool:
    body = chunk.strip("\"'(),;:!?*[]")
    if not body:
        return not any(char in "+-*/=<>^|%" for char in chunk) and chunk not in ("(", ")", "[", "]")
    if _HALF_OF_DAY.fullmatch(body):
        return True
    if "\u4e00" <= body[0] <= "\u9fff":
        return True
    if _WORDLIKE.fullmatch(body):
        return not _FUNCTIONS.match(body) and not (
            len(body) == 2 and body not in _SMALL_WORDS and _is_formula(pieces, behind)
        )
    if len(body) == 1 and body in "aAI":
        follows = behind.strip("\"'(),;:!?*[]")
        # "A or C" names two options.
        return follows not in _JOINERS and bool(_WORDLIKE.fullmatch(follows)) and chunk == body
    return False


_SMALL_WORDS = words.word_set(
    "no on so if in is it up us we me my be by do go he at an am as or of to cm mm km kg ml ft yd oz lb mi hr pm"
)


def _is_formula(pieces: Sequence[_Piece], behind: str) -> bool:
    before = pieces[-1] if pieces else None
    operator = behind[:1] in "+-*/=<>^"
    return (before is not None and before.kind == "math" and before.text[-1:] in "+-*/=<>^(") or (
        bool(behind) and operator
    )


_JOINERS = frozenset(("or", "and", "\u6216", "\u6216\u8005", "\u548c", "\u4e0e", "\u4ee5\u53ca"))
_HEDGES = words.word_set(
    "maybe perhaps possibly probably might could either \u53ef\u80fd \u4e5f\u8bb8 \u6216\u8bb8 \u5927\u6982"
)
_NOT = words.word_set(
    "not none isn't neither nor never cannot wasn't except excluding besides anything unlike longer wrong incorrect"
    " false \u4e0d\u662f \u4e0d\u7b49\u4e8e \u9519\u8bef"
)
_DOUBTS = words.word_set("doubt doubts doubted doubtful impossible unlikely disagree disagrees")
_BOUNDS = words.word_set(
    "least most under over below above between beyond exceeds exceeding nearly almost fewer less more greater than"
    " \u81f3\u5c11 \u6700\u591a \u5c0f\u4e8e \u5927\u4e8e \u8d85\u8fc7 \u4e0d\u8db3 \u4e4b\u95f4"
)
_OPERATIONS = words.word_set(
    "times plus minus over divided multiplied squared cubed out to by of than less more fewer modulo mod choose"
    " factorial power root sum product difference quotient square cube twice double triple reciprocal negative inverse"
    " half per raised hundredths tenths \u7684 \u4e58 \u52a0 \u51cf \u9664 \u5230 \u6b21\u65b9 \u500d"
)
_STOPS = words.word_set(
    "because since where when as which that who whose for in at on after before from with so therefore thus hence if"
    " given considering using is are was were will would can has have had but while until then though although without"
    " during among within each every i.e e.g and or by here there this these those whereas however ,"
    " \u56e0\u4e3a \u6240\u4ee5 \u5176\u4e2d \u5373 \u662f"
)
_EQUALS = words.word_set("is equals are equal = i.e namely \u5373 \u7b49\u4e8e \u662f \u4e3a")
_CLAUSES = words.word_set("where because since given when if for")
_SUBJECTS = words.word_set(
    "sum product difference quotient square cube twice double triple reciprocal inverse root half"
)


# What a clause says before its number when it does not hold that number to be the answer. Negations of something else
# ("the students who don't play") are no denial.
_DISBELIEF = re.compile(
    r"(?:n't|\b(?:not|never|cannot|nobody|no one|hardly))(?: [a-z]{1,12}){0,2}?"
    r" (?:think|thinks|thought|believe|believes|suppose|say|says|guess|expect|imagine|claim|mean|agree)\b"
    r"|(?:n't|\b(?:not|never|hardly))(?: [a-z]{1,12})??"
    r" (?:convinced|sure|certain|true|possible|likely|plausible)(?= (?:that|it|it's|the|of)\b|$)"
    r"|(?:n't|\b(?:not|never|cannot|hardly|scarcely))(?: (?:ever|possibly|really|exactly|just|simply|at|all|even|be"
    r"|been|have|equal|come|out|to|as|it's|it|is|the|a|an|answer|result|value|number)){0,5}$"
    r"|\bif (?:it|this|that|the answer|the result) (?:were|was|had been)$"
    r"|\u4e0d ?(?:\u8ba4\u4e3a|\u76f8\u4fe1|\u89c9\u5f97|\u53ef\u80fd|\u4f1a|\u5e94\u8be5)"
)
_CLAUSE_BEGINS = words.word_set("so therefore thus hence but because since then which")
# Behind a comma or a dash these take back what was said, where another number follows.
_DASHES = frozenset(("-", "--", "\u2013", "\u2014"))
_TAKES_BACK = words.word_set("no wait sorry oops hmm correction scratch actually")


def _disbelieves(leading: Sequence[str]) -> bool:
    """Return whether the words before a number, the last clause of them, say that it is not the answer."""
    begin = max((place + 1 for place, word in enumerate(leading) if word in _CLAUSE_BEGINS), default=0)
    return _DISBELIEF.search(" ".join(leading[begin:]).replace("\u2019", "'")) is not None


def _clause_before(text: str) -> list[str]:
    """Return the words of the clause that a text ends within, in small letters."""
    clause = re.split(r"[.!?;:,\n\u3002\uff0c]", text)[-1]
    return clause.lower().split()


# The rest of a text that says a number and perhaps one word, and the words that are more than a unit.
_SIMPLE = re.compile(
    r"[\s*]{0,8}(-?(?:[0-9]{1,15}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,5})(?:\.[0-9]{1,15})?)(?: ([a-z]{3,16}))?\.?[\s*]{0,8}"
)
_SPECIAL = (
    _JOINERS | _HEDGES | _NOT | _BOUNDS | _OPERATIONS | _STOPS | _EQUALS | words.NUMBER_WORDS
    | {"total", "altogether", "left", "exactly", "only", "the", "base", "noon", "midnight", "percent", "pct"}
)  # fmt: skip


def _first_run(pieces: list[_Piece]) -> str:
    """Return the answer that a sentence begins with, "" if it says that something is not the answer."""
    pieces = _numbers_in_words(pieces)
    start = next((place for place, piece in enumerate(pieces) if piece.kind == "math"), None)
    if start is None:
        return _words(pieces)
    leading = [piece.text.lower() for piece in pieces[:start] if piece.kind == "word"]
    if (_NOT | _DOUBTS) & set(leading) or _is_far(leading) or _disbelieves(leading):
        but = next((place for place in range(start, len(pieces)) if pieces[place].text.lower() == "but"), None)
        return _first_run(pieces[but + 1 :]) if but is not None else ""
    if set(leading) & (_HEDGES - {"either"}) or set(leading[-2:]) & _BOUNDS:
        return _whole(pieces)
    if set(leading) & _SUBJECTS:
        # "the sum of 5 and 6, which is 11"
        place = _after_equals(pieces, start)
        return _first_run(pieces[place:]) if place is not None else _whole(pieces)
    if leading[-1:] in (["negative"], ["minus"]):
        pieces = [*pieces[:start], _Piece("math", f"-{pieces[start].text}"), *pieces[start + 1 :]]
    if leading and leading[-1] in ("yes", "no", "true", "false") and pieces[start - 1].kind == "comma":
        return leading[-1]
    run, _ = _member(pieces, start)
    return run


def _is_far(leading: Sequence[str]) -> bool:
    return leading[-2:] == ["far", "from"]


def _after_equals(pieces: Sequence[_Piece], start: int) -> int | None:
    for place in range(start, len(pieces) - 1):
        if pieces[place].kind == "word" and pieces[place].text.lower() in _EQUALS:
            return place + 1
    return None


def _member(pieces: Sequence[_Piece], start: int) -> tuple[str, int]:
    """Return the formula at a place with its unit and whatever is joined to it, and where reading ended."""
    run = pieces[start].text
    place = start + 1
    texts: list[str] = []
    while place < len(pieces) and pieces[place].kind == "word":
        word = pieces[place].text
        lower = word.lower()
        ahead = pieces[place + 1] if place + 1 < len(pieces) else None
        if _HALF_OF_DAY.fullmatch(word):
            run, place = f"{run} {word}", place + 1
            continue
        if lower in ("base", "in") and _base_follows(pieces, place):
            shift = 1 if lower == "base" else 2
            run, place = f"{run} base {pieces[place + shift].text}", place + shift + 1
            continue
        if lower in _JOINERS:
            break
        if lower in ("than", "plus", "minus", "\u5230", "\u4e4b\u95f4") or (
            lower in _OPERATIONS and _formula_follows(pieces, place)
        ):
            return _whole(pieces[start:]), len(pieces)
        if lower in ("squared", "cubed", "factorial") and not (texts and units.is_known(texts[-1])):
            return _whole(pieces[start:]), len(pieces)
        if lower in _EQUALS and ahead is not None and ahead.kind == "math":
            rest, end = _member(pieces, place + 1)
            return f"{_with_unit(run, texts)} = {rest}", end
        if lower in ("to", "of", "by", "out"):
            return _with_unit(run, texts), len(pieces)
        if lower in _STOPS:
            return ("" if _is_denied(pieces, place) else _with_unit(run, texts)), len(pieces)
        texts.append(word)
        place += 1
    answer = _with_unit(run, texts)
    if place >= len(pieces):
        return answer, place
    return _joined(answer, pieces, place)


_WRONG = words.word_set("wrong incorrect false impossible unlikely ruled \u9519\u8bef")
_CASES = words.word_set("otherwise others elsewhere")


def _is_denied(pieces: Sequence[_Piece], place: int) -> bool:
    """Return whether a sentence continues to say that its number is wrong, or one of several cases.

    "5 is not the answer", "5, which is wrong", "5 if x > 0, otherwise 6".
    """
    before = ""
    for piece in pieces[place : place + 5]:
        lower = piece.text.lower()
        if piece.kind == "math":
            break
        if lower in _WRONG or lower in ("isn't", "wasn't"):
            return True
        if (lower == "not" and before in ("is", "are", "was")) or (lower == "too" and before in ("is", "be", "was")):
            return True
        before = lower
    return any(piece.text.lower() in _CASES for piece in pieces[place:]) and any(
        piece.kind == "math" for piece in pieces[place:]
    )


def _base_follows(pieces: Sequence[_Piece], place: int) -> bool:
    shift = 1 if pieces[place].text.lower() == "base" else 2
    if place + shift >= len(pieces):
        return False
    if shift == 2 and pieces[place + 1].text.lower() != "base":
        return False
    return pieces[place + shift].text.isalnum()


def _formula_follows(pieces: Sequence[_Piece], place: int) -> bool:
    """Return whether the same clause continues to a formula."""
    for piece in pieces[place + 1 : place + 6]:
        if piece.kind == "math":
            return True
        if piece.kind != "word" or (
            piece.text.lower() in _STOPS and piece.text.lower() not in ("by", "from", "each", "every")
        ):
            return False
    return False


def _joined(answer: str, pieces: Sequence[_Piece], place: int) -> tuple[str, int]:
    """Return an answer with the alternatives that a comma, "and" or "or" joins to it."""
    piece = pieces[place]
    if piece.kind == "math":
        # "seven (7)" says one number twice.
        inside = piece.text[1:-1] if piece.text[:1] + piece.text[-1:] == "()" and "," not in piece.text else ""
        if inside:
            return f"{answer} or {inside}", len(pieces)
        if answer.endswith("}") and piece.text.isdigit():
            # "5 feet 3 inches"
            rest, end = _member(pieces, place)
            return f"{answer}{rest}", end
        return _whole(pieces), len(pieces)
    skipped, hedged, contrast = place, False, False
    joined = False
    while skipped < len(pieces) and pieces[skipped].kind != "math":
        lower = pieces[skipped].text.lower()
        if pieces[skipped].kind == "comma":
            joined = True
        elif lower in _JOINERS:
            joined = hedged = True
        elif lower in _HEDGES or lower in ("else", "even", "it", "also", "alternatively", "equivalently"):
            hedged = hedged or lower in _HEDGES or lower == "alternatively"
        elif lower in _WRONG or _takes_back(pieces, skipped):
            return "", len(pieces)
        elif lower in _NOT:
            contrast = True
        elif lower in ("mod", "modulo") or (lower in _BOUNDS and hedged):
            # "5 or more"
            return _whole(pieces), len(pieces)
        elif pieces[skipped].text == "(":
            joined = True
        elif pieces[skipped].text in _DASHES and _takes_back(pieces, skipped + 1):
            return "", len(pieces)
        else:
            if _is_denied(pieces, skipped):
                return "", len(pieces)
            return (_whole(pieces) if hedged and _is_compared(pieces, skipped) else answer), place
        skipped += 1
    if skipped >= len(pieces) or contrast or not joined:
        return answer, place
    rest, end = _member(pieces, skipped)
    said_or = any(piece.text.lower() in ("(", "or", "\u6216", "\u6216\u8005") for piece in pieces[place:skipped])
    if said_or:
        return f"{answer} or {rest}", end
    said_and = any(piece.text.lower() in _JOINERS for piece in pieces[place:skipped])
    return (rf"{answer}\text{{ and }}{rest}" if said_and else f"{answer}, {rest}"), end


def _takes_back(pieces: Sequence[_Piece], place: int) -> bool:
    """Return whether there is a word that takes back what was said, with another number behind: "7, no wait, 8"."""
    if place >= len(pieces) or pieces[place].text.lower() not in _TAKES_BACK:
        return False
    behind = pieces[place + 1 : place + 6]
    if pieces[place].text.lower() == "no" and behind and behind[0].kind == "word":
        # "no matter which 2", "no more than 8"
        return behind[0].text.lower() in (_TAKES_BACK | {"it", "it's", "i", "the", "make"}) and _has_number(behind)
    return _has_number(behind)


def _has_number(pieces: Sequence[_Piece]) -> bool:
    return any(piece.kind == "math" for piece in pieces)


def _is_compared(pieces: Sequence[_Piece], place: int) -> bool:
    """Return whether a clause continues to compare: "5 or so more than 6"."""
    for piece in pieces[place : place + 8]:
        if piece.kind == "stop":
            return False
        if piece.text.lower() in ("than", "more", "less", "fewer"):
            return True
    return False


def _with_unit(run: str, words_behind: Sequence[str]) -> str:
    """Return a formula with the words of its unit as text."""
    unit = list(words_behind[:_MOST_UNIT_WORDS])
    if len(words_behind) > _MOST_UNIT_WORDS:
        unit = [word for word in unit[:1] if word.lower() in words.SCALES]
    unit_words = [
        word
        for word in unit
        if word.lower() not in ("the", "a", "an", "total", "altogether", "of", "left", "exactly", "only")
    ]
    if not unit_words:
        return run
    if unit_words[0].lower() in ("percent", "pct"):
        return rf"{run}\%"
    return rf"{run}\text{{ {' '.join(unit_words)}}}"


def _whole(pieces: Sequence[_Piece]) -> str:
    """Return pieces as they are: nothing that a formula could equal."""
    return "\u00ab" + " ".join(piece.text for piece in pieces) + "\u00bb"


def _words(pieces: Sequence[_Piece]) -> str:
    """Return the words of an answer that has no formula, up to the first pause."""
    collected: list[str] = []
    for piece in pieces:
        if piece.kind in ("comma", "stop") and collected:
            break
        if piece.kind == "word":
            if piece.text.lower() in ("because", "since", "as") and collected:
                break
            collected.append(piece.text)
    while collected and collected[0].lower() in ("option", "choice", "clearly", "simply", "therefore", "just"):
        collected.pop(0)
    return " ".join(collected)


def _numbers_in_words(pieces: list[_Piece]) -> list[_Piece]:
    """Return the pieces with numbers in words as formulas; "a" and "and" count inside one."""
    out: list[_Piece] = []
    place = 0
    while place < len(pieces):
        length = 0
        piece = pieces[place]
        if piece.kind == "word":
            lower = piece.text.lower()
            starts = lower in words.NUMBER_WORDS or lower in ("a", "an") or "-" in lower
            longest = min(len(pieces) - place, 12) if starts and not (out and out[-1].kind == "math") else 0
            for size in range(longest, 0, -1):
                phrase = pieces[place : place + size]
                if all(piece.kind == "word" for piece in phrase) and words.value(
                    " ".join(piece.text for piece in phrase)
                ):
                    length = size
                    break
            if not length and not any(piece.kind == "math" for piece in pieces):
                han = words.leading_han(piece.text)
                if han is not None:
                    out.append(_Piece("math", piece.text[: han[2]]))
                    if piece.text[han[2] :]:
                        out.append(_Piece("word", piece.text[han[2] :]))
                    place += 1
                    continue
        if length:
            out.append(_Piece("math", " ".join(piece.text for piece in pieces[place : place + length])))
            place += length
        elif (
            piece.text.lower() == "and"
            and out
            and out[-1].kind == "math"
            and out[-1].text.isdigit()
            and _part_behind(pieces, place + 1)
        ):
            # "2 and a half", "3 and 1/2"
            size, part = _part_behind(pieces, place + 1) or (0, "")
            out[-1] = _Piece("math", f"{out[-1].text} {part}")
            place += 1 + size
        else:
            out.append(piece)
            place += 1
    return out


def _part_behind(pieces: Sequence[_Piece], place: int) -> tuple[int, str] | None:
    texts = [piece.text.lower() for piece in pieces[place : place + 2]]
    if texts and re.fullmatch(r"[0-9]{1,3}/[0-9]{1,3}", texts[0]) and _is_proper(texts[0]):
        return 1, texts[0]
    for size in (2, 1):
        number = words.value(" ".join(texts[:size])) if len(texts) >= size else None
        if number and 0 < number[0] < 1 and pieces[place].kind == "word":
            return size, f"{number[0].numerator}/{number[0].denominator}"
    return None


def _is_proper(text: str) -> bool:
    top, bottom = text.split("/")
    return 0 < int(top) < int(bottom)


def _last_run(pieces: list[_Piece]) -> str:
    """Return the answer that a sentence ends with, "" if it is none."""
    pieces = _numbers_in_words(pieces)
    if any(piece.text.lower() in _CASES for piece in pieces) and sum(piece.kind == "math" for piece in pieces) > 1:
        return _whole(pieces)
    pieces = _without_clause(pieces)
    last = max(place for place, piece in enumerate(pieces) if piece.kind == "math")
    start = last
    # What is joined to it belongs to it: "5 or 6", "5, maybe 6".
    while True:
        before = _run_before(pieces, start)
        if before is None:
            break
        start = before
    behind = max((place + 1 for place in range(start) if pieces[place].kind == "math"), default=0)
    leading = [piece.text.lower() for piece in pieces[max(behind, start - 4) : start] if piece.kind == "word"]
    close = [piece.text.lower() for piece in pieces[max(0, start - 2) : start] if piece.kind == "word"]
    if "but" in leading and any(piece.text.lower() == "not" for piece in pieces[:start]):
        # "not 8 but 7", though not "not only 8 but also 7"
        leading = leading[leading.index("but") + 1 :]
        if "also" in leading:
            return ""
    if start and pieces[start - 1].kind == "word" and (set(leading[-3:]) & _NOT or set(leading) & _DOUBTS):
        return ""
    if _is_far(leading) or _disbelieves(_words_of_clause(pieces, start)):
        return ""
    if set(close) & (_HEDGES | _BOUNDS) or leading[-2:] == ["up", "to"]:
        return _whole(pieces)
    if (
        start
        and pieces[start - 1].kind == "word"
        and pieces[start - 1].text.lower() in ("negative", "minus")
        and not any(piece.kind == "math" for piece in pieces[:start])
    ):
        pieces = [*pieces[:start], _Piece("math", f"-{pieces[start].text}"), *pieces[start + 1 :]]
    elif start and pieces[start - 1].kind == "word" and pieces[start - 1].text.lower() in _OPERATIONS - {"to"}:
        return _whole(pieces)
    run, _ = _member(pieces, start)
    return run


def _words_of_clause(pieces: Sequence[_Piece], start: int) -> list[str]:
    """Return the words between the last formula or pause and a place."""
    begin = max((place + 1 for place in range(start) if pieces[place].kind != "word"), default=0)
    return [piece.text.lower() for piece in pieces[begin:start]]


def _without_clause(pieces: list[_Piece]) -> list[_Piece]:
    """Return a sentence up to the condition or reason that follows its formula: "12, where n = 5"."""
    has_math = False
    for place, piece in enumerate(pieces):
        if has_math and piece.kind == "word" and piece.text.lower() in _CLAUSES:
            return pieces[:place]
        has_math |= piece.kind == "math"
    return pieces


def _run_before(pieces: Sequence[_Piece], start: int) -> int | None:
    """Return the place of the formula that is joined to the one at `start`, None if none is."""
    place = start - 1
    # "5, 6": nothing but a comma between two formulas.
    joined = place > 0 and pieces[place].kind == "comma" and pieces[place - 1].kind == "math"
    while place >= 0 and pieces[place].kind != "math":
        lower = pieces[place].text.lower()
        if lower in _JOINERS:
            joined = True
        elif pieces[place].kind == "comma" or lower in _HEDGES or lower in ("else", "even", "it", "is", "also"):
            joined = joined or lower in _HEDGES
        elif lower in ("between", "to") and pieces[place].kind == "word":
            joined = True
        elif units.is_known(lower) or (
            place and pieces[place - 1].kind == "math" and joined and pieces[place].kind == "word"
        ):
            pass
        else:
            return None
        place -= 1
    return place if place >= 0 and joined else None
