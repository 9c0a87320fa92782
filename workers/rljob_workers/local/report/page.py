"""The report page: sections in the order in which a person asks, each with what good looks like; `page.html.j2`."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jinja2

from rljob_api import lifecycle
from rljob_workers.local.report import charts, findings, summary
from rljob_workers.local.run import progress
from rljob_workers.local.rundir import history, intervals, journal

_FIRST_STEPS, _LAST_STEPS = 3, 5
# Everything that a template is given is escaped, but for the images that charts.py draws.
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page, in the order of its fields. images: elements of HTML."""

    title: str
    good: str = ""
    text: str = ""
    notes: Sequence[findings.Finding] = ()
    rows: Sequence[tuple[str, str]] = ()
    images: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.notes or self.rows or self.images)


def render(*, job: str, run: history.Run, numbers: summary.Summary, entries: Sequence[journal.Entry]) -> str:
    """Return the page. Sections without data say so instead of showing an empty chart."""
    sections = [
        _overview(run, numbers),
        _to_look_at(run, numbers, entries),
        *_learning(run),
        _staleness(run, numbers),
        *_time(run, numbers),
        *_health(run, numbers),
        _restarts(entries),
    ]
    return _TEMPLATES.get_template("page.html.j2").render(job=job, sections=sections) + "\n"


def _to_look_at(run: history.Run, numbers: summary.Summary, entries: Sequence[journal.Entry]) -> Section:
    listed = findings.findings(run, numbers, entries)
    text = "Nothing notable." if run.steps and not listed else ""
    return Section(title="Where to look", text=text, notes=listed)


def _overview(run: history.Run, numbers: summary.Summary) -> Section:
    rows = [("steps", str(numbers.steps)), ("wall time", progress.duration(numbers.wall_s))]
    if run.sft_steps:
        rows.append(("of which supervised", str(len(run.sft_steps))))
    if run.rewards:
        first, last = run.rewards[:_FIRST_STEPS], run.rewards[-_LAST_STEPS:]
        label = f"mean reward, first {len(first)} and last {len(last)} steps"
        rows.append((label, f"{sum(first) / len(first):.3f} → {sum(last) / len(last):.3f}"))
    for suite in sorted({result.suite for result in run.evaluations}):
        results = [result for result in run.evaluations if result.suite == suite]
        rows.append(
            (
                f"accuracy on {suite}, step {results[0].step} and {results[-1].step} (n = {results[-1].n})",
                f"{results[0].accuracy:.1%} → {results[-1].accuracy:.1%}",
            )
        )
    counts = numbers.trajectories
    rows += [
        ("staleness, highest and mean (steps)", f"{numbers.staleness.max} and {numbers.staleness.mean:.2f}"),
        ("waiting: trainer, rollouts", f"{numbers.wait_share.trainer:.0%}, {numbers.wait_share.rollout:.0%}"),
        (
            "tokens per second: generated, trained",
            f"{numbers.throughput.generated_tokens_per_s:,.0f}, {numbers.throughput.trained_tokens_per_s:,.0f}",
        ),
        (
            "trajectories: accepted, stale, failed (infrastructure), filtered",
            f"{counts.accepted:,}, {counts.stale:,}, {counts.infra_failed:,}, {counts.filtered:,}",
        ),
        (
            "tokens not computed again: in rows of a group, in the engines' prefix caches",
            f"{_share(numbers.prefixes.saved_share)} of all, {_share(numbers.prefixes.cache_hit_share)} of repeated",
        ),
        ("trajectories with more than one weight version", f"{sum(s.mixed_version_trajectories for s in run.steps):,}"),
    ]
    return Section(title="Summary", rows=rows)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _learning(run: history.Run) -> list[Section]:
    supervised = Section(
        title="Supervised steps",
        good="Does it learn the examples? Mean negative log-probability of their answers' tokens. Good: it falls and"
        " levels off; near zero after several epochs, the examples are known by heart.",
        images=[charts.supervised_loss(run.sft_steps)] if run.sft_steps else (),
    )
    return [
        *([supervised] if run.sft_steps else []),
        Section(
            title="Reward per step",
            good="Does it learn? Good: the mean rises and the spread stays above zero; flat at zero means that no"
            " sample is ever right and there is nothing to learn from.",
            images=[charts.reward(run.rl_steps)] if run.rl_steps else (),
        ),
        Section(
            title="Evaluation",
            good="Does it learn what it should? Held-out prompts, each suite on one weight version. Good: it rises with"
            " the reward; a reward that rises alone is memorised or hacked.",
            images=[charts.evaluation(run.evaluations)] if run.evaluations else (),
        ),
    ]


