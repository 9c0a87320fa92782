"""Which records can be graded."""

import pytest

from rljob_api import errors
from rljob_workers.data import gold


@pytest.mark.covers("graders 4.2")
@pytest.mark.parametrize(
    ("value", "texts"),
    [("5", ("5",)), (27.0, ("27.0",)), (142, ("142",)), ([" a ", 2], ("a", "2"))],
    ids=["text", "float", "integer", "list"],
)
def test_gold_becomes_trimmed_text(value: object, texts: tuple[str, ...]) -> None:
    assert gold.gold_texts({"answer": value}) == texts


@pytest.mark.covers("graders 2.2")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "p", "id": "1"}, "no 'answer'; it has id, prompt"),
        ({"answer": ""}, "'answer' is empty"),
        ({"answer": "  "}, "'answer' is empty"),
        ({"answer": []}, "empty list"),
        ({"answer": ["5", ""]}, "'answer' is empty"),
        ({"answer": None}, "holds a NoneType"),
        ({"answer": True}, "holds a bool"),
        ({"answer": {"a": 1}}, "holds a dict"),
    ],
)
@pytest.mark.parametrize("grader", ["exact", "math", "another"])
def test_record_without_usable_gold_is_refused_naming_the_key(
    grader: str, columns: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.DataError, match=message):
        gold.check_gold(grader, columns)


def test_reasoning_gym_record_may_have_a_null_gold_but_not_none_at_all() -> None:
    metadata = {"source_dataset": "word_ladder"}
    gold.check_gold("reasoning_gym", {"metadata": metadata, "answer": None})
    with pytest.raises(errors.DataError, match="no 'answer'"):
        gold.check_gold("reasoning_gym", {"metadata": metadata})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "needs 'metadata'"),
        ("not json", "'metadata' is not JSON"),
        ({}, "must name the dataset"),
        ({"source_dataset": "countdown"}, "text parser, which evaluates Python"),
        ({"source_dataset": "n_queens"}, "Python's eval"),
        ({"source_dataset": "not_yet_invented"}, "has not been reviewed"),
    ],
)
def test_reasoning_gym_record_needs_a_dataset_that_may_score(metadata: object, message: str) -> None:
    with pytest.raises(errors.DataError, match=message):
        gold.check_gold("reasoning_gym", {"metadata": metadata, "answer": "5"})


def test_reasoning_gym_metadata_may_be_json_text() -> None:
    assert gold.gym_dataset({"metadata": '{"source_dataset": "chain_sum"}'}) == "chain_sum"


def test_no_dataset_is_both_scored_and_refused() -> None:
    assert not gold.SCORED_DATASETS & set(gold.REFUSED_DATASETS)
