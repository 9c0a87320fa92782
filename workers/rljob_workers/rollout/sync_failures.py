"""Which part of a weight update an error belongs to."""

from rljob_api import errors, names


def reason_of(error: errors.RLJobError) -> names.SyncFailure:
    """Return the label of a failure: the engine's own error counts, where the update gave up because of one."""
    cause = error.__cause__ if isinstance(error.__cause__, errors.EngineError) else error
    if isinstance(cause, errors.EngineTimeoutError):
        return names.SyncFailure.TIMEOUT
    if isinstance(cause, errors.EngineError):
        return names.SyncFailure.APPLY
    return names.SyncFailure.DIGEST if isinstance(cause, errors.DigestError) else names.SyncFailure.FETCH
