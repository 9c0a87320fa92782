import json

import pytest

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_operator.kube import projection
from rljob_operator.model import Observed, Pod
from rljob_operator.policies import isolation
from rljob_operator.reconcile import conditions
from rljob_operator.telemetry import metrics
from rljob_testing.cluster import manifests
from rljob_workers.verifier import preflight
from rljob_workers.verifier.preflight import Layer


def _text(*holding: str, failing: tuple[str, ...] = (), required: tuple[str, ...] = ()) -> str:
    found = [Layer(name, True, "ok") for name in holding] + [Layer(name, False, "ENOSYS") for name in failing]
    return preflight.report(found, required)


def _job(**changes: object) -> RLJob:
    return RLJob.model_validate_json(json.dumps(manifests.job("run", changes)))


def test_pods_that_all_proved_their_layers_are_verified() -> None:
    texts = {"v-0": _text("landlock", "seccomp"), "v-1": _text("landlock", "seccomp", failing=("network",))}
    verdict = isolation.judge(texts)
    assert (verdict.status, verdict.reason) == ("True", "SandboxVerified")
    assert verdict.layers == {"landlock": "holds", "seccomp": "holds", "network": "missing"}


@pytest.mark.parametrize(
    ("holding", "asked", "reason"),
    [
        (("landlock", "seccomp", "user_namespace"), "", "UserNamespaceVerified"),
        (("confined", "user_namespace"), "gvisor", "RuntimeClassVerified"),
    ],
)
def test_the_strongest_proof_is_named(holding: tuple[str, ...], asked: str, reason: str) -> None:
    assert isolation.judge({"v-0": _text(*holding)}, runtime_class=asked, classes={"v-0": "gvisor"}).reason == reason


@pytest.mark.covers("sandbox S-2")
def test_runtime_class_of_every_pod_is_declared_and_holds_only_where_every_kernel_says_so() -> None:
    told = _text("confined", "runtime_class", failing=("landlock",), required=("confined",))
    not_told = _text("confined", "landlock", failing=("runtime_class",), required=("confined",))
    classes = {"v-0": "sand", "v-1": "sand"}
    for second, state in ((not_told, "declared"), (told, "holds")):
        verdict = isolation.judge({"v-0": told, "v-1": second}, runtime_class="sand", classes=classes)
        assert (verdict.status, verdict.reason) == ("True", "RuntimeClassVerified")
        assert verdict.layers == {"confined": "holds", "landlock": "missing", "runtime_class": state}
        assert verdict.required == {"confined", "runtime_class"}


@pytest.mark.covers("sandbox S-2")
@pytest.mark.parametrize(("found", "seen"), [("", "the pod has none"), ("runc", "the pod has 'runc'")])
def test_a_pod_without_the_runtime_class_is_named_whatever_it_says_of_itself(found: str, seen: str) -> None:
    texts = {"v-0": _text("confined"), "v-1": _text("confined", "runtime_class")}
    verdict = isolation.judge(texts, runtime_class="sand", classes={"v-0": "sand", "v-1": found})
    assert (verdict.status, verdict.reason) == ("False", "LayerMissing")
    assert verdict.message == f"v-1: runtime_class 'sand' does not hold ({seen})"
    assert (verdict.layers, verdict.required) == ({"runtime_class": "missing"}, {"runtime_class"})


def test_programs_that_cannot_be_confined_are_a_missing_layer_under_a_runtime_class_too() -> None:
    lacking = _text("runtime_class", failing=("confined",), required=("confined",))
    verdict = isolation.judge({"v-0": lacking}, runtime_class="sand", classes={"v-0": "sand"})
    assert (verdict.status, verdict.reason) == ("False", "LayerMissing")
    assert verdict.message == "v-0: confined does not hold (ENOSYS)"


def test_pods_of_a_runtime_class_are_not_verified_before_their_test_ended() -> None:
    verdict = isolation.judge({"v-0": ""}, runtime_class="sand", classes={"v-0": "sand"})
    assert (verdict.status, verdict.reason) == ("Unknown", "ProbePending")


def test_one_pod_without_a_required_layer_is_named_with_what_it_saw() -> None:
    lacking = _text("seccomp", failing=("landlock",), required=("landlock", "seccomp"))
    verdict = isolation.judge({"v-0": _text("landlock", "seccomp"), "v-1": lacking})
    assert (verdict.status, verdict.reason) == ("False", "LayerMissing")
    assert verdict.message == "v-1: landlock does not hold (ENOSYS)"


def test_an_open_network_has_a_reason_of_its_own() -> None:
    lacking = _text("seccomp", failing=("network",), required=("network",))
    assert isolation.judge({"v-0": lacking}).reason == "NetworkNotEnforced"


def test_a_pod_without_a_report_keeps_the_verdict_open() -> None:
    verdict = isolation.judge({"v-0": _text("seccomp"), "v-1": ""})
    assert (verdict.status, verdict.reason) == ("Unknown", "ProbePending")
    assert verdict.message == "v-1 has not finished its isolation test"
    assert isolation.judge({}).reason == "ProbePending"


