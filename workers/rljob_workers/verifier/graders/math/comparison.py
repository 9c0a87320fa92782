"""Does an answer say what a gold says? Forms are compared kind by kind; what the gold names must not be changed.

Every function returns True, False, or None where only an evaluation of roots or functions could decide and `Rules.deep`
does not allow one: that may take seconds and belongs in a worker.
"""

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from fractions import Fraction

from rljob_workers.verifier.graders.math import forms, units, values
from rljob_workers.verifier.graders.math.expressions import Node
from rljob_workers.verifier.graders.math.forms import Form

# Digits, and places, of an answer's decimal that may stand for an exact gold; digits of a gold's decimal to which an
# exact answer is rounded. Fewer say too little.
LEAST_DIGITS = 6
LEAST_ROUNDED = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a reward's description leaves open.

    deep: roots and functions are evaluated. ordered: a list without brackets has an order. percent_either: p% is p/100,
    or p if the other side has no percent sign. relative: a number that is written as a decimal equals another, named
    constants apart, within this part of the larger. near_integer: a decimal this close to an integer is it.
    """

    deep: bool
    ordered: bool = False
    percent_either: bool = False
    relative: Fraction = Fraction(0)
    near_integer: Fraction = Fraction(0)


class Verdict(enum.Enum):
    """What reading both sides says. OPEN: an evaluation would say. UNREAD: words, or a formula outside the grammar."""

    SAME = "same"
    DIFFERENT = "different"
    OPEN = "open"
    UNREAD = "unread"


def verdict(answer: str, gold: str, rules: Rules) -> Verdict:
    """Return whether an answer says what a gold says, for rewards that have a reading of their own alongside this
    one.
    """
    ours, theirs = forms.read(answer), forms.read(gold)
    if ours.kind == theirs.kind == "text":
        # Words are compared as words: their letters are not factors.
        return Verdict.SAME if _texts(ours, theirs) else Verdict.DIFFERENT
    if _is_unread(ours) or _is_unread(theirs):
        return Verdict.SAME if ours.spelled == theirs.spelled else Verdict.UNREAD
    try:
        same = equal(ours, theirs, rules)
    except values.TooLargeError:
        return Verdict.UNREAD
    return Verdict.OPEN if same is None else Verdict.SAME if same else Verdict.DIFFERENT


def _is_unread(form: Form) -> bool:
    return form.kind in ("opaque", "text") or any(_is_unread(member) for member in form.members)


def is_read(text: str) -> bool:
    """Return whether a text is more than words and signs that only the same text equals."""
    pending = [forms.read(text)]
    while pending:
        form = pending.pop()
        if form.kind in ("opaque", "text") or _is_too_large(form):
            return False
        pending += form.members
    return True


def is_over_bounds(text: str) -> bool:
    """Return whether a text is a formula outside the grammar, or one that is too large to evaluate."""
    form = forms.read(text)
    return form.kind == "opaque" or any(_is_too_large(part) for part in (form, *form.members))


def _is_too_large(form: Form) -> bool:
    try:
        if form.node is not None:
            values.check(form.node)
    except values.TooLargeError:
        return True
    return False


def equal(ours: Form, gold: Form, rules: Rules) -> bool | None:
    """Return whether an answer says what the gold says. Raises TooLargeError: then only the same text is equal."""
    if ours.spelled == gold.spelled:
        return True
    if "option" in (ours.kind, gold.kind):
        return _options(ours, gold, rules)
    if gold.others or gold.near:
        return _any(_same(ours, reading, rules) for reading in (_alone(gold), *gold.others))
    return _same(ours, gold, rules)


def _options(ours: Form, gold: Form, rules: Rules) -> bool | None:
    """A letter may stand for an option or be left out; where both sides have it, or what it says, they must agree."""
    if ours.kind == gold.kind:
        return ours.name == gold.name and equal(ours.members[0], gold.members[0], rules)
    option, other = (ours, gold) if ours.kind == "option" else (gold, ours)
    if other.node is not None and other.kind == "value" and other.node[0] == "sym" and not other.unit:
        return bool(other.node[1] == option.name)
    option_text = option.members[0]
    return equal(option_text, gold, rules) if option is ours else equal(ours, option_text, rules)


def _alone(form: Form) -> Form:
    return dataclasses.replace(form, others=(), near=())


def _same(ours: Form, gold: Form, rules: Rules) -> bool | None:
    if ours.others or ours.near:
        # "x = 2 + 3 = 5": every member of the chain must be right; of "x = pi ~ 3.14" the exact ones.
        exact = _all(_named_same(member, gold, rules) for member in (_alone(ours), *ours.others))
        if exact is False and ours.near and gold.node is not None and _is_decimal(gold.node):
            return _all([_is_near(ours, rules), *(_named_same(member, gold, rules) for member in ours.near)])
        return exact
    return _named_same(ours, gold, rules)


def _is_near(ours: Form, rules: Rules) -> bool | None:
    """Return whether what a chain calls approximately equal is, within a hundredth."""
    if not rules.deep:
        return None
    exact, near = ours.node, ours.near[-1].node
    left = values.real(exact) if exact is not None else None
    right = values.real(near) if near is not None else None
    return bool(left is not None and right is not None and abs(left - right) <= abs(left) / 100)


def _named_same(ours: Form, gold: Form, rules: Rules) -> bool | None:
    if ours.name and gold.name and ours.kind != "relation" and gold.kind != "relation":
        if ours.name != gold.name or len(ours.bound) != len(gold.bound):
            return False
        if ours.bound != gold.bound:
            ours = _renamed(ours, dict(zip(ours.bound, gold.bound, strict=True)))
    return _of_kind(_with_constant(ours, gold), gold, rules)


def _with_constant(ours: Form, gold: Form) -> Form:
    """A constant of integration may be written in either case where neither side has both."""
    if ours.node is None or gold.node is None or gold.node[0] != "add":
        return ours
    had, in_gold = ({"c", "C"} & values.letters(node) for node in (ours.node, gold.node))
    if len(had) != 1 or len(in_gold) != 1 or had == in_gold or ("sym", *in_gold) not in gold.node[1]:
        return ours
    return _renamed(ours, {had.pop(): in_gold.pop()})


def _renamed(form: Form, names: dict[str, str]) -> Form:
    if form.node is None or values.letters(form.node) & (set(names.values()) - set(names)):
        return form
    return dataclasses.replace(form, node=_substituted(form.node, names))


def _substituted(node: Node, names: dict[str, str]) -> Node:
    if node[0] == "sym":
        return ("sym", names.get(node[1], node[1]))
    if node[0] in ("num", "const"):
        return node
    if node[0] in ("add", "mul"):
        return (node[0], [_substituted(child, names) for child in node[1]])
    return tuple(_substituted(child, names) if isinstance(child, tuple) else child for child in node)


def _of_kind(ours: Form, gold: Form, rules: Rules) -> bool | None:
    kinds = (ours.kind, gold.kind)
    if "opaque" in kinds or "text" in kinds:
        return _texts(ours, gold)
    if kinds == ("value", "value"):
        return _values(ours, gold, rules)
    if ours.kind == "list" and ours.op == "or" and not ours.brackets and gold.kind in ("value", "ratio", "clock"):
        # "1/2 or 0.5": alternatives that are all right.
        return _all(_same(member, gold, rules) for member in ours.members)
    if "relation" in kinds:
        return _relations(ours, gold, rules)
    if kinds == ("list", "list"):
        return _lists(ours, gold, rules)
    if set(kinds) == {"list", "union"} or kinds == ("union", "union"):
        return _unordered(_pieces(ours), _pieces(gold), rules)
    if kinds == ("without", "without"):
        return _all(
            [_ordered(ours.members[:1], gold.members[:1], rules), _unordered(ours.members[1:], gold.members[1:], rules)]
        )
    if kinds == ("matrix", "matrix"):
        return ours.op == gold.op and _ordered(ours.members, gold.members, rules)
    if "clock" in kinds:
        return _clocks(ours, gold, rules)
    if "ratio" in kinds:
        return _ratios(ours, gold, rules)
    return False


def _texts(ours: Form, gold: Form) -> bool:
    if ours.spelled == gold.spelled:
        return True
    if ours.kind == gold.kind == "text":
        return ours.spelled.removeprefix("the ") == gold.spelled.removeprefix("the ")
    return False


# Values.


def _values(ours: Form, gold: Form, rules: Rules) -> bool | None:
    if ours.base or gold.base:
        return _digits(ours, gold)
    assert ours.node is not None
    assert gold.node is not None
    return _any(_nodes(ours_node, gold_node, rules) for ours_node, gold_node in _readings(ours, gold, rules))


def _digits(ours: Form, gold: Form) -> bool:
    """A base that the gold names may be left out, and not be changed."""
    if ours.base and gold.base:
        return ours.base == gold.base and ours.digits == gold.digits
    bare, based = (ours, gold) if gold.base else (gold, ours)
    if bare.node is None or bare.node[0] != "num" or bare.node[1].denominator != 1 or bare.unit:
        return False
    if str(int(bare.node[1])) == based.digits:
        return True
    if based is gold or int(based.base) > 36:
        return False
    try:
        return bool(int(based.digits, int(based.base)) == bare.node[1])
    except ValueError:
        return False


def _readings(ours: Form, gold: Form, rules: Rules) -> list[tuple[Node, Node]]:
    """Return the pairs of trees of which one must be equal; none if the units cannot both be meant."""
    assert ours.node is not None
    assert gold.node is not None
    ours_node, gold_node = ours.node, gold.node
    if ours.percent or gold.percent:
        return _percent_readings(ours, gold, rules)
    if ours.unit is None and gold.unit is None:
        return [(ours_node, gold_node)]
    if gold.unit is None:
        assert ours.unit is not None
        pairs = [(ours_node, gold_node)]
        if ours.unit == units.DEGREE:
            pairs.append((_radians(ours_node), gold_node))
        for name, factor in _unit_letters(gold_node, ours.unit):
            pairs.append((("mul", [ours_node, ("sym", name), ("num", ours.unit.factor / factor, -1, 0)]), gold_node))
        return pairs
    if ours.unit is None:
        pairs = [(ours_node, gold_node)]
        if gold.unit == units.DEGREE:
            pairs.append((ours_node, _radians(gold_node)))
        # "5 m" is a product until the gold says that m is a unit.
        for name, factor in _unit_letters(ours_node, gold.unit):
            pairs.append((ours_node, ("mul", [gold_node, ("sym", name), ("num", gold.unit.factor / factor, -1, 0)])))
        return pairs
    if ours.unit.powers == gold.unit.powers:
        return [(_scaled(ours_node, ours.unit.factor), _scaled(gold_node, gold.unit.factor))]
    if ours.unit.is_angle and gold.unit.is_angle:
        return [(_in_radians(ours_node, ours.unit), _in_radians(gold_node, gold.unit))]
    return [(ours_node, gold_node)] if ours.unit.is_any or gold.unit.is_any else []


def _unit_letters(node: Node, unit: units.Unit) -> list[tuple[str, Fraction]]:
    """Return the letters of a tree that measure what the unit measures, with the size of each."""
    readings = [(name, units.read(name)) for name in sorted(values.letters(node)) if len(name) == 1]
    return [(name, read.factor) for name, read in readings if read is not None and read.powers == unit.powers]


def _percent_readings(ours: Form, gold: Form, rules: Rules) -> list[tuple[Node, Node]]:
    assert ours.node is not None
    assert gold.node is not None
    if ours.unit is not None or gold.unit is not None:
        return []
    ours_node, gold_node = ours.node, gold.node
    if ours.percent and gold.percent:
        return [(ours_node, gold_node)]
    by_value = (ours_node, ("pct", gold_node)) if gold.percent else (("pct", ours_node), gold_node)
    return [by_value, (ours_node, gold_node)] if rules.percent_either else [by_value]


def _scaled(node: Node, factor: Fraction) -> Node:
    return node if factor == 1 else ("mul", [node, ("num", factor, -1, 0)])


def _radians(node: Node) -> Node:
    return ("mul", [node, ("const", "pi"), ("num", Fraction(1, 180), -1, 0)])


def _in_radians(node: Node, unit: units.Unit) -> Node:
    return _radians(node) if unit == units.DEGREE else node


def _nodes(ours: Node, gold: Node, rules: Rules) -> bool | None:
    if ours == gold:
        # Equal trees are equal where they have a value; over a bound they are the same text.
        return True
    plain = _plain(ours, gold, rules)
    if plain is not None:
        return plain
    decided = values.same_exactly(ours, gold)
    approximate = rules.relative and (_is_decimal(ours) or _is_decimal(gold))
    if decided or (decided is False and not approximate and not _may_round(ours, gold)):
        return decided
    if not rules.deep:
        return None
    if decided is None and values.same(ours, gold):
        return True
    if approximate:
        return _is_within(ours, gold, rules.relative)
    return (_rounding(ours, gold, LEAST_DIGITS) and _rounds_to(gold, ours)) or (
        _rounding(gold, ours, LEAST_ROUNDED) and _rounds_to(ours, gold)
    )


def _is_within(ours: Node, gold: Node, relative: Fraction) -> bool:
    if _has_constants(ours) or _has_constants(gold):
        return False
    left, right = values.real(ours), values.real(gold)
    if left is None or right is None:
        return False
    return bool(abs(left - right) * relative.denominator <= relative.numerator * max(abs(left), abs(right)))


def _has_constants(node: Node) -> bool:
    return bool(node[0] == "const" or any(_has_constants(child) for child in values.children(node)))


def _plain(ours: Node, gold: Node, rules: Rules) -> bool | None:
    """Decide on two literals, None if a side is none."""
    left, right = _literal(ours), _literal(gold)
    if left is None or right is None:
        return None
    if left == right:
        return True
    if rules.near_integer and _near_integer(left, rules.near_integer) == _near_integer(right, rules.near_integer):
        return True
    if rules.relative and (_is_decimal(ours) or _is_decimal(gold)):
        return abs(left - right) <= rules.relative * max(abs(left), abs(right))
    return False if not _may_round(ours, gold) else None


def _literal(node: Node) -> Fraction | None:
    if node[0] == "num":
        return Fraction(node[1])
    if node[0] == "neg":
        inner = _literal(node[1])
        return None if inner is None else -inner
    if node[0] == "mul" and len(node[1]) == 2 and node[1][1][0] == "inv":
        top, bottom = _literal(node[1][0]), _literal(node[1][1][1])
        return None if top is None or not bottom else top / bottom
    return None


def _near_integer(value: Fraction, within: Fraction) -> Fraction:
    near = Fraction(round(value))
    return near if abs(value - near) <= within else value


def _decimal(node: Node) -> Node | None:
    """Return the literal of a decimal or of its negative, perhaps times a power of ten; None if it is none."""
    if node[0] == "num":
        return node if node[2] > 0 else None
    return _decimal(node[1]) if node[0] == "neg" else None


def _is_decimal(node: Node) -> bool:
    return _decimal(node) is not None


def _may_round(ours: Node, gold: Node) -> bool:
    """Return whether one is a decimal and the other a number that is none: then the decimal may be its rounding."""
    return _rounding(ours, gold, LEAST_DIGITS) or _rounding(gold, ours, LEAST_ROUNDED)


def _rounding(decimal: Node, other: Node, least: int) -> bool:
    literal = _decimal(decimal)
    if literal is None or literal[3] < least or (least == LEAST_DIGITS and literal[2] < least):
        return False
    return not _has_decimals(other) and not values.letters(other)


def _has_decimals(node: Node) -> bool:
    if node[0] == "num":
        return bool(node[2] >= 0)
    return any(_has_decimals(child) for child in values.children(node))


def _rounds_to(exact: Node, decimal: Node) -> bool:
    """Return whether an exact number, rounded to a decimal's places, is that decimal."""
    literal = _decimal(decimal)
    if literal is None:
        return False
    value, rounded = values.real(exact), values.real(decimal)
    if value is None or rounded is None:
        return False
    places = literal[2]
    # A half may go either way.
    return bool(abs(value - rounded) * 10**places * 2 <= 1 + 1e-30)


