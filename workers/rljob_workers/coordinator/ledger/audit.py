"""Checks a ledger against its promises: `python -m rljob_workers.coordinator.ledger.audit STATE_DIR`.

Reads only. Prints one violation a line and exits 1 if there is any. What is checked:
- every group that was opened is in the ledger or among what it pruned, once;
- every accepted submission is in exactly one step of the surviving history, waits for one, or was dropped with a
reason;
- steps are without gaps, hold each group once, and no group of another kind or state;
- no token of a consumed group is older than the bound, by the recorded versions, unless it left the loss;
- payloads agree with their groups: true sizes, no infrastructure failure as a row, ages recomputed from tokens;
- prompts, and apart from them examples, were first drawn in the order of (epoch, position), each place once, and groups
were leased in queue order;
- version ids are without gaps, steps of versions that were not superseded never fall, a version is served after it
exists.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence

from rljob_api import enums, types
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import groups, retention
from rljob_workers.coordinator.ledger.database import Database
from rljob_workers.coordinator.policy import prompts

_STATES_OF_ACCEPTED = (enums.GroupState.SUBMITTED, enums.GroupState.PACKED, enums.GroupState.TRAINED)


def audit(database: Database, *, max_off_policy_steps: int) -> list[str]:
    """Return all violations of a ledger, as sentences."""
    checks = (
        _once(database),
        _accepted_once(database),
        _steps(database),
        _ages(database, max_off_policy_steps),
        _payloads(database),
        _order(database),
        _versions(database),
        _leases(database),
    )
    return list(itertools.chain.from_iterable(checks))


def _once(database: Database) -> Iterator[str]:
    """Each group that was opened is in the ledger or among what it pruned, once."""
    opened = database.one("SELECT value FROM counters WHERE name = 'groups_opened'")
    places: dict[int, int] = {}
    for row in database.all("SELECT group_id FROM groups"):
        number = retention.number_of(row["group_id"])
        places[number] = places.get(number, 0) + 1
    for member in retention.everything(database):
        places[member.number] = places.get(member.number, 0) + 1
    for number in range(1, (0 if opened is None else opened["value"]) + 1):
        if places.get(number, 0) != 1:
            yield f"group number {number} is in {places.get(number, 0)} places, not in the ledger or pruned once"


def _accepted_once(database: Database) -> Iterator[str]:
    """Promise 1: acknowledged is not lost."""
    accepted = database.all(
        "SELECT a.group_id, a.attempt, g.state, g.attempt AS now, g.step, g.drop_reason FROM answers a"
        " LEFT JOIN groups g ON g.group_id = a.group_id WHERE a.outcome = ?",
        enums.TrajectoryOutcome.ACCEPTED,
    )
    for row in accepted:
        name = f"group {row['group_id']}, accepted at attempt {row['attempt']},"
        if row["state"] is None:
            yield f"{name} is not in the ledger"
        elif row["state"] == enums.GroupState.DROPPED:
            if not row["drop_reason"]:
                yield f"{name} was dropped without a reason"
        elif row["state"] not in _STATES_OF_ACCEPTED or row["now"] != row["attempt"]:
            yield f"{name} is {row['state']} at attempt {row['now']}"
    for row in database.all("SELECT group_id, COUNT(*) AS n FROM answers WHERE outcome = 'accepted' GROUP BY group_id"):
        if row["n"] > 1:
            yield f"group {row['group_id']} was accepted {row['n']} times"
    sql = "SELECT group_id FROM groups WHERE kind <> 'evaluation' AND state IN ('submitted', 'packed', 'trained')"
    accepted_groups = {row["group_id"] for row in accepted}
    for row in database.all(sql):
        if row["group_id"] not in accepted_groups:
            yield f"group {row['group_id']} counts although no submission of it was accepted"
    pruned = list(retention.everything(database))
    for member in pruned:
        if member.fate == enums.GroupState.TRAINED and not member.accepted:
            yield f"group {member.group_id} was trained although no submission of it was accepted"
    counted = database.one("SELECT value FROM counters WHERE name = 'groups:accepted'")
    total = len(accepted) + sum(member.accepted for member in pruned)
    if total != (0 if counted is None else counted["value"]):
        yield f"{total} accepted groups are known, {0 if counted is None else counted['value']} were counted"


def _steps(database: Database) -> Iterator[str]:
    """Each step holds its groups once, in places 0, 1, 2, ...; a trained step never follows an untrained one."""
    steps = database.all("SELECT * FROM steps ORDER BY step")
    numbers = [row["step"] for row in steps]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        yield f"steps have gaps: {numbers}"
    states = [row["state"] for row in steps]
    if "packed" in states and "trained" in states[states.index("packed") :]:
        yield "a trained step follows one that is not trained"
    for step in steps:
        groups = database.all("SELECT * FROM groups WHERE step = ? ORDER BY step_position", step["step"])
        first = sum(member.fate == enums.GroupState.TRAINED for member in retention.of_step(database, step["step"]))
        places = [row["step_position"] for row in groups]
        if places != list(range(first, first + len(groups))) or first + len(groups) != step["num_groups"]:
            yield f"step {step['step']} holds {first + len(groups)} groups, {step['num_groups']} were packed"
        for group in groups:
            if group["state"] != step["state"] or group["kind"] == enums.GroupKind.EVALUATION:
                where = f"in {step['state']} step {step['step']}"
                yield f"group {group['group_id']} {where} is {group['kind']}, {group['state']}"
    recorded = set(numbers)
    for row in database.all("SELECT group_id, state, step FROM groups WHERE kind <> 'evaluation'"):
        if (row["step"] is not None) != (row["state"] in ("packed", "trained")):
            yield f"group {row['group_id']} is {row['state']} with step {row['step']}"
        elif row["step"] is not None and row["step"] not in recorded:
            yield f"group {row['group_id']} is in step {row['step']}, which is not recorded"


def _ages(database: Database, bound: int) -> Iterator[str]:
    """Promise 4: what was older was masked, by the record of the step, which outlives its groups for a while."""
    # Examples have no age: no weights sampled them.
    rows = database.all("SELECT group_id, step, min_step FROM groups WHERE step IS NOT NULL AND kind = 'train'")
    trained = [(row["group_id"], row["step"], row["min_step"]) for row in rows]
    trained += [
        (member.group_id, member.step, member.min_step)
        for member in retention.everything(database)
        if member.fate == enums.GroupState.TRAINED and member.kind is enums.GroupKind.TRAIN
    ]
    summaries = {row["step"]: json.loads(row["summary"]) for row in database.all("SELECT step, summary FROM steps")}
    masked = database.one("SELECT 1 FROM meta WHERE key = 'masked_old_tokens'") is not None
    for group_id, step, min_step in trained:
        if step in summaries:
            oldest = max(min_step, summaries[step].get("oldest_trained_step", 0))
        else:
            oldest = max(min_step, step - 1 - bound) if masked else min_step
        age = step - 1 - oldest
        if not 0 <= age <= bound:
            yield f"group {group_id} is trained on tokens of age {age} in step {step}, the bound is {bound}"


def _payloads(database: Database) -> Iterator[str]:
    """Promises 2 and 3, as far as payloads are still kept."""
    steps = {row["version"]: row["step"] for row in database.all("SELECT version, step FROM versions")}
    rows = database.all(
        "SELECT p.group_id, p.attempt AS sent, p.data, g.* FROM payloads p JOIN groups g USING (group_id)"
    )
    for row in rows:
        group = codec.decode(types.PromptGroup, bytes(row["data"]))
        name = f"group {row['group_id']}"
        members = {member.sample_index for member in group.trajectories}
        if len(group.trajectories) != row["num_rows"]:
            yield f"{name} has {len(group.trajectories)} rows, {row['num_rows']} were recorded"
        if any(member.verdict.reason is enums.VerdictReason.INFRA_FAILURE for member in group.trajectories):
            yield f"{name} holds an infrastructure failure as a scored row"
        if members & {failure.sample_index for failure in group.failures}:
            yield f"{name} has a member that is both scored and failed"
        versions = {v for member in group.trajectories for v in member.versions if v != types.NO_VERSION}
        if versions - steps.keys():
            yield f"{name} has tokens of unknown versions {sorted(versions - steps.keys())}"
        elif min(steps[v] for v in versions) != row["min_step"]:
            yield f"{name} was recorded with oldest step {row['min_step']}, its tokens say otherwise"


def _order(database: Database) -> Iterator[str]:
    """Promise 6: the first use of each prompt follows the cursor without gaps, and first leases follow the queue."""
    for kind in (enums.GroupKind.TRAIN, enums.GroupKind.EXAMPLE):
        yield from _order_of(first_uses(database, kind))


def _order_of(drawn: Sequence["Use"]) -> Iterator[str]:
    for before, after in itertools.pairwise(drawn):
        follows = (before.ref.epoch, before.ref.position + 1) == (after.ref.epoch, after.ref.position)
        turns = (before.ref.epoch + 1, 0) == (after.ref.epoch, after.ref.position)
        if not (follows or turns):
            yield f"group {after.group_id} was not drawn right after {before.group_id}"
    leased = [use for use in drawn if use.lease_order is not None]
    for before, after in itertools.pairwise(leased):
        if (before.lease_order or 0) > (after.lease_order or 0):
            yield f"group {after.group_id} was leased before {before.group_id}, which precedes it"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The first group of a prompt's use."""

    group_id: str
    ref: prompts.PromptRef
    lease_order: int | None


