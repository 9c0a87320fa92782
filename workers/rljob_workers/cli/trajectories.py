"""`rljob trajectories`."""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from rljob_api import enums, errors
from rljob_workers.cli import locate
from rljob_workers.local import terminal
from rljob_workers.local.rundir import dumps, group_facts, layout

_MARGIN = "  | "
_PARTS = {"prompt": "prompt", "gen": "completion"}


def row_fields(row: dumps.Row, facts: group_facts.Facts) -> dict[str, object]:
    """Return the row's own fields with `state`, `step`, `age`, `drop_reason`, `source` and `advantage` of its group.

    These are None or empty where the ledger does not know the group; `state` is superseded if another attempt counts.
    """
    superseded = facts.in_ledger and facts.attempt != row.attempt
    return {
        **row.model_dump(mode="json"),
        "state": "superseded" if superseded else facts.state,
        "step": None if superseded else facts.step,
        "age": None if superseded else facts.age,
        "drop_reason": "" if superseded else facts.drop_reason,
        "source": facts.source,
        "advantage": None if superseded else facts.advantage(row.sample_idx),
    }


def example_fields(row: dumps.Row) -> dict[str, object] | None:
    """Return a row as an example of docs/sft.md, its texts whole; None of one that is cut or has several answers."""
    if row.truncated or [part.role for part in row.parts] != ["prompt", "gen"]:
        return None
    return {
        "id": f"{row.group_id}-{row.attempt}-{row.sample_idx}",
        "prompt": row.prompt,
        "answer": row.completion,
        "rendered": True,
    }


def row_lines(
    row: dumps.Row, facts: group_facts.Facts, *, max_chars: int, before: dumps.Row | None = None
) -> Iterator[str]:
    """Yield the lines of a trajectory; of each text at most `max_chars` characters, 0 for all.

    The prompt that the row shown `before` has too is not shown again.
    """
    yield _heading(row, facts)
    yield "  " + "  ".join(_facts(row, facts))
    for part in row.parts:
        again = part.role == "prompt" and before is not None and before.prompt == part.text
        yield f"  {_PARTS.get(part.role, 'context')} ({part.len} tokens{', as above' if again else ''})"
        if not again:
            yield from _text(part.text, max_chars)
    for index, turn in enumerate(row.turns or (), start=1):
        yield (
            f"  turn {index}/{len(row.turns or ())}: {_versions(turn.version_start, turn.version_end)}  "
            f"reward {turn.raw_reward:g}  {terminal.line(turn.reason)}  {turn.answer_len} tokens"
        )


def _heading(row: dumps.Row, facts: group_facts.Facts) -> str:
    where = terminal.line(f"{facts.source}/{row.query_id}" if facts.source else row.query_id)
    attempt = f" attempt {row.attempt}" if row.attempt else ""
    return f"group {row.group_id} sample {row.sample_idx}{attempt}  prompt {where}"


def _facts(row: dumps.Row, facts: group_facts.Facts) -> Iterator[str]:
    yield f"reward {row.reward:g}" + ("" if row.reward == row.raw_reward else f" (raw {row.raw_reward:g})")
    yield terminal.line(row.reason)
    yield _versions(row.head_version, row.tail_version)
    row_facts = row_fields(row, facts)
    if row_facts["state"]:
        yield _fate(row_facts)
    if row_facts["advantage"] is not None:
        yield f"advantage {row_facts['advantage']:+.4g}"
    yield "cut by length" if row.truncated else terminal.line(row.stop_reason)


def _fate(row_facts: dict[str, object]) -> str:
    if row_facts["drop_reason"]:
        return f"dropped: {row_facts['drop_reason']}"
    if row_facts["step"] is None:
        return str(row_facts["state"])
    age = f" at age {row_facts['age']}" if row_facts["age"] else ""
    return f"{row_facts['state']} in step {row_facts['step']}{age}"


def _versions(head: int, tail: int) -> str:
    return f"version {head}" if head == tail else f"versions {head} to {tail}"


