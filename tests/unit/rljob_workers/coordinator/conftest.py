"""A ledger at the bench: short calls that play rollout and trainer, and a config to start from."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

import pytest

from rljob_api import enums, process_config, types
from rljob_api.manifest.job import JobSpec
from rljob_testing import makers, sections
from rljob_workers.coordinator.ledger import checkpoints, database, leases, sessions, steps, submissions, versions
from rljob_workers.coordinator.policy import prompts

FEW: Mapping[str, object] = {
    "data.filterGroups.maxExtraGroups": 1000,
    "evaluation.everySteps": 2,
    "checkpoint.everySteps": 5,
}


@dataclasses.dataclass
class Bench:
    """One ledger file, reopened at will. Time is `now`; prompts come from an order over `num_prompts` ids."""

    path: pathlib.Path
    config: process_config.CoordinatorConfig
    order: prompts.TaskOrder
    now: float = 1000.0

    @property
    def spec(self) -> JobSpec:
        """The manifest in force."""
        return self.config.spec

    def __post_init__(self) -> None:
        self.ledger = database.Ledger(self.path, self.config, now=self.now)
        self.boots = 0

    def reopen(self) -> None:
        """Restart the coordinator."""
        self.ledger.close()
        self.ledger = database.Ledger(self.path, self.config, now=self.now)
        leases.extend_all(self.ledger, now=self.now)

    def rollout(self, pod: str = "rollout-0", boot_id: str = "") -> types.SessionToken:
        """Register a rollout process."""
        self.boots += 1
        with self.ledger.transaction():
            token, replaced = sessions.open_session(self.ledger,
                role=enums.Role.ROLLOUT, pod=pod, boot_id=boot_id or f"boot-{self.boots}", attempt=0, rank=0,
                resume_step=0, now=self.now,
            )  # fmt: skip
            for old in replaced:
                leases.lose_all_of(self.ledger, old, now=self.now)
        return token

    def trainer(self, attempt: int = 1, resume_step: int = 0, rank: int = 0) -> types.SessionToken:
        """Register a trainer rank of a new process."""
        self.boots += 1
        with self.ledger.transaction():
            token, replaced = sessions.open_session(self.ledger,
                role=enums.Role.TRAINER, pod="trainer-0", boot_id=f"boot-{self.boots}", attempt=attempt, rank=rank,
                resume_step=resume_step, now=self.now,
            )  # fmt: skip
            checkpoints.begin_attempt(
                self.ledger, attempt=attempt, rank=rank, resume_step=resume_step, replaced=bool(replaced), now=self.now
            )
        return token

    def lease(self, token: str, capacity: int = 1, serving: int = 0) -> list[leases.Lease]:
        """Lease groups."""
        return leases.lease(
            self.ledger, token=token, capacity=capacity, serving_version=serving, take=self.order.take, now=self.now
        )[0]

    def submit(
        self,
        token: str,
        lease: leases.Lease,
        *,
        rewards: Sequence[float] = (1.0, 0.0),
        versions: Sequence[int] | int = 0,
        failures: Sequence[types.MemberFailure] = (),
    ) -> types.SubmitReply:
        """Submit a lease's group."""
        group = makers.make_group(
            lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, rewards=rewards, versions=versions,
            failures=failures,
        )  # fmt: skip
        return submissions.accept(self.ledger, token=token, group=group, now=self.now)

    def pack(self) -> int | None:
        """Freeze the next step if it can be; return it."""
        choice = steps.choose(self.ledger, more_prompts=True)
        if choice.candidates is None:
            return None
        ordered = sorted(choice.candidates, key=lambda candidate: candidate.lease_order)
        frozen = steps.FrozenStep(
            step=choice.step,
            group_ids=tuple(candidate.group_id for candidate in ordered),
            world_size=1,
            minibatches=(types.Minibatch(num_tokens=1, num_rows=1),),
            summary={"reward_mean": 0.5},
        )
        data = b"".join(candidate.group_id.encode() for candidate in ordered)
        steps.stage(self.ledger, step=choice.step, parts=[steps.Part(rank=0, seq=0, data=data)], fresh=True)
        return choice.step if steps.freeze(self.ledger, frozen, now=self.now) else None

    def commit(self, token: str, step: int) -> bool:
        """Commit a step."""
        return steps.commit_step(
            self.ledger, token=token, step=step, stats={}, started_at=self.now, finished_at=self.now, now=self.now
        )

    def publish(self, token: str, step: int, attempt: int = 1, *, evaluate: bool = False) -> int:
        """Publish the next version id for `step`; return the id."""
        version = versions.head(self.ledger).version + 1
        answer = versions.publish(self.ledger,
            token=token, proposal=make_version(version, step, attempt), layout=LAYOUT, stored={f"a{version}": 8},
            evaluate=evaluate,
            now=self.now,
        )  # fmt: skip
        assert answer.outcome == "accepted", answer
        return version

    def step(self, rollout: str, trainer: str, *, serving: int = 0, attempt: int = 1) -> int:
        """Generate, train and publish one whole step; return its version."""
        for lease in self.lease(rollout, capacity=self.spec.algorithm.prompts_per_step, serving=serving):
            assert self.submit(rollout, lease, versions=serving).outcome == "accepted"
        step = self.pack()
        assert step is not None
        self.commit(trainer, step)
        return self.publish(trainer, step, attempt)


