"""A ledger at the bench: short calls that play rollout and trainer, and a config to start from."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence

import pytest

from rljob_api import names, roles, types
from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_api.manifest.data import CurriculumSpec, FilterGroupsSpec
from rljob_api.manifest.rollout import AsyncSpec
from rljob_testing import makers
from rljob_testing.sections import section
from rljob_workers.coordinator.ledger import checkpoints, database, leases, sessions, steps, submissions, versions
from rljob_workers.coordinator.policy import limits, prompts

NO_FILTER = section(FilterGroupsSpec, enabled=False, max_extra_groups=1000)


@dataclasses.dataclass
class Bench:
    """One ledger file, reopened at will. Time is `now`; prompts come from an order over `num_prompts` ids."""

    path: pathlib.Path
    bounds: limits.Limits
    order: prompts.TaskOrder
    now: float = 1000.0
    filter_config: FilterGroupsSpec = NO_FILTER

    def __post_init__(self) -> None:
        self.ledger = database.Ledger(self.path, self.bounds, now=self.now)
        self.boots = 0

    def reopen(self) -> None:
        """Restart the coordinator."""
        self.ledger.close()
        self.ledger = database.Ledger(self.path, self.bounds, now=self.now)
        leases.extend_all(self.ledger, now=self.now)

    def rollout(self, pod: str = "rollout-0", boot_id: str = "") -> types.SessionToken:
        """Register a rollout process."""
        self.boots += 1
        with self.ledger.transaction():
            token, replaced = sessions.open_session(self.ledger,
                role=names.Role.ROLLOUT, pod=pod, boot_id=boot_id or f"boot-{self.boots}", attempt=0, rank=0,
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
                role=names.Role.TRAINER, pod="trainer-0", boot_id=f"boot-{self.boots}", attempt=attempt, rank=rank,
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
        return submissions.accept(self.ledger, token=token, group=group, filter_config=self.filter_config, now=self.now)

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
            token=token, proposal=make_version(version, step, attempt), layout=LAYOUT, num_bytes=8, evaluate=evaluate,
            now=self.now,
        )  # fmt: skip
        assert answer.outcome == "accepted", answer
        return version

    def step(self, rollout: str, trainer: str, *, serving: int = 0, attempt: int = 1) -> int:
        """Generate, train and publish one whole step; return its version."""
        for lease in self.lease(rollout, capacity=self.bounds.prompts_per_step, serving=serving):
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
        artifacts=(types.Artifact(artifact_id=f"a{version}", encoding="raw", num_bytes=8),),
    )


@pytest.fixture
def version_maker() -> Callable[..., types.WeightVersion]:
    return make_version


@pytest.fixture
def make_bench(tmp_path: pathlib.Path) -> Callable[..., Bench]:
    """Return a maker of benches: B 2, G 2, eta 1 unless said."""

    def make(
        *,
        group_size: int = 2,
        prompts_per_step: int = 2,
        max_off_policy_steps: int = 1,
        num_prompts: int = 50,
        epochs: int = 0,
        lease_s: float = 60.0,
        max_steps: int = 100,
        max_infra_attempts: int = 5,
        max_data_attempts: int = 2,
        min_group_fraction: float = 1.0,
        min_step_fraction: float = 1.0,
        on_stale_wait: bool = False,
        first_version: int = 0,
        filter_config: FilterGroupsSpec = NO_FILTER,
        curriculum: CurriculumSpec | None = None,
        path: pathlib.Path | None = None,
    ) -> Bench:
        bounds = limits.Limits(
            group_size=group_size,
            prompts_per_step=prompts_per_step,
            max_off_policy_steps=max_off_policy_steps,
            max_inflight_groups=(max_off_policy_steps + 1) * prompts_per_step,
            max_steps=max_steps,
            lease_s=lease_s,
            max_infra_attempts=max_infra_attempts,
            max_data_attempts=max_data_attempts,
            min_group_fraction=min_group_fraction,
            min_step_fraction=min_step_fraction,
            on_stale_wait=on_stale_wait,
            curriculum=curriculum,
            first_version=first_version,
        )
        index = prompts.SourceIndex(name="train", prompt_ids=tuple(f"p{i}" for i in range(num_prompts)))
        order = prompts.TaskOrder([index], seed=7, epochs=epochs)
        return Bench(path=path or tmp_path / "ledger.sqlite", bounds=bounds, order=order, filter_config=filter_config)

    return make


@pytest.fixture
def make_config(tmp_path: pathlib.Path) -> Callable[..., roles.CoordinatorConfig]:
    """Return a maker of coordinator configs over a small data file and a suite: B 2, G 2, eta 1."""
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    train.write_text("".join(_record(f"p{i}") for i in range(20)), encoding="utf-8")
    held_out.write_text("".join(_record(f"e{i}") for i in range(3)), encoding="utf-8")

    def source(name: str, path: pathlib.Path, *, drop: bool) -> roles.DataSourceConfig:
        return roles.DataSourceConfig(
            name=name, path=str(path), max_prompt_tokens=64, on_invalid_record="drop" if drop else "fail"
        )

    def make(
        *,
        suites: bool = False,
        max_steps: int = 10,
        world_size: int = 1,
        seed: int = 7,
        uid: str = "uid",
        on_stale: str = "drop",
        first_version: int = 0,
        drop: bool = False,
        suite_drops: bool = False,
    ) -> roles.CoordinatorConfig:
        suite = roles.EvaluationSuite(source=source("held_out", held_out, drop=suite_drops))
        return roles.CoordinatorConfig(
            job=roles.JobIdentity(name="job", namespace="default", uid=uid),
            role=names.Role.COORDINATOR,
            pod="coordinator-0",
            health_port=1,
            scratch_dir=str(tmp_path),
            bind_host="127.0.0.1",
            control_port=1,
            store_port=2,
            store_address="127.0.0.1:2",
            state_dir=str(tmp_path / "state"),
            max_steps=max_steps,
            seed=seed,
            first_version=first_version,
            data=roles.DataConfig(train=(source("train", train, drop=drop),)),
            sampling=types.Sampling(max_tokens=8),
            algorithm=roles.AlgorithmConfig(
                group_size=2,
                prompts_per_step=2,
                normalize_reward=section(NormalizeSpec, mean="group", std="group"),
                filter=NO_FILTER,
            ),
            staleness=section(AsyncSpec, max_off_policy_steps=1, max_inflight_groups=4, on_stale=on_stale),
            evaluation=roles.EvaluationConfig(
                every_steps=2,
                before_training=True,
                suites=(suite,) if suites else (),
                sampling=types.Sampling(greedy=True),
            ),
            failure=roles.FailureConfig(),
            world_size=world_size,
            max_tokens_per_micro_batch=64,
            checkpoint_every_steps=5,
        )

    return make


def _record(prompt_id: str) -> str:
    return json.dumps({"id": prompt_id, "prompt": f"{prompt_id}=", "answer": "1"}) + "\n"
