"""Why a run is where it is: accounts made from what a coordinator says and what the runner wrote."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from typer.testing import Result

from rljob_api import enums, types
from rljob_api.conditions import STALLS
from rljob_workers.cli import inspect, why_text
from rljob_workers.local.run import supervise
from rljob_workers.local.rundir import journal, layout, log_lines

Rljob = Callable[..., Result]
NOW = 10_000.0
WAITING = (
    types.Waiting(role="rollout", pod="rollout-0", what="verifier", on_role="verifier", since=NOW - 40),
    types.Waiting(role="trainer", pod="trainer-0", what="batch 13", on_role="rollout", since=NOW - 90),
)
RUN = types.RunStatus(
    job="small", phase=enums.Phase.RUNNING, step=12, max_steps=25, first_step_at=1.0, last_progress_at=NOW - 3
)


@pytest.fixture
def going(run: layout.RunDir) -> layout.RunDir:
    """A run that is not finished, and stalls after 600 s."""
    identity = run.identity()
    assert identity is not None
    spec: dict[str, object] = {"failurePolicy": {"stall": {"timeoutSeconds": 600}}}
    run.record(identity.model_copy(update={"finished": False, "spec": spec}))
    return run


def account(
    run: layout.RunDir, known: types.RunStatus | None, states: Mapping[str, supervise.State] = MappingProxyType({})
) -> why_text.Account:
    return inspect.account(run, known, states=states, events=(), now=NOW)


def text(told: why_text.Account) -> list[str]:
    return list(why_text.lines(told, NOW))


def test_run_that_moves_shows_the_chain_and_blames_nobody(going: layout.RunDir) -> None:
    assert text(account(going, dataclasses.replace(RUN, waiting=WAITING))) == [
        "small: working on step 13; 12 of 25 steps done; last progress 3s ago (stalled after 10m00s)",
        "who waits for whom",
        "  trainer-0 waits for batch 13 for 90 s",
        "  rollout-0 waits for verifier for 40 s",
        "nothing is blocking",
    ]


def test_end_of_the_chain_is_named_once_nothing_has_moved_for_a_while(going: layout.RunDir) -> None:
    told = account(going, dataclasses.replace(RUN, waiting=WAITING, last_progress_at=NOW - 31))
    assert told.diagnosis is not None
    assert (told.diagnosis.reason, told.diagnosis.role, told.stalled) == ("VerifierSaturated", "verifier", False)
    assert f"  {STALLS['VerifierSaturated'].hint}" in text(told)


def test_stalled_run_says_so_and_names_somebody_even_if_nobody_waits(going: layout.RunDir) -> None:
    told = account(going, dataclasses.replace(RUN, last_progress_at=NOW - 600))
    assert told.stalled
    assert text(told)[0].endswith("last progress 10m00s ago: stalled, the limit is 10m00s")
    assert "blocked by trainer: Unknown" in text(told)


def test_run_that_still_starts_does_not_stall(going: layout.RunDir) -> None:
    told = account(going, dataclasses.replace(RUN, first_step_at=0.0, last_progress_at=NOW - 9999))
    assert not told.stalled
    assert told.diagnosis is None


def test_what_the_coordinator_itself_says_is_told_without_waiters(going: layout.RunDir) -> None:
    told = account(going, dataclasses.replace(RUN, reason="LedgerStuck", last_progress_at=NOW - 31))
    assert told.diagnosis is not None
    assert told.diagnosis.reason == "LedgerStuck"


def test_filter_that_takes_out_every_group_is_named_though_groups_come_and_go(going: layout.RunDir) -> None:
    told = account(going, dataclasses.replace(RUN, waiting=WAITING, reason="FilterStarvation", last_progress_at=NOW))
    assert told.diagnosis is not None
    assert (told.diagnosis.reason, told.stalled) == ("AllGroupsFiltered", False)
    assert "blocked by coordinator: AllGroupsFiltered" in text(told)


def test_what_is_wrong_with_how_it_learns_is_told_while_it_goes_on(going: layout.RunDir) -> None:
    concern = types.Concern(reason="LearningDiverged", message="the mean reward is 0.1: lower the learning rate")
    told = account(going, dataclasses.replace(RUN, concerns=[concern], last_progress_at=NOW))
    assert "LearningDiverged: the mean reward is 0.1: lower the learning rate" in text(told)
    assert why_text.as_json(told)["concerns"] == [dataclasses.asdict(concern)]


def entries(run: layout.RunDir, *lines: journal.Entry) -> None:
    run.journal.unlink()
    log = journal.Journal(run.journal)
    for line in lines:
        log.write(line)
    log.close()


TRAINER_ENDED = journal.Entry(
    event="ended", at=9990.0, name="trainer", role="trainer", code=1, detail="restart in 20 s (application failure)"
)


def test_process_that_broke_explains_everybody_who_waits_for_it(going: layout.RunDir) -> None:
    entries(going, journal.Entry(event="segment", at=9000.0), TRAINER_ENDED)
    (going.logs / "trainer.jsonl").write_text('{"level": "error", "msg": "out of memory"}\nKilled\x1b[2J\n')
    told = account(going, dataclasses.replace(RUN, waiting=WAITING, last_progress_at=NOW - 999))
    assert told.diagnosis is None
    assert text(told)[1:5] == [
        "not running",
        "  trainer ended with code 1: restart in 20 s (application failure)",
        "    | error: out of memory",
        r"    | Killed\x1b[2J",
    ]


@pytest.mark.parametrize(
    "later",
    [
        journal.Entry(event="started", at=9995.0, name="trainer", role="trainer"),
        journal.Entry(event="segment", at=9995.0),
        TRAINER_ENDED.model_copy(update={"code": 0}),
    ],
)
def test_process_that_runs_again_or_ended_well_is_not_broken(later: journal.Entry) -> None:
    assert journal.broken([TRAINER_ENDED]) == [TRAINER_ENDED]
    assert journal.broken([TRAINER_ENDED, later]) == []


def test_coordinator_that_does_not_answer_is_named(going: layout.RunDir) -> None:
    told = account(going, None, {"coordinator": supervise.State(role=enums.Role.COORDINATOR, running=True)})
    assert told.diagnosis is not None
    assert told.diagnosis.reason == "CoordinatorUnreachable"
    assert "small: running; the coordinator does not answer" in text(told)


def test_run_that_loads_its_model_says_so(going: layout.RunDir) -> None:
    rollout = types.PodStatus(role="rollout", pod="rollout-0")
    starting = dataclasses.replace(RUN, phase=enums.Phase.STARTING, step=0, pods=(rollout,))
    told = account(going, starting, {"rollout": supervise.State(role=enums.Role.ROLLOUT, running=True)})
    assert told.headline == "starting: rollout loading the model; 0 of 25 steps done"


def test_run_that_ended_tells_how_and_shows_its_last_events(rljob: Rljob, run: layout.RunDir) -> None:
    entries(
        run,
        journal.Entry(event="segment", at=0.0),
        TRAINER_ENDED,
        journal.Entry(event="segment_end", at=9999.0, detail="failed"),
    )
    shown = rljob("why").stdout.splitlines()
    assert shown[0].startswith("small: not running (finished)  step 1")
    assert "  trainer ended with code 1: restart in 20 s (application failure)" in shown
    assert shown[-1] == "  1970-01-01 02:46:39.000 runner       the run ended: failed"
    assert len(rljob("why", "--events", "1").stdout.splitlines()) == len(shown) - 2


def test_events_are_endings_and_warnings_and_no_noise_of_libraries(rljob: Rljob, run: layout.RunDir) -> None:
    lines = [
        {"level": "warning", "logger": "rljob_workers.rollout.worker", "msg": "lost a lease"},
        {"level": "info", "logger": "rljob_workers.rollout.worker", "msg": "leased"},
        {"level": "warning", "logger": "vllm.engine", "msg": "deprecated"},
        {"level": "error", "logger": "vllm.engine", "msg": "engine died"},
    ]
    stamped = [{"ts": "1970-01-01T00:00:10.000+00:00", **line} for line in lines]
    (run.logs / "rollout.jsonl").write_text("".join(json.dumps(line) + "\n" for line in stamped))
    told = json.loads(rljob("why", "-o", "json").stdout)
    assert [line["msg"] for line in told["events"]] == [
        "the run started or resumed", "lost a lease", "engine died", "the run ended: finished",
    ]  # fmt: skip


def test_json_has_chain_diagnosis_and_hint(going: layout.RunDir) -> None:
    told = why_text.as_json(account(going, dataclasses.replace(RUN, waiting=WAITING, last_progress_at=NOW - 700)))
    assert json.loads(json.dumps(told)) == told
    assert (told["stalled"], told["idle_s"], told["stalled_after_s"]) == (True, 700.0, 600.0)
    chain, diagnosis = told["chain"], told["diagnosis"]
    assert isinstance(chain, list)
    assert isinstance(diagnosis, dict)
    assert [link["role"] for link in chain] == ["trainer", "rollout"]
    assert (diagnosis["reason"], diagnosis["hint"]) == ("VerifierSaturated", STALLS["VerifierSaturated"].hint)


def test_text_of_other_processes_does_not_act_on_the_terminal() -> None:
    told = why_text.Account(
        job="j\x1b[1m",
        headline="h\r",
        running=True,
        links=[types.Waiting(role="trainer", pod="t\x07", what="\x9b", since=0.0)],
        events=[log_lines.Line(at=0.0, source="s\x1b", msg="m\n")],
    )
    assert all(one.isprintable() for one in text(told))
