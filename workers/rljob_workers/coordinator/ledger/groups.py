"""Opening groups, the counters of admission, and dropping groups again."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rljob_api import enums, process_config, types
from rljob_api.manifest.data import CurriculumSpec
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import retention
from rljob_workers.coordinator.ledger.database import Ledger, Row
from rljob_workers.coordinator.policy import curriculum, prompts, staleness, submission

TRAIN, EVALUATION = enums.GroupKind.TRAIN, enums.GroupKind.EVALUATION
QUEUED, LEASED = enums.GroupState.QUEUED, enums.GroupState.LEASED
SUBMITTED, DROPPED = enums.GroupState.SUBMITTED, enums.GroupState.DROPPED
_CURSORS = {TRAIN: "cursor", enums.GroupKind.EXAMPLE: "cursor:example"}
Take = Callable[[prompts.Cursor, int], tuple[list[prompts.PromptRef], prompts.Cursor]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counters of docs/design/algorithms.md#s-2-1, in training groups. `recorded`: steps with a batch, trained or
    not.
    """

    queued: int
    running: int
    submitted: int
    recorded: int
    committed: int
    published_step: int
    accepted: int


def num_unusable(ledger: Ledger, kind: enums.GroupKind = TRAIN) -> int:
    """Return how many training prompts, or examples, were found unusable since this process started."""
    return sum(of_kind == kind for of_kind, _, _ in ledger.unusable)


def end_run(ledger: Ledger, why: str) -> None:
    """Say that the run cannot continue, in a sentence; the first sentence is kept. A new start tries again."""
    ledger.why_ended = ledger.why_ended or why


def counts(ledger: Ledger) -> Counts:
    """Return the counters. A recorded step is B accepted groups however many it had: capacity never leaks."""
    row = ledger.require(
        "SELECT (SELECT COUNT(*) FROM groups WHERE kind = 'train' AND state = 'queued') AS queued,"
        " (SELECT COUNT(*) FROM groups WHERE kind = 'train' AND state = 'leased') AS leased,"
        " (SELECT COUNT(*) FROM groups WHERE kind = 'train' AND state = 'submitted') AS submitted",
        problem="no counts",
    )
    newest = recorded(ledger)
    submitted = row["submitted"]
    return Counts(
        queued=row["queued"],
        running=row["leased"],
        submitted=submitted,
        recorded=newest,
        committed=committed(ledger),
        published_step=published_step(ledger),
        accepted=newest * ledger.spec.algorithm.prompts_per_step + submitted,
    )


def recorded(ledger: Ledger) -> int:
    """Return the newest step with a recorded batch, which is V of the next batch to be packed."""
    return max(base_step(ledger), ledger.number("SELECT MAX(step) AS n FROM steps"))


def committed(ledger: Ledger) -> int:
    """Return the newest trained step."""
    newest = "SELECT step AS n FROM steps WHERE state = 'trained' ORDER BY step DESC LIMIT 1"
    return max(base_step(ledger), ledger.number(newest))


def base_step(ledger: Ledger) -> int:
    """Return the step that this ledger began at: above 0 only where an earlier ledger was lost, or steps were
    pruned away.
    """
    return int(ledger.meta("base_step") or 0)


def published_step(ledger: Ledger) -> int:
    """Return P: the step of the newest version that was not superseded."""
    return ledger.number("SELECT step AS n FROM versions WHERE superseded = 0 ORDER BY version DESC LIMIT 1")


def last_step(ledger: Ledger) -> int:
    """Return the last step of the run: max_steps, or earlier: where data or trainer end."""
    max_steps, announced = ledger.config.max_steps, announced_end(ledger)
    return min(max_steps, int(ledger.meta("data_end_step") or max_steps), max_steps if announced is None else announced)


def announced_end(ledger: Ledger) -> int | None:
    """Return the last step that the newest trainer attempt was given with FINISHED; None before."""
    text = ledger.meta("announced_end")
    return None if text is None else int(text)


