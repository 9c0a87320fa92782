"""The receiver's state machine as a table. Pure. Picture and failure rows: docs/design/weights.md#s-8.

STARTING -> SERVING -> FETCHING -> STAGED -> PAUSED -> APPLYING -> VERIFYING -> SERVING
               ^           | failed            | let go     |  broken  |
               +-----------+-------------------+            v          v
                                                         REFUSING -> APPLYING (forward) or STARTING (restart)
"""

import enum

from rljob_api import errors
from rljob_api.enums import ReceiverState


class Event(enum.StrEnum):
    """What moves the machine."""

    LABELLED = "labelled"
    FETCH = "fetch"
    FETCH_FAILED = "fetch_failed"
    FETCHED = "fetched"
    PAUSED = "paused"
    LET_GO = "let_go"
    APPLY = "apply"
    APPLIED = "applied"
    COMMITTED = "committed"
    BROKEN = "broken"
    RESTART = "restart"


TRANSITIONS: dict[tuple[ReceiverState, Event], ReceiverState] = {
    (ReceiverState.STARTING, Event.LABELLED): ReceiverState.SERVING,
    (ReceiverState.SERVING, Event.FETCH): ReceiverState.FETCHING,
    (ReceiverState.FETCHING, Event.FETCH_FAILED): ReceiverState.SERVING,
    (ReceiverState.FETCHING, Event.FETCHED): ReceiverState.STAGED,
    (ReceiverState.STAGED, Event.PAUSED): ReceiverState.PAUSED,
    (ReceiverState.STAGED, Event.LET_GO): ReceiverState.SERVING,
    (ReceiverState.PAUSED, Event.LET_GO): ReceiverState.SERVING,
    (ReceiverState.PAUSED, Event.APPLY): ReceiverState.APPLYING,
    (ReceiverState.APPLYING, Event.APPLIED): ReceiverState.VERIFYING,
    (ReceiverState.VERIFYING, Event.COMMITTED): ReceiverState.SERVING,
    (ReceiverState.REFUSING, Event.APPLY): ReceiverState.APPLYING,
    (ReceiverState.REFUSING, Event.RESTART): ReceiverState.STARTING,
    **{(state, Event.BROKEN): ReceiverState.REFUSING for state in ReceiverState},
}


def after(state: ReceiverState, event: Event) -> ReceiverState:
    """Return the state that follows. Raises WeightsError for an event that `state` does not allow."""
    if (state, event) not in TRANSITIONS:
        raise errors.WeightsError(f"the weight receiver cannot take {event} in {state}")
    return TRANSITIONS[state, event]


def may_generate(state: ReceiverState) -> bool:
    """Return whether the engine's weights are one known version in this state, so that leases make sense."""
    return state not in (ReceiverState.STARTING, ReceiverState.REFUSING)
