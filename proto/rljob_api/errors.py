"""The error tree, by boundary. A failure belongs to ONE boundary, is classified there and recorded once.

    RLJobError
    |- ManifestError        what a user wrote: a field, its value, what would be right   (never retried)
    |- DataError            a record of a data source                                    (never)
    |- EngineError          the inference engine                                         (elsewhere)
    |- EpisodeError         an agent, environment or workflow                            (later)
    |- GraderError          a reward function that gives no score                        (never)
    |  |- RecordError       a record that cannot be graded: missing gold, wrong type     (never)
    |- SandboxError         isolation could not be set up                                (elsewhere)
    |- PlaceError           an episode's place with a shell was lost, or none was free   (later)
    |- JudgeError           a language model that judges gives no verdict                (later)
    |- WireError            a message that breaks the contract                           (never)
    |  |- TooLargeError     a message above what a call may carry                        (never)
    |  |- FencedError       a session or trainer attempt that was replaced               (never)
    |  |- ForbiddenError    a call that the caller's role may not make                   (never)
    |  |- UnavailableError  the peer cannot be reached or is overloaded                  (later)
    |  |  |- BusyError      the peer serves as many streams as it may                    (later)
    |- LedgerError          a transition that the ledger's state does not allow          (never)
    |- WeightsError         a version, artifact or image that does not match             (later)
    |  |- DigestError       bytes differ from their hash                                 (elsewhere)
    |  |- MovedError        bytes that are no longer where they were served              (elsewhere)
    |  |- ConflictError     a version id that already names other bytes                  (never)
    |- CheckpointError      a checkpoint could not be written                            (later)
    |- StorageError         an object store that does not answer, or fails               (later)
    |  |- StorageAccessError  a bucket that is not there, or keys that do not open it    (never)
    |- ClusterError         the Kubernetes API or a pod                                  (later)

Each class says when to retry and its gRPC status; an instance keeps its cause and survives pickling.
`fault` says whose doing it is: INFRA is masked and retried and never becomes a reward; DATA is the sample's or
the user's.
"""

import enum


class Retry(enum.Enum):
    """When the same call may be tried again."""

    NEVER = "never"
    LATER = "later"
    ELSEWHERE = "elsewhere"


class Fault(enum.Enum):
    """Whose doing a failure is."""

    INFRA = "infra"
    DATA = "data"


class RLJobError(Exception):
    """Base of all errors that cross a boundary."""

    retry = Retry.NEVER
    fault = Fault.INFRA
    grpc_code = "INTERNAL"

    @property
    def name(self) -> str:
        """Return the class name, which is what travels on the wire."""
        return type(self).__name__


class ManifestError(RLJobError, ValueError):
    """One or more problems of a manifest. `problems` holds sentences that name field, value and remedy."""

    fault = Fault.DATA
    grpc_code = "INVALID_ARGUMENT"

    def __init__(self, *problems: str) -> None:
        """Keep the problems in order; at least one is needed."""
        assert problems, "a ManifestError needs a problem"
        super().__init__(*problems)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(str(arg) for arg in self.args)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class DataError(RLJobError, ValueError):
    """A data source or record that cannot be used; the message names file, line and key."""

    fault = Fault.DATA
    grpc_code = "INVALID_ARGUMENT"


class EngineError(RLJobError):
    """The inference engine failed or returned a result that breaks its contract."""

    retry = Retry.ELSEWHERE
    grpc_code = "UNAVAILABLE"


class EngineTimeoutError(EngineError):
    """The inference engine did not answer within its deadline."""


class EpisodeError(RLJobError):
    """An agent, environment or workflow raised."""

    retry = Retry.LATER
    fault = Fault.DATA


class GraderError(RLJobError, ValueError):
    """A grader that cannot judge: the record's fault (RecordError) or its own. Never a reward of zero."""

    fault = Fault.DATA
    grpc_code = "INVALID_ARGUMENT"


class RecordError(GraderError):
    """A record that no grader can judge: missing gold, unknown id, empty test list."""


class JudgeError(RLJobError):
    """A language model that judges cannot be asked, or says nothing that can be read. Never a reward of zero."""

    retry = Retry.LATER
    grpc_code = "UNAVAILABLE"


class SandboxError(RLJobError):
    """Isolation could not be set up or did not hold."""

    retry = Retry.ELSEWHERE
    grpc_code = "UNAVAILABLE"


class PlaceError(RLJobError):
    """An episode's place with a shell was lost, or none was free in time. Never a reward of zero."""

    retry = Retry.LATER
    grpc_code = "UNAVAILABLE"


class WireError(RLJobError, ValueError):
    """A message that breaks the contract: counts differ, a value is not finite, a name is unknown."""

    fault = Fault.DATA
    grpc_code = "INVALID_ARGUMENT"


class TooLargeError(WireError):
    """A message above what a call may carry: the same one will be too large again."""


class FencedError(WireError):
    """The session was replaced by a newer process, or the trainer attempt is not the current one."""

    grpc_code = "FAILED_PRECONDITION"


class ForbiddenError(WireError):
    """The caller's certificate does not open this call."""

    grpc_code = "PERMISSION_DENIED"


class UnavailableError(WireError, ConnectionError):
    """The peer cannot be reached, is starting, or refuses work for now."""

    retry = Retry.LATER
    fault = Fault.INFRA
    grpc_code = "UNAVAILABLE"


class BusyError(UnavailableError):
    """The peer serves as many streams as it may: worth another call in `again_s` seconds, or one to another peer."""

    again_s = 0.2


class LedgerError(RLJobError):
    """A transition that the recorded state does not allow."""

    grpc_code = "FAILED_PRECONDITION"


class WeightsError(RLJobError):
    """A weight version, artifact, layout or image that does not match what was asked for."""

    retry = Retry.LATER
    grpc_code = "FAILED_PRECONDITION"


class DigestError(WeightsError):
    """Bytes differ from the hash that names them."""

    retry = Retry.ELSEWHERE
    grpc_code = "DATA_LOSS"


class MovedError(WeightsError):
    """A rollout no longer holds the bytes that were asked of it: it is about to load another version."""

    retry = Retry.ELSEWHERE


class ConflictError(WeightsError):
    """A version id that already names other bytes: the publisher is wrong, and stays wrong."""

    retry = Retry.NEVER


class CheckpointError(RLJobError):
    """A checkpoint could not be written; the one before it is as it was."""

    retry = Retry.LATER


class StorageError(RLJobError):
    """An object store that does not answer, or answers with a failure. Messages never hold keys or signatures."""

    retry = Retry.LATER


class StorageAccessError(StorageError):
    """A bucket or container that does not exist, or keys that do not open it."""

    retry = Retry.NEVER


class ClusterError(RLJobError):
    """The Kubernetes API refused, or a pod is not what it should be."""

    retry = Retry.LATER


def by_name(name: str) -> type[RLJobError]:
    """Return the class of that name, or RLJobError for one that this version does not know."""
    return _BY_NAME.get(name, RLJobError)


def _tree(root: type[RLJobError]) -> list[type[RLJobError]]:
    return [root, *(descendant for child in root.__subclasses__() for descendant in _tree(child))]


_BY_NAME = {error.__name__: error for error in _tree(RLJobError)}
