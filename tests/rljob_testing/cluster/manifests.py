"""Objects for tests on a real API server: a small legal job, changes by dotted path, and verbs that return answers."""

import copy
import dataclasses
import json
import time
from collections.abc import Mapping

from pydantic import JsonValue

from rljob_testing.cluster.light import LightCluster

Object = dict[str, JsonValue]
ABSENT = object()
_ESTABLISHED_S = 120.0
_DEFINITIONS = [f"crd/{plural}.rljob.dev" for plural in ("rljobs", "rljobruntimes", "clusterrljobruntimes")]

_SPEC: Object = {
    "maxSteps": 4,
    "model": {"name": "builtin:smollm2-135m-instruct"},
    "data": {"train": [{"name": "sums", "path": "data/sums.jsonl", "maxPromptTokens": 64}]},
    "algorithm": {"advantageEstimator": "grpo", "groupSize": 8, "promptsPerStep": 4},
    "verifier": {"rewards": [{"name": "sum", "type": "exact"}]},
    "storage": {"type": "Ephemeral"},
}


def job(name: str, changes: Mapping[str, object]) -> Object:
    """Return a legal job with `changes`: dotted paths below spec (a number is an index) to values, ABSENT removes."""
    spec = copy.deepcopy(_SPEC)
    for path, value in changes.items():
        change(spec, path, value)
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}


def change(node: JsonValue, path: str, value: object) -> None:
    """Set what lies at a dotted path (a number is an index); ABSENT removes it."""
    _change(node, path.split("."), value)


def _change(node: JsonValue, keys: list[str], value: object) -> None:
    head, *rest = keys
    if isinstance(node, list):
        _change(node[int(head)], rest, value)
    elif isinstance(node, dict) and rest:
        _change(node.setdefault(head, {}), rest, value)
    elif isinstance(node, dict) and value is ABSENT:
        del node[head]
    elif isinstance(node, dict):
        node[head] = json.loads(json.dumps(value))


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said: the object, or the refusal."""

    accepted: bool
    body: Object
    error: str


def establish(cluster: LightCluster) -> None:
    """Wait until the definitions of jobs and runtimes, which are applied, are served."""
    end = time.monotonic() + _ESTABLISHED_S
    while True:
        # kubectl gives up at once on an object that has no conditions yet, as a new one has for a moment.
        waited = cluster.kubectl("wait", "--for=condition=Established", "--timeout=10s", *_DEFINITIONS)
        if waited.returncode == 0:
            return
        assert time.monotonic() < end, waited.stderr


class Api:
    """Verbs on jobs of the default namespace."""

    def __init__(self, cluster: LightCluster) -> None:
        self.cluster = cluster

    def try_create(self, document: Object) -> Answer:
        """Create for trial: everything is checked and defaulted, nothing is stored."""
        return self._send(document, "create", "--dry-run=server")

    def create(self, document: Object) -> Answer:
        """Create."""
        return self._send(document, "create")

    def ensure(self, document: Object) -> bool:
        """Create unless an object of that name exists; return whether it was created."""
        answer = self.create(document)
        assert answer.accepted or "already exists" in answer.error, answer.error
        return answer.accepted

    def replace(self, document: Object) -> Answer:
        """Replace by name for trial, as it is there."""
        return self._send(document, "replace", "--dry-run=server")

    def get(self, *arguments: str) -> Object:
        """Return what `kubectl get` says, as JSON."""
        done = self.cluster.kubectl("get", *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        body: Object = json.loads(done.stdout)
        return body

    def set_status(self, name: str, status: Object) -> None:
        """Merge into the status of a job."""
        patch = json.dumps({"status": status})
        done = self.cluster.kubectl("patch", "rljob", name, "--subresource=status", "--type=merge", "-p", patch)
        assert done.returncode == 0, done.stderr

    def _send(self, document: Object, *verb: str) -> Answer:
        command = (*verb, "-o", "json", "-f", "-")
        done = self.cluster.kubectl(*command, stdin=json.dumps(document))
        accepted = done.returncode == 0
        return Answer(accepted, json.loads(done.stdout) if accepted else {}, done.stderr)
