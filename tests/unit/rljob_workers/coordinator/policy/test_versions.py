from collections.abc import Callable

import pytest

from rljob_api import enums, types
from rljob_workers.coordinator.policy import version_rules

Make = Callable[..., types.WeightVersion]


def known(
    version: int, *, state: enums.VersionState = enums.VersionState.PUBLISHED, artifact: str | None = None
) -> version_rules.Registered:
    return version_rules.Registered(
        version=version, step=version, attempt=1, state=state, superseded=False, state_hash=f"hash-{version}",
        artifact=(f"a{version}" if version else "") if artifact is None else artifact,
    )  # fmt: skip


def outcome(
    proposal: types.WeightVersion, *, existing: version_rules.Registered | None = None, stored: int | None = 8
) -> str:
    return version_rules.judge(proposal, registered=existing, head=4, committed=5, attempt=1, num_bytes=stored).outcome


def test_the_next_id_with_its_bytes_stored_is_accepted(version_maker: Make) -> None:
    assert outcome(version_maker(5, 5)) == "accepted"


def test_a_known_id_is_a_repetition_with_the_same_hash_and_a_conflict_with_another(version_maker: Make) -> None:
    assert outcome(version_maker(4, 4), existing=known(4)) == "repeated"
    assert outcome(version_maker(4, 4, 1, "other"), existing=known(4)) == "conflict"


@pytest.mark.parametrize(
    ("version", "step", "attempt"),
    [
        pytest.param(6, 5, 1, id="an id is skipped"),
        pytest.param(5, 6, 1, id="the step was not committed"),
        pytest.param(5, 5, 2, id="the manifest names another attempt than the session"),
    ],
)
def test_what_does_not_follow_is_a_conflict(version_maker: Make, version: int, step: int, attempt: int) -> None:
    assert outcome(version_maker(version, step, attempt)) == "conflict"


@pytest.mark.parametrize("stored", [None, 7])
def test_a_version_whose_bytes_are_not_stored_whole_is_missing(version_maker: Make, stored: int | None) -> None:
    assert outcome(version_maker(5, 5), stored=stored) == "missing"


def test_the_newest_and_the_needed_are_kept() -> None:
    everything = [known(version) for version in range(8)]
    assert [v.version for v in version_rules.to_retire(everything, keep=3, needed={2})] == [4, 3, 1]


def test_the_head_is_kept_whatever_is_asked() -> None:
    assert [v.version for v in version_rules.to_retire([known(1), known(2)], keep=0, needed=set())] == [1]


def test_bytes_shared_with_a_kept_version_stay() -> None:
    everything = [known(1, artifact="same"), known(2, artifact="same")]
    assert version_rules.to_retire(everything, keep=1, needed=set()) == []


def test_nothing_is_retired_twice() -> None:
    everything = [known(1, state=enums.VersionState.RETIRED), known(2)]
    assert version_rules.to_retire(everything, keep=1, needed=set()) == []


def test_rollouts_stay_on_the_version_under_evaluation() -> None:
    assert version_rules.version_to_load(head=9, evaluating=7) == 7
    assert version_rules.version_to_load(head=9, evaluating=0) == 0
    assert version_rules.version_to_load(head=9, evaluating=None) == 9


def test_a_rollout_goes_back_to_what_is_evaluated_only_without_leases() -> None:
    """Ids along a running sequence must not decrease."""
    assert version_rules.version_to_load(head=9, evaluating=7, serving=9, idle=False) == 9
    assert version_rules.version_to_load(head=9, evaluating=7, serving=9, idle=True) == 7
    assert version_rules.version_to_load(head=9, evaluating=7, serving=6, idle=False) == 7
