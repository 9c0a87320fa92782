"""What AReaL's records imply."""

import pytest

from rljob_api import errors
from rljob_workers.data import formats


@pytest.mark.covers("graders 4.1")
def test_a_code_record_without_a_problem_id_has_its_query_id_as_one() -> None:
    assert formats.implied_columns({"query_id": 7}, is_code=True) == {"problem_id": "7"}
    assert formats.implied_columns({"query_id": "q", "problem_id": "p"}, is_code=True) == {}
    assert formats.implied_columns({"query_id": "q"}, is_code=False) == {}


@pytest.mark.covers("graders 4.1")
def test_the_base_score_is_the_mean_of_the_scores() -> None:
    assert formats.implied_columns({"query_id": "q", "scores": [0, 1, 0.5, 0.5]}, is_code=False) == {"base_score": 0.5}


@pytest.mark.parametrize("scores", [[], "0.5", {"mean": 1}, None])
def test_scores_that_are_no_list_of_numbers_are_refused_by_name(scores: object) -> None:
    with pytest.raises(errors.DataError, match="column 'scores' must be a list of at least one number"):
        formats.implied_columns({"query_id": "q", "scores": scores}, is_code=False)


@pytest.mark.parametrize("score", ["1", None, True, float("nan"), float("inf"), [1]])
def test_a_score_that_is_no_number_is_refused_with_its_place(score: object) -> None:
    with pytest.raises(errors.DataError, match=r"scores\[1\] must be a finite number"):
        formats.implied_columns({"query_id": "q", "scores": [1, score]}, is_code=False)