def take_over(ledger: Ledger, config: process_config.CoordinatorConfig, *, now: float) -> None:
    """Let `config` hold from now on, and drop what it leaves no room for (docs/design/algorithms.md#s-2, eta).

    The largest bound that ever held is kept, and whether tokens were ever masked: the audit must not blame what came
    before a stricter rule.
    """
    with ledger.db.transaction():
        eta = max(config.spec.async_.max_off_policy_steps, int(ledger.meta("max_off_policy_steps") or 0))
        ledger.set_meta("max_off_policy_steps", str(eta))
        if staleness.masks_old_tokens(config.spec):
            ledger.set_meta("masked_old_tokens", "1")
        ledger.config = config
        drop_stale(ledger, now=now)


def capacity(ledger: Ledger, counts: Counts) -> int:
    """Return how many more groups may be leased; no more than the remaining steps can use."""
    remaining = last_step(ledger) * ledger.spec.algorithm.prompts_per_step - counts.accepted - counts.running
    admitted = staleness.capacity(
        ledger.spec, published_step=counts.published_step, accepted=counts.accepted, running=counts.running
    )
    return min(admitted, remaining)


def cursor(ledger: Ledger, kind: enums.GroupKind = TRAIN) -> prompts.Cursor:
    """Return where the next prompt, or example, is drawn."""
    text = ledger.meta(_CURSORS[kind]) or "0:0"
    epoch, position = text.split(":")
    return prompts.Cursor(int(epoch), int(position))


def set_cursor(ledger: Ledger, following: prompts.Cursor, kind: enums.GroupKind = TRAIN) -> None:
    ledger.set_meta(_CURSORS[kind], f"{following.epoch}:{following.position}")


def fill(ledger: Ledger, take: Take, *, now: float) -> int:
    """Open groups for the next prompts while capacity and the pending limit allow it. QUEUED. Returns how many."""
    with ledger.db.transaction():
        now_open = counts(ledger)
        room = min(staleness.pending_limit(ledger.spec), capacity(ledger, now_open)) - now_open.queued
        if room <= 0:
            return 0
        refs, following = _draw(ledger, take, room, now=now)
        if following == cursor(ledger):
            return 0
        for ref in refs:
            open_group(ledger, ref, kind=TRAIN, now=now)
            # Each prompt of an epoch has a first copy.
            if ref.copy == 0 and ledger.spec.data.curriculum is not None:
                ledger.count(f"drawn:{ref.epoch}")
        set_cursor(ledger, following)
        return len(refs)


def _draw(ledger: Ledger, take: Take, room: int, *, now: float) -> tuple[list[prompts.PromptRef], prompts.Cursor]:
    """Return the next prompts and the cursor behind them, without those that a curriculum leaves out."""
    position = cursor(ledger)
    if ledger.spec.data.curriculum is None:
        return take(position, room)
    refs: list[prompts.PromptRef] = []
    left_out: dict[int, frozenset[curriculum.Prompt]] = {}
    while len(refs) < room:
        drawn, position = take(position, 1)
        if not drawn:
            break
        ref = drawn[0]
        if ref.epoch not in left_out:
            left_out[ref.epoch] = _left_out(ledger, ref.epoch, ledger.spec.data.curriculum, now=now)
        if (ref.source, ref.index) not in left_out[ref.epoch]:
            refs.append(ref)
    return refs, position


def _left_out(ledger: Ledger, epoch: int, config: CurriculumSpec, *, now: float) -> frozenset[curriculum.Prompt]:
    """Return what `epoch` leaves out. Decided when its first prompt is drawn, and then kept: groups of the epoch
    before that are still under way have no score, and a restart must see the same prompts.
    """
    if epoch == 0:
        return frozenset()
    key = f"curriculum:{epoch}"
    if (record := ledger.meta(key)) is not None:
        return frozenset((source, index) for source, index in json.loads(record))
    scores = {
        (row["source"], row["prompt_index"]): row["total"] / row["num_groups"]
        for row in ledger.db.all("SELECT * FROM scores WHERE epoch = ?", epoch - 1)
    }
    num_drawn = ledger.number("SELECT value AS n FROM counters WHERE name = ?", f"drawn:{epoch - 1}")
    new = curriculum.left_out(scores, num_drawn=num_drawn, config=config)
    all_out = _left_out(ledger, epoch - 1, config, now=now).union(new)
    ledger.set_meta(key, json.dumps(sorted(all_out)))
    ledger.db.change("DELETE FROM scores WHERE epoch < ?", epoch)
    ledger.note({"kind": "curriculum", "at": now, "epoch": epoch, "left_out": len(all_out), "new": len(new)})
    return all_out


