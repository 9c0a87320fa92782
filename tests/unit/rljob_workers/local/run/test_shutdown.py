"""Order and bounds of an orderly end, with hand-written fakes of the processes."""

from rljob_api import enums
from rljob_testing.clock import FakeClock
from rljob_workers.local.run import restart_policy, shutdown, supervise

TRAINER, ROLLOUT, AGENTS, ENVIRONMENT, JUDGE, VERIFIER, COORDINATOR = shutdown.ORDER


class FakeProcess:
    """Records what is asked of it; ends when the test says so, or at once on SIGTERM if `obedient`."""

    guard_pid, pid = 1, 2

    def __init__(self, name: str, events: list[str], obedient: bool) -> None:
        self.name, self.events, self.obedient = name, events, obedient
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.events.append(f"term {self.name}")
        if self.obedient:
            self.code = 0

    def kill(self) -> None:
        self.events.append(f"kill {self.name}")
        self.code = -9

    def last_lines(self, count: int = 1) -> list[str]:
        return []


class Scene:
    """Fake processes of all roles under a real supervisor."""

    def __init__(self, *, trainer_listens: bool = True, obedient: bool = True, trainer_saves: bool = True) -> None:
        self.events: list[str] = []
        self.clock = FakeClock()
        self.processes: dict[str, FakeProcess] = {}
        self.listens, self.saves, self.obedient = trainer_listens, trainer_saves, obedient
        self.supervisor = supervise.Supervisor(
            spawn=self._spawn, policy=restart_policy.Policy(), clock=self.clock, sweep=lambda _guards: None
        )
        for role in reversed(shutdown.ORDER):
            self.supervisor.start(str(role), role, supervise.Progress())
        self.shutdown = shutdown.Shutdown(
            supervisor=self.supervisor,
            clock=self.clock,
            bounds=shutdown.Bounds(checkpoint_s=100.0, drain_s=5.0, short_s=5.0),
            ask_trainer=self._ask,
        )

    def _spawn(self, name: str, role: enums.Role) -> FakeProcess:
        self.processes[name] = FakeProcess(name, self.events, self.obedient)
        return self.processes[name]

    def _ask(self) -> bool:
        self.events.append("ask trainer")
        if self.listens and self.saves:
            self.processes["trainer"].code = 80
        return self.listens

    def play(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.supervisor.tick(supervise.Progress(), restart=())
            self.shutdown.tick()
            self.clock.tick(0.5)


def test_roles_end_in_order_trainer_first_coordinator_last() -> None:
    scene = Scene()
    scene.play(10)
    assert scene.shutdown.finished
    ended = ["term rollout", "term agents", "term environment", "term judge", "term verifier", "term coordinator"]
    assert scene.events == ["ask trainer", *ended]


def test_nothing_else_is_asked_while_the_trainer_saves() -> None:
    scene = Scene(trainer_saves=False)
    scene.play(50)
    assert set(scene.events) == {"ask trainer"}
    assert scene.shutdown.waiting_for == "the trainer's checkpoint"


def test_trainer_that_does_not_save_in_time_is_ended() -> None:
    scene = Scene(trainer_saves=False)
    scene.play(120)
    assert scene.shutdown.finished
    assert next(event for event in scene.events if event != "ask trainer") == "term trainer"


def test_trainer_that_does_not_listen_yet_is_ended_after_three_seconds() -> None:
    scene = Scene(trainer_listens=False)
    scene.play(2.5)
    assert "term trainer" not in scene.events
    scene.play(10)
    assert scene.shutdown.finished


def test_process_that_ignores_sigterm_is_killed_after_its_bound() -> None:
    scene = Scene(obedient=False)
    scene.play(4)
    assert "kill rollout" not in scene.events
    scene.play(40)
    assert scene.shutdown.finished
    assert [event for event in scene.events if event.startswith("kill")] == [
        "kill rollout",
        "kill agents",
        "kill environment",
        "kill judge",
        "kill verifier",
        "kill coordinator",
    ]