LAYOUT = types.Layout(layout_id="layout", tensors=(), image_bytes=8)


def make_version(version: int, step: int, attempt: int = 1, state_hash: str = "") -> types.WeightVersion:
    """Return a dense version's manifest."""
    return types.WeightVersion(
        job="job",
        version=types.VersionId(version),
        step=step,
        attempt=attempt,
        parent=version - 1,
        created_at=0.0,
        layout_id="layout",
        digests={},
        state_hash=state_hash or f"hash-{version}",
        artifacts=(types.Artifact(artifact_id=f"a{version}", encoding=enums.Encoding.WHOLE, num_bytes=8),),
    )


@pytest.fixture
def version_maker() -> Callable[..., types.WeightVersion]:
    return make_version


@pytest.fixture
def make_bench(tmp_path: pathlib.Path) -> Callable[..., Bench]:
    """Return a maker of benches: B 2, G 2, eta 1 unless a change of the spec says otherwise."""

    def make(*, num_prompts: int = 50, epochs: int = 0, path: pathlib.Path | None = None, **changes: object) -> Bench:
        index = prompts.SourceIndex(name="train", prompt_ids=tuple(f"p{i}" for i in range(num_prompts)))
        order = prompts.TaskOrder([index], seed=7, epochs=epochs)
        config = sections.make_config(process_config.CoordinatorConfig, tmp_path, FEW, **{"max_steps": 100, **changes})
        return Bench(path=path or tmp_path / "ledger.sqlite", config=config, order=order)

    return make


@pytest.fixture
def make_config(tmp_path: pathlib.Path) -> Callable[..., process_config.CoordinatorConfig]:
    """Return a maker of coordinator configs over a small data file and a suite: B 2, G 2, eta 1."""
    (tmp_path / "train.jsonl").write_text("".join(_record(f"p{i}") for i in range(20)), encoding="utf-8")
    (tmp_path / "held_out.jsonl").write_text("".join(_record(f"e{i}") for i in range(3)), encoding="utf-8")

    def source(name: str, *, drop: bool) -> dict[str, object]:
        invalid = "Drop" if drop else "Fail"
        return {"name": name, "path": f"{name}.jsonl", "maxPromptTokens": 56, "onInvalidRecord": invalid}

    def make(
        *, suites: bool = False, drop: bool = False, suite_drops: bool = False, **changes: object
    ) -> process_config.CoordinatorConfig:
        data = {
            "data.train": [source("train", drop=drop)],
            "evaluation.suites": [source("held_out", drop=suite_drops)] if suites else [],
        }
        return sections.make_config(process_config.CoordinatorConfig, tmp_path, {**FEW, **data}, **changes)

    return make


def _record(prompt_id: str) -> str:
    return json.dumps({"id": prompt_id, "prompt": f"{prompt_id}=", "answer": "1"}) + "\n"
