import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import errors
from rljob_api.enums import ReceiverState as S
from rljob_workers.rollout.sync import states
from rljob_workers.rollout.sync.states import Event

ALLOWED = {
    "the initial weights are labelled": (S.STARTING, Event.LABELLED, S.SERVING),
    "a fetch begins while serving": (S.SERVING, Event.FETCH, S.FETCHING),
    "a failed fetch leaves the old version": (S.FETCHING, Event.FETCH_FAILED, S.SERVING),
    "a verified image is staged": (S.FETCHING, Event.FETCHED, S.STAGED),
    "generation pauses": (S.STAGED, Event.PAUSED, S.PAUSED),
    "a pause that failed is let go": (S.STAGED, Event.LET_GO, S.SERVING),
    "a pause that nothing followed is let go": (S.PAUSED, Event.LET_GO, S.SERVING),
    "loading begins": (S.PAUSED, Event.APPLY, S.APPLYING),
    "all is loaded": (S.APPLYING, Event.APPLIED, S.VERIFYING),
    "the new version is served": (S.VERIFYING, Event.COMMITTED, S.SERVING),
    "recovery goes forward": (S.REFUSING, Event.APPLY, S.APPLYING),
    "a new engine process starts over": (S.REFUSING, Event.RESTART, S.STARTING),
}


@pytest.mark.parametrize("sentence", ALLOWED)
def test_allowed_transition(sentence: str) -> None:
    state, event, expected = ALLOWED[sentence]
    assert states.after(state, event) is expected


@pytest.mark.parametrize("state", list(S))
def test_anything_may_break_into_refusing(state: S) -> None:
    assert states.after(state, Event.BROKEN) is S.REFUSING


REFUSED = [
    (state, event)
    for state in S
    for event in Event
    if event is not Event.BROKEN and (state, event) not in {(row[0], row[1]) for row in ALLOWED.values()}
]


@pytest.mark.parametrize(("state", "event"), REFUSED)
def test_every_other_pair_is_refused(state: S, event: Event) -> None:
    with pytest.raises(errors.WeightsError, match=f"cannot take {event} in {state}"):
        states.after(state, event)


@given(st.lists(st.sampled_from(list(Event)), max_size=30))
def test_mixed_weights_are_left_only_through_a_commit_or_a_new_process(events: list[Event]) -> None:
    state, mixed = S.STARTING, False
    for event in events:
        try:
            following = states.after(state, event)
        except errors.WeightsError:
            continue
        mixed = (mixed or event is Event.APPLY) and event not in (Event.COMMITTED, Event.RESTART)
        assert not (mixed and following is S.SERVING)
        state = following
