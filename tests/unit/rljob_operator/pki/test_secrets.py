"""What is written when, with a clock that tests move, and what pods then trust."""

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest
from rljob_operator.pki import certificates, secrets
from rljob_operator.pki.rotation import DAY_S
from rljob_operator.resources import inputs
from rljob_testing import examples

EXAMPLE = examples.EXAMPLES / "addition-cpu.yaml"
START = 1_800_000_000.0
HOUR_S = 3600.0
Held = dict[str, dict[str, str]]


def _job() -> RLJob:
    job = load_manifest(EXAMPLE.read_text())
    metadata = job.metadata.model_copy(update={"name": "sums", "uid": "u-1", "namespace": "team"})
    return job.model_copy(update={"metadata": metadata})


JOB = _job()


def _reconciled(held: Held, now: float) -> tuple[Held, list[str], float]:
    """Return the Secrets after a pass, the names that it wrote, and when it wants to look again."""
    found = secrets.secrets(JOB, held, trust_domain="cluster.local", now=now)
    written: dict[str, Any] = {each["metadata"]["name"]: each["data"] for each in map(dict[str, Any], found.changed)}
    return {**held, **written}, list(written), found.again_at


def _value(held: Held, name: str, key: str) -> bytes:
    return base64.b64decode(held[name][key])


def _leaf(held: Held, role: enums.Role) -> bytes:
    return _value(held, inputs.certificate_secret(JOB, role), "tls.crt")


def test_a_new_job_gets_a_ca_and_a_leaf_per_role() -> None:
    held, written, again_at = _reconciled({}, START)
    assert written == ["sums-ca", "sums-tls-coordinator", "sums-tls-rollout", "sums-tls-verifier", "sums-tls-trainer"]
    assert set(written) == set(secrets.secret_names(JOB))
    for role in enums.STANDARD_ROLES:
        assert set(held[f"sums-tls-{role}"]) == {"ca.crt", "tls.crt", "tls.key"}
        assert certificates.is_issued_by(_leaf(held, role), _value(held, "sums-ca", "tls.crt"))
        identity, hosts = certificates.names_of(_leaf(held, role))
        assert identity == f"spiffe://cluster.local/ns/team/rljob/sums/role/{role}"
        assert f"sums-{role}.team.svc" in hosts
        assert f"*.sums-{role}.team.svc" in hosts
    # Two thirds of seven days, counted from the start that lies five minutes back.
    assert again_at == pytest.approx(START + (7 * DAY_S + 300) * 2 / 3 - 300, abs=2)


def test_nothing_is_written_while_nothing_is_due() -> None:
    held, _, again_at = _reconciled({}, START)
    assert _reconciled(held, START + 4 * DAY_S)[1] == []
    assert _reconciled(held, again_at - 60)[1] == []


def test_leaves_are_renewed_at_two_thirds_and_the_ca_is_kept() -> None:
    held, _, again_at = _reconciled({}, START)
    _, written, _ = _reconciled(held, again_at + 1)
    assert written == [f"sums-tls-{role}" for role in enums.STANDARD_ROLES]


def test_a_secret_that_somebody_emptied_or_swapped_is_made_again() -> None:
    held, _, _ = _reconciled({}, START)
    broken = {**held, "sums-tls-rollout": {}}
    assert _reconciled(broken, START)[1] == ["sums-tls-rollout"]
    swapped = {**held, "sums-tls-rollout": held["sums-tls-trainer"]}
    assert _reconciled(swapped, START)[1] == ["sums-tls-rollout"]
    nonsense = {**held, "sums-tls-verifier": {**held["sums-tls-verifier"], "tls.key": "%%%"}}
    assert _reconciled(nonsense, START)[1] == ["sums-tls-verifier"]


def test_an_outage_of_the_operator_of_two_days_ends_no_certificate() -> None:
    held, _, again_at = _reconciled({}, START)
    for role in enums.STANDARD_ROLES:
        found = certificates.validity(_leaf(held, role))
        assert found is not None
        assert found.end > again_at + 48 * HOUR_S


def test_a_job_that_was_suspended_for_a_year_starts_with_fresh_certificates() -> None:
    held, _, _ = _reconciled({}, START)
    later, written, _ = _reconciled(held, START + 365 * DAY_S)
    assert set(written) == set(secrets.secret_names(JOB))
    assert certificates.is_issued_by(_leaf(later, enums.Role.ROLLOUT), _value(later, "sums-ca", "tls.crt"))


def test_the_operators_own_certificate_names_the_operator_and_is_short_lived() -> None:
    found = secrets.secrets(JOB, {}, trust_domain="example.org", now=START)
    leaf = secrets.operator_leaf(JOB, found.authorities, trust_domain="example.org", now=START)
    assert certificates.names_of(leaf.certificate)[0] == "spiffe://example.org/ns/team/rljob/sums/role/operator"
    time = certificates.validity(leaf.certificate)
    assert time is not None
    assert time.end - START == 3600


def test_the_key_of_the_ca_is_in_no_secret_that_a_pod_mounts() -> None:
    held, _, _ = _reconciled({}, START)
    key = _value(held, "sums-ca", "tls.key")
    assert all(key not in map(base64.b64decode, held[f"sums-tls-{role}"].values()) for role in enums.STANDARD_ROLES)


def _trusts(bundle: bytes, leaf: bytes, now: float) -> bool:
    time = certificates.validity(leaf)
    if time is None or not time.start <= now < time.end:
        return False
    mark = b"-----END CERTIFICATE-----\n"
    for one in filter(None, bundle.split(mark)):
        issuer = certificates.validity(one + mark)
        if issuer is not None and issuer.start <= now < issuer.end and certificates.is_issued_by(leaf, one + mark):
            return True
    return False


@settings(max_examples=5, deadline=None)
@given(gaps=st.lists(st.floats(6 * HOUR_S, 48 * HOUR_S), min_size=50, max_size=90), stale=st.floats(0.0, 2 * HOUR_S))
def test_every_pod_trusts_every_other_at_any_time_however_late_its_files_are(gaps: list[float], stale: float) -> None:
    """Over months of passes at most 48 hours apart, with pods whose files are up to two hours old."""
    now = START
    held, _, _ = _reconciled({}, now)
    old = held
    for gap in gaps:
        # The moment before the operator comes back, and the moments after, while files are being replaced.
        for moment, one, other in ((now + gap, held, held), (now, old, held), (now, held, old)):
            leaf = _leaf(one, enums.Role.ROLLOUT)
            assert _trusts(_value(other, "sums-tls-coordinator", "ca.crt"), leaf, moment), (moment - START) / DAY_S
        now += gap
        old = held
        held, _, _ = _reconciled(held, now)
        for moment, one, other in ((now + stale, old, held), (now + stale, held, old)):
            # A file is never older than `stale` after a change; a leaf that ended meanwhile is no one's.
            leaf = _leaf(one, enums.Role.TRAINER)
            if (time := certificates.validity(leaf)) is not None and moment < time.end:
                assert _trusts(_value(other, "sums-tls-coordinator", "ca.crt"), leaf, moment)
