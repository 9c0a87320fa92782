"""A ledger at the bench: short calls that play rollout and trainer, for tests and simulations of its rules."""

import dataclasses
import pathlib
from collections.abc import Sequence

from rljob_api import enums, process_config, types
from rljob_api.manifest.job import JobSpec
from rljob_testing import makers
from rljob_workers.coordinator.ledger import (
    checkpoints,
    database,
    examples,
    leases,
    sessions,
    steps,
    submissions,
    versions,
)
from rljob_workers.coordinator.policy import prompts


@dataclasses.dataclass
class Bench:
    """One ledger file, reopened at will. Time is `now`; prompts come from an order over `num_prompts` ids. The first
    `sft_steps` are supervised, their `examples` in an order of their own.
    """

    path: pathlib.Path
    config: process_config.CoordinatorConfig
    order: prompts.TaskOrder
    now: float = 1000.0
    examples: prompts.TaskOrder | None = None
    sft_steps: int = 0

    @property
    def spec(self) -> JobSpec:
        """The manifest in force."""
        return self.config.spec

    def __post_init__(self) -> None:
        self._open()
        self.boots = 0

    def _open(self) -> None:
        self.ledger = database.Ledger(self.path, self.config, now=self.now)
        self.ledger.sft_steps = self.sft_steps

    def reopen(self) -> None:
        """Restart the coordinator."""
        self.ledger.close()
        self._open()
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

    def lease(self, token: str, capacity: int = 1, serving: int = 0, coming: int | None = None) -> list[leases.Lease]:
        """Lease groups, also for the version that is being loaded."""
        return leases.lease(
            self.ledger, token=token, capacity=capacity, serving_version=serving, take=self.order.take, now=self.now,
            coming_version=coming, take_examples=None if self.examples is None else self.examples.take,
        )[0]  # fmt: skip

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
        return self.submit_group(token, group)

    def submit_group(self, token: str, group: types.PromptGroup) -> types.SubmitReply:
        """Submit a group as it is."""
        return submissions.accept(self.ledger, token=token, group=group, now=self.now)

    def pack(self) -> int | None:
        """Freeze the next step if it can be; return it."""
        due = examples.are_due(self.ledger)
        choice = examples.choose(self.ledger) if due else steps.choose(self.ledger, more_prompts=True)
        if choice.candidates is None:
            return None
        ordered = list(choice.candidates)
        if not due:
            ordered.sort(key=lambda candidate: candidate.lease_order)
        frozen = steps.FrozenStep(
            step=choice.step,
            group_ids=tuple(candidate.group_id for candidate in ordered),
            world_size=1,
            minibatches=(types.Minibatch(num_tokens=1, num_rows=1),),
            summary={"reward_mean": 0.5, "oldest_trained_step": choice.oldest_trained_step},
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
