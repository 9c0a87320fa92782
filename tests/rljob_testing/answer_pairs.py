r"""Pairs of a completion and a gold whose truth is known because they were made so, by class. No grader is asked.

A maker draws a value and writes it: `gold`, several texts that say the same (`right`), and several that a reader in a
hurry may take for it (`wrong`). Half of the pairs are in a box and half in prose. What is a matter of taste (50 for
50%, {5} for 5) is left out.
"""

# ruff: noqa: RUF001  # signs that look alike are what this is about

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """kind: the class. boxed: whether the answer is in a box."""

    kind: str
    completion: str
    gold: str
    right: bool
    boxed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """A gold, texts that say the same and texts that do not, in LaTeX."""

    gold: str
    right: Sequence[str]
    wrong: Sequence[str]


Maker = Callable[[random.Random], Drawn]
_FULL_WIDTH = {ord(str(digit)): chr(0xFF10 + digit) for digit in range(10)}
_SUPER = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def frac(value: Fraction, times: int = 1) -> str:
    r"""Return a fraction as \frac, its sign in front, both parts multiplied by `times`."""
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator) * times}}}{{{value.denominator * times}}}"


def _integers(rng: random.Random) -> Drawn:
    n = rng.choice((1, -1)) * rng.randrange(2, 10 ** rng.randrange(1, 7))
    right = [
        str(n),
        f"{n}.0",
        f"{n}.00",
        frac(Fraction(n), 2).replace("{2}", "{2}"),
        f"{2 * n}/2",
        f"+{n}" if n > 0 else str(n),
    ]
    wrong = [
        str(-n),
        str(n + 1),
        str(10 * n),
        f"{n}i",
        f"{n}x",
        f"{n}.5",
        rf"\frac{{1}}{{{n}}}",
        f"{n}!" if 2 < n < 99 else f"{n}+1",
    ]
    return Drawn(str(n), right, wrong)


def _grouping(rng: random.Random) -> Drawn:
    n = rng.randrange(10_000, 10**8)
    tight = f"{n:,}"
    head, tail = tight.split(",", 1)
    right = [tight, tight.replace(",", "{,}"), tight.replace(",", r"\,"), tight.replace(",", r",\!")]
    wrong = [
        tight.replace(",", ", "), tight.replace(",", "~"), tight.replace(",", "."), f"({tight})", f"{head},{tail[:-1]}",
        f"{head},{tail.replace(',', '')}0", str(n)[:-1] + "," + str(n)[-1],
        str(n)[:2] + "," + str(n)[2:4] + "," + str(n)[4:],
    ]  # fmt: skip
    return Drawn(str(n), right, wrong)


def _juxtaposed(rng: random.Random) -> Drawn:
    a, b = rng.randrange(2, 99), rng.randrange(2, 99)
    gap = [
        f"{a} {b}",
        f"{a}~{b}",
        rf"{a}\,{b}",
        rf"{a}\ {b}",
        rf"{a}\quad {b}",
        f"{a}, {b}",
        f"({a}){{{b}}}",
        f"{a}.{b}",
        f"{a}:{b}",
    ]
    return Drawn(f"{a}{b}", [f"{a}{b}", f"{a}{b}.0"], gap)


def _fractions(rng: random.Random) -> Drawn:
    value = Fraction(rng.choice((1, -1)) * rng.randrange(1, 60), rng.randrange(2, 40))
    if value.denominator == 1:
        value += Fraction(1, 3)
    top, bottom = value.numerator, value.denominator
    times = rng.randrange(2, 6)
    right = [
        frac(value),
        frac(value, times),
        f"{top}/{bottom}",
        frac(value).replace("frac", "dfrac"),
        rf"\frac{{{top}}}{{{bottom}}}",
    ]
    wrong = [
        frac(-value),
        frac(value + 1),
        rf"\frac{{{bottom}}}{{{top}}}",
        str(top),
        str(bottom),
        f"{top}{bottom}",
        f"{top}:{bottom + 1}",
    ]
    return Drawn(frac(value), right, [text for text in wrong if text != str(value)])


def _mixed(rng: random.Random) -> Drawn:
    bottom = rng.randrange(2, 13)
    top = rng.choice([n for n in range(1, bottom) if math.gcd(n, bottom) == 1])
    whole, sign = rng.randrange(1, 20), rng.choice(("", "-"))
    value = (whole + Fraction(top, bottom)) * (-1 if sign else 1)
    right = [
        rf"{sign}{whole}\frac{{{top}}}{{{bottom}}}",
        f"{sign}{whole} {top}/{bottom}",
        frac(value),
        rf"{sign}{whole}\tfrac{{{top}}}{{{bottom}}}",
    ]
    wrong = [f"{sign}{whole}", f"{sign}{whole}{top}/{bottom + 1}", rf"{sign}\frac{{{top}}}{{{bottom}}}", frac(-value)]
    if sign:
        wrong.append(frac(-whole + Fraction(top, bottom)))
    if whole > 1:
        wrong.append(rf"{sign}{whole}\cdot\frac{{{top}}}{{{bottom}}}")
    return Drawn(frac(value), right, wrong)


