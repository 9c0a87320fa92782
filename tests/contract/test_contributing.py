"""docs/contributing.md adds a field, a transport and an engine: its examples, put into a copy of the tree, run.

Examples of a loss and a grader run beside the tests of those.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from rljob_testing import examples

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
    from rljob_workers.coordinator.weights import store
    from rljob_workers.weights.backends import base

    job = resolved("  weightSync: {transport: memory}")
    artifacts = store.ArtifactStore(pathlib.Path(job.coordinator.state_dir) / store.FOLDER)
    backend = base.find(job.trainer.spec.weight_sync.transport)
    sys.modules["rljob_workers.weights.backends.memory_store"].COPIES = pathlib.Path(sys.argv[2])
    artifact = backend.publisher(job.trainer).upload(memoryview(b"weights"))
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

    job = resolved("  trainer: {optimizer: {learningRate: '0.5', schedule: linear, finalShare: '0.2'}}")
    config = process_config.TrainerConfig.model_validate_json(job.trainer.model_dump_json())
    rates = [
        round(schedule.learning_rate(update, config=config.spec.trainer.optimizer, updates_per_step=1, max_steps=4), 6)
        for update in (0, 2, 4)
    ]
    print(*rates, "finalShare" in json.dumps(crd.root_schema()))
"""
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
        ("Add a field", FIELD, "0.5 0.3 0.1 True", 2),
        ("Add a weight transport", TRANSPORT, "weights MemoryPuller", 2),
        ("Add an engine", ENGINE, "7 7 7 FakeEngine", 2),
    ],
)
def test_worked_example_runs_in_a_copy_of_the_tree_and_is_refused_without_it(
    heading: str, program: str, printed: str, num_edited: int, tmp_path: pathlib.Path
) -> None:
    for folder in ("proto", "workers"):
        shutil.copytree(examples.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    without = run(tmp_path, program)
    assert "ManifestError" in without.stderr
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
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
