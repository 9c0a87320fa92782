"""The last words of a run and its report page."""

import html.parser
import json

from rljob_api import enums, types
from rljob_workers.local.report import render, summary
from rljob_workers.local.run import outcome, runner
from rljob_workers.local.rundir import history, journal

STATUS = types.RunStatus(job="addition", phase=enums.Phase.RUNNING, step=12, max_steps=25, checkpoint_step=10)
EVALUATIONS = (
    history.Evaluation(suite="held-out", step=0, accuracy=0.115, n=200),
    history.Evaluation(suite="held-out", step=25, accuracy=0.48, n=200),
)


def step(number: int, reward: float) -> history.Step:
    return history.Step(
        step=number,
        started_at=10.0 * number,
        finished_at=10.0 * number + 9,
        reward_mean=reward,
        reward_std=0.1,
        staleness={0: 8, 1: 8},
        staleness_token_mean=0.5,
        tokens_trained=500,
        tokens_generated=600,
        phases_s={"wait": 1.0, "forward_backward": 5.0, "optimizer": 3.0},
        generating=((10.0 * number - 4, 10.0 * number + 4),),
        stats={enums.StepStat.LOGPROB_ABS_DIFF: 0.03},
        rollout_wait_share=0.2,
    )


RUN = history.Run(
    steps=[step(number, number / 10) for number in range(1, 9)],
    evaluations=EVALUATIONS,
    syncs=[
        history.Sync(pod="rollout-0", version=v, pause_s=0.3, total_s=2.0, num_bytes=269_000_000, requests_in_flight=9)
        for v in range(1, 9)
    ],
    trajectories={"accepted": 1024},
)


def ended(ending: runner.Ending, **changes: object) -> runner.Outcome:
    facts: dict[str, object] = {"ending": ending, "status": STATUS, "wall_s": 60.0, "peaks": {}} | changes
    return runner.Outcome(**facts)  # type: ignore[arg-type]  # a test's shorthand


def test_table_compares_first_three_with_last_five_steps_and_held_out_accuracy() -> None:
    files = outcome.Files(report="r.html", summary="s.json")
    lines = outcome.finished_text(RUN, wall_s=280.0, files=files).splitlines()
    assert lines[0] == "finished 8 steps in 4m40s"
    reward = next(line for line in lines if "mean reward" in line)
    # (0.1 + 0.2 + 0.3) / 3 and (0.4 + ... + 0.8) / 5
    assert reward.split()[-2:] == ["0.200", "0.600"]
    accuracy = next(line for line in lines if "held-out" in line)
    assert accuracy.split()[-2:] == ["11.5%", "48.0%"]
    assert lines[-2:] == ["report:  r.html", "summary: s.json"]


def test_stopped_run_says_how_to_go_on() -> None:
    text = outcome.stopped_text(ended(runner.Ending.STOPPED), command="rljob run job.yaml --run-dir d")
    assert "at step 12 of 25; the last checkpoint is of step 10" in text
    assert text.endswith("To resume: rljob run job.yaml --run-dir d")


def test_failed_run_names_what_failed_and_shows_its_last_lines() -> None:
    facts = ended(
        runner.Ending.FAILED,
        reason="RestartLimitExceeded",
        because="trainer ended with exit code 1",
        culprit="trainer",
        failing_since=1_000_000.0,
        last_lines=("loading", "out of memory"),
    )
    text = outcome.failed_text(facts, logs="run/logs", command="rljob run job.yaml")
    assert text.startswith("failed after step 12 of 25 (RestartLimitExceeded): trainer ended with exit code 1.")
    assert "It has been failing since" in text
    assert "    out of memory" in text
    assert "Logs: run/logs" in text


class Outline(html.parser.HTMLParser):
    """Collects headings, images and anything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.images: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_heading = tag == "h2"
        for name, value in attrs:
            if name == "src" and (value or "").startswith("data:"):
                self.images.append(dict(attrs).get("alt") or "")
            elif name == "id":
                self.anchors.add(f"#{value}")
            elif name == "href" and (value or "").startswith("#"):
                self.links.add(value or "")
            elif name in ("src", "href"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False


def page(run: history.Run) -> str:
    numbers = summary.summarize(run, wall_s=280.0, peak_rss_bytes={"trainer": 4_000_000_000, "total": 7_000_000_000})
    entries = [
        journal.Entry(event="segment", at=100.0),
        journal.Entry(event="ended", at=160.0, name="rollout", role="rollout", code=-9, detail="restart in 1 s"),
    ]
    return render(job="addition <b>", run=run, numbers=numbers, entries=entries)


def test_report_is_one_page_with_every_section_and_fetches_nothing() -> None:
    outline = Outline()
    outline.feed(page(RUN))
    assert outline.headings == [
        "Summary",
        "Where to look",
        "Reward per step",
        "Evaluation",
        "Staleness",
        "Who waits",
        "Step time by phase",
        "Overlap",
        "Weight updates",
        "Log-probability gap",
        "Throughput",
        "Memory",
        "Restarts",
    ]
    assert len(outline.images) == 11
    assert outline.fetched == []
    assert outline.links == {"#restarts"}
    assert outline.links <= outline.anchors


def test_report_tells_overlap_and_restarts_in_words() -> None:
    text = page(RUN)
    # A step trains 1..9 s after its start; its own groups (until 4 s) and the next step's (from 6 s) run then:
    # 6 of 8 s, and 3 of 8 s for the last step, which has no next: (7 x 6 + 3) / 64.
    assert "During 70% of" in text
    # Generation is 8 spans of 8 s as well.
    assert "and 70% of the generating" in text
    assert "1m00s after the start: rollout" in text
    assert "signal SIGKILL, restart in 1 s" in text


def test_report_escapes_names() -> None:
    assert "<b>" not in page(RUN)


def test_report_of_a_run_without_steps_says_so() -> None:
    text = page(history.Run())
    assert text.count("No data yet.") == 10


def test_same_run_renders_to_the_same_bytes() -> None:
    assert page(RUN) == page(RUN)


def test_summary_file_has_exactly_the_promised_keys() -> None:
    numbers = summary.summarize(RUN, wall_s=1.0, peak_rss_bytes={})
    assert list(json.loads(numbers.model_dump_json())) == [
        "steps",
        "wall_s",
        "reward_mean",
        "evaluation",
        "staleness",
        "weight_updates",
        "trajectories",
        "wait_share",
        "throughput",
        "logprob_gap_mean",
        "peak_rss_bytes",
        "judges",
    ]