def _decimals(rng: random.Random) -> Drawn:
    places = rng.randrange(1, 5)
    n = rng.randrange(1, 10**places * 50)
    n += n % 10 == 0
    text = f"{n // 10**places}.{n % 10**places:0{places}d}"
    value = Fraction(n, 10**places)
    right = [
        text,
        text + "0",
        frac(value),
        f"{value.numerator}/{value.denominator}",
        text.replace("0.", ".", 1) if text.startswith("0.") else text,
    ]
    wrong = [
        text + "1",
        text[:-1] + str((n + 1) % 10),
        "-" + text,
        str(n),
        text.replace(".", ","),
        f"{text}\\%",
        text.split(".")[0],
    ]
    return Drawn(text, right, wrong)


def _repeating(rng: random.Random) -> Drawn:
    block = rng.choice(("3", "6", "27", "142857", "09", "1", "45"))
    value = Fraction(int(block), 10 ** len(block) - 1)
    right = [rf"0.\overline{{{block}}}", frac(value), f"0.{block * 4}\\ldots", rf"0.\overline{{{block * 2}}}"]
    if len(block) == 1:
        right.append(rf"0.\dot{{{block}}}")
    short = f"0.{(block * 3)[:4]}"
    wrong = [
        short,
        rf"0.0\overline{{{block}}}",
        rf"1.\overline{{{block}}}",
        rf"0.\overline{{{int(block) + 1}}}",
        f"0.{block[0]}",
    ]
    return Drawn(frac(value), right, wrong)


def _scientific(rng: random.Random) -> Drawn:
    mantissa, power = rng.randrange(11, 99), rng.choice((-30, -23, -12, -8, -5, 5, 8, 12, 23))
    mantissa += mantissa % 10 == 0
    m = f"{mantissa / 10}"
    gold = rf"{m}\times 10^{{{power}}}"
    right = [
        gold,
        rf"{m}\cdot10^{{{power}}}",
        rf"{mantissa}\times10^{{{power - 1}}}",
        f"{m}e{power}",
        f"{m} × 10{str(power).translate(_SUPER)}",
    ]
    wrong = [
        rf"{(mantissa + 1) / 10}\times10^{{{power}}}", rf"{m}\times10^{{{power + 1}}}", rf"{m}\times10^{{{-power}}}", m,
        rf"-{m}\times10^{{{power}}}", rf"10^{{{power}}}", "0" if power < 0 else f"{m}0",
    ]  # fmt: skip
    return Drawn(gold, right, wrong)


def _percent(rng: random.Random) -> Drawn:
    p = rng.randrange(2, 98)
    value = Fraction(p, 100)
    right = [rf"{p}\%", f"{p}%", f"{p / 100}", frac(value), rf"{p}\text{{ percent}}"]
    wrong = [rf"{p + 1}\%", rf"{p / 100}\%", f"{p}0%", rf"-{p}\%", rf"\frac{{{p}}}{{10}}"]
    return Drawn(rf"{p}\%", right, wrong)


# The same, other units for the same number, a conversion (factor, unit).
_UNITS: Sequence[tuple[Sequence[str], Sequence[str], tuple[int, str] | None]] = (
    (("cm", "centimeters", "centimetres"), ("m", "mm", "inches", "cm^2", "kg"), (10, "mm")),
    (("m", "meters"), ("cm", "km", "feet", "m^2", "s"), (100, "cm")),
    (("km", "kilometers"), ("miles", "m", "cm"), (1000, "m")),
    (("kg", "kilograms"), ("g", "pounds", "mg"), (1000, "g")),
    (("hours", "hr"), ("minutes", "seconds", "days"), (60, "minutes")),
    (("minutes", "min"), ("hours", "seconds"), (60, "seconds")),
    (("square feet", "ft^2"), ("feet", "cubic feet", "square inches"), (144, "square inches")),
    (("cm^3", "cubic centimeters"), ("cm^2", "cm", "m^3"), (1000, "mm^3")),
    (("km/h", "kilometers per hour"), ("m/s", "mph", "km"), None),
    (("feet", "ft"), ("inches", "yards", "meters"), (12, "inches")),
    (("apples", "apples"), ("oranges", "pears"), None),
    (("dollars", "dollars"), ("euros", "cents", "pounds"), (100, "cents")),
    (("degrees", "degrees"), ("radians",), None),
    (("liters", "L"), ("milliliters", "gallons"), (1000, "mL")),
)  # fmt: skip


def _set_unit(number: object, unit: str) -> str:
    name, _, power = unit.partition("^")
    return rf"{number}\text{{ {name}}}" + (f"^{power}" if power else "")


def _units(rng: random.Random) -> Drawn:
    names, others, converted = rng.choice(_UNITS)
    n = rng.randrange(2, 400)
    right = [
        str(n),
        *(_set_unit(n, name) for name in names),
        rf"{n}\ \mathrm{{{names[0]}}}" if "^" not in names[0] else str(n),
    ]
    if converted:
        right.append(_set_unit(n * converted[0], converted[1]))
    wrong = [*(_set_unit(n, other) for other in others), _set_unit(n + 1, names[0]), _set_unit(10 * n, names[0])]
    return Drawn(_set_unit(n, names[0]), right, wrong)


def _unit_of_the_answer(rng: random.Random) -> Drawn:
    names, _, _ = rng.choice(_UNITS)
    n = rng.randrange(2, 400)
    right = [_set_unit(n, names[0]), _set_unit(n, names[1]), str(n)]
    return Drawn(
        str(n),
        right,
        [_set_unit(n + 1, names[0]), _set_unit(-n, names[0]), rf"{n}\mathrm{{i}}", rf"{n}\text{{ million}}"],
    )


