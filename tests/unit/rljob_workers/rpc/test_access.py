import pytest

from rljob_api import enums
from rljob_workers.rpc import access

C, R, V, T, OPERATOR = "coordinator", "rollout", "verifier", "trainer", "operator"
# docs/design/operator.md#s-13-3, and the calls that it does not name: uploads are publishing, a stop is the
# operator's, and episodes are the rollouts'.
OPEN = {
    "Work/Register": {R, T},
    "Work/Heartbeat": {R, T},
    "Work/LeaseGroups": {R},
    "Work/SubmitGroup": {R},
    "Work/ReleaseGroup": {R},
    "Work/Watch": {R},
    "Weights/Manifest": {R},
    "Weights/Pieces": {R},
    "Broadcasts/Follow": {R},
    "Broadcasts/Report": {R},
    "WeightStore/Pull": {R},
    "Verifier/Verify": {R},
    **{f"Environment/{call}": {R} for call in ("Claim", "Exec", "Read", "Write", "Reset", "Release")},
    "Train/FetchBatch": {T},
    "Train/CommitStep": {T},
    "Train/CommitCheckpoint": {T},
    "Weights/Publish": {T},
    "WeightStore/Upload": {T},
    "RunStatus/Status": {OPERATOR},
    "RunStatus/WatchStatus": {OPERATOR},
    "RunStatus/Stop": {OPERATOR},
}


def _why(method: str, *identities: str) -> str | None:
    return access.refusal(method, identities, trust_domain="cluster.local", namespace="team", job="sums")


@pytest.mark.parametrize("caller", [C, R, V, T, OPERATOR])
@pytest.mark.parametrize("call", OPEN)
def test_a_call_is_open_to_the_roles_of_the_reference_and_closed_to_the_rest(call: str, caller: str) -> None:
    identity = enums.identity("cluster.local", "team", "sums", caller)
    assert (_why(f"/rljob.v1.{call}", identity) is None) is (caller in OPEN[call])


def test_every_call_of_every_service_has_a_row() -> None:
    from rljob_api.wire.v1 import environment_pb2, status_pb2, train_pb2, verify_pb2, weights_pb2, work_pb2

    served = {
        f"{service.name}/{method.name}"
        for module in (environment_pb2, status_pb2, train_pb2, verify_pb2, weights_pb2, work_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    # The weight store's calls carry raw bytes and have no descriptor.
    assert served | {"WeightStore/Upload", "WeightStore/Pull"} == set(OPEN)
    assert set(access.CALLERS) == {f"/rljob.v1.{call}" for call in OPEN}


def test_a_call_without_a_row_is_closed_to_everybody() -> None:
    assert _why("/rljob.v1.Work/Erase", enums.identity("cluster.local", "team", "sums", R)) is not None
    assert _why("/grpc.health.v1.Health/Check", enums.identity("cluster.local", "team", "sums", R)) is not None


@pytest.mark.parametrize(
    "identity",
    [
        "spiffe://cluster.local/ns/team/rljob/other/role/rollout",
        "spiffe://cluster.local/ns/else/rljob/sums/role/rollout",
        "spiffe://example.org/ns/team/rljob/sums/role/rollout",
        "spiffe://cluster.local/ns/team/rljob/sums/role/rollout/more",
        "spiffe://cluster.local/ns/team/rljob/sums/role/Rollout",
        "",
    ],
)
def test_another_jobs_rollout_is_nobody_here(identity: str) -> None:
    assert _why("/rljob.v1.Work/LeaseGroups", identity) == f"{identity} may not call /rljob.v1.Work/LeaseGroups"


def test_a_certificate_with_no_identity_or_with_two_opens_nothing() -> None:
    ours = enums.identity("cluster.local", "team", "sums", R)
    assert _why("/rljob.v1.Work/LeaseGroups") is not None
    assert _why("/rljob.v1.Work/LeaseGroups", ours, ours) is not None
