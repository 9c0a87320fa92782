"""Arbitrary input at the verifier's seams: an answer or the seam's own error, and the next one is served.

`RLJOB_FUZZ_EXAMPLES` says how many examples each test tries. In `python -m rljob_testing.guided_fuzzing` coverage leads
to the texts instead of rules.
"""

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator

import grpc
import hypothesis
import pytest
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from rljob_api import errors, process_config
from rljob_api.wire.v1 import verify_pb2
from rljob_testing import fuzzing, text_functions
from rljob_workers.verifier import frames, replies, service
from rljob_workers.verifier.graders import base, counting
from rljob_workers.verifier.graders.code import cases, code_grader
from rljob_workers.verifier.graders.code import comparison as code_compare
from rljob_workers.verifier.graders.math import comparison, forms, values
from rljob_workers.verifier.graders.repository import paths as repository_paths
from rljob_workers.verifier.graders.repository import record
from rljob_workers.verifier.sandbox.processes import launcher, records

pytestmark = pytest.mark.timeout(fuzzing.TIMEOUT_S)
WORDS = st.sampled_from(text_functions.WORDS)
TEXTS = st.one_of(st.text(), st.lists(WORDS | st.text(max_size=4), max_size=40).map(" ".join))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.covers("sandbox 4")
@pytest.mark.parametrize("name", text_functions.ALL)
@hypothesis.given(text=TEXTS)
@fuzzing.settings
def test_any_text_is_extracted_and_normalised_without_an_error(name: str, text: str) -> None:
    text_functions.ALL[name](text)


@hypothesis.given(text=TEXTS)
@fuzzing.settings
def test_any_text_says_what_it_says_itself(text: str) -> None:
    form = forms.read(text)
    with contextlib.suppress(values.TooLargeError):
        assert comparison.equal(form, forms.read(text), comparison.Rules(deep=False)) in (True, None)


@hypothesis.given(text=TEXTS)
@fuzzing.settings
def test_any_completion_has_a_grade_of_gsm8k(text: str) -> None:
    grader = counting.CountGrader(process_config.GraderConfig(name="r", type="clevr_count_70k"))
    grade = grader.quick(base.Answer(prompt="", completion=text, columns={"answer": "5"}))
    assert grade is not None
    assert grade.score in (0.0, 1.0)


@hypothesis.given(columns=st.dictionaries(st.sampled_from(["input_output", "answer"]), JSON))
@fuzzing.settings
def test_any_record_has_tests_or_is_refused_by_name(columns: dict[str, object]) -> None:
    said = ""
    try:
        tests = cases.tests_of(columns)
    except errors.DataError as error:
        said = str(error)
    assert "input_output" in said or len(tests.inputs) == len(tests.outputs) > tests.num_visible


@hypothesis.given(repository=st.dictionaries(st.sampled_from(["files", "test_files", "tests"]), JSON))
@fuzzing.settings
def test_any_repository_can_be_laid_out_or_is_refused_by_name(repository: dict[str, object]) -> None:
    said, paths = "", list[str]()
    try:
        found = record.repository_of({"repository": repository})
        paths = [*found.files, *found.test_files]
    except errors.DataError as error:
        said = str(error)
    assert "'repository" in said or (paths and not any(map(repository_paths.problem, paths)))


@hypothesis.given(value=JSON, expected=JSON)
@fuzzing.settings
def test_whatever_a_call_returned_is_compared_or_refused(value: object, expected: object) -> None:
    for compat, wrapped in itertools.product((False, True), repeat=2):
        try:
            same = code_compare.same_result(code_grader.decoded(value), expected, wrapped=wrapped, compat=compat)
        except (ValueError, TypeError, RecursionError):
            # What the grader counts as a failure of the program.
            continue
        assert same in (False, True)


@hypothesis.given(data=st.binary(max_size=400), chunk=st.integers(1, 50))
@fuzzing.settings
def test_any_bytes_on_a_workers_socket_are_payloads_or_an_error_of_the_wire(data: bytes, chunk: int) -> None:
    decoder = frames.Decoder(max_bytes=100)
    try:
        for start in range(0, len(data), chunk):
            for payload in decoder.feed(data[start : start + chunk]):
                assert isinstance(payload, dict)
    except errors.WireError:
        pass


@hypothesis.given(payload=st.dictionaries(st.text(max_size=10), JSON, max_size=5))
@fuzzing.settings
def test_payload_survives_the_socket_in_any_chunks(payload: dict[str, object]) -> None:
    sent = json.loads(json.dumps(payload))
    frame = frames.encode(sent, max_bytes=1 << 20)
    decoder = frames.Decoder(max_bytes=1 << 20)
    received = [one for index in range(len(frame)) for one in decoder.feed(frame[index : index + 1])]
    assert json.dumps(received) == json.dumps([sent])