def _money(rng: random.Random) -> Drawn:
    n = rng.randrange(2, 5000)
    cents = rng.randrange(1, 100)
    text = f"{n:,}.{cents:02d}"
    right = [
        rf"\${text}",
        f"{n}.{cents:02d}",
        rf"{n}.{cents:02d}\text{{ dollars}}",
        rf"{100 * n + cents}\text{{ cents}}",
    ]
    wrong = [
        f"€{text}",
        rf"\${n}",
        rf"\${n}.{(cents + 1) % 100:02d}",
        rf"{n}.{cents:02d}\text{{ cents}}",
        rf"£{text}",
        rf"{n}.{cents:02d}\text{{ rupees}}",
    ]
    return Drawn(rf"\${n}.{cents:02d}", right, wrong)


def _times(rng: random.Random) -> Drawn:
    hour, minute, half = rng.randrange(1, 12), rng.randrange(1, 60), rng.choice(("AM", "PM"))
    other = "PM" if half == "AM" else "AM"
    right = [
        rf"{hour}:{minute:02d}\text{{ {half}}}",
        rf"{hour}:{minute:02d}\text{{ {half[0].lower()}.m.}}",
        f"{hour}:{minute:02d} {half.lower()}",
    ]
    if half == "PM":
        right.append(f"{hour + 12}:{minute:02d}")
    wrong = [
        rf"{hour}:{minute:02d}\text{{ {other}}}", rf"{hour + 1}:{minute:02d}\text{{ {half}}}", str(hour),
        f"{hour + 12}:{minute:02d} AM",
        rf"{hour}:{(minute + 1) % 60:02d}\text{{ {half}}}", f"{hour}.{minute:02d}",
    ]  # fmt: skip
    return Drawn(rf"{hour}:{minute:02d}\text{{ {half}}}", right, wrong[:3] + wrong[4:])


def _bases(rng: random.Random) -> Drawn:
    base = rng.randrange(3, 10)
    digits = str(rng.randrange(1, base)) + "".join(str(rng.randrange(base)) for _ in range(rng.randrange(2, 6)))
    value = int(digits, base)
    right = [f"{digits}_{base}", f"{digits}_{{{base}}}", rf"{digits}_{{\text{{{_ONES[base]}}}}}", rf"({digits})_{base}"]
    wrong = [
        f"{digits}_{base + 1}",
        f"{digits}_{base - 1}",
        f"{digits}0_{base}",
        str(value),
        f"{value}_{{10}}",
        f"{digits}_{{1{base}}}",
    ]
    return Drawn(f"{digits}_{base}", right, [text for text in wrong if text != digits])


def _angles(rng: random.Random) -> Drawn:
    n = rng.randrange(1, 180)
    right = [rf"{n}^\circ", rf"{n}^{{\circ}}", f"{n}°", str(n), rf"{n}\text{{ degrees}}", rf"\frac{{{n}\pi}}{{180}}"]
    wrong = [
        rf"{n + 1}^\circ",
        rf"{n}\text{{ radians}}",
        rf"-{n}^\circ",
        rf"{n}\pi",
        rf"\frac{{\pi}}{{{180 + n}}}",
        rf"{n}^\circ\text{{C}}",
    ]
    return Drawn(rf"{n}^\circ", right, wrong)


_TRIG = (
    (r"\sin 30^\circ", "1/2"), (r"\cos 60^\circ", "1/2"), (r"\sin 45^\circ", r"\frac{\sqrt2}{2}"),
    (r"\tan 45^\circ", "1"),
    (r"\cos 30^\circ", r"\frac{\sqrt3}{2}"), (r"\sin 90^\circ", "1"), (r"\tan 60^\circ", r"\sqrt3"),
    (r"\cos 180^\circ", "-1"),
    (r"\sin\frac{\pi}{6}", "1/2"), (r"\cos\frac{\pi}{3}", "1/2"), (r"\tan\frac{\pi}{3}", r"\sqrt{3}"),
)  # fmt: skip


def _trigonometry(rng: random.Random) -> Drawn:
    said, value = rng.choice(_TRIG)
    wrong = [
        said.replace(r"^\circ", "") if "circ" in said else rf"-{said}",
        rf"-{said}",
        rf"2{said}",
        said.replace("sin", "tan").replace("cos", "cot"),
    ]
    if "tan" in said or r"\sin 90" in said or "180" in said:
        wrong = [rf"-{said}", rf"2{said}"]
    return Drawn(value, [said, value, rf"{said}+0", rf"\frac{{2{said}}}{{2}}"], wrong)


_LETTERS = "xyztnkabmpqrs"


def _names(rng: random.Random) -> Drawn:
    name, other = rng.sample(_LETTERS, 2)
    n = rng.randrange(-99, 99)
    right = [f"{name}={n}", f"{name} = {n}", str(n), f"{n}={name}"]
    wrong = [
        f"{other}={n}",
        f"{name}={n + 1}",
        f"{name}_1={n}",
        rf"{name}\ne{n}",
        f"{name}>{n}",
        f"{name}={n} \\text{{ or }} {n + 1}",
        f"{name}={n}={n + 1}",
    ]
    return Drawn(f"{name}={n}", right, wrong)


