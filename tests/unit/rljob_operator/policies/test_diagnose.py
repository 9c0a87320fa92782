"""Every stall reason has a run that provokes it."""

import dataclasses

import pytest

from rljob_api import enums, types
from rljob_api.conditions import STALL_REASONS
from rljob_operator.model import Observed, Pod
from rljob_operator.policies import stall
from rljob_testing.operator_runs import operator_job

SINCE, NOW = 1000.0, 1612.0
R, T, V, C = enums.Role.ROLLOUT, enums.Role.TRAINER, enums.Role.VERIFIER, enums.Role.COORDINATOR
J, A, E = enums.Role.JUDGE, enums.Role.AGENTS, enums.Role.ENVIRONMENT


def waits(role: enums.Role, on: enums.Role | str, what: str = "") -> types.Waiting:
    return types.Waiting(role=role, pod=f"{role}-0", what=what or f"work of {on}", on_role=on, since=SINCE)


def with_pods(*pods: Pod) -> Observed:
    return Observed(job=operator_job(), pods=pods)


def process(role: enums.Role, *, state: str = "SERVING", rank: int = 0, version: int = 3) -> types.PodStatus:
    return types.PodStatus(role=role, pod=f"{role}-{rank}", state=state, rank=rank, serving_version=version)


FOR_BATCH = waits(T, R, "batch 41")
RUN = types.RunStatus(job="job", phase=enums.Phase.RUNNING, step=40, last_progress_at=SINCE)
REASON = enums.WaitReason
CASES: dict[str, types.RunStatus] = {
    "TrainerWaitingForTrajectories": dataclasses.replace(RUN, waiting=[FOR_BATCH], pods=[process(R)]),
    "RolloutWaitingForWeights": dataclasses.replace(RUN, waiting=[waits(R, T, REASON.WEIGHTS)], pods=[process(T)]),
    "RolloutWaitingForTrainer": dataclasses.replace(RUN, waiting=[waits(R, T, REASON.STALENESS)], pods=[process(T)]),
    "VerifierSaturated": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, V)]),
    "VerifierFailing": dataclasses.replace(RUN, waiting=[FOR_BATCH], pods=[process(R)], failing_role=V),
    "JudgeSlow": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, J)]),
    "JudgeUnavailable": dataclasses.replace(RUN, waiting=[FOR_BATCH], pods=[process(R)], failing_role=J),
    "WaitingForAgents": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, A, REASON.AGENTS)]),
    "WaitingForEnvironment": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, E, REASON.ENVIRONMENT)]),
    "AllGroupsFiltered": dataclasses.replace(RUN, waiting=[FOR_BATCH], reason="FilterStarvation"),
    "WeightSyncStuck": dataclasses.replace(RUN, waiting=[FOR_BATCH], pods=[process(R, state="APPLYING")]),
    "CheckpointStuck": dataclasses.replace(RUN, waiting=[waits(R, T)], phase=enums.Phase.STOPPING),
    "CollectiveHang": dataclasses.replace(RUN, waiting=[waits(R, T)], pods=[process(T), process(T, rank=1)]),
    "DataSourceStuck": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, C, REASON.NO_PROMPTS)]),
    "CoordinatorUnreachable": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, C, REASON.COORDINATOR)]),
    "LedgerStuck": dataclasses.replace(RUN, reason="LedgerStuck"),
    "WaitCycle": dataclasses.replace(RUN, waiting=[FOR_BATCH, waits(R, T, REASON.STALENESS)]),
    "Unknown": RUN,
}


@pytest.mark.parametrize("reason", CASES)
def test_reason_follows_from_who_waits_for_whom(reason: str) -> None:
    assert stall.diagnose(CASES[reason], with_pods(), now=NOW).reason == reason


@pytest.mark.parametrize(
    ("reason", "pod"),
    [
        ("ImagePullFailed", Pod(name="p", uid="u", role=V, waiting_reason="ErrImagePull")),
        ("PodsUnschedulable", Pod(name="p", uid="u", role=R, conditions=frozenset({("PodScheduled", "False")}))),
    ],
)
def test_what_the_cluster_says_of_a_pod_comes_before_what_processes_wait_for(reason: str, pod: Pod) -> None:
    found = stall.diagnose(CASES["VerifierSaturated"], with_pods(pod), now=NOW)
    assert (found.reason, found.role, found.pod) == (reason, pod.role, "p")


def test_the_agents_pod_that_is_down_is_named_while_sessions_wait() -> None:
    up = Pod(name="job-agents-a", uid="a", role=A, phase="Running", ready=True)
    down = Pod(name="job-agents-b", uid="b", role=A, phase="Running", waiting_reason="CrashLoopBackOff")
    found = stall.diagnose(CASES["WaitingForAgents"], with_pods(up, down), now=NOW)
    assert (found.reason, found.role, found.pod) == ("WaitingForAgents", A, "job-agents-b")
    assert "rollout-0 waits for agents for 612 s" in found.message


def test_every_reason_of_the_closed_set_is_provoked() -> None:
    assert {*CASES, "ImagePullFailed", "PodsUnschedulable"} == set(STALL_REASONS)


def test_diagnosis_names_the_end_of_the_chain_and_its_message_the_whole() -> None:
    found = stall.diagnose(CASES["VerifierSaturated"], with_pods(), now=NOW)
    assert (found.role, found.since) == (V, SINCE)
    assert found.message == "trainer-0 waits for batch 41 for 612 s; rollout-0 waits for work of verifier for 612 s"


def test_of_many_pods_the_one_that_is_behind_is_named() -> None:
    pods = [process(R, rank=0, version=5), process(R, rank=1, version=2, state="APPLYING")]
    assert (
        stall.diagnose(dataclasses.replace(RUN, waiting=[FOR_BATCH], pods=pods), with_pods(), now=NOW).pod
        == "rollout-1"
    )


@pytest.mark.parametrize(
    ("pods", "named"),
    [
        ((), ""),
        ((Pod(name="v-0", uid="0", role=V, ready=True),), "v-0"),
        ((Pod(name="v-0", uid="0", role=V, ready=True), Pod(name="v-1", uid="1", role=V, ready=True)), ""),
        ((Pod(name="v-0", uid="0", role=V, ready=True), Pod(name="v-1", uid="1", role=V)), "v-1"),
        ((Pod(name="v-0", uid="0", role=V, deleting=True), Pod(name="v-1", uid="1", role=V, ready=True)), "v-1"),
        ((Pod(name="r-0", uid="0", role=R),), ""),
    ],
)
def test_pod_of_a_role_that_says_nothing_itself_is_named_where_only_one_can_be_meant(
    pods: tuple[Pod, ...], named: str
) -> None:
    assert stall.diagnose(CASES["VerifierSaturated"], with_pods(*pods), now=NOW).pod == named