# Lists, intervals, relations, times, ratios.


def _lists(ours: Form, gold: Form, rules: Rules) -> bool | None:
    left, right = ours.brackets, gold.brackets
    named = _assignments(ours, gold)
    if named is not None:
        return named if named is False else _matched_by_name(ours, gold, rules)
    if left == right == "{}" or {left, right} == {"", "{}"}:
        return _unordered(ours.members, gold.members, rules)
    if left == right == "":
        compare = _ordered if rules.ordered else _unordered
        return compare(ours.members, gold.members, rules)
    if left == right or {left, right} == {"", "()"}:
        return _ordered(ours.members, gold.members, rules)
    return False


def _assignments(ours: Form, gold: Form) -> bool | None:
    """Return True if a list gives names to its members that the other's may have; False if they cannot agree."""
    sides = [[member.name for member in side.members] for side in (ours, gold)]
    if not any(any(names) for names in sides):
        return None
    if len(sides[0]) != len(sides[1]):
        return False
    return all(all(names) and len(set(names)) == len(names) for names in sides if any(names))


def _matched_by_name(ours: Form, gold: Form, rules: Rules) -> bool | None:
    ours_named, gold_named = any(m.name for m in ours.members), any(m.name for m in gold.members)
    if ours_named and gold_named:
        by_name = {member.name: member for member in ours.members}
        if set(by_name) != {member.name for member in gold.members}:
            return False
        return _all(_same(by_name[member.name], member, rules) for member in gold.members)
    bare = gold if ours_named else ours
    if bare.brackets not in ("", "()"):
        return False

    def in_order(side: Form) -> Sequence[Form]:
        return (
            sorted(side.members, key=lambda member: member.name) if any(m.name for m in side.members) else side.members
        )

    return _ordered(in_order(ours), in_order(gold), rules)