def _text(text: str, max_chars: int) -> Iterator[str]:
    shown = text[:max_chars] if max_chars else text
    for line in terminal.block(shown.removesuffix("\n")):
        yield _MARGIN + line
    if len(shown) < len(text):
        yield f"{_MARGIN}... {len(text) - len(shown)} more characters (--max-chars 0 shows all)"


_COMPARED = re.compile(r"(<=|>=|<|>|=)?\s*(\S+)")
_SAME = 1e-6
_VERDICTS = frozenset(map(str, enums.VerdictReason))
_DROPS = frozenset(map(str, enums.DropReason))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Empty means all. reasons: of the verdict, or why the ledger dropped the group."""

    reward: Callable[[float], bool] | None = None
    reasons: Collection[str] = ()
    prompt_ids: Collection[str] = ()
    truncated: bool = False

    def matches(self, row: dumps.Row, facts: Callable[[str], group_facts.Facts]) -> bool:
        """Return whether a row is wanted. `facts` is asked only where the row alone does not decide."""
        if self.prompt_ids and row.query_id not in self.prompt_ids:
            return False
        if self.truncated and not row.truncated:
            return False
        if self.reward is not None and not self.reward(row.reward):
            return False
        if not self.reasons or row.reason in self.reasons:
            return True
        return bool(_DROPS.intersection(self.reasons)) and facts(row.group_id).drop_reason in self.reasons


def reward_test(text: str) -> Callable[[float], bool]:
    """Return the test that `--reward` asks for: "1", ">0.5", "<=0", or "0.2..0.8" with both ends.

    Raises ManifestError for anything else.
    """
    low, dots, high = text.partition("..")
    if dots:
        least, most = _number(low, text), _number(high, text)
        return lambda reward: least <= reward <= most
    match = _COMPARED.fullmatch(text.strip())
    if match is None:
        raise _unclear(text)
    sign, value = match[1] or "=", _number(match[2], text)
    tests: dict[str, Callable[[float], bool]] = {
        "=": lambda reward: math.isclose(reward, value, rel_tol=_SAME, abs_tol=_SAME),
        "<": lambda reward: reward < value,
        "<=": lambda reward: reward <= value,
        ">": lambda reward: reward > value,
        ">=": lambda reward: reward >= value,
    }
    return tests[sign]


def checked_reasons(reasons: Sequence[str]) -> frozenset[str]:
    """Raises ManifestError for one that no verdict and no drop has."""
    for reason in reasons:
        if reason not in _VERDICTS | _DROPS:
            raise errors.ManifestError(
                f"--reason is {reason!r}, but must be of a verdict ({', '.join(sorted(_VERDICTS))}) "
                f"or of a drop ({', '.join(sorted(_DROPS))})"
            )
    return frozenset(reasons)


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _unclear(whole) from None
    if math.isnan(value):
        raise _unclear(whole)
    return value


def _unclear(text: str) -> errors.ManifestError:
    return errors.ManifestError(
        f"--reward is {text!r}, but must be a number such as 1, a bound such as '>0.5' or '<=0', or a range 0.2..0.8"
    )


_SAMPLED = "spec.observability.trajectoryDump Sampled writes four groups of each version and rollout, All writes all"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to show and how. limit 0: all; max_chars 0: whole texts. as_examples: as `example_fields` has them;
    distinct: each prompt with each answer once, the newest of them.
    """

    row_filter: RowFilter
    step: int | None = None
    versions: Sequence[int] = ()
    groups: Sequence[str] = ()
    evaluation: bool = False
    limit: int = 10
    max_chars: int = 2000
    as_json: bool = False
    as_examples: bool = False
    distinct: bool = False


