"""The client and its jobs, on an API that answers from lists."""

import importlib
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import rljob
from rljob import errors
from rljob_testing import runtime_makers
from rljob_testing.cluster import manifests
from rljob_testing.examples import ROOT
from rljob_testing.fake_job_api import FakeJobApi, condition, event, stored

COMPLETE = {"step": 4, "summary": "Succeeded", "conditions": [condition("Complete", "MaxStepsReached")]}
FAILED = {"summary": "Failed", "conditions": [condition("Failed", "StallTimeout", "nothing moved")]}


def client(api: FakeJobApi) -> rljob.Client:
    return rljob.Client(api=api)


def pod(name: str, role: str, *, ready: bool = True) -> dict[str, object]:
    state = {"running": {}} if ready else {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "metadata": {"name": name, "labels": {"rljob.dev/role": role}},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"restartCount": 0, "state": state}],
        },
    }


def test_what_is_exported_is_there_and_the_package_is_typed() -> None:
    assert [name for name in rljob.__all__ if not hasattr(rljob, name)] == []
    assert (ROOT / "sdk/rljob/py.typed").is_file()
    for module in pkgutil.iter_modules(rljob.__path__):
        importlib.import_module(f"rljob.{module.name}")


def test_importing_it_loads_no_client_and_nothing_heavy() -> None:
    script = (
        "import sys, rljob; print([name for name in ('kubernetes', 'torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_job_is_sent_as_it_was_written_in_the_namespace_of_the_client() -> None:
    api = FakeJobApi()
    spec = manifests.job("sums", {})["spec"]
    job = client(api).submit(rljob.make("sums", spec, labels={"team": "search"}), dry_run=True)  # type: ignore[arg-type]
    ((_, body, dry_run),) = api.calls
    assert dry_run is True
    assert body["metadata"] == {"name": "sums", "namespace": "research", "labels": {"team": "search"}}  # type: ignore[index]
    assert set(body["spec"]) == set(spec)  # type: ignore[index,arg-type]
    assert (job.name, job.namespace) == ("sums", "research")


def test_a_namespace_of_the_job_counts_more_than_that_of_the_client() -> None:
    api, body = FakeJobApi(), manifests.job("sums", {})
    body["metadata"] = {"name": "sums", "namespace": "team-a"}
    assert client(api).submit(body).namespace == "team-a"


def test_a_file_is_a_job_too(tmp_path: pathlib.Path) -> None:
    api = FakeJobApi()
    assert client(api).submit(ROOT / "crds/examples/dapo.yaml").name == "dapo"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"maxSteps": 0}, "spec.maxSteps"),
        ({"resumeFrom": {"job": "other"}}, "spec.resumeFrom.job"),
        ({"nonsense": 1}, "spec.nonsense"),
    ],
)
def test_a_wrong_job_is_refused_by_field_before_anything_is_sent(changes: dict[str, object], field: str) -> None:
    api = FakeJobApi()
    with pytest.raises(errors.ManifestError) as refused:
        client(api).submit(manifests.job("sums", changes))
    assert any(field in problem for problem in refused.value.problems)
    assert api.calls == []


def test_a_refusal_of_the_server_names_its_fields() -> None:
    body = '{"message": "RLJob is invalid", "details": {"causes": [{"field": "spec.seed", "message": "is immutable"}]}}'
    refused = errors.of_answer(422, body)
    assert isinstance(refused, errors.RefusedError)
    assert refused.problems == (errors.Problem("spec.seed", "is immutable"),)
    assert (str(refused), refused.status) == ("RLJob is invalid", 422)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, errors.NotFoundError), (500, errors.ApiError), (403, errors.RefusedError)]
)
def test_an_answer_that_is_no_status_is_an_error_with_its_text(status: int, kind: type[errors.ApiError]) -> None:
    error = errors.of_answer(status, "<html>bad gateway</html>")
    assert type(error) is kind
    assert str(error) == "<html>bad gateway</html>"


def test_a_watch_yields_each_status_once_and_ends_with_the_run() -> None:
    running = {"step": 1, "summary": "Running"}
    api = FakeJobApi(
        reads=[stored(), stored(version=2)],
        watches=[
            [
                event("MODIFIED", stored(version=3)),
                event("MODIFIED", stored(version=4, status=running)),
                event("MODIFIED", stored(version=5, status=running)),
                event("MODIFIED", stored(version=6, status=COMPLETE)),
            ]
        ],
    )
    job = client(api).get("sums")
    assert [status.step for status in job.watch()] == [None, 1, 4]
    assert job.is_over