def _functions(rng: random.Random) -> Drawn:
    f, g = rng.sample("fghpq", 2)
    x, t = rng.sample("xtnu", 2)
    a, b = rng.randrange(2, 20), rng.randrange(1, 20)
    right = [f"{f}({x})={a}{x}+{b}", f"{a}{x}+{b}", f"{f}({t})={a}{t}+{b}", f"{f}({x})={b}+{a}{x}"]
    wrong = [
        f"{g}({x})={a}{x}+{b}",
        f"{a}{t}+{b}",
        f"{f}({x})={a}{x}-{b}",
        f"{f}({x})={a}{t}+{b}",
        f"{f}({x})={a}{x}",
        f"{f}({b})={a}{x}+{b}",
    ]
    return Drawn(f"{f}({x})={a}{x}+{b}", right, wrong)


def _members(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(-30, 60), count)


def _lists(rng: random.Random) -> Drawn:
    values = _members(rng, rng.randrange(2, 5))
    mixed = rng.sample(values, len(values))
    said = ", ".join(map(str, values))
    right = [
        said,
        ", ".join(map(str, mixed)),
        ",".join(map(str, values)),
        rf"\{{{said}\}}",
        ", ".join(map(str, values[:-1])) + rf"\text{{ and }}{values[-1]}",
    ]
    wrong = [
        f"{said}, {values[0]}", ", ".join(map(str, values[:-1])), f"{said}, 99", str(values[0]), str(sum(values)),
        f"[{said}]",
        ", ".join(map(str, [values[0] + 1, *values[1:]])),
    ]  # fmt: skip
    return Drawn(said, right, wrong)


def _sets(rng: random.Random) -> Drawn:
    values = _members(rng, rng.randrange(2, 5))
    mixed = rng.sample(values, len(values))
    said = ", ".join(map(str, values))
    right = [rf"\{{{said}\}}", rf"\{{{', '.join(map(str, mixed))}\}}", rf"\left\{{{said}\right\}}"]
    wrong = [
        f"({said})",
        f"[{said}]",
        rf"\{{{said}, 99\}}",
        rf"\{{{', '.join(map(str, values[1:]))}\}}",
        str(values[0]),
    ]
    return Drawn(rf"\{{{said}\}}", right, wrong)


def _tuples(rng: random.Random) -> Drawn:
    values = _members(rng, rng.randrange(2, 4))
    said = ", ".join(map(str, values))
    turned = ", ".join(map(str, values[::-1]))
    right = [
        f"({said})",
        rf"\left({said}\right)",
        f"({said.replace(' ', '')})",
        f"({values[0]}.0, {', '.join(map(str, values[1:]))})",
    ]
    wrong = [
        f"({turned})",
        rf"\{{{said}\}}",
        f"[{said}]",
        f"({said}, {values[-1]})",
        f"({values[0]})",
        "".join(map(str, values)),
        f"(-{said})",
    ]
    return Drawn(f"({said})", right, [text for text in wrong if not text.startswith(("(--", "(-0,"))])


def _solutions(rng: random.Random) -> Drawn:
    a, b = _members(rng, 2)
    x = rng.choice("xtn")
    right = [
        f"{x}={a}, {x}={b}",
        rf"{x}={a}\text{{ or }}{x}={b}",
        f"{a}, {b}",
        rf"{x}={b}\text{{ or }}{a}",
        rf"{x}\in\{{{a},{b}\}}",
    ]
    wrong = [
        f"{x}={a}",
        rf"{x}={a}\text{{ or }}{x}={a}",
        f"{b}",
        rf"y={a}\text{{ or }}y={b}",
        f"{x}={a}, {x}={b}, {x}=99",
    ]
    return Drawn(rf"{x}={a}\text{{ or }}{x}={b}", right, wrong)


def _systems(rng: random.Random) -> Drawn:
    a, b = _members(rng, 2)
    right = [f"x={a}, y={b}", f"y={b}, x={a}", f"({a}, {b})", rf"x={a}\text{{ and }}y={b}"]
    wrong = [f"x={b}, y={a}", f"({b}, {a})", f"x={a}", f"x={a}, z={b}", f"x={a}, y={b + 1}", rf"\{{{a}, {b}\}}"]
    return Drawn(f"x={a}, y={b}", right, wrong)


def _plus_minus(rng: random.Random) -> Drawn:
    n, m = rng.randrange(1, 40), rng.randrange(2, 40)
    root = rng.choice((2, 3, 5, 7))
    if rng.random() < 0.5:
        return Drawn(
            rf"\pm {n}",
            [rf"\pm{n}", f"{n}, -{n}", rf"-{n}\text{{ and }}{n}", f"±{n}"],
            [str(n), f"-{n}", f"{n}, {n}", rf"\pm{n + 1}"],
        )
    gold = rf"{m}\pm\sqrt{{{root}}}"
    right = [gold, rf"{m}+\sqrt{{{root}}}, {m}-\sqrt{{{root}}}", rf"{m}-\sqrt{{{root}}}, {m}+\sqrt{{{root}}}"]
    return Drawn(
        gold, right, [rf"{m}+\sqrt{{{root}}}", rf"{m}-\sqrt{{{root}}}", rf"-{m}\pm\sqrt{{{root}}}", rf"{m}\pm{root}"]
    )


