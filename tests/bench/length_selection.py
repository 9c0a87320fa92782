"""Which answers are trained under a bound on age: `python -m tests.bench.length_selection` writes its page.

A run in simulated time over a real ledger and its real rules: only lengths, speeds and the clock are made up. Answers
have log-normal lengths and are generated at one speed, without a bound on how many at once; a group is handed in with
its last answer; a version is served the moment it is published. So a step of a fast trainer is shorter than a group.
"""

import argparse
import bisect
import contextlib
import dataclasses
import heapq
import itertools
import json
import pathlib
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench import length_run

from rljob_api import process_config
from rljob_testing import ledger_bench, makers, sections
from rljob_workers.coordinator.ledger import groups, leases
from rljob_workers.coordinator.policy import prompts

PAGE = pathlib.Path(__file__).parents[2] / "docs/length_selection.md"
POLICIES = ("Mask", "Drop", "Wait")
# Tokens of the median answer, and in a unit of simulated time.
MEDIAN_TOKENS = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run. sigma: of the log of lengths; eta: in steps; train: length of a trainer step in median answers."""

    policy: str
    eta: int
    train: float
    sigma: float = 1.0
    num_groups: int = 32
    group_size: int = 8
    num_steps: int = 40


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """step_time: in times of the median answer. dropped: share of the leases. length_ratio: mean length of trained
    answers over that of generated ones. left_out: share of the trained answers' tokens that are not in the loss.
    oldest, oldest_trained: largest ages in steps of a token in a batch, and of one in a loss.
    """

    step_time: float
    dropped: float
    length_ratio: float
    left_out: float
    oldest: int
    oldest_trained: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    lease: leases.Lease
    started: float
    lengths: Sequence[int]


class _Run:
    """A rollout fleet and a trainer that play on one ledger."""

    def __init__(self, bench: ledger_bench.Bench, setting: Setting, *, seed: int) -> None:
        self._bench, self._setting, self._random = bench, setting, random.Random(seed)
        self._rollout, self._trainer = bench.rollout(), bench.trainer()
        # When version i was published: version ids and steps are the same numbers here.
        self._published = [0.0]
        self._events: list[tuple[float, int, _Group | None]] = []
        self._order = itertools.count()
        self._handed_in: dict[str, Sequence[Sequence[int]]] = {}
        self._generated: list[int] = []
        self._trained: list[int] = []
        self._left_out = self._oldest = self._oldest_trained = 0

    def play(self) -> Outcome:
        """Train all steps."""
        training, now = False, 0.0
        while len(self._published) <= self._setting.num_steps:
            self._take(now)
            while (step := self._bench.pack()) is not None:
                self._look_at(step)
            if not training and groups.recorded(self._bench.ledger) > groups.committed(self._bench.ledger):
                training = True
                heapq.heappush(self._events, (now + self._setting.train, next(self._order), None))
            now, _, group = heapq.heappop(self._events)
            if group is None:
                training = False
                step = groups.committed(self._bench.ledger) + 1
                self._bench.commit(self._trainer, step)
                self._bench.publish(self._trainer, step)
                self._published.append(now)
            else:
                self._hand_in(group)
        counters = self._bench.ledger.counters()
        return Outcome(
            step_time=now / self._setting.num_steps,
            dropped=counters.get("dropped:stale", 0) / counters["leases_granted"],
            length_ratio=statistics.fmean(self._trained) / statistics.fmean(self._generated),
            left_out=self._left_out / sum(self._trained),
            oldest=self._oldest,
            oldest_trained=self._oldest_trained,
        )

    def _take(self, now: float) -> None:
        most = (self._setting.eta + 1) * self._setting.num_groups
        for lease in self._bench.lease(self._rollout, most, len(self._published) - 1):
            drawn = (self._random.lognormvariate(0, self._setting.sigma) for _ in range(self._setting.group_size))
            group = _Group(lease, now, [max(1, round(MEDIAN_TOKENS * length)) for length in drawn])
            self._generated += group.lengths
            end = now + max(group.lengths) / MEDIAN_TOKENS
            heapq.heappush(self._events, (end, next(self._order), group))

    def _hand_in(self, group: _Group) -> None:
        rows = [self._versions(group.started, length) for length in group.lengths]
        self._handed_in[group.lease.group_id] = rows
        made = makers.make_group(
            lease_id=group.lease.lease_id, group_id=group.lease.group_id, attempt=group.lease.attempt
        )
        trajectories = tuple(
            makers.make_trajectory(completion=[8] * len(versions), versions=versions, sample_index=index)
            for index, versions in enumerate(rows)
        )
        # A lease that was cancelled meanwhile is answered with that, and nothing is recorded.
        self._bench.submit_group(self._rollout, dataclasses.replace(made, trajectories=trajectories))

    def _versions(self, started: float, length: int) -> list[int]:
        """Return the version that samples each token."""
        ends = (started + token / MEDIAN_TOKENS for token in range(length))
        return [bisect.bisect_right(self._published, end) - 1 for end in ends]

    def _look_at(self, step: int) -> None:
        row = self._bench.ledger.db.one("SELECT json_extract(summary, '$.oldest_trained_step') AS n FROM steps"
                                        " WHERE step = ?", step)  # fmt: skip
        assert row is not None, "a packed step is recorded"
        for group in self._bench.ledger.db.all("SELECT group_id FROM groups WHERE step = ?", step):
            for versions in self._handed_in.pop(group["group_id"]):
                self._trained.append(len(versions))
                self._left_out += sum(version < row["n"] for version in versions)
                self._oldest = max(self._oldest, step - 1 - min(versions))
                young = [step - 1 - version for version in versions if version >= row["n"]]
                self._oldest_trained = max([self._oldest_trained, *young])


def simulate(setting: Setting, *, seed: int = 0) -> Outcome:
    """Play one run. The same seed and setting give the same outcome."""
    with _bench(setting) as bench:
        return _Run(bench, setting, seed=seed).play()


@contextlib.contextmanager
def _bench(setting: Setting) -> Iterator[ledger_bench.Bench]:
    changes = {
        "prompts_per_step": setting.num_groups, "group_size": setting.group_size, "max_steps": setting.num_steps,
        "max_off_policy_steps": setting.eta, "on_stale": setting.policy, "lease_s": 1e9,
    }  # fmt: skip
    index = prompts.SourceIndex(name="train", prompt_ids=tuple(f"p{number}" for number in range(1000)))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = sections.make_config(process_config.CoordinatorConfig, folder, {}, **changes)
        order = prompts.TaskOrder([index], seed=7)
        bench = ledger_bench.Bench(path=folder / "ledger.sqlite", config=config, order=order)
        bench.ledger.db.all("PRAGMA synchronous = OFF")
        try:
            yield bench
        finally:
            bench.ledger.close()


def page(outcomes: Sequence[tuple[Setting, Outcome]], real: Mapping[str, Any] | None = None) -> str:
    """Return the page: a row for each setting. real: what `length_run.py` stored."""
    steps = {(s.sigma, s.eta, s.train): o.step_time for s, o in outcomes if s.policy == "Drop"}
    rows = [
        f"| {s.sigma:g} | {s.eta} | {s.train:g} | `{s.policy}` | {o.step_time / steps[s.sigma, s.eta, s.train]:.2f}"
        f" | {o.dropped:.1%} | {o.length_ratio:.3f} | {o.left_out:.1%} | {o.oldest_trained} | {o.oldest} |"
        for s, o in outcomes
    ]
    return _TEXT + "\n".join([*rows, *([] if real is None else _real(real))]) + "\n"


def _real(stored: Mapping[str, Any]) -> list[str]:
    runs = [length_run.Figures(**each) for each in stored["runs"]]
    whole, dropping = (next(each for each in runs if holds(each)) for holds in (_is_synchronous, _drops))
    return [
        *_REAL.splitlines(),
        *(
            f"| {'synchronous' if _is_synchronous(each) else f'`{each.policy}`'} | {each.bound} | {each.num_answers} |"
            f" {each.wall_s:.2f} s | {each.wall_s / dropping.wall_s:.2f} | {each.cancelled:.1%} | {each.length:.1f} |"
            f" {each.length / whole.length:.3f} | {each.left_out:.1%} |"
            for each in runs
        ),
        "",
        f"Made on {stored['machine']}; commit {stored['commit']}.",
    ]


def _is_synchronous(figures: length_run.Figures) -> bool:
    return figures.bound == 0


def _drops(figures: length_run.Figures) -> bool:
    return figures.policy == "Drop"


_REAL = f"""
## Real runs
`python -m tests.bench.length_run`: the programs of a run with vLLM and a small random model. Its answers end at one of
{len(length_run.STOP)} characters, so lengths are geometric. Nothing is learned and each prompt has its own random
numbers: all runs answer alike.
The synchronous one trains whatever is generated, and *length* is against it. *Step* is the median wall time; the
machine had other work.

