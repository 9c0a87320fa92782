"""`rljob submit` and the extras that commands need. `kubectl` is a small program here that notes its words."""

import importlib.util
from collections.abc import Callable

import pytest
from typer.testing import Result

from rljob_api import errors
from rljob_testing import examples, runtime_makers
from rljob_testing.fake_kubectl import FakeKubectl
from rljob_workers.cli import extras

Rljob = Callable[..., Result]
FOR_CLUSTERS = str(examples.ROOT / "crds/examples/dapo.yaml")
FOR_ONE_MACHINE = str(examples.ROOT / "crds/examples/addition-cpu.yaml")


def test_a_job_is_applied_server_side_in_the_namespace_of_the_option(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers("apply", "rljob.rljob.dev/dapo serverside-applied\n")
    result = rljob("submit", FOR_CLUSTERS, "-n", "research", "--context", "prod")
    assert (result.exit_code, result.stdout) == (0, "rljob.rljob.dev/dapo serverside-applied\n"), result.output
    (call,) = kubectl.calls()
    assert call.startswith("--namespace=research --context=prod apply --server-side")
    assert "--dry-run" not in call


def test_a_dry_run_only_asks_the_server(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers("apply", "rljob.rljob.dev/dapo serverside-applied (server dry run)\n")
    assert rljob("submit", FOR_CLUSTERS, "--dry-run").exit_code == 0
    assert "--dry-run=server" in kubectl.calls()[0]


def test_a_job_that_every_cluster_refuses_is_not_sent(rljob: Rljob, kubectl: FakeKubectl) -> None:
    result = rljob("submit", FOR_CLUSTERS, "--set", "spec.resumeFrom={job: another}")
    assert result.exit_code == 2
    assert "spec.resumeFrom.job" in result.stderr
    assert kubectl.calls() == []


def test_what_a_job_leaves_out_may_be_said_by_a_runtime_of_the_cluster(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers("apply", "rljob.rljob.dev/dapo serverside-applied\n")
    assert rljob("submit", FOR_CLUSTERS, "--set", "spec.storage={}").exit_code == 0
    assert len(kubectl.calls()) == 1


PLATFORM = ("--set", "spec.runtimeRef={name: platform}")


def test_a_job_is_checked_with_the_values_of_the_runtime_that_it_names(rljob: Rljob, kubectl: FakeKubectl) -> None:
    runtime = runtime_makers.document(fixed={"trainer": {"processesPerNode": 5}, "security": {"tls": "Operator"}})
    kubectl.answers("get clusterrljobruntimes.rljob.dev platform", runtime)
    result = rljob("submit", FOR_CLUSTERS, *PLATFORM, "--set", "spec.security={tls: Disabled}")
    assert result.exit_code == 2
    assert "spec.security.tls is 'Disabled', but ClusterRLJobRuntime platform fixes it at" in result.stderr
    assert not any("apply" in call for call in kubectl.calls())


def test_storage_that_neither_job_nor_runtime_names_is_refused_before_the_server_is_asked(
    rljob: Rljob, kubectl: FakeKubectl
) -> None:
    kubectl.answers("apply", "rljob.rljob.dev/dapo serverside-applied\n")
    without = ("submit", FOR_CLUSTERS, *PLATFORM, "--set", "spec.storage={}")
    kubectl.answers("get clusterrljobruntimes.rljob.dev platform", runtime_makers.document())
    result = rljob(*without)
    assert (result.exit_code, "spec.storage.type is null" in result.stderr) == (2, True), result.stderr
    storage = {"type": "Persistent", "checkpoints": {"claimName": "team", "accessMode": "ReadWriteMany"}}
    kubectl.answers(
        "get clusterrljobruntimes.rljob.dev platform", runtime_makers.document(defaults={"storage": storage})
    )
    result = rljob(*without)
    assert result.exit_code == 0, result.stderr
    assert "storage" not in kubectl.calls()[-1]


def test_a_runtime_that_may_not_be_read_is_named_and_the_job_is_sent(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers("apply", "rljob.rljob.dev/dapo serverside-applied\n")
    result = rljob("submit", FOR_CLUSTERS, *PLATFORM)
    assert result.exit_code == 0
    assert "note: ClusterRLJobRuntime platform cannot be read (kubectl get clusterrljobruntimes" in result.stderr


def test_what_the_server_refuses_is_its_own_sentence(rljob: Rljob, kubectl: FakeKubectl) -> None:
    result = rljob("submit", FOR_CLUSTERS)
    assert result.exit_code == 1
    assert result.stderr == "error: kubectl apply: Error from server (NotFound): no.apply\n"
    assert kubectl.calls()


@pytest.mark.parametrize(
    ("words", "lacking", "remedy"),
    [
        (("run", FOR_ONE_MACHINE), {"deepspeed", "vllm"}, "rljob[trainer,cpu], with rollout in place of cpu"),
        (("eval", FOR_ONE_MACHINE), {"math_verify"}, "rljob[verifier]"),
        (("report",), {"matplotlib"}, "rljob[local]"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    rljob: Rljob, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], lacking: set[str], remedy: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in lacking else find_spec(name))
    result = rljob(*words)
    assert result.exit_code == 2
    assert f"`rljob {words[0]}` needs" in result.stderr
    assert remedy in result.stderr


def test_nothing_is_required_where_everything_is_installed() -> None:
    extras.require("run", extras.RUN)
    with pytest.raises(errors.ManifestError, match=r"install rljob\[local\]$"):
        extras.require("report", {"local": "no_such_module"})