def test_steps_are_those_that_are_finished_from_now_on() -> None:
    events = [
        event("MODIFIED", stored(version=version, status={"step": step, "reason": f"r{version}"}))
        for version, step in enumerate((3, 3, 4, 4, 6), start=3)
    ]
    ended = event("MODIFIED", stored(version=9, status=COMPLETE | {"step": 6}))
    api = FakeJobApi(reads=[stored(status={"step": 3})] * 2, watches=[[*events, ended]])
    assert [status.step for status in client(api).get("sums").steps()] == [4, 6]


def test_waiting_returns_the_last_status_of_a_run_that_ended_well() -> None:
    api = FakeJobApi(reads=[stored(), stored(status=COMPLETE)])
    assert client(api).get("sums").wait().step == 4


def test_waiting_for_a_run_that_fails_raises_its_reason() -> None:
    api = FakeJobApi(reads=[stored(), stored(status=FAILED)])
    with pytest.raises(errors.JobFailedError, match="nothing moved") as failed:
        client(api).get("sums").wait()
    assert failed.value.reason == "StallTimeout"


def test_waiting_too_long_is_a_timeout() -> None:
    times = iter(range(0, 1000, 10))
    api = FakeJobApi(reads=[stored(status={"summary": "Running"})], watches=[[]] * 10)
    job = rljob.Job(api, stored(), now=lambda: float(next(times)))
    with pytest.raises(TimeoutError, match="sums is Running after 60 s"):
        job.wait(timeout=60)


def test_why_names_pods_that_do_not_run() -> None:
    api = FakeJobApi(reads=[stored()] * 2, pods=[pod("sums-trainer-0", "trainer", ready=False), pod("r", "rollout")])
    account = client(api).get("sums").why()
    assert [process.sentence for process in account.down] == ["sums-trainer-0: CrashLoopBackOff"]


def test_a_failed_run_is_retried_by_the_next_number_and_no_other_run_is() -> None:
    api = FakeJobApi(reads=[stored(status=FAILED)] * 3 + [stored(status=COMPLETE)])
    job = client(api).get("sums")
    job.retry()
    assert api.calls[-1] == ("patch", "sums", {"spec": {"retry": 1}})
    with pytest.raises(rljob.ManifestError, match="sums is Succeeded: only a run that has Failed is retried"):
        job.retry()


def test_a_job_is_checked_with_its_runtime_where_that_may_be_read() -> None:
    spec = {**manifests.job("sums", {})["spec"], "runtimeRef": {"name": "platform"}}  # type: ignore[dict-item]
    job = rljob.make("sums", {**spec, "security": {"tls": "Disabled"}})
    fixed = runtime_makers.document(fixed={"security": {"tls": "Operator"}})
    api = FakeJobApi(runtime=fixed)
    with pytest.raises(rljob.ManifestError, match="ClusterRLJobRuntime platform fixes it at 'Operator'"):
        client(api).submit(job)
    assert [call[0] for call in api.calls] == ["runtime"]
    hidden = FakeJobApi(runtime=errors.ApiError("forbidden", 403))
    client(hidden).submit(job)
    assert [call[0] for call in hidden.calls] == ["runtime", "apply"]


def test_suspending_and_resuming_are_one_field() -> None:
    api = FakeJobApi(reads=[stored()] * 3)
    job = client(api).get("sums")
    job.suspend()
    job.resume()
    job.delete()
    assert api.calls[1:] == [
        ("patch", "sums", {"spec": {"suspend": True}}),
        ("patch", "sums", {"spec": {"suspend": False}}),
        ("delete", "sums"),
    ]


def test_logs_of_a_role_are_merged_by_time() -> None:
    logs = {
        "sums-rollout-0": ["2026-01-01T00:00:01Z first", "2026-01-01T00:00:03Z third"],
        "sums-rollout-1": ["2026-01-01T00:00:02Z second"],
    }
    pods = [pod("sums-rollout-0", "rollout"), pod("sums-rollout-1", "rollout"), pod("sums-trainer-0", "trainer")]
    job = client(FakeJobApi(reads=[stored()], pods=pods, logs=logs)).get("sums")
    assert [line.msg for line in job.logs("rollout")] == ["first", "second", "third"]


def test_following_more_than_one_pod_is_refused_with_their_names() -> None:
    pods = [pod("a", "rollout"), pod("b", "rollout")]
    job = client(FakeJobApi(reads=[stored()], pods=pods)).get("sums")
    with pytest.raises(errors.ManifestError, match="2 match: name one with pod, of a, b"):
        job.logs("rollout", follow=True)


def test_jobs_are_listed_by_name() -> None:
    api = FakeJobApi(reads=[stored("b"), stored("a")])
    assert [job.name for job in client(api).list("team=search")] == ["a", "b"]
    assert api.calls == [("jobs", "team=search")]