def _ordered(ours: Sequence[Form], gold: Sequence[Form], rules: Rules) -> bool | None:
    if len(ours) != len(gold):
        return False
    return _all(_same(member, gold_member, rules) for member, gold_member in zip(ours, gold, strict=True))


def _unordered(ours: Sequence[Form], gold: Sequence[Form], rules: Rules) -> bool | None:
    """Each member of one is a member of the other, as often: a member that appears twice counts twice."""
    if len(ours) != len(gold):
        return False
    left, open_question = list(ours), False
    for member in gold:
        decisions = [_same(candidate, member, rules) for candidate in left]
        if True in decisions:
            del left[decisions.index(True)]
        elif None in decisions:
            open_question = True
        else:
            return False
    return None if open_question else True


def _pieces(form: Form) -> Sequence[Form]:
    return form.members if form.kind == "union" else (dataclasses.replace(form, name=""),)


def _relations(ours: Form, gold: Form, rules: Rules) -> bool | None:
    left, right = _as_relation(ours), _as_relation(gold)
    if left is None or right is None or left.op != right.op:
        return False
    assert left.node is not None
    assert right.node is not None
    if gold.kind == "value" and not values.letters(gold.node or ("num", 0)):
        # "2x = 4" does not say what x is.
        return False
    if ours.kind == gold.kind == "relation" and left.node == right.node:
        return True
    if not rules.deep:
        return None
    if left.op in ("=", "!="):
        return values.proportional(left.node, right.node)
    return values.same(left.node, right.node)