def first_uses(database: Database, kind: enums.GroupKind = enums.GroupKind.TRAIN) -> list[Use]:
    """Return the first group of each use of a prompt, or an example, in the order of the queue, pruned or not."""
    rows = database.all("SELECT * FROM groups WHERE kind = ? AND parent IS NULL", kind)
    problems = [
        (row["queue_key"], Use(group_id=row["group_id"], ref=groups.ref_of(row), lease_order=row["lease_order"]))
        for row in rows
    ]
    problems += [
        (member.queue_key, Use(group_id=member.group_id, ref=member.ref, lease_order=member.lease_order))
        for member in retention.everything(database)
        if member.is_first and member.kind is kind
    ]
    return [use for _, use in sorted(problems, key=lambda pair: pair[0])]


def _versions(database: Database) -> Iterator[str]:
    rows = database.all("SELECT version, step, superseded FROM versions ORDER BY version")
    if [row["version"] for row in rows] != list(range(len(rows))):
        yield f"version ids have gaps: {[row['version'] for row in rows]}"
    current = [row for row in rows if not row["superseded"]]
    for before, after in itertools.pairwise(current):
        if after["step"] < before["step"]:
            later, earlier = (f"{row['version']} of step {row['step']}" for row in (after, before))
            yield f"version {later} follows {earlier}"


