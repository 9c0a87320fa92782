"""The shortest way to a version, through what is stored."""

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, types
from rljob_workers.coordinator.policy import version_plan, version_rules

WHOLE = 100


def registered(version: int, *, whole: bool = False, changes: int | None = None) -> version_rules.Registered:
    """Return a version; `changes`: bytes of its changes against the version before, None for none."""
    return version_rules.Registered(
        version=version, step=version, attempt=1, state=enums.VersionState.PUBLISHED, superseded=False, state_hash="",
        whole=types.Artifact(artifact_id=f"a{version}", encoding=enums.Encoding.WHOLE, num_bytes=WHOLE)
        if whole else None,
        changes=None if changes is None else
        types.Artifact(artifact_id=f"d{version}", encoding=enums.Encoding.DELTA, num_bytes=changes),
        base=types.NO_VERSION if changes is None else version - 1,
    )  # fmt: skip


def way(
    versions: Sequence[version_rules.Registered], *, have: int = types.NO_VERSION, lost: Collection[str] = ()
) -> list[str] | None:
    """Return the artifacts on the way to the last of `versions`."""
    stored = {artifact_id for version in versions for artifact_id in version.artifact_ids} - set(lost)
    hops = version_plan.shortest(list(reversed(versions)), have=have, stored=stored)
    return None if hops is None else [hop.artifact.artifact_id for hop in hops]


# 1 whole <- 2 <- 3 <- 4 whole <- 5 <- 6
LINE = [
    registered(1, whole=True),
    registered(2, changes=3),
    registered(3, changes=3),
    registered(4, whole=True, changes=3),
    registered(5, changes=3),
    registered(6, changes=3),
]


@pytest.mark.parametrize(
    ("have", "artifacts"),
    [
        (5, ["d6"]),
        (4, ["d5", "d6"]),
        (2, ["d3", "d4", "d5", "d6"]),
        (types.NO_VERSION, ["a4", "d5", "d6"]),
        pytest.param(99, ["a4", "d5", "d6"], id="of another branch"),
    ],
)
@pytest.mark.covers("weights 7")
def test_the_way_is_the_changes_since_what_one_has_or_the_newest_whole_image_and_those_since(
    have: int, artifacts: list[str]
) -> None:
    assert way(LINE, have=have) == artifacts


@pytest.mark.covers("weights 7")
def test_a_whole_image_that_is_shorter_than_all_changes_is_taken() -> None:
    versions = [registered(1, whole=True), *(registered(version, changes=60) for version in (2, 3)),
                registered(4, whole=True, changes=60)]  # fmt: skip
    assert way(versions, have=3) == ["d4"]
    assert way(versions, have=2) == ["a4"]


@pytest.mark.parametrize(
    ("lost", "artifacts"),
    [
        pytest.param({"d5"}, None, id="changes after the newest whole image"),
        pytest.param({"d3"}, ["a4", "d5", "d6"], id="changes before it"),
        pytest.param({"a4"}, ["a1", "d2", "d3", "d4", "d5", "d6"], id="the newest whole image"),
        pytest.param({"a4", "a1"}, None, id="all whole images"),
    ],
)
@pytest.mark.covers("weights 7")
def test_a_receiver_with_nothing_goes_another_way_where_a_link_is_lost(
    lost: set[str], artifacts: list[str] | None
) -> None:
    assert way(LINE, lost=lost) == artifacts


def test_a_receiver_that_misses_a_link_gets_the_whole_image_after_it() -> None:
    assert way(LINE, have=2, lost={"d3"}) == ["a4", "d5", "d6"]


def test_the_model_files_are_where_every_receiver_can_begin() -> None:
    versions = [registered(0), registered(1, changes=3), registered(2, changes=3)]
    assert way(versions) == ["d1", "d2"]
    assert way(versions, have=1) == ["d2"]


def test_no_way_leads_from_what_the_trainer_before_published() -> None:
    """Its successor begins with a whole image without changes."""
    assert way([registered(7, whole=True), registered(8, changes=3)], have=6) == ["a7", "d8"]


@given(
    sizes=st.lists(st.tuples(st.booleans(), st.integers(1, 120)), min_size=1, max_size=12),
    have=st.integers(-1, 13),
    lost=st.sets(st.tuples(st.sampled_from("ad"), st.integers(1, 13)), max_size=4),
)
def test_no_other_way_is_shorter(sizes: list[tuple[bool, int]], have: int, lost: set[tuple[str, int]]) -> None:
    versions = [registered(1, whole=True)]
    versions += [registered(index + 2, whole=whole, changes=changes) for index, (whole, changes) in enumerate(sizes)]
    gone = {f"{kind}{version}" for kind, version in lost}
    stored = {artifact_id for version in versions for artifact_id in version.artifact_ids} - gone
    newest = len(versions)
    # Every version that one could begin with, and what it costs from there.
    costs = []
    for first in range(newest, 0, -1):
        since = versions[first:]
        if any(f"d{version.version}" not in stored for version in since):
            continue
        changes = sum(version.changes.num_bytes for version in since if version.changes is not None)
        if first == have and since:
            costs.append(changes)
        if f"a{first}" in stored:
            costs.append(changes + WHOLE)
    hops = version_plan.shortest(list(reversed(versions)), have=have, stored=stored)
    assert (hops is None) == (not costs)
    if hops is not None:
        assert sum(hop.artifact.num_bytes for hop in hops) == min(costs)
        assert hops[-1].version == newest