def _as_relation(form: Form) -> Form | None:
    if form.kind == "relation":
        return form
    if form.kind != "value" or not form.name or form.node is None or form.bound or len(form.name.split("_")[0]) > 1:
        return None
    node = ("add", [("sym", form.name), ("neg", form.node)])
    return Form(kind="relation", spelled="", op="=", node=node)


def _clocks(ours: Form, gold: Form, rules: Rules) -> bool | None:
    if ours.kind == gold.kind:
        if ours.half and gold.half:
            return ours.half == gold.half and _hour(ours) == _hour(gold) and ours.minutes[1:] == gold.minutes[1:]
        same_of_day = _of_day(ours) is not None and _of_day(ours) == _of_day(gold)
        return ours.minutes == gold.minutes or (ours.minutes[1:] == gold.minutes[1:] and same_of_day)
    if ours.kind == "clock":
        # "8:28" is a ratio, too, where the gold is one.
        if ours.half or ours.minutes[2] or gold.kind not in ("ratio", "value"):
            return False
        numbers = (Form(kind="value", spelled="", node=("num", Fraction(part), -1, 0)) for part in ours.minutes[:2])
        return _ratios(Form(kind="ratio", spelled="", members=tuple(numbers)), gold, rules)
    # "10" may be the hour.
    is_hour = (
        ours.kind == "value" and ours.unit is None and not ours.percent and gold.half and not any(gold.minutes[1:])
    )
    return bool(is_hour and ours.node is not None and ours.node[:2] == ("num", gold.minutes[0]))