def _intervals(rng: random.Random) -> Drawn:
    a = rng.randrange(-30, 30)
    b = a + rng.randrange(1, 30)
    x = rng.choice("xt")
    left, right_ = rng.choice("(["), rng.choice(")]")
    gold = f"{left}{a}, {b}{right_}"
    low, high = (r"\le" if left == "[" else "<"), (r"\le" if right_ == "]" else "<")
    right = [
        gold,
        gold.replace(" ", ""),
        rf"{x}\in{gold}",
        rf"{a}{low} {x}{high} {b}",
        rf"\left{gold[:-1]}\right{right_}",
    ]
    wrong = [
        f"{'(' if left == '[' else '['}{a}, {b}{right_}", f"{left}{a}, {b}{']' if right_ == ')' else ')'}",
        f"{left}{a}, {b + 1}{right_}",
        rf"\{{{a}, {b}\}}", f"{left}{b}, {a}{right_}", rf"{x}{low} {b}", rf"{left}{a}, \infty)",
    ]  # fmt: skip
    return Drawn(gold, right, wrong)


def _inequalities(rng: random.Random) -> Drawn:
    a = rng.randrange(-30, 30)
    x, y = rng.sample("xtyn", 2)
    right = [f"{x}>{a}", f"{a}<{x}", rf"({a}, \infty)", rf"{x}\in({a},\infty)"]
    wrong = [
        f"{x}<{a}",
        rf"{x}\ge {a}",
        f"{y}>{a}",
        f"{x}={a}",
        str(a),
        rf"[{a}, \infty)",
        rf"(-\infty, {a})",
        f"{x}>{a + 1}",
    ]
    return Drawn(f"{x}>{a}", right, wrong)


def _unions(rng: random.Random) -> Drawn:
    a = rng.randrange(-30, 0)
    b = rng.randrange(1, 30)
    gold = rf"(-\infty, {a})\cup({b}, \infty)"
    right = [gold, rf"({b},\infty)\cup(-\infty,{a})", rf"x<{a}\text{{ or }}x>{b}", rf"(-∞, {a})∪({b}, ∞)"]
    wrong = [
        rf"(-\infty, {a})",
        rf"({b}, \infty)",
        rf"(-\infty, {a}]\cup[{b}, \infty)",
        rf"({a}, {b})",
        rf"(-\infty, {b})\cup({a}, \infty)",
    ]
    return Drawn(gold, right, wrong)


def _ratios(rng: random.Random) -> Drawn:
    a, b = rng.randrange(1, 9), rng.randrange(1, 9)
    b += a == b
    k = rng.randrange(2, 5)
    right = [f"{a}:{b}", f"{a} : {b}", rf"{a}\text{{ to }}{b}", f"{k * a}:{k * b}", rf"\frac{{{a}}}{{{b}}}"]
    return Drawn(f"{a}:{b}", right, [f"{b}:{a}", f"{a}:{b + 1}", f"{a}:{b}:{b}", f"({a},{b})", f"{a}{b}", f"-{a}:{b}"])


