import pytest

from rljob_operator.reconcile.scale_down import RolloutPod, scale_down_candidates


def _pod(name: str, *, ready: bool = True, version: int = 5, leases: int = 2, created: float = 0.0) -> RolloutPod:
    return RolloutPod(pod=name, ready=ready, serving_version=version, num_leases=leases, created_at=created)


def test_unready_goes_before_old_version_before_few_leases_before_young() -> None:
    pods = [
        _pod("keep"),
        _pod("young", created=9.0),
        _pod("idle", leases=0),
        _pod("old", version=3, leases=9),
        _pod("unready", ready=False, version=9, leases=9),
    ]
    assert scale_down_candidates(pods, num_wanted=1) == ("unready", "old", "idle", "young")


def test_nobody_goes_when_no_more_pods_exist_than_are_wanted() -> None:
    assert scale_down_candidates([_pod("a"), _pod("b")], num_wanted=2) == ()
    assert scale_down_candidates([_pod("a")], num_wanted=3) == ()


def test_equal_pods_are_chosen_by_name_whatever_their_order() -> None:
    assert (
        scale_down_candidates([_pod("b"), _pod("a")], num_wanted=1)
        == scale_down_candidates([_pod("a"), _pod("b")], num_wanted=1)
        == ("a",)
    )


def test_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="num_wanted=-1"):
        scale_down_candidates([], num_wanted=-1)
