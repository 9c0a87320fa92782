import dataclasses
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, types
from rljob_workers.coordinator.policy import version_plan, version_rules

Make = Callable[..., types.WeightVersion]


def artifact(name: str, num_bytes: int, encoding: enums.Encoding = enums.Encoding.WHOLE) -> types.Artifact:
    return types.Artifact(artifact_id=name, encoding=encoding, num_bytes=num_bytes)


def known(
    version: int,
    *,
    state: enums.VersionState = enums.VersionState.PUBLISHED,
    whole: str | None = "own",
    base: int | None = None,
    attempt: int = 1,
) -> version_rules.Registered:
    """Return a version of 100 bytes (named a<id> unless `whole` says otherwise, None for none); with a base its changes
    are d<id>, 10 bytes.
    """
    name = f"a{version}" if whole == "own" else whole
    return version_rules.Registered(
        version=version, step=version, attempt=attempt, state=state, superseded=False, state_hash=f"hash-{version}",
        whole=artifact(name, 100) if name and version else None,
        changes=None if base is None else artifact(f"d{version}", 10, enums.Encoding.DELTA),
        base=types.NO_VERSION if base is None else base,
    )  # fmt: skip


def changes_of(
    proposal: types.WeightVersion, *, whole: bool = False, base: int | None = None, state_hash: str = ""
) -> types.WeightVersion:
    """Return the proposal with changes against the version before it, and with its whole image if that is asked for."""
    against = proposal.version - 1 if base is None else base
    return dataclasses.replace(
        proposal,
        kind=enums.VersionKind.ANCHOR if whole else enums.VersionKind.DELTA,
        base=against,
        base_state_hash=state_hash or f"hash-{against}",
        artifacts=(artifact("d", 3, enums.Encoding.DELTA), *(proposal.artifacts if whole else ())),
    )


def outcome(
    proposal: types.WeightVersion,
    *,
    existing: version_rules.Registered | None = None,
    stored: int | None = 8,
    base: version_rules.Registered | None = None,
    base_can_be_had: bool = True,
) -> str:
    answer = version_rules.judge(
        proposal, registered=existing, base=base, head=4, committed=5, attempt=1,
        stored={f"a{proposal.version}": stored, "d": 3}, base_can_be_had=base_can_be_had,
    )  # fmt: skip
    return answer.outcome


def test_the_next_id_with_its_bytes_stored_is_accepted(version_maker: Make) -> None:
    assert outcome(version_maker(5, 5)) == "accepted"


@pytest.mark.covers("weights W-1", "weights W-8")
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


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.covers("weights 3")
def test_changes_against_the_version_before_are_accepted_with_and_without_the_whole_image(
    version_maker: Make, whole: bool
) -> None:
    assert outcome(changes_of(version_maker(5, 5), whole=whole), base=known(4)) == "accepted"


@pytest.mark.parametrize(
    ("base", "state_hash", "registered"),
    [
        pytest.param(3, "", known(3), id="against an older version"),
        pytest.param(4, "", None, id="against a version that does not exist"),
        pytest.param(4, "other", known(4), id="against other bits"),
        pytest.param(4, "", known(4, attempt=0), id="against a version of the attempt before"),
    ],
)
@pytest.mark.covers("weights 2", "weights W-8")
def test_changes_against_anything_but_what_the_publisher_published_last_are_a_conflict(
    version_maker: Make, base: int, state_hash: str, registered: version_rules.Registered | None
) -> None:
    proposal = changes_of(version_maker(5, 5), base=base, state_hash=state_hash)
    assert outcome(proposal, base=registered) == "conflict"


def test_the_first_changes_may_be_against_the_model_files(version_maker: Make) -> None:
    proposal = changes_of(version_maker(1, 1))
    answer = version_rules.judge(
        proposal, registered=None, base=known(0, attempt=0), head=0, committed=1, attempt=1, stored={"d": 3},
        base_can_be_had=True,
    )  # fmt: skip
    assert answer.outcome == "accepted"


def test_changes_whose_base_can_no_longer_be_had_are_missing_the_whole_image(version_maker: Make) -> None:
    proposal = changes_of(version_maker(5, 5))
    assert outcome(proposal, base=known(4), base_can_be_had=False) == "missing"
    with_image = changes_of(version_maker(5, 5), whole=True)
    assert outcome(with_image, base=known(4), base_can_be_had=False) == "accepted"


