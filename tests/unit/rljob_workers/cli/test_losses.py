"""What a run continues without, in words."""

from rljob_api import enums
from rljob_workers.cli import why_text


def told(left_out: dict[str, int], dump_failures: int = 0) -> list[str]:
    return list(why_text.loss_sentences(left_out=left_out, dump_failures=dump_failures))


def test_nothing_is_said_where_nothing_is_lost() -> None:
    assert told({}) == []
    assert told(dict.fromkeys(map(str, enums.LEFT_OUT), 0)) == []


def test_every_reason_to_leave_out_a_group_has_its_sentence() -> None:
    for reason in enums.LEFT_OUT:
        (one,) = told({str(reason): 1})
        assert one.startswith("1 group left out, because ")
        (many,) = told({str(reason): 7})
        assert many.startswith("7 groups left out, because ")


def test_dumps_come_last() -> None:
    assert told({"too_long": 2}, 3) == [
        "2 groups left out, because the prompt is longer than maxPromptTokens of its source; the logs of the rollouts"
        " name the first",
        "3 trajectory dumps could not be written; the logs of the rollouts say why",
    ]
