"""The answers that the rows C-7a and C-7b grade: easy ones as models write them, and hostile ones. Made from a seed."""

import random
from collections.abc import Callable

Case = tuple[str, str]

HOSTILE = (
    "(((((9!)!)!)!)!)", "9^{9^{9^{9}}}", "9^{9^{9}}", "(999999!)!", r"\frac{10^{10^{8}}}{3^{10^{8}}}", "2^{2^{40}}",
    "(" * 500 + "1" + ")" * 500, "9" * 6000, "+".join(["1"] * 1500), r"\sqrt{" * 60 + "2" + "}" * 60,
    r"\prod_{n=1}^{10^9} n", "x^{99999}-y^{99999}",
)  # fmt: skip


def easy(count: int, seed: int) -> list[Case]:
    """Return (completion, gold) pairs; about a third are wrong."""
    rng = random.Random(seed)
    makers: tuple[Callable[[random.Random], Case], ...] = (_integer, _decimal, _fraction, _letters, _expression)
    weights = (10, 3, 3, 2, 2)
    return [rng.choices(makers, weights)[0](rng) for _ in range(count)]


def _integer(rng: random.Random) -> Case:
    value = rng.randrange(100_000)
    said = value + rng.choice((0, 0, 1))
    written = rng.choice((f"{said}", f"{said:,}", rf"{said}\text{{ cm}}"))
    return rf"Adding up gives \boxed{{{written}}}.", str(value)


def _decimal(rng: random.Random) -> Case:
    value = rng.randrange(1, 10_000)
    return rf"so it is \boxed{{{(value + rng.choice((0, 0, 5))) / 8}}}", str(value / 8)


def _fraction(rng: random.Random) -> Case:
    top, bottom, scale = rng.randrange(1, 99), rng.randrange(2, 99), rng.choice((1, 1, 2))
    return rf"Hence $\boxed{{\frac{{{top * scale}}}{{{bottom}}}}}$", rf"\frac{{{top}}}{{{bottom}}}"


def _letters(rng: random.Random) -> Case:
    return rf"\boxed{{{rng.choice('ABCD')}}}", rng.choice("ABCD")


def _expression(rng: random.Random) -> Case:
    root = rng.randrange(1, 30)
    said = root + rng.choice((0, 0, 1))
    return rf"\boxed{{x^2+{2 * said}x+{said * said}}}", f"(x+{root})^2"
