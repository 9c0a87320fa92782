"""Commands about a job in a cluster. `kubectl` is a small program here that answers from files and notes its words."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from typer.testing import Result

from rljob_api.conditions import STALLS, ConditionType
from rljob_testing.fake_kubectl import FakeKubectl
from rljob_workers.cli import cluster, cluster_logs

Rljob = Callable[..., Result]

RESOURCE = "rljobs.rljob.dev"


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip


STATUS: dict[str, object] = {
    "summary": "Running",
    "step": 41,
    "conditions": [condition("Running", "True", "Running")],
    "roles": [
        {"name": "rollout", "desired": 4, "ready": 3, "restarts": 2},
        {"name": "trainer", "desired": 1, "ready": 1},
    ],
    "rollout": {"replicas": 4, "ready": "3/4"},
    "version": {"lag": 1},
    "reward": {"mean": "0.62", "step": 41},
}
STALLED = {
    "summary": "Stalled",
    "step": 41,
    "conditions": [
        condition(
            "Stalled", "True", "VerifierSaturated", "trainer-0 waits for batch 42 for 9 s; r-1 waits for verifier"
        )
    ],
    "stalled": {"role": "verifier", "pod": "sums-verifier-0", "reason": "VerifierSaturated"},
}


def job(status: Mapping[str, object], name: str = "sums") -> dict[str, object]:
    return {
        "metadata": {"name": name, "namespace": "research"},
        "spec": {"maxSteps": 200, "failurePolicy": {"stall": {"timeoutSeconds": 600}}},
        "status": status,
    }


def pod(name: str, role: str, *, waiting: str = "", restarts: int = 0) -> dict[str, Any]:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    return {
        "metadata": {"name": name, "labels": {"rljob.dev/role": role}},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False" if waiting else "True"}],
            "containerStatuses": [{"restartCount": restarts, "state": state}],
        },
    }


def errors_of(result: Result) -> str:
    return result.stderr.removeprefix("error: ").strip()


def test_status_has_what_was_used(rljob: Rljob, kubectl: FakeKubectl) -> None:
    used = {
        "asOf": "2026-01-01T00:00:00Z", "gpuSeconds": 9000, "cpuCoreSeconds": "5400.250",
        "generatedTokens": 1234567, "trainedTokens": 9000,
    }  # fmt: skip
    kubectl.answers(f"get {RESOURCE} sums", job({**STATUS, "usage": used}))
    lines = rljob("status", "sums", "--cluster").stdout.splitlines()
    assert "used 2.5 GPU hours, 1.5 core hours, 1,234,567 tokens generated, 9,000 tokens trained" in lines


def test_status_reads_the_rljob_alone_and_shows_roles_and_progress(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job(STATUS))
    result = rljob("status", "sums", "--cluster", "--namespace", "research", "--context", "prod")
    assert result.stdout.splitlines() == [
        "rollout        3/4 ready  2 restarts",
        "trainer        1/1 ready",
        "Running",
        "step 41/200  reward 0.62  rollout 3/4  lag 1",
    ]
    (call,) = kubectl.calls()
    assert call.startswith(f"--namespace=research --context=prod get {RESOURCE} sums")


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, "Running, supervised step 1 of 20"), (19, "Running, supervised step 20 of 20"), (20, "Running")],
)
def test_supervised_steps_are_told_until_they_are_over(
    rljob: Rljob, kubectl: FakeKubectl, step: int, expected: str
) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job(STATUS | {"step": step, "sftSteps": 20}))
    kubectl.answers("get pods", {"items": []})
    kubectl.answers("get events", {"items": []})
    assert rljob("status", "sums", "--cluster").stdout.splitlines()[2] == expected
    assert rljob("why", "sums", "--cluster").stdout.splitlines()[0] == f"sums: {expected}; {step} of 200 steps done"


def test_status_tells_what_the_job_goes_on_without(rljob: Rljob, kubectl: FakeKubectl) -> None:
    lost = {"accepted": 9, "tooLong": 2, "dumpFailures": 1}
    kubectl.answers(f"get {RESOURCE} sums", job(STATUS | {"trajectories": lost}))
    dropped, unwritten = rljob("status", "sums", "--cluster").stdout.splitlines()[-2:]
    assert dropped.startswith("2 groups left out, because the prompt is longer")
    assert unwritten.startswith("1 trajectory dump could not be written")


PACE = {
    "step": 41, "stepSeconds": "27.2", "tokensPerSecond": "412", "trainerWaitShare": "0.08", "rolloutWaitShare": "0.31",
    "rewardDelta": "0.03",
}  # fmt: skip


def test_progress_line_of_a_cluster_is_that_of_a_run_on_one_machine(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job({**STATUS, "pace": PACE}))
    assert rljob("status", "sums", "--cluster").stdout.splitlines()[-1] == (
        "step 41/200  reward 0.62 (+0.03)  rollout 3/4  lag 1  trainer waits 8 %  rollouts wait 31 %  412 tok/s"
        "  ETA 1h12m"
    )


def test_change_of_the_reward_is_left_out_where_it_is_of_another_step(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job({**STATUS, "pace": {**PACE, "step": 40}}))
    assert "reward 0.62  rollout" in rljob("status", "sums", "--cluster").stdout


def test_called_as_kubectls_plug_in_a_command_is_about_the_cluster(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE}", {"items": [job(STATUS)]})
    result = rljob("status", "-o", "json", prog_name="kubectl rljob")
    body = json.loads(result.stdout)
    assert (body["job"], body["running"], body["maxSteps"]) == ("sums", True, 200)
    assert body["status"] == STATUS


def test_stall_is_told_with_its_whole_chain(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job(STALLED))
    last = rljob("status", "sums", "--cluster").stdout.splitlines()[-1]
    assert last.startswith("stalled (VerifierSaturated): trainer-0 waits for batch 42")


def test_why_names_the_culprit_pods_in_trouble_and_the_last_events(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job(STALLED))
    pods = [pod("sums-verifier-0", "verifier", waiting="CrashLoopBackOff", restarts=7), pod("sums-r-0", "rollout")]
    kubectl.answers("get pods", {"items": pods})
    event = {"type": "Warning", "reason": "VerifierSaturated", "message": "Stalled: nothing\x1b[2J"}
    events = [
        {**event, "metadata": {}, "lastTimestamp": f"2026-01-01T00:0{minute}:00Z", "message": f"event {minute}\x1b"}
        for minute in (3, 1, 2)
    ]
    kubectl.answers("get events", {"items": events})
    last = '{"level": "error", "msg": "no room for scratch files"}'
    kubectl.answers("logs sums-verifier-0", f"Traceback\x1b\n\n{last}\n")
    assert rljob("why", "sums", "-n", "research", "--events", "2").stdout.splitlines() == [
        "sums: Stalled; 41 of 200 steps done",
        "not running",
        "  sums-verifier-0: CrashLoopBackOff, restarted 7 times",
        r"    | Traceback\x1b",
        "    | error: no room for scratch files",
        "blocked by sums-verifier-0: VerifierSaturated",
        "  trainer-0 waits for batch 42 for 9 s",
        "  r-1 waits for verifier",
        f"  {STALLS['VerifierSaturated'].hint}",
        "last events (UTC)",
        r"  2026-01-01 00:02:00.000 event        warning: VerifierSaturated: event 2\x1b",
        r"  2026-01-01 00:03:00.000 event        warning: VerifierSaturated: event 3\x1b",
    ]
    assert any("--selector=rljob.dev/job=sums" in call for call in kubectl.calls())
    (asked,) = (call for call in kubectl.calls() if " logs " in call)
    assert asked.endswith("logs sums-verifier-0 --container=rljob --tail=4 --previous"), "how the last one ended"


def test_why_asks_for_no_log_of_a_pod_that_never_ran_and_does_without_one_that_is_gone(
    rljob: Rljob, kubectl: FakeKubectl
) -> None:
    kubectl.answers(f"get {RESOURCE} sums", job(STATUS))
    unready = pod("sums-r-0", "rollout")
    unready["status"]["conditions"] = []
    pods = [pod("sums-r-1", "rollout", waiting="ImagePullBackOff"), unready]
    kubectl.answers("get pods", {"items": pods})
    kubectl.answers("get events", {"items": []})
    told = rljob("why", "sums", "--cluster").stdout.splitlines()
    assert "  sums-r-1: ImagePullBackOff" in told
    assert [call for call in kubectl.calls() if "logs" in call] == ["logs sums-r-0 --container=rljob --tail=4"]
    assert not [line for line in told if line.startswith("    |")]


def test_why_of_a_failed_job_tells_the_condition_and_blames_no_pod_that_is_gone(
    rljob: Rljob, kubectl: FakeKubectl
) -> None:
    failed = condition("Failed", "True", "RestartLimitExceeded", "trainer failed 6 times")
    kubectl.answers(f"get {RESOURCE} sums", job({"summary": "Failed", "step": 3, "conditions": [failed]}))
    kubectl.answers("get pods", {"items": [pod("sums-trainer-0", "trainer", waiting="Error")]})
    kubectl.answers("get events", {"items": []})
    assert rljob("why", "sums", "--cluster").stdout.splitlines() == [
        "sums: Failed (RestartLimitExceeded): trainer failed 6 times; 3 of 200 steps done"
    ]


def log_line(second: int, msg: str) -> str:
    at = f"2026-01-01T00:00:{second:02d}.000000000Z"
    own = {"ts": f"2026-01-01T00:00:{second:02d}.000+00:00", "level": "info", "msg": msg, "step": second}
    return f"{at} {json.dumps(own)}\n"


@pytest.fixture
def logging_job(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.answers(f"get {RESOURCE} sums", job(STATUS))
    pods = [pod(f"sums-{name}", name.split("-")[0]) for name in ("trainer-0", "rollout-0")]
    kubectl.answers("get pods", {"items": pods})
    kubectl.answers(
        "logs sums-trainer-0", log_line(1, "a") + "2026-01-01T00:00:02.5Z Traceback\n" + log_line(9, "d\x1b")
    )
    kubectl.answers("logs sums-rollout-0", log_line(2, "b") + log_line(3, "c"))
    return kubectl


def test_logs_of_all_pods_are_merged_by_time(rljob: Rljob, logging_job: FakeKubectl) -> None:
    shown = rljob("logs", "sums", "--cluster").stdout.splitlines()
    assert [line.split(" ", 2)[2].split() for line in shown] == [
        ["trainer-0", "a", "step=1"],
        ["rollout-0", "b", "step=2"],
        ["trainer-0", "Traceback"],
        ["rollout-0", "c", "step=3"],
        ["trainer-0", r"d\x1b", "step=9"],
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("--role", "rollout"), ["b", "c"]), (("--step", "3-9"), ["c", "d\x1b"]), (("--tail", "1"), ["d\x1b"])],
)
def test_logs_are_filtered_as_on_this_machine(
    rljob: Rljob, logging_job: FakeKubectl, words: tuple[str, ...], expected: list[str]
) -> None:
    result = rljob("logs", "sums", "--cluster", "-o", "json", *words)
    assert [json.loads(line)["msg"] for line in result.stdout.splitlines()] == expected


def test_pod_without_a_log_does_not_hide_those_of_the_others(rljob: Rljob, logging_job: FakeKubectl) -> None:
    pods = [pod("sums-rollout-0", "rollout"), pod("sums-verifier-0", "verifier", waiting="ContainerCreating")]
    logging_job.answers("get pods", {"items": pods})
    shown = rljob("logs", "sums", "--cluster").stdout
    assert "verifier-0   warning: kubectl logs: Error from server (NotFound)" in shown
    assert "rollout-0    c" in shown


def test_following_asks_once_for_all_pods_and_names_each(rljob: Rljob, logging_job: FakeKubectl) -> None:
    logging_job.answers("logs", f"[pod/sums-trainer-0/rljob] {log_line(5, 'later')}")
    result = rljob("logs", "sums", "--cluster", "--follow", "--tail", "3", "-o", "json")
    assert [(body["source"], body["msg"]) for body in map(json.loads, result.stdout.splitlines())] == [
        ("trainer-0", "later")
    ]
    assert "--follow --max-log-requests=64 --tail=3" in logging_job.calls()[-1]


def test_more_pods_than_can_be_read_at_once_are_refused(rljob: Rljob, logging_job: FakeKubectl) -> None:
    pods = [pod(f"sums-rollout-{index}", "rollout") for index in range(cluster_logs.MAX_PODS + 1)]
    logging_job.answers("get pods", {"items": pods})
    result = rljob("logs", "sums", "--cluster")
    assert result.exit_code == 2
    assert errors_of(result) == "65 pods are more than 64 at once: choose with --role"


def test_words_of_kubectl_are_passed_on_with_exit_code_one(rljob: Rljob, kubectl: FakeKubectl) -> None:
    result = rljob("status", "nobody", "--cluster")
    assert result.exit_code == 1
    assert errors_of(result) == f"kubectl get {RESOURCE}: Error from server (NotFound): no.get.{RESOURCE}.nobody"


def test_job_that_no_operator_has_seen_is_no_error(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers(f"get {RESOURCE} sums", {**job({}), "status": None})
    assert rljob("status", "sums", "--cluster").stdout.splitlines() == ["not seen by an operator yet", "step 0/200"]


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([], "no RLJob was found in this namespace"),
        ([job(STATUS, "one"), job(STATUS, "two")], "there are 2 RLJobs in this namespace (one, two): specify one"),
    ],
)
def test_without_a_name_the_job_must_be_the_only_one(
    rljob: Rljob, kubectl: FakeKubectl, items: list[object], problem: str
) -> None:
    kubectl.answers(f"get {RESOURCE}", {"items": items})
    result = rljob("why", "--cluster")
    assert result.exit_code == 2
    assert problem in errors_of(result)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("status", "--cluster", "--", "--all"), "JOB is '--all'"),
        (("status", "Sums", "--cluster"), "JOB is 'Sums'"),
        (("why", "sums", "-n", "a b"), "--namespace is 'a b'"),
        (("logs", "sums", "--cluster", "--run-dir", "x"), "cannot be combined"),
    ],
)
def test_what_might_read_as_an_option_never_reaches_kubectl(
    rljob: Rljob, kubectl: FakeKubectl, words: tuple[str, ...], problem: str
) -> None:
    result = rljob(*words)
    assert result.exit_code == 2
    assert problem in errors_of(result)


def test_missing_kubectl_is_a_sentence(rljob: Rljob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = rljob("status", "sums", "--cluster")
    assert result.exit_code == 2
    assert errors_of(result).startswith("kubectl is not on the PATH")


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"phase": "Succeeded"}, ""),
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        (
            {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
            "OOMKilled with code 137",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]},
            "ErrImagePull: no such image",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]},
            "Unschedulable: 0/3",
        ),
    ],
)
def test_trouble_of_a_pod_is_the_first_that_explains_it(status: dict[str, object], trouble: str) -> None:
    assert cluster.pod_of({"metadata": {"name": "p"}, "status": status}).trouble == trouble


def test_conditions_that_decide_are_those_of_the_api() -> None:
    found = cluster.job_of(job(STALLED))
    assert found.holds(ConditionType.STALLED)
    assert not found.holds(ConditionType.FAILED)
    assert found.stalled_after_s == 600.0


@pytest.mark.parametrize(
    ("program", "expected"), [("kubectl-rljob", "kubectl is not on"), ("rljob", "is not a run directory")]
)
def test_name_of_the_program_says_whether_it_is_a_plug_in(tmp_path: pathlib.Path, program: str, expected: str) -> None:
    script = (
        "import sys\nfrom rljob_workers.cli.__main__ import main\n"
        f"sys.argv = ['/usr/local/bin/{program}', 'status', 'sums']\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert expected in done.stderr
