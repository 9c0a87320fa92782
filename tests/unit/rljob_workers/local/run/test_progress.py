"""The words of a run. Expected lines are those of docs/design/chart.md#s-7-4."""

import dataclasses
import io

from rljob_api import enums, types
from rljob_workers.local.run import display, progress, supervise

RUNNING = types.RunStatus(
    job="addition",
    phase=enums.Phase.RUNNING,
    step=41,
    max_steps=200,
    reward_mean=0.62,
    reward_delta=0.03,
    version_lag_steps=1,
    trainer_wait_share=0.08,
    rollout_wait_share=0.31,
    tokens_per_s=412.0,
    step_s=27.2,
    pods=tuple(types.PodStatus(role="rollout", pod=f"rollout-{index}", ready=index > 0) for index in range(4)),
)
STATES = {
    "coordinator": supervise.State(role=enums.Role.COORDINATOR, running=True),
    "rollout": supervise.State(role=enums.Role.ROLLOUT, running=True),
    "trainer": supervise.State(role=enums.Role.TRAINER, running=True),
}


def test_progress_line_is_the_documented_one() -> None:
    assert progress.progress_line(RUNNING, rollouts_wanted=4) == (
        "step 41/200  reward 0.62 (+0.03)  rollout 3/4  lag 1  trainer waits 8 %  rollouts wait 31 %  "
        "412 tok/s  ETA 1h12m"
    )


def test_eta_is_shown_from_step_five_on() -> None:
    assert "ETA" not in progress.progress_line(dataclasses.replace(RUNNING, step=4), rollouts_wanted=4)
    assert "ETA" in progress.progress_line(dataclasses.replace(RUNNING, step=5), rollouts_wanted=4)


def test_durations_read_like_a_person_says_them() -> None:
    assert [progress.duration(seconds) for seconds in (4.6, 65, 4325)] == ["5s", "1m05s", "1h12m"]


def test_phase_names_who_still_loads_the_model() -> None:
    starting = dataclasses.replace(
        RUNNING,
        phase=enums.Phase.STARTING,
        pods=(types.PodStatus(role="trainer", pod="trainer"), types.PodStatus(role="rollout", pod="rollout")),
    )
    assert progress.phase_line(starting, STATES) == "starting: rollout loading the model"


def test_role_line_shows_a_planned_restart() -> None:
    state = supervise.State(role=enums.Role.TRAINER, running=False, restart_in_s=3.6)
    assert "restarts in 4 s" in progress.role_line("trainer", state, RUNNING)


def frame(elapsed_s: float, known: types.RunStatus | None, note: str = "") -> display.Frame:
    return display.Frame(elapsed_s=elapsed_s, status=known, states=STATES, rollouts_wanted=4, note=note)


def shown(*frames: display.Frame) -> list[str]:
    stream = io.StringIO()
    plain = display.PlainDisplay(stream)
    for one in frames:
        plain.show(one)
    return stream.getvalue().splitlines()


def test_without_a_terminal_there_is_one_line_per_step() -> None:
    first, second = dataclasses.replace(RUNNING, step=40), dataclasses.replace(RUNNING, step=42)
    lines = shown(frame(0, first), frame(1, RUNNING), frame(1.2, RUNNING), frame(2, second), frame(2.2, second))
    assert [line.split("]")[1].split()[:2] for line in lines[1:]] == [["step", "41/200"], ["step", "42/200"]]


def test_nobody_sees_ten_silent_seconds_before_the_first_step() -> None:
    lines = shown(*(frame(tick / 5, None) for tick in range(5 * 60)))
    times = [int(line[1:].split("s]")[0]) for line in lines]
    assert times[0] == 0
    assert all(later - earlier <= 10 for earlier, later in zip([*times], [*times[1:], 60], strict=True))


def test_changing_counts_are_told_now_and_then_and_not_each_time() -> None:
    def evaluating(tick: int) -> types.RunStatus:
        return dataclasses.replace(RUNNING, step=0, phase=enums.Phase.EVALUATING, evaluating=f"heldout {tick}/200")

    lines = shown(*(frame(tick / 5, evaluating(tick)) for tick in range(100)))
    assert 3 <= len(lines) <= 6
    assert "evaluating heldout" in lines[-1]


def test_note_of_a_stopping_run_wins_over_its_steps() -> None:
    lines = shown(
        frame(0, dataclasses.replace(RUNNING, step=40)),
        frame(1, RUNNING),
        frame(9, RUNNING, note="ending: waiting for the trainer's checkpoint"),
    )
    assert lines[-1].endswith("ending: waiting for the trainer's checkpoint")


def test_live_view_has_a_line_per_process() -> None:
    lines = display.live_lines("addition", frame(65, RUNNING))
    assert lines[0] == "addition  1m05s"
    assert [line.split()[0] for line in lines[-3:]] == ["coordinator", "rollout", "trainer"]


def test_rollout_that_applies_weights_is_not_said_to_load_the_model() -> None:
    pods = (
        types.PodStatus(role="rollout", pod="rollout", state="APPLYING", serving_version=3),
        types.PodStatus(role="trainer", pod="trainer"),
    )
    assert progress.phase_line(dataclasses.replace(RUNNING, pods=pods), STATES) == "working on step 42"


def test_process_started_again_loads_until_the_coordinator_hears_of_it() -> None:
    pods = (
        types.PodStatus(role="rollout", pod="rollout", ready=True, last_seen=90.0),
        types.PodStatus(role="trainer", pod="trainer", last_seen=90.0),
    )
    known = dataclasses.replace(RUNNING, pods=pods)
    again = STATES | {"trainer": supervise.State(role=enums.Role.TRAINER, running=True, started_at=95.0)}
    assert progress.phase_line(known, again) == "starting: trainer loading the model"


def test_supervised_steps_are_counted_for_themselves() -> None:
    pods = tuple(types.PodStatus(role=role, pod=role, ready=True) for role in ("rollout", "trainer"))
    phases = [
        progress.phase_line(dataclasses.replace(RUNNING, pods=pods, step=step, sft_steps=20), STATES)
        for step in (2, 19, 20)
    ]
    assert phases == ["supervised step 3 of 20", "supervised step 20 of 20", "working on step 21"]
