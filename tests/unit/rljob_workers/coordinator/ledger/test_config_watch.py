"""A coordinator's config file changes under it: what holds from then on, what is reported, and how often."""

import asyncio
import logging
import pathlib
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from rljob_api import enums, process_config
from rljob_testing import clock as fake_clock
from rljob_testing.sections import with_spec
from rljob_workers.coordinator import app, config_watch, context, housekeeping, resume
from rljob_workers.coordinator.ledger import groups, steps
from rljob_workers.coordinator.weights import registry
from rljob_workers.runtime import metrics as metrics_module

MakeConfig = Callable[..., process_config.CoordinatorConfig]


class Watched:
    """A coordinator without sockets, and its config file as a ConfigMap's mount has it: behind a link."""

    def __init__(self, config: process_config.CoordinatorConfig, folder: pathlib.Path) -> None:
        self.clock, self._folder, self._count = fake_clock.FakeClock(), folder, 0
        data = resume.load_data(config)
        self.state = resume.open_state(config, data_digest=data.digest, now=self.clock.now())
        metrics = metrics_module.Metrics(role=enums.Role.COORDINATOR, job=config.job)
        self.core: context.CoordinatorContext = app.make_context(
            config, clock=self.clock, metrics=metrics, data=data, state=self.state
        )
        self.housekeeper = housekeeping.Housekeeper(self.core, registry.Publishing(self.core), self.state.history)
        self.path = folder / "role.json"
        self.mount(config)
        self.watch = config_watch.ConfigWatch(self.core, self.path)

    def mount(self, config: process_config.CoordinatorConfig) -> None:
        self.mount_text(config.model_dump_json())

    def mount_text(self, text: str) -> None:
        self._count += 1
        file, link = self._folder / f"data-{self._count}", self._folder / "link"
        file.write_text(text, encoding="utf-8")
        link.symlink_to(file)
        link.replace(self.path)

    def edit(self, changes: Mapping[str, object] | None = None, **by_name: object) -> None:
        config = with_spec(self.core.config, changes, **by_name)
        job = config.job.model_copy(update={"config_generation": config.job.config_generation + 1})
        self.mount(config.model_copy(update={"job": job}))

    async def last_step(self) -> int:
        return await self.core.ledger.run(groups.last_step)

    async def held_bound(self) -> str | None:
        return await self.core.ledger.run(lambda ledger: ledger.meta("max_off_policy_steps"))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    # Also puts the root logger's level back at the end.
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if record.name == config_watch.__name__]


@pytest.fixture
async def watched(make_config: MakeConfig, tmp_path: pathlib.Path) -> AsyncIterator[Watched]:
    folder = tmp_path / "mount"
    folder.mkdir()
    found = Watched(make_config(max_steps=10), folder)
    await found.watch.look()
    yield found
    found.core.ledger.close()
    found.state.lock.close()


async def test_a_raised_end_holds_and_is_acknowledged_in_status(watched: Watched) -> None:
    watched.edit(max_steps=20)
    await watched.watch.look()
    status = await watched.housekeeper.current()
    assert (status.max_steps, status.config_generation) == (20, 2)
    assert await watched.last_step() == 20


async def test_the_file_is_looked_at_again_and_again(watched: Watched) -> None:
    watching = asyncio.ensure_future(watched.watch.run())
    for limit in (20, 30):
        watched.edit(max_steps=limit)
        while watched.core.config.spec.max_steps != limit:
            await watched.clock.advance(1.0)
            await asyncio.to_thread(lambda: None)
            assert not watching.done()
    watching.cancel()


async def test_a_changed_bound_and_interval_hold_and_the_largest_bound_is_kept_for_the_audit(watched: Watched) -> None:
    for bound in (3, 0):
        watched.edit({"evaluation.everySteps": 5}, max_off_policy_steps=bound)
        await watched.watch.look()
        assert watched.core.config.spec.async_.max_off_policy_steps == bound
        assert await watched.held_bound() == "3"
    assert watched.core.config.spec.evaluation.every_steps == 5


async def test_settings_that_alerts_compare_with_follow(watched: Watched) -> None:
    watched.edit(max_off_policy_steps=3)
    await watched.watch.look()
    await watched.housekeeper.refresh()
    labels = {"name": "max_off_policy_steps", "rljob": "job", "rljob_namespace": "default"}
    assert watched.core.metrics.registry.get_sample_value("rljob_setting", labels) == 3.0


async def test_whoever_waits_for_room_is_woken(watched: Watched) -> None:
    mark = watched.core.changes.mark
    watched.edit(max_steps=20)
    await watched.watch.look()
    assert watched.core.changes.mark > mark


async def test_the_log_level_follows(watched: Watched, said: Callable[[], list[str]]) -> None:
    watched.edit(log_level="Debug")
    await watched.watch.look()
    assert logging.getLogger().level == logging.DEBUG
    assert said() == ["took over spec.observability.logLevel Info to Debug"]


async def test_what_is_not_followed_is_told_in_one_line_and_once(
    watched: Watched, said: Callable[[], list[str]]
) -> None:
    watched.edit(seed=8, processes_per_node=2)
    for _ in range(3):
        await watched.watch.look()
    (line,) = said()
    assert "spec.seed, spec.trainer.processesPerNode" in line
    assert (await watched.housekeeper.current()).config_generation == 1


async def test_a_lower_end_is_told_and_does_not_hold(watched: Watched, said: Callable[[], list[str]]) -> None:
    watched.edit(max_steps=5)
    await watched.watch.look()
    (line,) = said()
    assert "spec.maxSteps is 5" in line
    assert await watched.last_step() == 10


async def test_a_file_that_is_no_config_is_told_once_naming_the_field_and_the_next_good_one_holds(
    watched: Watched, said: Callable[[], list[str]]
) -> None:
    watched.mount_text(watched.core.config.model_dump_json().replace('"maxSteps":10', '"maxSteps":"many"'))
    for _ in range(3):
        await watched.watch.look()
    (line,) = said()
    assert "spec.maxSteps" in line
    watched.edit(max_steps=20)
    await watched.watch.look()
    assert watched.core.config.spec.max_steps == 20


async def test_a_file_that_is_gone_is_told_once_and_the_next_one_holds(
    watched: Watched, said: Callable[[], list[str]]
) -> None:
    watched.path.unlink()
    for _ in range(3):
        await watched.watch.look()
    (line,) = said()
    assert "No such file" in line
    watched.edit(max_steps=20)
    await watched.watch.look()
    assert watched.core.config.spec.max_steps == 20


async def test_an_end_that_is_raised_after_the_trainer_heard_of_it_is_told_as_too_late(
    watched: Watched, said: Callable[[], list[str]]
) -> None:
    await watched.core.ledger.run(steps.announce_end)
    watched.edit(max_steps=20)
    await watched.watch.look()
    assert await watched.last_step() == 10
    assert "spec.maxSteps 20 came too late: step 10 ended the run" in said()