def _staleness(run: history.Run, numbers: summary.Summary) -> Section:
    histogram = numbers.staleness.histogram
    return Section(
        title="Staleness",
        good="How old is what was trained on? Age: step of the batch minus step of the weights that sampled a group's"
        " oldest token. Good: nothing above spec.async.maxOffPolicySteps (never possible), and mostly the lowest ages.",
        images=[charts.staleness_histogram(histogram), charts.staleness_by_step(run.steps)] if histogram else (),
    )


def _time(run: history.Run, numbers: summary.Summary) -> list[Section]:
    training, generating = run.training_spans(), run.generating_spans()
    shared_s = intervals.shared_s(training, generating)
    shares = [shared_s / whole_s if (whole_s := intervals.length_s(spans)) else 0.0 for spans in (training, generating)]
    timed = any(step.total_s > 0 for step in run.steps)
    updates = numbers.weight_updates
    sync_text = (
        f"{updates.count} updates; generation paused {updates.pause_s_p50 or 0:.2f} s in the median and"
        f" {updates.pause_s_max or 0:.2f} s at most; the whole update took {updates.sync_s_p50 or 0:.2f} s and"
        f" {(updates.bytes_p50 or 0) / 1e6:,.0f} MB in the median."
    )
    return [
        Section(
            title="Who waits",
            good="Which side is the bottleneck? Good: both low. Trainer high: generation is too slow (more rollouts, or"
            " the verifier is slow). Rollouts high: training is too slow, or the staleness bound is tight.",
            images=[charts.wait_shares(run.steps)] if timed else (),
        ),
        Section(
            title="Step time by phase",
            good="Where does a step go? Good: mostly forward and backward; waiting and publishing small.",
            images=[charts.phases(run.steps)] if timed else (),
        ),
        Section(
            title="Overlap",
            good=f"Do training and generation run at the same time? During {shares[0]:.0%} of the trainer's computing"
            f" time rollouts were generating, and {shares[1]:.0%} of the generating overlapped with training. Good: one"
            " of them near 100%; 0% is a synchronous run (maxOffPolicySteps 0).",
            images=[charts.timeline(training=training, generating=generating)] if training and generating else (),
        ),
        Section(
            title="Weight updates",
            good="What does a new version cost? Good: generation pauses for a small part of the whole update, which"
            " runs alongside generation.",
            text=sync_text if run.syncs else "",
            images=[charts.weight_syncs(run.syncs)] if run.syncs else (),
        ),
    ]


def _health(run: history.Run, numbers: summary.Summary) -> list[Section]:
    gaps = any(step.logprob_gap is not None for step in run.steps)
    return [
        Section(
            title="Log-probability gap",
            good="Do engine and trainer agree about the same tokens under the same weights? Good in bfloat16: below"
            " 0.05 nats and flat; a rise means that weights, sampling settings or numerics differ.",
            images=[charts.logprob_gap(run.steps)] if gaps else (),
        ),
        Section(
            title="Throughput",
            good="How many tokens does a step make and use? Good: generated is little above trained; the difference was"
            " dropped, failed, or carries no gradient.",
            images=[charts.tokens(run.steps)] if run.steps else (),
        ),
        Section(
            title="Memory",
            good="Peak of each role's process tree, shared pages divided among their users (PSS). Good: the total"
            " leaves the machine room to breathe.",
            images=[charts.memory(numbers.peak_rss_bytes)] if numbers.peak_rss_bytes else (),
        ),
    ]


def _restarts(entries: Sequence[journal.Entry]) -> Section:
    restarts = journal.restarts(entries)
    begin = entries[0].at if entries else 0.0
    rows = [
        (
            f"{progress.duration(entry.at - begin)} after the start: {entry.name}",
            f"{lifecycle.describe_exit(entry.code or 0)}, {entry.detail}",
        )
        for entry in restarts
    ]
    segments = sum(entry.event == "segment" for entry in entries)
    good = f"What broke and came back? Good: none. The run was started {segments} time{'s' if segments != 1 else ''}."
    return Section(title="Restarts", good=good, text="" if rows else "None.", rows=rows)
