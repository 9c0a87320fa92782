"""A run whose coordinator and weight store are the real programs. In this process are, of their real parts, a rollout
whose engine computes nothing, and a trainer as far as its batches and versions go.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence

from safetensors.torch import save_file

from rljob_api import enums, process_config, types
from rljob_testing import coordinator_program, makers, models, publishing_trainer, sections
from rljob_workers.rollout import app, reporting, worker
from rljob_workers.rollout.engines import base
from rljob_workers.rollout.gateway import sessions
from rljob_workers.rollout.sync import staging
from rljob_workers.rpc import train, work
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import anchoring, publish
from rljob_workers.weights import image, initial
from rljob_workers.weights.backends import grpc_store

JOB: Mapping[str, object] = {
    "model.dtype": "bfloat16",
    "trainer.dtype": "bfloat16",
    "rollout.sampling.temperature": 1.0,
    "maxSteps": 1000,
}


class AlternatingGrading:
    """Every second answer of a group is right, so that each group is trained on."""

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Grade by the number of the member, which its sample id names."""
        return [makers.make_verdict(float(int(item.sample_id.split(".")[-2]) % 2)) for item in items]


class JoinedRun:
    """The coordinator's process and what joins it. `changes`: of the small job's spec (sections.py)."""

    def __init__(self, folder: pathlib.Path, **changes: object) -> None:
        """Write model and records, start the coordinator."""
        self.folder, self.clock = folder, clocks.SystemClock()
        folder.mkdir(parents=True, exist_ok=True)
        records = ({"id": f"p{index}", "prompt": f"{index}+1=", "answer": str(index + 1)} for index in range(512))
        (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        models.make_tiny_llama(folder / "model")
        # The layout of the files, but the weights of the model that is trained.
        self.weights = publishing_trainer.PublishingTrainer(image.layout_from_safetensors(folder / "model", "bfloat16"))
        save_file(self.weights.model, folder / "model" / "model.safetensors", metadata={"format": "pt"})
        spec = {**JOB, "model.name": str(folder / "model"), **changes}
        config = sections.make_config(process_config.CoordinatorConfig, folder, spec)
        self.program = coordinator_program.Program(coordinator_program.on_free_ports(config), folder)
        rollout = sections.make_config(process_config.RolloutConfig, folder, spec)
        self._rollout_config = rollout.model_copy(update={"coordinator_address": self.program.address})
        self.puller = grpc_store.WeightPuller(control_address=self.program.address, tls=None)
        first = initial.of_model_files(folder / "model", "bfloat16")
        self.stager = staging.Stager(first=first, job=config.job.name, puller=self.puller, clock=self.clock)

    def attempts(self) -> sessions.Sessions:
        """Return where agents take the attempts of a job that has a gateway."""
        made = app.attempts_of(self._rollout_config, self.clock)
        assert made is not None, "the job has no gateway"
        return made

    def rollout(
        self,
        engine: base.Engine,
        transport: work.WorkTransport,
        attempts: sessions.Sessions | None = None,
    ) -> worker.RolloutWorker:
        """Return the rollout around an engine that has started, which offers `attempts` to agents; run it."""
        config = self._rollout_config
        return app.make_worker(
            config,
            app.Prepared(
                model_bytes=0,
                stager=self.stager,
                tokens=app.load_tokenizer(config, self.folder / "model"),
                engine=engine,
            ),
            transport,
            AlternatingGrading(),
            self.puller,
            reporting.Readiness(max_lag_steps=config.spec.async_.max_off_policy_steps),
            metrics_module.Metrics(role=enums.Role.ROLLOUT, job=config.job),
            self.clock,
            attempts,
        )

    def trainer(self) -> "JoinedTrainer":
        """Register a trainer; blocks until the coordinator answers."""
        return JoinedTrainer(self)

    def history(self) -> list[dict[str, object]]:
        """Return what the coordinator has written of the run so far."""
        path = pathlib.Path(self.program.config.state_dir) / "history.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def close(self) -> None:
        """End the coordinator."""
        self.puller.close()
        self.program.close()


class JoinedTrainer:
    """Fetches batches, commits steps and publishes versions as a trainer does; its updates change a few weights."""

    def __init__(self, run: JoinedRun) -> None:
        """Register."""
        self._run = run
        self.batches = train.BatchClient(address=run.program.address, tls=None)
        session = retry.retry_sync(
            lambda: self.batches.register(
                pod="trainer-0",
                boot_id="t",
                attempt=1,
                rank=0,
                resume_step=0,
                initial_state_hash=run.stager.initial.state_hash,
            ),
            deadline_s=coordinator_program.LIMIT_S,
            backoff=retry.Backoff(first_s=0.05, most_s=0.2),
        )
        self.transport = grpc_store.WeightPublisher(
            control_address=run.program.address, store_address=run.program.store, tls=None
        )
        self.transport.session = session.token
        exporter = run.weights.exporter()
        exporter.export()
        self.publisher = publish.VersionPublisher(
            exporter=exporter,
            transport=self.transport,
            job=run.program.config.job.name,
            attempt=1,
            head=session.head_version,
            description="test",
            anchors=anchoring.Anchors(run.program.config.spec.weight_sync),
            clock=run.clock,
            reconnect_timeout_s=coordinator_program.LIMIT_S,
        )
        self.publisher.compare_with_image()

    def fetch(self, step: int) -> types.BatchHeader:
        """Return the header of a step's batch once it is there."""
        while True:
            header, _ = self.batches.fetch(step=step, rank=0, world_size=1, wait_s=5.0, stop=False)
            if header.kind is not enums.BatchKind.NOT_READY:
                return header

    def commit(self, step: int) -> None:
        """Say that the step is trained."""
        now = self._run.clock.now()
        self.batches.commit_step(step=step, stats={}, started_at=now, finished_at=now)

    def publish(self, step: int) -> None:
        """Change a hundred weights and publish them, behind the caller."""
        self._run.weights.change(100)
        self.publisher.publish(step)

    def close(self) -> None:
        """Close the connections."""
        self.publisher.close()
        self.transport.close()
        self.batches.close()
