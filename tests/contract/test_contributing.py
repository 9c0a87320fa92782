"""docs/contributing.md adds a loss, a field, a transport, an engine and a tracker: its examples, put into a copy of the
tree, run. The example of a grader runs with the tests of graders.
"""

import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import urllib.error
from typing import ClassVar

import pytest
import yaml

from rljob_api import process_config
from rljob_testing import examples, packages, sections
from rljob_workers.coordinator.trackers import base

PAGE = (examples.ROOT / "docs/contributing.md").read_text()
_FILE = re.compile(r"^( *)```python\n\1# path: (\S+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_EDIT = re.compile(r"^( *)```diff\n\1--- (\S+)\n\1-(.*?)\n((?:\1\+.*\n)+)\1```$", re.MULTILINE)

RESOLVED = """
    import pathlib, sys
    from rljob_api import resolve
    from rljob_api.validation import load

    def resolved(field):
        text = pathlib.Path(sys.argv[1]).read_text()
        job = load.load_manifest(text + field)
        placement = resolve.local_placement(
            job, uid="u", run_dir=sys.argv[2], base_dir="/", cache_dir="/", num_cores=1,
            ports=range(1, 1 + resolve.num_local_ports(job)),
        )
        return resolve.resolve(job, placement)
"""
TRANSPORT = """
    from rljob_api import enums
    from rljob_workers.coordinator.weights import store
    from rljob_workers.weights.backends import base

    job = resolved("  weightSync: {transport: memory}")
    artifacts = store.ArtifactStore(pathlib.Path(job.coordinator.weights_dir))
    backend = base.find(job.trainer.spec.weight_sync.transport)
    sys.modules["rljob_workers.weights.backends.memory_store"].COPIES = pathlib.Path(sys.argv[2])
    artifact = backend.publisher(job.trainer).upload(memoryview(b"weights"), enums.Encoding.WHOLE)
    assert artifacts.num_bytes(artifact.artifact_id) == 7
    artifacts.remove(artifact.artifact_id)
    image = bytearray(7)
    backend.puller(job.rollouts[0]).pull(artifact, [], memoryview(image))
    print(image.decode(), type(backend.puller(job.rollouts[0])).__name__)
"""
ENGINE = """
    import asyncio
    from rljob_api import types
    from rljob_workers.rollout import generation
    from rljob_workers.rollout.engines import base

    job = resolved("  rollout: {engine: {type: hashed}}")
    engine = base.find(job.rollouts[0].spec.rollout.engine.type).make(None)

    async def generate():
        await engine.start()
        await engine.commit(types.VersionId(7))
        request = generation.GenerationRequest(
            rid="r", input_ids=(1, 2), sampling=types.Sampling(max_tokens=3, ignore_eos=True), seed=0
        )
        return await engine.generate(request, version=types.VersionId(7))

    print(*asyncio.run(generate()).versions, type(engine).__name__)
"""
FIELD = """
    import json
    from rljob_api import process_config
    from rljob_api.validation import crd
    from rljob_workers.trainer.engine import schedule

    job = resolved("  trainer: {optimizer: {learningRate: '0.5', schedule: Linear, finalShare: '0.2'}}")
    config = process_config.TrainerConfig.model_validate_json(job.trainer.model_dump_json())
    rates = [
        round(schedule.learning_rate(update, config=config.spec.trainer.optimizer, updates_per_step=1, max_steps=4), 6)
        for update in (0, 2, 4)
    ]
    print(*rates, "finalShare" in json.dumps(crd.root_schema()))
"""
LOSS = """
    from rljob_api import errors

    job = resolved("  algorithm: {loss: {type: band, clipLow: '0.25'}}")
    try:
        resolved("  algorithm: {loss: {type: band, tauPos: '0.5'}}")
    except errors.ManifestError as error:
        print(error)

    import torch
    from rljob_workers.trainer.algorithms import policy_losses
    from rljob_workers.trainer.algorithms.rows import Rows

    logprobs = torch.log(torch.tensor([0.5, 1.125, 2.0])).requires_grad_()
    rows = Rows(index=torch.zeros(3, dtype=torch.long), tokens=torch.tensor([3]))
    advantages = torch.tensor([1.0, -2.0, 1.0])
    losses = policy_losses.compute(logprobs, torch.zeros(3), advantages, rows, job.trainer.spec.algorithm.loss).losses
    losses.sum().backward()
    print(*losses.tolist(), *logprobs.grad.tolist())
"""
TRACKER = """
    from rljob_api import errors
    from rljob_workers.coordinator.trackers import base

    job = resolved("  observability: {trackers: [{name: mine, type: table, config: {between: ;}}]}")
    try:
        resolved("  observability: {trackers: [{name: mine, type: table, config: {around: ;}}]}")
    except errors.ManifestError as error:
        print(error)
    (spec,) = job.coordinator.spec.observability.trackers
    tracker = base.make(job.coordinator, spec)
    tracker.log(base.Point(kind="step", step=2, at=1.0, metrics={"train/reward_mean": 0.5}))
    tracker.rewind(1)
    tracker.flush()
    print(*(base.folder(job.coordinator, "mine") / "metrics.txt").read_text().split())
    tracker.close()
"""
NO_TAU = "spec.algorithm.loss.tauPos is '0.5', but loss.type band does not use it: leave it out"
NO_OPTION = "spec.observability.trackers[0].config.around is ';', but table has no such option; it has between"
MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: job}
spec:
  maxSteps: 1
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {train: [{name: sums, path: sums.jsonl}]}
  verifier: {rewards: [{name: right, type: exact}]}