_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def spelled(n: int) -> str:
    """Return an integer of 0 to 9,999 in English words."""
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + (f"-{_ONES[n % 10]}" if n % 10 else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    rest = n % size
    return f"{spelled(n // size)} {name}" + (f" {spelled(rest)}" if rest else "")


def _number_words(rng: random.Random) -> Drawn:
    n = rng.randrange(2, 10 ** rng.randrange(1, 5))
    return Drawn(
        str(n),
        [spelled(n), rf"\text{{{spelled(n)}}}", spelled(n).capitalize()],
        [spelled(n + 1), f"{spelled(n)} million", f"minus {spelled(n)}", f"{spelled(n)} or {spelled(n + 1)}"],
    )


def _scales(rng: random.Random) -> Drawn:
    n = rng.randrange(2, 90)
    word, size = rng.choice(
        (
            ("million", 10**6),
            ("billion", 10**9),
            ("thousand", 10**3),
            ("hundred", 100),
            ("dozen", 12),
            ("trillion", 10**12),
        )
    )
    right = [rf"{n}\text{{ {word}}}", str(n * size), f"{n} {word}", f"{n * size:,}"]
    wrong = [
        str(n),
        rf"{n + 1}\text{{ {word}}}",
        str(n * size * 10),
        rf"{n}\text{{ {'million' if word != 'million' else 'billion'}}}",
        rf"-{n}\text{{ {word}}}",
    ]
    return Drawn(str(n * size), right, wrong)


_HAN = "零一二三四五六七八九十"


def _chinese(rng: random.Random) -> Drawn:
    n = rng.randrange(2, 500)
    right = [f"{n}", f"{n}个", f"{n}厘米", f"{n}元", str(n).translate(_FULL_WIDTH)]
    if n <= 10:
        right.append(_HAN[n])
    return Drawn(str(n), right, [f"{n}万", f"负{n}", f"{n}或{n + 1}", f"{n + 1}个", f"{n}的平方", f"百分之{n}"])


def _unicode(rng: random.Random) -> Drawn:
    n, root = rng.randrange(2, 30), rng.choice((2, 3, 5, 7, 11))
    kind = rng.randrange(5)
    if kind == 0:
        return Drawn(
            f"-{n}", [f"−{n}", f"–{n}", f"－{n}".translate(_FULL_WIDTH), f"﹣{n}"], [str(n), f"−{n + 1}", f"+{n}"]
        )
    if kind == 1:
        return Drawn(
            rf"{n}\sqrt{{{root}}}",
            [f"{n}√{root}", rf"{n}√{{{root}}}", f"{n}√({root})"],
            [str(n), f"√{root}", f"{n}√{root + 1}", f"{n}{root}", f"−{n}√{root}"],
        )
    if kind == 2:
        return Drawn(
            rf"{n}\pi",
            [f"{n}π", f"{n} π", rf"{n}𝜋" if False else f"π·{n}"],
            [str(n), "π", f"{n + 1}π", f"π^{n}", f"−{n}π"],
        )
    if kind == 3:
        return Drawn(
            f"x^{n}",
            [f"x{str(n).translate(_SUPER)}", f"x^{{{n}}}"],
            ["x", str(n), f"x{str(n + 1).translate(_SUPER)}", f"{n}x", f"y{str(n).translate(_SUPER)}"],
        )
    return Drawn(
        rf"\frac{{{n}}}{{2}}" if n % 2 else str(Fraction(n, 2)),
        [f"{n}⁄2", f"{n}÷2", f"{n}∕2"],
        [f"{n}×2", f"{n + 1}⁄2", f"−{n}⁄2"],
    )


def _roots(rng: random.Random) -> Drawn:
    a, b = rng.randrange(2, 20), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    gold = rf"{a}\sqrt{{{b}}}"
    right = [
        gold,
        rf"\sqrt{{{a * a * b}}}",
        rf"\sqrt{{{b}}}\cdot{a}",
        rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        rf"{a}\cdot {b}^{{1/2}}",
    ]
    wrong = [
        str(a),
        rf"\sqrt{{{b}}}",
        rf"\sqrt{{{a * b}}}",
        rf"{a}\sqrt{{{b + 1}}}",
        f"{a * math.sqrt(b):.3f}",
        rf"-{gold}",
        rf"{a}\sqrt[3]{{{b}}}",
        str(a * b),
    ]
    return Drawn(gold, right, wrong)


def _near_roots(rng: random.Random) -> Drawn:
    n = rng.randrange(20, 5000)
    return Drawn(
        str(n),
        [str(n), rf"\sqrt{{{n * n}}}"],
        [rf"\sqrt{{{n * n + 1}}}", rf"\sqrt{{{n * n - 1}}}", rf"\frac{{{n * 10**5 + 1}}}{{{10**5}}}", f"{n}.0001"],
    )


def _rounded(rng: random.Random) -> Drawn:
    n = rng.choice((2, 3, 5, 7, 11, 13, 17))
    gold = f"{math.sqrt(n):.4f}"
    return Drawn(
        gold,
        [gold, rf"\sqrt{{{n}}}", gold + "0"],
        [rf"\sqrt{{{n + 1 + (n == 3)}}}", gold[:-1], f"{math.sqrt(n) + 0.001:.4f}", rf"-\sqrt{{{n}}}", f"{n}"],
    )


def _signed(value: int) -> str:
    return f"+{value}" if value >= 0 else str(value)


def _polynomials(rng: random.Random) -> Drawn:
    a, b = (rng.choice([n for n in range(-12, 13) if n]) for _ in range(2))
    x, y = rng.sample("xytn", 2)
    middle = a + b
    linear = f"{_signed(middle)}{x}" if middle else ""
    gold = f"({x}{_signed(a)})({x}{_signed(b)})"
    right = [
        gold,
        f"{x}^2{linear}{_signed(a * b)}",
        f"{a * b}{linear}+{x}^{{2}}",
        f"({x}{_signed(b)})({x}{_signed(a)})",
        f"{x}*{x}{linear}{_signed(a * b)}",
    ]
    wrong = [
        gold.replace(x, y), f"{x}^2{linear}{_signed(a * b + 1)}", f"{x}^2{linear}", f"{x}^3{linear}{_signed(a * b)}",
        f"-{gold}",
        f"{x}^2{_signed(middle + 1)}{x}{_signed(a * b)}", f"{x}^2{linear}{_signed(a * b)}=0", f"({x}{_signed(a)})",
    ]  # fmt: skip
    return Drawn(gold, right, wrong)


def _products(rng: random.Random) -> Drawn:
    a, b, c = rng.sample("abcxyz", 3)
    n = rng.randrange(2, 30)
    right = [f"{n}{a}{b}", f"{n}{b}{a}", rf"{n}\cdot {a}\cdot {b}", f"{a}*{b}*{n}", rf"{n} {a} {b}"]
    return Drawn(
        f"{n}{a}{b}",
        right,
        [f"{n}{a}{c}", f"{a}{b}", f"{n}{a}", f"{n}{a}+{b}", f"{n}{a}^{b}", f"{n + 1}{a}{b}", str(n)],
    )


_WORDS = (
    "even",
    "odd",
    "increasing",
    "parallel",
    "Monday",
    "Evelyn",
    "ellipse",
    "listen",
    "silent",
    "circle",
    "abc",
    "bca",
    "cab",
    "act",
    "cat",
)


def _words(rng: random.Random) -> Drawn:
    word, other = rng.sample(_WORDS, 2)
    right = [rf"\text{{{word}}}", word, word.upper() if len(word) > 3 else word, rf"\textbf{{{word}}}"]
    wrong = [
        rf"\text{{{other}}}",
        other,
        rf"\text{{not {word}}}",
        rf"\text{{{word} or {other}}}",
        word[::-1] if word[::-1] != word else other,
        word + "s",
    ]
    return Drawn(rf"\text{{{word}}}", right, wrong)


def _options(rng: random.Random) -> Drawn:
    letter, other = rng.sample("ABCDE", 2)
    right = [letter, f"({letter})", rf"\text{{{letter}}}", rf"\textbf{{({letter})}}"]
    return Drawn(
        letter,
        right,
        [
            other,
            f"({other})",
            rf"{letter}\text{{ or }}{other}",
            f"{letter},{other}",
            f"{letter}{other}",
            rf"\text{{not }}{letter}",
        ],
    )


def _exponents(rng: random.Random) -> Drawn:
    base, a, b = rng.choice((2, 3, 5, 7)), rng.randrange(2, 9), rng.randrange(2, 9)
    gold = str(base ** (a + b))
    right = [f"{base}^{{{a + b}}}", rf"{base}^{a}\cdot {base}^{b}", gold, f"{int(gold):,}"]
    wrong = [
        f"{base}^{{{a + b + 1}}}",
        rf"{base}^{{{a * b + 40}}}",
        str(base),
        f"{base}{a + b}",
        f"{base}^{a}",
        f"-{gold}",
        f"{base}^{{-{a + b}}}",
    ]
    return Drawn(gold, right, wrong)


def _logarithms(rng: random.Random) -> Drawn:
    a, b = rng.randrange(2, 20), rng.randrange(2, 20)
    gold = rf"\ln {a * b}"
    right = [gold, rf"\ln({a * b})", rf"\ln {a}+\ln {b}", rf"\frac{{1}}{{2}}\ln {(a * b) ** 2}"]
    return Drawn(
        gold,
        right,
        [
            rf"\ln {a * b + 1}",
            rf"\ln {a}\cdot\ln {b}" if (a, b) != (1, 1) else "0",
            str(a * b),
            rf"-\ln {a * b}",
            rf"\log {a * b}",
            rf"\ln {a}",
        ],
    )


def _integrals(rng: random.Random) -> Drawn:
    n, a = rng.randrange(2, 9), rng.randrange(2, 9)
    gold = f"x^{n}+{a}x+C"
    right = [gold, f"{a}x+x^{n}+C", f"C+x^{{{n}}}+{a}x"]
    return Drawn(
        gold,
        right,
        [f"x^{n}+{a}x", f"x^{n}+{a}x+D", f"x^{n}-{a}x+C", f"x^{n + 1}+{a}x+C", f"y^{n}+{a}y+C", f"x^{n}+{a}x+2C"],
    )


def _complex(rng: random.Random) -> Drawn:
    a, b = rng.randrange(1, 30), rng.randrange(2, 30)
    right = [f"{a}+{b}i", f"{b}i+{a}", rf"{a}+{b}\mathrm{{i}}", rf"{a}+i{b}" if False else rf"{a}+{b}\cdot i"]
    return Drawn(
        f"{a}+{b}i",
        right,
        [f"{a}-{b}i", f"{a}+{b}", str(a), f"{b}i", f"{b}+{a + 1}i", f"{a}+{b}x", f"({a},{b})", f"-{a}+{b}i"],
    )


def _matrices(rng: random.Random) -> Drawn:
    a, b, c, d = (rng.randrange(-9, 10) for _ in range(4))
    d += b == c

    def made(rows: Sequence[Sequence[int]], kind: str = "pmatrix") -> str:
        return rf"\begin{{{kind}}}" + r"\\".join("&".join(map(str, row)) for row in rows) + rf"\end{{{kind}}}"

    gold = made([[a, b], [c, d]])
    right = [gold, made([[a, b], [c, d]], "bmatrix"), gold.replace("&", " & ").replace(r"\\", r" \\ ")]
    wrong = [
        made([[a, b], [c, d + 1]]),
        made([[a, b, c, d]]),
        made([[a], [b], [c], [d]]),
        made([[a, b]]),
        made([[c + 1, d], [a, b]]),
    ]
    return Drawn(gold, right, wrong if b == c else [*wrong, made([[a, c], [b, d]])])


def _equations(rng: random.Random) -> Drawn:
    a, b, c = rng.randrange(2, 12), rng.randrange(2, 12), rng.randrange(1, 30)
    gold = f"{a}x+{b}y={c}"
    right = [gold, f"{c}={a}x+{b}y", f"{b}y+{a}x={c}", f"{2 * a}x+{2 * b}y={2 * c}", f"{a}x+{b}y-{c}=0"]
    return Drawn(
        gold, right, [f"{a}x-{b}y={c}", f"{a}x+{b}y={c + 1}", f"{a}x+{b}z={c}", str(c), f"{a}x+{b}y>{c}", f"{a}x+{b}y"]
    )


def _hedges(rng: random.Random) -> Drawn:
    n = rng.randrange(2, 500)
    m = n + rng.randrange(1, 9)
    wrong = [
        rf"{n}\text{{ or }}{m}", f"{n}, {m}", rf"{n}\text{{ and }}{m}", rf"\text{{either }}{n}\text{{ or }}{m}",
        rf"{m}\text{{ or }}{n}",
        rf"{n}\text{{, maybe }}{m}", rf"\text{{not }}{n}", rf"\pm{n}", rf"{n}\text{{ or more}}", rf"\ne {n}", f"{n}?",
    ]  # fmt: skip
    return Drawn(str(n), [str(n), rf"\text{{{n}}}"], wrong)


MAKERS: dict[str, Maker] = {
    "integers": _integers, "thousands": _grouping, "side by side": _juxtaposed, "fractions": _fractions,
    "mixed numbers": _mixed,
    "decimals": _decimals, "repeating decimals": _repeating, "tiny and huge": _scientific, "percent": _percent,
    "units": _units,
    "unit where the gold has none": _unit_of_the_answer, "money": _money, "times of day": _times, "bases": _bases,
    "angles": _angles,
    "trigonometry": _trigonometry, "variables": _names, "functions": _functions, "lists": _lists, "sets": _sets,
    "tuples": _tuples,
    "solutions": _solutions, "systems": _systems, "plus and minus": _plus_minus, "intervals": _intervals,
    "inequalities": _inequalities, "unions": _unions, "ratios": _ratios, "number words": _number_words,
    "scales": _scales,
    "Chinese": _chinese, "Unicode": _unicode, "roots": _roots, "near a root": _near_roots, "rounded golds": _rounded,
    "polynomials": _polynomials, "products": _products, "words": _words, "options": _options, "exponents": _exponents,
    "logarithms": _logarithms, "integrals": _integrals, "complex": _complex, "matrices": _matrices,
    "equations": _equations,
    "hedges": _hedges,
}  # fmt: skip

# What is round an answer in prose. A formula is between dollar signs, or bare if it has no command.
_FRAMES = (
    "The answer is {}.", "Therefore, the final answer is {}.", "First we add.\nThen we divide.\n**Answer:** {}",
    "So we get\n#### {}",
    "The answer is {}, because both sides agree.", "Final answer: {}",
    "I first tried 17, which fails. The answer is {}.",
    "Checking 3 cases gives 12 in all.\nHence the answer is: {}",
)  # fmt: skip
_FRAMES_OF_BOXES = (
    r"So it is \boxed{{{}}}.",
    r"Thus $\boxed{{{}}}$",
    r"We try 17 and 3 first.\n\nFinal answer: \boxed{{{}}}",
    r"$$\boxed{{{}}}$$",
)
# Said behind or before a number n that is not the answer: gold n.
_TRAPS = (
    "{n} or {m}", "either {n} or {m}", "{n}, maybe {m}", "{n} and {m}", "not {n}", "{n} 1/2 cups",
    "{n}x + 3 where x is positive", "{n}^6 dollars",
    "{n} times {m}", "{n}% of {m}", "{n} out of {m}", "{n} to {m}", "{n} million", "{n} squared", "at least {n}",
    "more than {n}", "between {n} and {m}",
    "the square root of {n}", "half of {n}", "maybe {n}", "−{n}", "x = −{n}", "x ≠ {n}", "x > {n}", "{n}/{m}",
    "{n}:{m}", "{n} + {m}", "{n} less than {m}",
    "{n}√2", "√{n}", "{n}π", "{n}i", "{n}. Or {m}.", "{n}. No wait, {m}.", "{n}万", "{n}或{m}", "负{n}", "minus {n}",
    "negative {n}", "{n} dozen", "{n} thirds",
    "{n} over {m}", "{n}~{m}", "{n} {m}", "({n}, {m})", "{n}, {m}", "{n}e3", "{n}.5", "twice {n}", "{n} choose 2",
    "{n} or so more than {m}", "{n} 3/4", "1/{n}",
)  # fmt: skip
# Said where n is the answer.
_PLAIN = (
    "{n}", "{n} apples", "{n} cm", "${n}", "${n}$", "{n} dollars", "{n}.", "x = {n}", "$x = {n}$", "{n}, not {m}",
    "not {m} but {n}", "{n} in total",
    "{n} because {m} fails", "{n} since 3 + 4 = 7", "exactly {n}", "therefore {n}", "{n} miles per hour",
    "{n} (see above)", "{n}个", "{n} years old", "n = {n}",
    "**{n}**", "{n} left", "{n} people who came", "equal to {n}", "{n}, which is what we wanted", "{n} degrees",
    "{n}°", "{n} square meters",
)  # fmt: skip


def _trap(rng: random.Random) -> Pair:
    n, m = rng.randrange(20, 900), rng.randrange(20, 900)
    m += n == m
    right = rng.random() < 0.5
    said = rng.choice(_PLAIN if right else _TRAPS).format(n=n, m=m)
    frame = rng.choice(
        ("The answer is {}", "The answer is {}.", "Therefore the answer is {}.", "So the final answer is: {}")
    )
    if any("\u4e00" <= char <= "\u9fff" for char in said):
        frame = rng.choice(("所以答案是{}。", "答案：{}", "答案是{}"))
    return Pair("prose", frame.format(said), str(n), right, boxed=False)


def pairs(count: int, seed: int) -> list[Pair]:
    """Return so many pairs: of each class in turn, right and wrong, boxed and in prose."""
    rng = random.Random(seed)
    kinds = [*MAKERS, *["prose"] * (len(MAKERS) // 4)]
    found: list[Pair] = []
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        if kind == "prose":
            found.append(_trap(rng))
            continue
        drawn = MAKERS[kind](rng)
        right, boxed = rng.random() < 0.5, rng.random() < 0.5
        text = rng.choice(drawn.right if right else drawn.wrong)
        found.append(Pair(kind, _framed(rng, text, boxed=boxed), drawn.gold, right, boxed))
    return found


def _framed(rng: random.Random, text: str, *, boxed: bool) -> str:
    if boxed:
        return rng.choice(_FRAMES_OF_BOXES).replace(r"\n", "\n").format(text)
    is_formula = any(char in text for char in r"\^_{}") or rng.random() < 0.3
    return rng.choice(_FRAMES).format(f"${text}$" if is_formula and "$" not in text else text)