def _hour(form: Form) -> int:
    return form.minutes[0] % 12


def _of_day(form: Form) -> int | None:
    if form.half:
        return _hour(form) + 12 * (form.half == "pm")
    return form.minutes[0] if form.minutes[0] > 12 or form.minutes[0] == 0 else None


def _ratios(ours: Form, gold: Form, rules: Rules) -> bool | None:
    left, right = _terms(ours), _terms(gold)
    if left is None or right is None or len(left) != len(right):
        return False
    return _all(
        _nodes(("mul", [left[0], right[place]]), ("mul", [right[0], left[place]]), rules)
        for place in range(1, len(left))
    )


def _terms(form: Form) -> list[Node] | None:
    if form.kind == "ratio":
        nodes = [member.node for member in form.members if member.kind == "value"]
        terms = [node for node in nodes if node is not None]
        return terms if len(terms) == len(form.members) else None
    if form.kind == "value" and form.node is not None and form.unit is None and not form.percent:
        return [form.node, ("num", Fraction(1), -1, 0)]
    return None


def _all(decisions: Iterable[bool | None]) -> bool | None:
    unsure = False
    for decision in decisions:
        if decision is False:
            return False
        unsure |= decision is None
    return None if unsure else True


def _any(decisions: Iterable[bool | None]) -> bool | None:
    unsure = False
    for decision in decisions:
        if decision:
            return True
        unsure |= decision is None
    return None if unsure else False
