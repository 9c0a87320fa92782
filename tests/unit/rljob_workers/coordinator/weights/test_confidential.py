"""Nothing that a coordinator logs, counts or says in status quotes a prompt, an answer or a gold, whatever rollouts
hand in. The responses of an evaluation are data: files of their own.
"""

import dataclasses
import json
import logging
import pathlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from rljob_api import enums, process_config, types
from rljob_api.wire import codec
from rljob_testing import clock as fake_clock
from rljob_testing import makers, marked
from rljob_testing.marked import COMPLETION, GOLD, IDS, PROMPT
from rljob_workers.coordinator import app, context, dispatch, housekeeping, resume, training
from rljob_workers.coordinator.reporting import history
from rljob_workers.coordinator.weights import registry
from rljob_workers.runtime import metrics as metrics_module

MakeConfig = Callable[..., process_config.CoordinatorConfig]
VERDICT = dataclasses.replace(makers.make_verdict(), extracted=COMPLETION, detail=f"{COMPLETION} is not {GOLD}")


class Coordinator:
    """A coordinator without sockets over marked prompts; `history` is what its own file says."""

    def __init__(self, config: process_config.CoordinatorConfig) -> None:
        record = {"prompt": PROMPT, "answer": GOLD}
        pathlib.Path(config.spec.data.train[0].path).write_text(
            "".join(json.dumps({"id": f"p{index}", **record}) + "\n" for index in range(20)), encoding="utf-8"
        )
        self.clock = fake_clock.FakeClock()
        data = resume.load_data(config)
        self.state = resume.open_state(config, data_digest=data.digest, now=self.clock.now())
        self.metrics = metrics_module.Metrics(role=enums.Role.COORDINATOR, job=config.job)
        self.core: context.CoordinatorContext = app.make_context(
            config, clock=self.clock, metrics=self.metrics, data=data, state=self.state
        )
        self.work, self.trainer = dispatch.Dispatch(self.core), training.Training(self.core)
        self.housekeeper = housekeeping.Housekeeper(self.core, registry.Publishing(self.core), self.state.history)
        self._history = pathlib.Path(config.state_dir) / history.FILE_NAME

    async def register(self, role: enums.Role, attempt: int = 0) -> str:
        session = await self.work.register(
            dispatch.Registration(
                role=role, pod=f"{role}-0", boot_id="b", attempt=attempt, rank=0, resume_step=0, initial_state_hash="h"
            )
        )
        return session.token

    async def hand_in(self, token: str, make: Callable[[types.GroupLease], types.PromptGroup]) -> list[str]:
        """Lease what there is and submit what `make` makes of it; return the answers."""
        grant = await self.work.lease(token=token, capacity=2, serving_version=0, wait_s=0)
        return [str(await self.work.submit(token, make(lease))) for lease in grant.leases]

    async def told(self) -> str:
        """Return status as it is sent, metrics and history."""
        await self.housekeeper.tick()
        status = await self.housekeeper.current()
        history = self._history.read_text(encoding="utf-8") if self._history.exists() else ""
        return f"{status}\n{codec.to_message(status)}\n{self.metrics.exposition().decode()}\n{history}"

    def close(self) -> None:
        self.core.ledger.close()
        self.state.lock.close()


@pytest.fixture
async def run(make_config: MakeConfig) -> AsyncIterator[Coordinator]:
    made = Coordinator(make_config())
    yield made
    made.close()


def group(lease: types.GroupLease, parts: Sequence[str] = ()) -> types.PromptGroup:
    """Return a group of marked rows, which carry marked texts where rows may; `parts` are names of a verdict's."""
    made = makers.make_group(lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt)
    rows = [
        dataclasses.replace(
            makers.make_trajectory(prompt=IDS, completion=IDS, reward=row.reward, sample_index=row.sample_index),
            prompt_text=PROMPT, output_text=COMPLETION,
            verdict=dataclasses.replace(VERDICT, reward=row.reward, parts=dict.fromkeys(parts, 1.0)),
        )
        for row in made.trajectories
    ]  # fmt: skip
    return dataclasses.replace(made, trajectories=rows)


def failed(lease: types.GroupLease) -> types.PromptGroup:
    """Return a group whose members all failed, with marked texts in the reasons."""
    failures = [
        types.MemberFailure(sample_index=index, role="rollout", reason="EpisodeError", detail=COMPLETION, infra=False)
        for index in range(lease.group_size)
    ]
    return dataclasses.replace(group(lease), trajectories=[], failures=failures)


def incomplete(lease: types.GroupLease) -> types.PromptGroup:
    """Return a group that breaks the contract."""
    whole = group(lease)
    return dataclasses.replace(whole, trajectories=whole.trajectories[:1])


@pytest.mark.parametrize("make", [group, failed, incomplete])
async def test_what_is_handed_in_is_in_no_log_status_metric_or_answer(
    make: Callable[[types.GroupLease], types.PromptGroup], run: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rollout = await run.register(enums.Role.ROLLOUT)
    answers = await run.hand_in(rollout, make)
    assert len(answers) == 2
    marked.assert_untold("\n".join([*answers, await run.told(), marked.lines_of(caplog.records)]))


async def test_a_step_of_marked_rows_is_in_no_log_status_metric_or_history(
    run: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    await run.hand_in(rollout, group)
    header, _ = await run.trainer.fetch(token=trainer, step=1, rank=0, world_size=1, wait_s=0.0, stop=False)
    assert header.kind is enums.BatchKind.BATCH
    now = run.clock.now()
    await run.trainer.commit_step(token=trainer, step=1, stats={}, started_at=now, finished_at=now)
    told = await run.told()
    assert '"step"' in told, "the history has its line"
    marked.assert_untold(told + marked.lines_of(caplog.records))


async def test_names_of_parts_make_a_bounded_number_of_series(run: Coordinator) -> None:
    rollout, trainer = await run.register(enums.Role.ROLLOUT), await run.register(enums.Role.TRAINER, attempt=1)
    parts = [f"style.p{index}" for index in range(training.MOST_PARTS + 10)]
    await run.hand_in(rollout, lambda lease: group(lease, parts))
    await run.trainer.fetch(token=trainer, step=1, rank=0, world_size=1, wait_s=0.0, stop=False)
    lines = run.metrics.exposition().decode().splitlines()
    assert sum(line.startswith("rljob_reward_component_mean{") for line in lines) == training.MOST_PARTS
