"""What the bench of distillation makes of its runs."""

import pytest
from tests.bench import distillation

TEACHERS = [distillation.Result(before=0.2, after=after, wall_s=300.0) for after in (0.84, 0.78)]


def students(*after: float, wall_s: float = 60.0) -> list[distillation.Result]:
    return [distillation.Result(before=0.2, after=each, wall_s=wall_s) for each in after]


def test_each_student_is_compared_with_its_own_teacher() -> None:
    found = distillation.outcome(TEACHERS, students(0.81, 0.79))
    assert (found.behind, found.share) == (pytest.approx(0.01), pytest.approx(0.2))


def test_the_bar_itself_is_reached() -> None:
    assert distillation.outcome(TEACHERS, students(0.82, 0.76, wall_s=75.0)).is_reached


@pytest.mark.parametrize(
    "missing", [students(0.82, 0.755), students(0.84, 0.78, wall_s=75.5)], ids=["too far below", "too late"]
)
def test_a_point_or_a_second_more_is_not(missing: list[distillation.Result]) -> None:
    assert not distillation.outcome(TEACHERS, missing).is_reached


def test_the_page_says_on_which_side_of_the_teachers_the_students_end() -> None:
    assert "1.0 points below the teacher (bar: 2.0 below) in 0.20" in distillation.page(TEACHERS, students(0.81, 0.79))
    assert "1.0 points above the teacher" in distillation.page(TEACHERS, students(0.85, 0.79))