def test_artifacts_that_contradict_the_kind_are_a_conflict(version_maker: Make) -> None:
    dense = version_maker(5, 5)
    for proposal in (
        dataclasses.replace(dense, artifacts=()),
        dataclasses.replace(dense, artifacts=dense.artifacts * 2),
        dataclasses.replace(dense, kind=enums.VersionKind.DELTA),
        dataclasses.replace(dense, base=4),
        dataclasses.replace(changes_of(dense), base=types.NO_VERSION),
    ):
        assert outcome(proposal, base=known(4)) == "conflict"


def test_a_repetition_must_have_its_bytes_too(version_maker: Make) -> None:
    assert outcome(version_maker(4, 4), existing=known(4), stored=None) == "missing"


def test_the_newest_and_the_needed_are_kept() -> None:
    everything = [known(version) for version in range(8)]
    assert [v.version for v in version_rules.to_retire(everything, keep=3, needed={2})] == [4, 3, 1]


def line(*anchors: int, newest: int) -> list[version_rules.Registered]:
    """Return versions 1 to `newest`: the first of a trainer has no changes, `anchors` are whole."""
    return [
        known(version, whole="own" if version in anchors else None, base=None if version == 1 else version - 1)
        for version in range(1, newest + 1)
    ]


def retired(everything: list[version_rules.Registered], *, keep: int = 2, needed: set[int]) -> list[int]:
    return sorted(v.version for v in version_rules.to_retire(everything, keep=keep, needed=needed))


@pytest.mark.covers("weights 7")
def test_the_newest_anchor_and_all_after_it_are_kept() -> None:
    assert retired(line(1, 4, 7, newest=9), needed={9}) == [1, 2, 3, 4, 5, 6]


@pytest.mark.covers("weights 7")
def test_the_anchor_before_is_kept_until_every_rollout_has_passed_the_newest() -> None:
    assert retired(line(1, 4, 7, newest=9), needed={9, 5}) == [1, 2, 3]
    assert retired(line(1, 4, 7, newest=9), needed={9, 7}) == [1, 2, 3, 4, 5, 6]


def test_a_rollout_far_behind_keeps_no_more_than_two_anchors_back_from_the_head() -> None:
    assert retired(line(1, 4, 7, 10, newest=12), needed={12, 2}) == [3, 4, 5, 6]


def test_a_rollout_that_serves_the_model_files_keeps_what_leads_from_them() -> None:
    assert retired([known(0), *line(newest=3)], needed={0}) == []


def test_versions_of_an_attempt_before_go_although_their_anchor_is_the_newest_of_that_attempt() -> None:
    before = line(1, newest=3)
    after = [known(4, attempt=2), known(5, whole=None, base=4, attempt=2)]
    assert retired([*before, *after], needed={5}) == [1, 2, 3]


@given(
    anchors=st.sets(st.integers(1, 20)), newest=st.integers(1, 20), needed=st.sets(st.integers(0, 20)),
    keep=st.integers(0, 4),
)  # fmt: skip
@pytest.mark.covers("weights 7")
def test_whatever_is_pruned_every_version_that_is_kept_can_be_had_and_never_the_head_goes(
    anchors: set[int], newest: int, needed: set[int], keep: int
) -> None:
    everything = line(1, *anchors, newest=newest)
    gone = set(retired(everything, keep=keep, needed=needed))
    assert newest not in gone
    assert not gone & needed
    left = {v.version: v for v in everything if v.version not in gone}
    stored = {artifact_id for v in left.values() for artifact_id in v.artifact_ids}
    for version in (needed | {newest}) & left.keys():
        lineage = [left[below] for below in itertools.takewhile(left.__contains__, range(version, 0, -1))]
        assert version_plan.shortest(lineage, have=types.NO_VERSION, stored=stored) is not None


def test_the_head_is_kept_whatever_is_asked() -> None:
    assert [v.version for v in version_rules.to_retire([known(1), known(2)], keep=0, needed=set())] == [1]


def test_bytes_shared_with_a_kept_version_stay() -> None:
    everything = [known(1, whole="same"), known(2, whole="same")]
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