def open_group(
    ledger: Ledger,
    ref: prompts.PromptRef,
    *,
    kind: enums.GroupKind,
    now: float,
    head: bool = False,
    group_size: int = 0,
    eval_step: int | None = None,
    previous: Row | Mapping[str, Any] | None = None,
    keep_attempts: bool = False,
) -> types.GroupId:
    """Open a group at the tail or head of the queue. `previous` is the dropped group whose prompt this is again."""
    number = ledger.number("SELECT value AS n FROM counters WHERE name = 'groups_opened'") + 1
    ledger.count("groups_opened")
    key = -number if head else number
    group_id = types.GroupId(f"{retention.LETTERS[kind]}{number:08d}")
    keeps_attempts = previous is not None and keep_attempts
    ledger.db.change(
        "INSERT INTO groups (group_id, kind, state, source, prompt_index, prompt_id, epoch, position, copy,"
        " queue_key,"
        " group_size, attempt, infra_attempts, data_attempts, created_at, eval_step, parent)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        group_id, kind, QUEUED, ref.source, ref.index, ref.prompt_id, ref.epoch, ref.position, ref.copy, key,
        group_size or ledger.spec.algorithm.group_size, 0 if previous is None else previous["attempt"] + 1,
        previous["infra_attempts"] if previous is not None and keeps_attempts else 0,
        previous["data_attempts"] if previous is not None and keeps_attempts else 0,
        now, eval_step, None if previous is None else previous["group_id"],
    )  # fmt: skip
    return group_id


def version_steps(ledger: Ledger, versions: Iterable[int]) -> dict[int, int]:
    """Return the steps of those of `versions` that are registered: looked up one by one, never the whole table."""
    steps: dict[int, int] = {}
    for version in versions:
        row = ledger.db.one("SELECT step FROM versions WHERE version = ?", version)
        if row is not None:
            steps[version] = row["step"]
    return steps


def facts(ledger: Ledger, group: Row, versions: Iterable[int] = ()) -> submission.Facts:
    """Return what the submission policy needs of a group; `versions` are the ids that it is asked about."""
    pinned = None
    if group["kind"] == EVALUATION:
        pinned = ledger.number("SELECT version AS n FROM evaluations WHERE step = ?", group["eval_step"])
    return submission.Facts(
        kind=enums.GroupKind(group["kind"]),
        group_size=group["group_size"],
        infra_attempts=group["infra_attempts"],
        data_attempts=group["data_attempts"],
        batch_index=recorded(ledger),
        version_steps=version_steps(ledger, versions),
        pinned_version=pinned,
    )


def carry_out(ledger: Ledger, judgement: submission.Decision, group: Row, *, now: float) -> None:
    """Move a LEASED or SUBMITTED group to what was judged: queued for its next attempt, or dropped."""
    if judgement.drop is not None:
        drop(ledger, group, judgement.drop, requeue=judgement.requeue, now=now)
    elif judgement.requeue is submission.Requeue.NEXT_ATTEMPT:
        changed = ledger.db.change(
            "UPDATE groups SET state = ?, attempt = attempt + 1, infra_attempts = infra_attempts + ?,"
            " data_attempts = data_attempts + ?, granted_step = NULL WHERE group_id = ? AND state = ?",
            QUEUED, judgement.infra, judgement.data, group["group_id"], LEASED,
        )  # fmt: skip
        assert changed == 1, "only a leased group gets another attempt"


def drop(ledger: Ledger, group: Row, reason: enums.DropReason, *, requeue: submission.Requeue, now: float) -> None:
    """End a group with a reason; its prompt is opened again where `requeue` says so."""
    ledger.db.change(
        "UPDATE groups SET state = ?, drop_reason = ?, drop_step = ?, closed_at = ? WHERE group_id = ? AND"
        " state = ?",
        DROPPED, reason, recorded(ledger) + 1, now, group["group_id"], group["state"],
    )  # fmt: skip
    ledger.count(f"dropped:{reason}")
    if reason in enums.LEFT_OUT and group["kind"] != EVALUATION:
        ledger.unusable.add((group["kind"], group["source"], group["prompt_index"]))
    if requeue in (submission.Requeue.HEAD, submission.Requeue.TAIL):
        head = requeue is submission.Requeue.HEAD
        # Ageing uses up no attempt; a prompt that ran out of attempts starts afresh.
        open_group(ledger,
            ref_of(group), kind=enums.GroupKind(group["kind"]), now=now, head=head, previous=group, keep_attempts=head,
            group_size=group["group_size"],
        )  # fmt: skip