"""


def run(tree: pathlib.Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a tree of packages that goes before the installed one."""
    manifest = tree / "job.yaml"
    manifest.write_text(MANIFEST)
    paths = os.pathsep.join(str(tree / folder) for folder in ("proto", "workers"))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RESOLVED) + textwrap.dedent(program), str(manifest), str(tree)],
        env={**os.environ, "PYTHONPATH": paths}, cwd=tree, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("heading", "program", "printed", "num_edited"),
    [
        ("Add a loss", LOSS, f"{NO_TAU}\n-0.75 2.25 -1.25 0.0 2.25 0.0", 3),
        ("Add a field", FIELD, "0.5 0.3 0.1 True", 2),
        ("Add a weight transport", TRANSPORT, "weights MemoryPuller", 2),
        ("Add an engine", ENGINE, "7 7 7 FakeEngine", 2),
        ("Add a tracker", TRACKER, f"{NO_OPTION}\n2;train/reward_mean;0.5 1;rewound to", 2),
    ],
)
def test_worked_example_runs_in_a_copy_of_the_tree_and_is_refused_without_it(
    heading: str, program: str, printed: str, num_edited: int, tmp_path: pathlib.Path
) -> None:
    for folder in ("proto", "workers"):
        shutil.copytree(examples.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    without = run(tmp_path, program)
    assert "ManifestError" in without.stderr
    # What a package of its own would do is another example.
    section = re.split(r"\n##.*installed package\n|\n## ", PAGE.split(f"\n## {heading}\n")[1])[0]
    written = {path: textwrap.dedent(text) for _, path, text in _FILE.findall(section)}
    edits = _EDIT.findall(section)
    assert len(written) + len(edits) == num_edited
    for path, text in written.items():
        assert not (tmp_path / path).exists()
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for indent, path, before, added in edits:
        after = "\n".join(line.removeprefix(f"{indent}+") for line in added.splitlines())
        text = (tmp_path / path).read_text()
        assert text.count(f"\n{before}\n") == 1
        (tmp_path / path).write_text(text.replace(f"\n{before}\n", f"\n{after}\n"))
    completed = run(tmp_path, program)
    assert (completed.stdout.strip(), completed.stderr) == (printed, "")


class Service(http.server.BaseHTTPRequestHandler):
    """Takes posts, except those with the wrong key."""

    taken: ClassVar[list[tuple[str, object]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        right = self.headers["Authorization"] == "Bearer the-key"
        if right:
            self.taken.append((self.path, json.loads(body)))
        self.send_response(204 if right else 403)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_worked_example_of_a_tracker_of_an_installed_package_reports_to_its_service(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.split("### A tracker of an installed package\n")[1]
    ((_, path, module),) = _FILE.findall(section)
    (entry_points,) = re.findall(r'\[project\.entry-points\."rljob\.trackers"\]\n(.*?)```', section, re.DOTALL)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(module)
    entries = "[rljob.trackers]\n" + entry_points.replace('"', "")
    packages.install(tmp_path, "my-package-of-trackers", entry_points=entries)
    packages.put_on_path(tmp_path, monkeypatch)
    monkeypatch.setenv("BOARD_KEY", "the-key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        written = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0])
        written["observability"]["trackers"][0]["config"]["url"] = url
        config = sections.make_config(
            process_config.CoordinatorConfig, tmp_path,
            {"observability": written["observability"], "coordinator": written["coordinator"]},
        )  # fmt: skip
        (spec,) = config.spec.observability.trackers
        tracker = base.make(config, spec)
        tracker.log(base.Point(kind="step", step=1, at=2.0, metrics={"train/loss": 0.5}))
        tracker.flush()
        monkeypatch.setenv("BOARD_KEY", "another-key")
        tracker.log(base.Point(kind="step", step=2, at=3.0, metrics={"train/loss": 0.25}))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            tracker.flush()
        server.shutdown()
    point = {"step": 1, "at": 2.0, "metrics": {"train/loss": 0.5}}
    assert Service.taken == [(f"/runs/{config.job.uid}", [point])]
