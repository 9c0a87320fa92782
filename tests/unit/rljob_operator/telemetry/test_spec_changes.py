from rljob_operator.telemetry.durations import SpecChanges

KEY = "team/run"


def test_first_child_of_each_kind_counts_from_the_change() -> None:
    changes = SpecChanges()
    changes.saw(KEY, 1, now=10.0)
    assert changes.applied(KEY, "Deployment", now=10.5) == 0.5
    assert changes.applied(KEY, "Deployment", now=10.7) is None
    assert changes.applied(KEY, "Service", now=11.0) == 1.0


def test_same_generation_told_again_is_no_change_and_a_new_one_is() -> None:
    changes = SpecChanges()
    changes.saw(KEY, 1, now=10.0)
    assert changes.applied(KEY, "Deployment", now=11.0) == 1.0
    changes.saw(KEY, 1, now=20.0)
    assert changes.applied(KEY, "Deployment", now=21.0) is None
    changes.saw(KEY, 2, now=30.0)
    assert changes.applied(KEY, "Deployment", now=30.2) == 30.2 - 30.0


def test_what_is_applied_after_a_pass_that_had_nothing_to_apply_answers_no_change() -> None:
    changes = SpecChanges()
    changes.saw(KEY, 1, now=10.0)
    changes.planned(KEY, 1, applies=True)
    assert changes.applied(KEY, "Deployment", now=10.5) == 0.5
    changes.planned(KEY, 1, applies=False)
    assert changes.applied(KEY, "PodDisruptionBudget", now=70.0) is None


def test_pass_over_an_older_generation_answers_nothing() -> None:
    changes = SpecChanges()
    changes.saw(KEY, 2, now=10.0)
    changes.planned(KEY, 1, applies=False)
    assert changes.applied(KEY, "Deployment", now=10.5) == 0.5


def test_nothing_is_counted_of_a_job_that_no_watch_told_of_or_that_is_gone() -> None:
    changes = SpecChanges()
    assert changes.applied(KEY, "Deployment", now=10.0) is None
    changes.planned(KEY, 1, applies=False)
    changes.saw(KEY, 1, now=10.0)
    changes.forget(KEY)
    assert changes.applied(KEY, "Deployment", now=10.5) is None
