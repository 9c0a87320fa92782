import asyncio
import random
from typing import Any

import pytest

from rljob_api import enums
from rljob_testing import judges
from rljob_testing.judges import Answer, HurriedClock, ScriptedPost
from rljob_workers.judge import calls, transport
from rljob_workers.runtime import metrics

OK = Answer(body=judges.said("Score: 7"))


def door(post: transport.Post, clock: HurriedClock, **config: object) -> tuple[calls.Calls, metrics.Metrics]:
    counted = metrics.Metrics(role=enums.Role.JUDGE, job=judges.JOB)
    made = calls.Calls(
        reward="helpful",
        options=judges.options(**config),
        key="secret-key",
        metrics=counted,
        clock=clock,
        post=post,
        rng=random.Random(0),
    )
    return made, counted


def counts(counted: metrics.Metrics) -> dict[str, float]:
    (family,) = (each for each in counted.registry.collect() if each.name == "rljob_judge_calls")
    return {sample.labels["outcome"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


async def test_a_call_goes_below_the_url_with_the_key_and_its_tokens_are_counted() -> None:
    post = ScriptedPost(lambda number, body: OK)
    asked, counted = door(post, HurriedClock(), url="https://example.com/v1/")
    assert await asked.ask("/chat/completions", {"a": 1}, deadline=10.0) == OK.body
    assert (post.urls, post.keys) == (["https://example.com/v1/chat/completions"], ["secret-key"])
    labels = {"rljob": "job", "rljob_namespace": "tests", "reward": "helpful"}
    tokens = [
        counted.registry.get_sample_value("rljob_judge_tokens_total", {**labels, "kind": kind})
        for kind in ("prompt", "completion")
    ]
    assert tokens == [11.0, 3.0]
    assert counted.registry.get_sample_value("rljob_judge_seconds_count", labels) == 1.0


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (Answer(429), "busy"),
        (Answer(503), "failed"),
        (Answer(200, [1]), "failed"),
        (transport.BrokenCallError("no connection"), "unreachable"),
    ],
)
async def test_a_call_that_may_work_later_is_made_again(first: Answer | Exception, outcome: str) -> None:
    clock = HurriedClock()
    asked, counted = door(ScriptedPost(lambda number, body: first if number < 2 else OK), clock)
    assert await asked.ask("/chat/completions", {}, deadline=60.0) == OK.body
    assert counts(counted) == {outcome: 2.0, "answered": 1.0}
    assert [0.25 <= clock.slept[0] <= 0.5, 0.5 <= clock.slept[1] <= 1.0] == [True, True]


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 422])
async def test_a_refusal_is_not_repeated(status: int) -> None:
    post = ScriptedPost(lambda number, body: Answer(status))
    asked, counted = door(post, HurriedClock())
    with pytest.raises(calls.UnavailableError, match=f"status {status}"):
        await asked.ask("/chat/completions", {}, deadline=60.0)
    assert (len(post.bodies), counts(counted)) == (1, {"refused": 1.0})


async def test_retry_after_holds_back_every_call() -> None:
    clock = HurriedClock()
    post = ScriptedPost(lambda number, body: OK if number else Answer(429, headers={"Retry-After": "7"}))
    asked, _ = door(post, clock)
    await asked.ask("/chat/completions", {}, deadline=60.0)
    assert clock.elapsed == pytest.approx(7.0)


async def test_nothing_is_waited_for_beyond_the_deadline() -> None:
    clock = HurriedClock()
    post = ScriptedPost(lambda number, body: Answer(429, headers={"Retry-After": "61"}))
    asked, _ = door(post, clock)
    with pytest.raises(calls.UnavailableError):
        await asked.ask("/chat/completions", {}, deadline=60.0)
    assert (len(post.bodies), clock.elapsed < 1.0) == (1, True)


async def test_a_judge_that_fails_on_is_given_up_at_the_deadline() -> None:
    clock = HurriedClock()
    asked, _ = door(ScriptedPost(lambda number, body: Answer(500)), clock)
    with pytest.raises(calls.UnavailableError, match="status 500"):
        await asked.ask("/chat/completions", {}, deadline=60.0)
    assert 30.0 < clock.elapsed < 60.0


async def test_calls_a_minute_are_spread() -> None:
    clock = HurriedClock()
    asked, _ = door(ScriptedPost(lambda number, body: OK), clock, callsPerMinute=30)
    for _ in range(4):
        await asked.ask("/chat/completions", {}, deadline=60.0)
    assert clock.elapsed == pytest.approx(6.0)


async def test_no_more_calls_are_under_way_than_allowed() -> None:
    under_way, most = 0, 0

    async def post(url: str, body: bytes, *, key: str) -> transport.Reply:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return transport.Reply(200, "", b"{}")

    asked, _ = door(post, HurriedClock(), maxConcurrent=3)
    await asyncio.gather(*(asked.ask("/score", {}, deadline=60.0) for _ in range(20)))
    assert most == 3


async def test_a_call_without_an_answer_ends_after_its_seconds() -> None:
    def serve(number: int, body: dict[str, Any]) -> Answer | str:
        return OK if number else judges.HANGS

    async with judges.server(serve) as url:
        asked, counted = door(transport.post, HurriedClock(), url=url, callSeconds=0.05)
        assert await asked.ask("/chat/completions", {}, deadline=60.0) == OK.body
    assert counts(counted) == {"timeout": 1.0, "answered": 1.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("999999999", 600.0), ("Mon, 12 Jan 1970 13:46:50 GMT", 10.0), ("soon", 0.0), ("-5", 0.0), ("", 0.0)],
)
def test_retry_after_is_a_number_or_a_date(text: str, seconds: float) -> None:
    assert calls.retry_after_s(text, now=1_000_000.0) == seconds