| run | bound | answers | step | against `Drop` | cancelled | tokens an answer | length | left out |
|---|---|---|---|---|---|---|---|---|"""
_TEXT = """# Which answers are trained
<!-- Written by `python -m tests.bench.length_selection`. -->
With `async.maxOffPolicySteps` above 0 a long answer outlives versions of the weights. What `async.onStale` does about
it decides whether long answers are trained as often as short ones. A simulation over the coordinator's own rules: 32
groups of 8 answers a step, lengths log-normal with the given sigma, 40 steps. `train` is how long the trainer takes for
a step, in times of the median answer; the smaller it is, the more versions an answer lives through.

- *time*: of a step, against `Drop` in the same setting.
- *dropped*: groups that were generated in vain.
- *length*: mean length of trained answers over that of generated ones; 1 is no selection.
- *left out*: tokens of trained answers that are too old for the loss. They stay context, and their answers keep their
  reward and their place in baselines and denominators.
- *age*: of the oldest token in a loss, and of the oldest in a batch. What is between the two is what `Mask` leaves out
  of the loss; a system that bounds admission alone, as AReaL does, trains it.

`Mask` is the default: no selection by length at the speed of `Drop`, and no token above the bound in a loss. Its price
is the gradient of the tokens left out, which are the early ones of long answers and those of short answers that waited
for a long one of their group. `Wait` trains every token and pays with time. `Drop` trains on short answers more often
than they are given.

| sigma | bound | train | onStale | time | dropped | length | left out | age in loss | in batch |
|---|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.length_selection", description=__doc__)
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    asked = parser.parse_args(arguments)
    outcomes = []
    for sigma, eta, train in ((0.5, 1, 2.0), *itertools.product((1.0,), (1, 2, 4), (2.0, 6.0))):
        for policy in POLICIES:
            setting = Setting(policy=policy, eta=eta, train=train, sigma=sigma)
            outcomes.append((setting, simulate(setting)))
            print(setting, outcomes[-1][1], flush=True)
    stored = length_run.RESULTS
    real = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else None
    asked.page.write_text(page(outcomes, real), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