@pytest.mark.parametrize(
    "text", ["Killed", "[]", "{}", '{"layers": [], "missing": []}', '{"layers": {"a": 1}}', "null"]
)
def test_what_is_no_report_proves_nothing(text: str) -> None:
    verdict = isolation.judge({"v-0": text})
    assert (verdict.status, verdict.reason) == ("False", "ProbeFailed")


def test_a_test_that_broke_is_named_by_the_end_of_its_log() -> None:
    log = 'Traceback (most recent call last):\n  File "preflight.py", line 1\nNameError: no such layer\n'
    verdict = isolation.judge({"v-0": log, "v-1": _text("seccomp")})
    assert verdict.reason == "ProbeFailed"
    assert verdict.message == "v-0: its isolation test reported nothing (NameError: no such layer)"


def test_a_pods_report_is_the_last_word_of_its_first_container_and_its_runtime_class_its_own() -> None:
    text = _text("seccomp")
    status = {"name": "preflight", "state": {"terminated": {"exitCode": 0, "message": text}}}
    again = {
        "name": "preflight",
        "state": {"waiting": {}},
        "lastState": {"terminated": {"exitCode": 79, "message": "x"}},
    }
    other = {**status, "name": "other"}
    killed = {"name": "preflight", "state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 137}}}
    for given, expected in (([status], text), ([again], "x"), ([killed], "exit code 137"), ([other], ""), ([], "")):
        raw = {
            "metadata": {
                "name": "v-0",
                "uid": "p",
                "resourceVersion": "1",
                "labels": {"rljob.dev/role": "verifier", "rljob.dev/uid": "u-1"},
                "ownerReferences": [{"uid": "r", "controller": True}],
            },
            "spec": {"runtimeClassName": "sand"},
            "status": {"initContainerStatuses": given},
        }
        kept = projection.project_pod(json.loads(json.dumps(raw)))
        assert kept is not None
        assert (kept.pod.preflight, kept.pod.runtime_class) == (expected, "sand")


def test_a_refused_verifier_is_why_nothing_runs() -> None:
    lacking = _text("seccomp", failing=("landlock",), required=("landlock",))
    pod = Pod(name="v-0", uid="p", role=enums.Role.VERIFIER, waiting_reason="CrashLoopBackOff", preflight=lacking)
    seen = Observed(job=_job(), pods=(pod,))
    found = {one.type: one for one in conditions.conditions(seen, conditions.RunOutcome(), now=0.0)}
    verified, ready = found["IsolationVerified"], found["VerifierReady"]
    assert (verified.status, verified.reason) == ("False", "LayerMissing")
    assert (ready.status, ready.reason, ready.message) == ("False", "IsolationUnverified", verified.message)


def test_a_job_without_isolation_says_nothing_about_it() -> None:
    seen = Observed(job=_job(**{"verifier.isolation": {"type": "None"}, "verifier.allowUnsafe": True}))
    types = [one.type for one in conditions.conditions(seen, conditions.RunOutcome(), now=0.0)]
    assert "IsolationVerified" not in types


def test_a_declared_runtime_class_is_in_the_condition_and_the_metric() -> None:
    text = _text("confined", failing=("landlock", "runtime_class"), required=("confined",))
    pod = Pod(name="v-0", uid="p", role=enums.Role.VERIFIER, preflight=text, runtime_class="sand")
    seen = Observed(
        job=_job(**{"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "sand"}}), pods=(pod,)
    )
    found = {one.type: one for one in conditions.conditions(seen, conditions.RunOutcome(), now=0.0)}
    assert (found["IsolationVerified"].status, found["IsolationVerified"].reason) == ("True", "RuntimeClassVerified")
    counted = metrics.Metrics()
    counted.saw("team/run", seen, certificate_ends={})
    lines = [line for line in counted.exposition().decode().splitlines() if line.startswith("rljob_isolation_layer{")]
    assert {(line.split('layer="')[1].split('"')[0], 'required="true"' in line, line[-3:]) for line in lines} == {
        ("runtime_class", True, "1.0"),
        ("confined", True, "1.0"),
        ("landlock", False, "0.0"),
    }


def test_a_metric_says_of_each_layer_whether_it_is_required_and_holds_everywhere() -> None:
    failing, required = ("network", "confined"), ("landlock", "confined", "no_token")
    text = _text("landlock", "seccomp", "no_token", failing=failing, required=required)
    pod = Pod(name="v-0", uid="p", role=enums.Role.VERIFIER, preflight=text)
    counted = metrics.Metrics()
    counted.saw("team/run", Observed(job=_job(), pods=(pod,)), certificate_ends={})
    lines = [line for line in counted.exposition().decode().splitlines() if line.startswith("rljob_isolation_layer{")]
    assert {(line.split('layer="')[1].split('"')[0], 'required="true"' in line, line[-3:]) for line in lines} == {
        ("landlock", True, "1.0"),
        ("seccomp", False, "1.0"),
        ("network", False, "0.0"),
        ("confined", True, "0.0"),
    }
