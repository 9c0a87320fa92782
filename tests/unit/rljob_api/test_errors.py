import pickle

import grpc
import pytest

from rljob_api import errors

EVERY = [
    errors.by_name(name)
    for name in (
        "ManifestError",
        "DataError",
        "EngineError",
        "EpisodeError",
        "GraderError",
        "RecordError",
        "SandboxError",
        "PlaceError",
        "WireError",
        "TooLargeError",
        "FencedError",
        "ForbiddenError",
        "UnavailableError",
        "LedgerError",
        "WeightsError",
        "DigestError",
        "ConflictError",
        "ClusterError",
    )
]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_error_survives_pickling_with_its_message_and_class(kind: type[errors.RLJobError]) -> None:
    again = pickle.loads(pickle.dumps(kind("what went wrong")))
    assert (type(again), str(again)) == (kind, "what went wrong")


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_error_has_a_grpc_status_that_exists(kind: type[errors.RLJobError]) -> None:
    assert kind.grpc_code in grpc.StatusCode.__members__


def test_unknown_class_name_from_a_newer_peer_is_still_an_error_of_the_tree() -> None:
    assert errors.by_name("NotYetInvented") is errors.RLJobError


def test_manifest_error_prints_one_problem_a_line() -> None:
    assert str(errors.ManifestError("first", "second")) == "first\nsecond"