def _leases(database: Database) -> Iterator[str]:
    for row in database.all(
        "SELECT g.group_id, g.state, COUNT(l.lease_id) AS n FROM groups g"
        " LEFT JOIN leases l ON l.group_id = g.group_id AND l.state = 'open' GROUP BY g.group_id"
    ):
        if row["n"] != (1 if row["state"] == enums.GroupState.LEASED else 0):
            yield f"group {row['group_id']} is {row['state']} and has {row['n']} open leases"
    sql = "SELECT lease_id, floor_step, granted_step FROM leases WHERE granted_step < floor_step"
    for row in database.all(sql):
        yield f"lease {row['lease_id']} needs step {row['floor_step']}, its worker begins with {row['granted_step']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the violations of a state directory's ledger; 0 if there is none, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="rljob-audit", description="Check a coordinator's ledger against its promises."
    )
    parser.add_argument("state_dir", type=pathlib.Path)
    parser.add_argument("--max-off-policy-steps", type=int, help="the bound; default: the one that the ledger recorded")
    arguments = parser.parse_args(argv)
    file = Database(arguments.state_dir / "ledger.sqlite", read_only=True)
    bound = arguments.max_off_policy_steps
    if bound is None:
        row = file.one("SELECT value FROM meta WHERE key = 'max_off_policy_steps'")
        bound = int(row["value"]) if row is not None else 0
    violations = audit(file, max_off_policy_steps=bound)
    file.close()
    for violation in violations:
        sys.stdout.write(f"{violation}\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