def trajectories(job: str, *, run_dir: pathlib.Path | None, options: Options) -> int:
    """Print what the policy wrote, newest version first, one JSON object a line or a block of text each.

    Raises ManifestError if there is no such run or it wrote no dumps, or `distinct` without examples, LedgerError if
    its ledger cannot be read.
    """
    if options.distinct and not options.as_examples:
        raise errors.ManifestError("--distinct leaves out repeated examples: write --examples too")
    directory = _directory(job, run_dir)
    kind = dumps.EVALUATION if options.evaluation else dumps.TRAINING
    if not (directory.dumps / kind).is_dir():
        raise errors.ManifestError(_no_dumps(directory, kind))
    ledger, unreadable = group_facts.Ledger(directory.state), dumps.Unreadable()
    try:
        groups = _groups(options, ledger)
        rows = dumps.rows(directory.dumps, kind=kind, unreadable=unreadable, versions=options.versions, groups=groups)
        matching: Iterator[dumps.Row] = (row for row in rows if options.row_filter.matches(row, ledger.facts))
        if options.as_examples:
            matching = (row for row in matching if example_fields(row) is not None)
        if options.distinct:
            matching = _distinct(matching)
        count = _show(itertools.islice(matching, options.limit or None), options, ledger)
        _tell(count, options, unreadable, groups)
    finally:
        ledger.close()
    return int(enums.ExitCode.OK)


def _directory(job: str, run_dir: pathlib.Path | None) -> layout.RunDir:
    """Return the run's directory; one that is named needs no more than dumps, as the storage of a cluster has them."""
    if run_dir is not None and layout.RunDir(run_dir).dumps.is_dir():
        return layout.RunDir(run_dir)
    return locate.locate(job, run_dir)


def _groups(options: Options, ledger: group_facts.Ledger) -> Sequence[str] | None:
    """Return the groups to look at, None for all."""
    named = options.groups or None
    if options.step is None:
        return named
    of_step = ledger.groups_of_step(options.step)
    return of_step if named is None else [group for group in named if group in of_step]


def _distinct(rows: Iterable[dumps.Row]) -> Iterator[dumps.Row]:
    # Digests: a long run's texts are more than memory should hold.
    taken: set[bytes] = set()
    for row in rows:
        digest = hashlib.sha256(json.dumps([row.prompt, row.completion]).encode()).digest()
        if digest not in taken:
            taken.add(digest)
            yield row


def _show(rows: Iterable[dumps.Row], options: Options, ledger: group_facts.Ledger) -> int:
    """Print rows; return how many there were."""
    before, count = None, 0
    for row in rows:
        facts = ledger.facts(row.group_id)
        if options.as_examples:
            print(json.dumps(example_fields(row), ensure_ascii=False), flush=True)
        elif options.as_json:
            print(json.dumps(row_fields(row, facts)), flush=True)
        else:
            print("\n".join(row_lines(row, facts, max_chars=options.max_chars, before=before)) + "\n")
        before, count = row, count + 1
    return count


def _tell(count: int, options: Options, unreadable: dumps.Unreadable, groups: Sequence[str] | None) -> None:
    """Say on standard error what the output does not show."""
    if unreadable.count:
        print(f"{unreadable.count} lines of the dumps could not be read and were left out", file=sys.stderr)
    if count == 0 and options.step is not None:
        scope = f"{len(groups or ())} groups of step {options.step}" if groups else f"step {options.step} has no groups"
        print(f"no trajectory of the dumps matches ({scope}; {_SAMPLED})", file=sys.stderr)
    elif count == 0:
        print("no trajectory of the dumps matches", file=sys.stderr)
    elif count == options.limit:
        print(f"showed the first {count}; --limit 0 shows all", file=sys.stderr)


def _no_dumps(directory: layout.RunDir, kind: str) -> str:
    other = dumps.TRAINING if kind == dumps.EVALUATION else dumps.EVALUATION
    what = "evaluation" if kind == dumps.EVALUATION else "training"
    if (directory.dumps / other).is_dir():
        remedy = "leave --evaluation out" if other == dumps.TRAINING else "add --evaluation"
        return f"{directory.path} holds no trajectories of {what}, only others: {remedy} to see them"
    return (
        f"{directory.path} holds no dumps of trajectories: none was written yet, or "
        f"spec.observability.trajectoryDump is None and should be Sampled or All"
    )
