"""The report page: sections in the order in which a person asks, each with what good looks like."""

import html
from collections.abc import Sequence

from rljob_api import lifecycle
from rljob_workers.local.report import charts, findings, summary
from rljob_workers.local.run import progress
from rljob_workers.local.rundir import history, intervals, journal

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:860px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin-bottom:.2em}
h2{font-size:1.1em;margin:1.8em 0 .2em;border-top:1px solid #e4e7eb;padding-top:1em}
ul{margin:.6em 0;padding-left:1.2em}
p{margin:.3em 0;color:#52606d}img{width:100%}table{border-collapse:collapse;margin:.6em 0}
td{padding:.2em 1.2em .2em 0;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.none{color:#9aa0a6;font-style:italic}
"""
_NO_DATA = '<p class="none">No data yet.</p>'
_FIRST_STEPS, _LAST_STEPS = 3, 5


def render(*, job: str, run: history.Run, numbers: summary.Summary, entries: Sequence[journal.Entry]) -> str:
    """Return the page. Sections without data say so instead of showing an empty chart."""
    sections = [
        _overview(run, numbers),
        _to_look_at(run, numbers, entries),
        *_learning(run),
        *_staleness(run, numbers),
        *_time(run, numbers),
        *_health(run, numbers),
        _restarts(entries),
    ]
    title = f"rljob report: {html.escape(job)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1>{''.join(sections)}</body></html>\n"
    )


def _section(title: str, good: str, body: str) -> str:
    return f'<h2 id="{_anchor(title)}">{html.escape(title)}</h2><p>{html.escape(good)}</p>{body or _NO_DATA}'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _to_look_at(run: history.Run, numbers: summary.Summary, entries: Sequence[journal.Entry]) -> str:
    if not run.steps:
        body = _NO_DATA
    elif found := findings.findings(run, numbers, entries):
        lines = (
            f'<li><a href="#{_anchor(one.section)}">{one.section}</a>: {html.escape(one.sentence)}' for one in found
        )
        body = f"<ul>{''.join(lines)}</ul>"
    else:
        body = "<p>Nothing stands out.</p>"
    return f"<h2>Where to look</h2>{body}"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f'<tr><td>{html.escape(a)}</td><td class="n">{html.escape(b)}</td></tr>' for a, b in rows)
    return f"<table>{lines}</table>"


def _overview(run: history.Run, numbers: summary.Summary) -> str:
    rows = [("steps", str(numbers.steps)), ("wall time", progress.duration(numbers.wall_s))]
    if numbers.reward_mean:
        first, last = numbers.reward_mean[:_FIRST_STEPS], numbers.reward_mean[-_LAST_STEPS:]
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
        ("trajectories with more than one weight version", f"{sum(s.mixed_version_trajectories for s in run.steps):,}"),
    ]
    return f"<h2>Summary</h2>{_table(rows)}"


def _learning(run: history.Run) -> list[str]:
    return [
        _section(
            "Reward per step",
            "Does it learn? Good: the mean rises and the spread stays above zero; flat at zero means that no "
            "sample is ever "
            "right and there is nothing to learn from.",
            charts.reward(run.steps) if run.steps else "",
        ),
        _section(
            "Evaluation",
            "Does it learn what it should? Held-out prompts, each suite on one weight version. Good: it rises with the "
            "reward; a reward that rises alone is memorised or hacked.",
            charts.evaluation(run.evaluations) if run.evaluations else "",
        ),
    ]


def _staleness(run: history.Run, numbers: summary.Summary) -> list[str]:
    return [
        _section(
            "Staleness",
            "How old is what was trained on? Age: step of the batch minus step of the weights that sampled a "
            "group's oldest "
            "token. Good: nothing above spec.async.maxOffPolicySteps (never possible), and mostly the lowest ages.",
            charts.staleness_histogram(numbers.staleness.histogram) + charts.staleness_by_step(run.steps)
            if numbers.staleness.histogram
            else "",
        )
    ]


def _time(run: history.Run, numbers: summary.Summary) -> list[str]:
    training, generating = run.training_spans(), run.generating_spans()
    shared_s = intervals.shared_s(training, generating)
    beside = [shared_s / whole_s if (whole_s := intervals.length_s(spans)) else 0.0 for spans in (training, generating)]
    timed = any(step.total_s > 0 for step in run.steps)
    updates = numbers.weight_updates
    sync_text = (
        f"<p>{updates.count} updates; generation paused {updates.pause_s_p50 or 0:.2f} s in the median and "
        f"{updates.pause_s_max or 0:.2f} s at most; the whole update took {updates.sync_s_p50 or 0:.2f} s and "
        f"{(updates.bytes_p50 or 0) / 1e6:,.0f} MB in the median.</p>"
    )
    return [
        _section(
            "Who waits",
            "Which side is the bottleneck? Good: both low. Trainer high: generation is too slow (more rollouts, or the "
            "verifier is slow). Rollouts high: training is too slow, or the staleness bound is tight.",
            charts.wait_shares(run.steps) if timed else "",
        ),
        _section(
            "Step time by phase",
            "Where does a step go? Good: mostly forward and backward; waiting and publishing small.",
            charts.phases(run.steps) if timed else "",
        ),
        _section(
            "Overlap",
            f"Do training and generation run at the same time? During {beside[0]:.0%} of the trainer's computing time "
            f"rollouts were generating, and {beside[1]:.0%} of the generating went on beside training. Good: one of "
            "them near 100%; 0% is a synchronous run (maxOffPolicySteps 0).",
            charts.timeline(training=training, generating=generating) if training and generating else "",
        ),
        _section(
            "Weight updates",
            "What does a new version cost? Good: generation pauses for a small part of the whole update, which goes on "
            "beside it.",
            sync_text + charts.weight_syncs(run.syncs) if run.syncs else "",
        ),
    ]


def _health(run: history.Run, numbers: summary.Summary) -> list[str]:
    gaps = any(step.logprob_gap is not None for step in run.steps)
    return [
        _section(
            "Log-probability gap",
            "Do engine and trainer agree about the same tokens under the same weights? Good in bfloat16: "
            "below 0.05 nats "
            "and flat; a rise means that weights, sampling settings or numerics differ.",
            charts.logprob_gap(run.steps) if gaps else "",
        ),
        _section(
            "Throughput",
            "How many tokens does a step make and use? Good: generated is little above trained; the "
            "difference was dropped, "
            "failed, or carries no gradient.",
            charts.tokens(run.steps) if run.steps else "",
        ),
        _section(
            "Memory",
            "Peak of each role's process tree, shared pages divided among their users (PSS). Good: the total "
            "leaves the "
            "machine room to breathe.",
            charts.memory(numbers.peak_rss_bytes) if numbers.peak_rss_bytes else "",
        ),
    ]


def _restarts(entries: Sequence[journal.Entry]) -> str:
    found = journal.restarts(entries)
    begin = entries[0].at if entries else 0.0
    rows = [
        (
            f"{progress.duration(entry.at - begin)} after the start: {entry.name}",
            f"{lifecycle.describe_exit(entry.code or 0)}, {entry.detail}",
        )
        for entry in found
    ]
    segments = sum(entry.event == "segment" for entry in entries)
    body = _table(rows) if rows else "<p>None.</p>"
    good = f"What broke and came back? Good: none. The run was started {segments} time{'s' if segments != 1 else ''}."
    return _section("Restarts", good, body)