def decisive_step(ledger: Ledger) -> str:
    """Return the column that says whether a submitted group is too old (`staleness.is_stale`)."""
    return "max_step" if staleness.masks_old_tokens(ledger.spec) else "min_step"


def drop_stale(ledger: Ledger, *, now: float) -> int:
    """Drop what is too old for the next batch, leased or submitted. Returns how many groups."""
    with ledger.db.transaction():
        oldest = staleness.oldest_trained_step(ledger.spec, batch_index=recorded(ledger))
        rows = ledger.db.all(
            f"SELECT * FROM groups WHERE kind = 'train' AND state = 'submitted' AND {decisive_step(ledger)} < ?"
            " UNION ALL SELECT * FROM groups WHERE kind = 'train' AND state = 'leased' AND granted_step < ?"
            " ORDER BY lease_order DESC",
            oldest, 0 if staleness.renews_itself(ledger.spec) else oldest,
        )  # fmt: skip
        return _withdraw(ledger, rows, enums.DropReason.STALE, now=now)


def drop_undone(ledger: Ledger, *, now: float) -> int:
    """Drop what was sampled by weights of steps that were undone for good. Returns how many groups."""
    newest = recorded(ledger)
    rows = ledger.db.all(
        "SELECT * FROM groups WHERE kind = 'train' AND state = 'submitted' AND max_step > ?"
        " UNION ALL SELECT * FROM groups WHERE kind = 'train' AND state = 'leased' AND granted_step > ?"
        " ORDER BY lease_order DESC",
        newest, newest,
    )  # fmt: skip
    return _withdraw(ledger, rows, enums.DropReason.REWOUND, now=now)


def _withdraw(ledger: Ledger, rows: Sequence[Row], reason: enums.DropReason, *, now: float) -> int:
    """Drop leased and submitted groups, newest lease first, so that the oldest prompt ends at the very head.

    The members of a leased group count as stale too: their rollout is asked to stop and submits nothing any more.
    """
    for group in rows:
        if group["state"] == LEASED:
            ledger.db.change(
                "UPDATE leases SET state = 'cancelled' WHERE group_id = ? AND state = 'open'", group["group_id"]
            )
            ledger.count("trajectories:stale", group["group_size"])
            count_answers(ledger, enums.AnswerFate.CANCELLED, num_answers=group["group_size"], num_tokens=0)
        else:
            _count_withdrawn(ledger, group["group_id"], reason)
            ledger.db.change("DELETE FROM payloads WHERE group_id = ?", group["group_id"])
            ledger.count("trajectories:stale", group["num_rows"])
        drop(ledger, group, reason, requeue=submission.Requeue.HEAD, now=now)
    return len(rows)


def _count_withdrawn(ledger: Ledger, group_id: str, reason: enums.DropReason) -> None:
    payload = ledger.db.one("SELECT data FROM payloads WHERE group_id = ?", group_id)
    if payload is None or reason is not enums.DropReason.STALE:
        return
    rows = codec.decode(types.PromptGroup, bytes(payload["data"]), checked=True).trajectories
    num_tokens = sum(row.num_sampled for row in rows)
    count_answers(ledger, enums.AnswerFate.STALE, num_answers=len(rows), num_tokens=num_tokens)


def count_answers(ledger: Ledger, fate: enums.AnswerFate, *, num_answers: int, num_tokens: int) -> None:
    """Count what became of answers, and their sampled tokens: whether long ones fare otherwise than short ones."""
    ledger.count_all({f"answers:{fate}": num_answers, f"answer_tokens:{fate}": num_tokens})


def ref_of(row: Row) -> prompts.PromptRef:
    return prompts.PromptRef(
        source=row["source"],
        index=row["prompt_index"],
        prompt_id=row["prompt_id"],
        epoch=row["epoch"],
        position=row["position"],
        copy=row["copy"],
    )
