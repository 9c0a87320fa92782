"""Commands about a run that continues: a coordinator that answers over gRPC on loopback, as the real one does."""

import concurrent.futures
import json
import os
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from typer.testing import Result

from rljob_api import enums, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_testing import examples
from rljob_workers.cli import inspect
from rljob_workers.local import prepare
from rljob_workers.local.rundir import layout

Rljob = Callable[..., Result]
EXAMPLE = examples.EXAMPLES / "addition-cpu.yaml"


class Coordinator(status_pb2_grpc.RunStatusServicer):
    """Answers Status, nothing else."""

    dump_failures = 0

    def Status(self, request: status_pb2.StatusRequest, context: grpc.ServicerContext) -> status_pb2.StatusReply:
        """Say that the trainer has waited for a minute for a rollout, which waits for the verifier."""
        now = time.time()
        return codec.to_message(
            types.RunStatus(
                job="small",
                phase=enums.Phase.RUNNING,
                step=12,
                max_steps=25,
                last_progress_at=now - 60,
                first_step_at=now - 600,
                dump_failures=self.dump_failures,
                waiting=(
                    types.Waiting(role="trainer", pod="trainer-0", what="batch 13", on_role="rollout", since=now - 60),
                    types.Waiting(role="rollout", pod="rollout-0", what="verifier", on_role="verifier", since=now - 50),
                ),
            )
        )


@pytest.fixture
def coordinator() -> Coordinator:
    """Return what answers."""
    return Coordinator()


@pytest.fixture
def going(run: layout.RunDir, coordinator: Coordinator) -> Iterator[layout.RunDir]:
    """A run whose coordinator answers; this process stands for the run's."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    status_pb2_grpc.add_RunStatusServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    resolved = prepare.resolve_here(prepare.read_manifest(EXAMPLE), run_dir=run.path, uid="uid")
    config = next(config for config in resolved.configs if config.role is enums.Role.COORDINATOR)
    own = config.model_copy(update={"control_port": port})
    (run.configs / "coordinator.json").write_text(own.model_dump_json())
    pids = {"pid": os.getpid(), "guard": os.getpid()}
    run.pids.write_text(json.dumps({"coordinator": pids, "verifier": pids}))
    yield run
    server.stop(None).wait()


@pytest.mark.usefixtures("going")
def test_why_asks_the_coordinator_and_names_the_end_of_the_chain(rljob: Rljob) -> None:
    told = json.loads(rljob("why", "-o", "json").stdout)
    assert [link["role"] for link in told["chain"]] == ["trainer", "rollout"]
    assert (told["running"], told["diagnosis"]["reason"]) == (True, "VerifierSaturated")
    assert told["headline"] == "working on step 13; 12 of 25 steps done"


@pytest.mark.usefixtures("going")
def test_status_has_a_line_per_process_and_the_progress(rljob: Rljob) -> None:
    lines = rljob("status").stdout.splitlines()
    assert lines[:2] == ["coordinator    running", "verifier       running"]
    assert any(line.startswith("step 12/25") for line in lines)
    assert lines[-1].startswith("trainer-0 waits for batch 13 for ")
    assert json.loads(rljob("status", "-o", "json").stdout)["status"]["step"] == 12


def test_followed_line_tells_the_supervised_step_until_those_are_over() -> None:
    lines = [
        inspect.whole_line(
            types.RunStatus(job="small", phase=enums.Phase.RUNNING, step=step, max_steps=25, sft_steps=20), {}
        )
        for step in (2, 20)
    ]
    assert [line.endswith("supervised step 3 of 20") for line in lines] == [True, False]
    assert "supervised" not in lines[1]


@pytest.mark.usefixtures("going")
@pytest.mark.parametrize(("num_failed", "subject"), [(1, "1 trajectory dump"), (3, "3 trajectory dumps")])
def test_status_ends_with_dumps_that_could_not_be_written(
    rljob: Rljob, coordinator: Coordinator, num_failed: int, subject: str
) -> None:
    coordinator.dump_failures = num_failed
    told = f"{subject} could not be written; the logs of the rollouts say why"
    assert rljob("status").stdout.splitlines()[-1] == told
    coordinator.dump_failures = 0
    assert "could not be written" not in rljob("status").stdout


def test_coordinator_that_is_gone_is_named(rljob: Rljob, going: layout.RunDir) -> None:
    config = json.loads((going.configs / "coordinator.json").read_text())
    # Nothing listens on port 1.
    (going.configs / "coordinator.json").write_text(json.dumps({**config, "control_port": 1}))
    assert json.loads(rljob("why", "-o", "json").stdout)["diagnosis"]["reason"] == "CoordinatorUnreachable"
