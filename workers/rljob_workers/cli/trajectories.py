"""`rljob trajectories`."""

import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence

from rljob_api import errors, names
from rljob_workers.cli import locate, row_filter, row_text
from rljob_workers.local import dumps, group_facts, rundir

_SAMPLED = "spec.observability.trajectoryDump sampled writes four groups of each version and rollout, all writes all"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to show and how. limit 0: all; max_chars 0: whole texts."""

    wanted: row_filter.Wanted
    step: int | None = None
    versions: Sequence[int] = ()
    groups: Sequence[str] = ()
    evaluation: bool = False
    limit: int = 10
    max_chars: int = 2000
    as_json: bool = False


def trajectories(job: str, *, run_dir: pathlib.Path | None, options: Options) -> int:
    """Print what the policy wrote, newest version first, one JSON object a line or a block of text each.

    Raises ManifestError if there is no such run or it wrote no dumps, LedgerError if its ledger cannot be read.
    """
    directory = _directory(job, run_dir)
    kind = dumps.EVALUATION if options.evaluation else dumps.TRAINING
    if not (directory.dumps / kind).is_dir():
        raise errors.ManifestError(_no_dumps(directory, kind))
    ledger, unreadable = group_facts.Ledger(directory.state), dumps.Unreadable()
    try:
        groups = _groups(options, ledger)
        found = dumps.rows(directory.dumps, kind=kind, unreadable=unreadable, versions=options.versions, groups=groups)
        wanted = (row for row in found if options.wanted.matches(row, ledger.facts))
        count = _show(itertools.islice(wanted, options.limit or None), options, ledger)
        _tell(count, options, unreadable, groups)
    finally:
        ledger.close()
    return int(names.ExitCode.OK)


def _directory(job: str, run_dir: pathlib.Path | None) -> rundir.RunDir:
    """Return the run's directory; one that is named needs no more than dumps, as the storage of a cluster has them."""
    if run_dir is not None and rundir.RunDir(run_dir).dumps.is_dir():
        return rundir.RunDir(run_dir)
    return locate.locate(job, run_dir)


def _groups(options: Options, ledger: group_facts.Ledger) -> Sequence[str] | None:
    """Return the groups to look at, None for all."""
    named = options.groups or None
    if options.step is None:
        return named
    of_step = ledger.groups_of_step(options.step)
    return of_step if named is None else [group for group in named if group in of_step]


def _show(rows: Iterable[dumps.Row], options: Options, ledger: group_facts.Ledger) -> int:
    """Print rows; return how many there were."""
    before, count = None, 0
    for row in rows:
        facts = ledger.facts(row.group_id)
        if options.as_json:
            print(json.dumps(row_text.fields(row, facts)), flush=True)
        else:
            print("\n".join(row_text.lines(row, facts, max_chars=options.max_chars, before=before)) + "\n")
        before, count = row, count + 1
    return count


def _tell(count: int, options: Options, unreadable: dumps.Unreadable, groups: Sequence[str] | None) -> None:
    """Say on standard error what the output does not show."""
    if unreadable.count:
        print(f"{unreadable.count} lines of the dumps could not be read and were left out", file=sys.stderr)
    if count == 0 and options.step is not None:
        held = f"{len(groups or ())} groups of step {options.step}" if groups else f"step {options.step} has no groups"
        print(f"no trajectory of the dumps matches ({held}; {_SAMPLED})", file=sys.stderr)
    elif count == 0:
        print("no trajectory of the dumps matches", file=sys.stderr)
    elif count == options.limit:
        print(f"showed the first {count}; --limit 0 shows all", file=sys.stderr)


def _no_dumps(directory: rundir.RunDir, kind: str) -> str:
    other = dumps.TRAINING if kind == dumps.EVALUATION else dumps.EVALUATION
    what = "evaluation" if kind == dumps.EVALUATION else "training"
    if (directory.dumps / other).is_dir():
        remedy = "leave --evaluation out" if other == dumps.TRAINING else "add --evaluation"
        return f"{directory.path} holds no trajectories of {what}, only others: {remedy} to see them"
    return (
        f"{directory.path} holds no dumps of trajectories: none was written yet, or "
        f"spec.observability.trajectoryDump is none and should be sampled or all"
    )
