"""An answer with leases stays below what a message may carry."""

import pytest

from rljob_api import enums
from rljob_workers.coordinator import dispatch


@pytest.mark.parametrize(
    ("capacity", "shows", "leases"), [(40, False, 40), (40, True, enums.LEASES_WITH_PICTURES), (3, True, 3)]
)
def test_an_answer_has_as_many_leases_as_a_message_holds_pictures(capacity: int, shows: bool, leases: int) -> None:
    assert dispatch.most_leases(capacity, shows=shows) == leases


def test_messages_hold_the_largest_pictures() -> None:
    assert enums.LEASES_WITH_PICTURES * enums.MAX_PICTURES_BYTES <= enums.MAX_BATCH_PART_BYTES // 2
    assert enums.MAX_PICTURES_BYTES <= enums.MAX_BATCH_PICTURES_BYTES <= enums.MAX_BATCH_PART_BYTES // 2