GRADE = replies.grade_to(base.passed("5"))


@pytest.mark.covers("sandbox 4")
@hypothesis.given(changes=st.dictionaries(st.sampled_from([*GRADE, "error", "canary"]), JSON))
@fuzzing.settings
def test_any_reply_of_a_worker_is_a_grade_or_an_error_of_its_kind(changes: dict[str, object]) -> None:
    try:
        grade = replies.grade_from({**GRADE, **changes})
    except (errors.GraderError, replies.WrongCanaryError, launcher.WorkerLostError):
        return
    assert grade.score is None or grade.score == grade.score


@pytest.mark.covers("sandbox 4")
@hypothesis.given(data=st.binary() | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
@fuzzing.settings
def test_no_bytes_without_the_nonce_are_a_record(data: bytes) -> None:
    nonce = "5" * 32
    found = records.read(b'{"nonce": "%s", "status": "entered"}\n' % nonce.encode() + data, nonce)
    assert found.entered
    assert found.items == ()
    assert found.malformed == bool(data)
    assert not records.read(data, nonce).entered


@pytest.fixture(scope="module")
def verify(make_config: Callable[..., process_config.VerifierConfig]) -> Iterator[Callable[[bytes], bytes]]:
    """Return what sends bytes to a real server whose graders need no worker. Raises RpcError."""
    rewards = [process_config.GraderConfig(name=type_, type=type_) for type_ in ("exact", "gsm8k")]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def started() -> service.Service:
        made = service.Service(make_config(*rewards))
        await made.start()
        return made

    verifier = asyncio.run_coroutine_threadsafe(started(), loop).result(60)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{verifier.port}") as opened:
            call = opened.unary_unary("/rljob.v1.Verifier/Verify")
            yield lambda request: bytes(call(request, timeout=60))
    finally:
        asyncio.run_coroutine_threadsafe(verifier.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def request_of(**fields: object) -> bytes:
    return verify_pb2.VerifyRequest(items=[verify_pb2.VerifyItem(**fields)]).SerializeToString()  # type: ignore[arg-type]  # a test's own fields


def refusal(verify: Callable[[bytes], bytes], request: bytes) -> grpc.StatusCode | None:
    """Return why a request was refused, None if there is one verdict for each of its items."""
    try:
        reply = verify_pb2.VerifyReply.FromString(verify(request))
    except grpc.RpcError as error:
        code = error.code()
        assert isinstance(code, grpc.StatusCode)
        return code
    assert len(reply.verdicts) == len(verify_pb2.VerifyRequest.FromString(request).items)
    return None


def still_serves(verify: Callable[[bytes], bytes]) -> bool:
    request = request_of(sample_id="s", completion="#### 5", columns='{"answer": "#### 5"}')
    return refusal(verify, request) is None


def is_request(data: bytes) -> bool:
    try:
        verify_pb2.VerifyRequest.FromString(data)
    except DecodeError:
        return False
    return True


@pytest.mark.covers("sandbox 4")
@hypothesis.given(data=st.binary(max_size=300))
@fuzzing.settings
def test_any_bytes_are_a_request_or_refused_and_the_next_one_is_served(
    verify: Callable[[bytes], bytes], data: bytes
) -> None:
    # grpc itself answers what is not a message.
    of_grpc = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    assert refusal(verify, data) in ((None, grpc.StatusCode.INVALID_ARGUMENT) if is_request(data) else of_grpc)
    assert still_serves(verify)


@pytest.mark.covers("sandbox 4")
@hypothesis.given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "sample_id": st.text(max_size=50),
            "attempt": st.integers(0, 2**32 - 1),
            "prompt": st.text(max_size=50),
            "completion": TEXTS,
            "columns": st.text(max_size=50) | JSON.map(json.dumps),
            "truncated": st.booleans(),
            "suite": st.text(max_size=50),
            "completion_ids": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5),
        },
    ),
    gold=st.none() | JSON,
)
@fuzzing.settings
def test_any_item_has_a_verdict_or_is_refused_by_name(
    verify: Callable[[bytes], bytes], fields: dict[str, object], gold: object
) -> None:
    if gold is not None:
        fields = {**fields, "columns": json.dumps({"answer": gold})}
    assert refusal(verify, request_of(**fields)) in (None, grpc.StatusCode.INVALID_ARGUMENT)
