"""What `rljob ui` answers to a browser, and to whom. The runs are made by hand; the page itself: tests/integration."""

import http.client
import json
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rljob_api import enums, errors
from rljob_workers.cli.ui import server, views
from rljob_workers.local.rundir import history, layout

TOKEN = "the-token"
COOKIE = f"rljob_ui={TOKEN}"
Dump = Callable[..., None]


@pytest.fixture
def site(run: layout.RunDir) -> server.Site:
    return server.Site(views.Runs(run.path.parent), token=TOKEN)


def got(site: server.Site, target: str, *, host: str = "127.0.0.1:8321", cookie: str = COOKIE) -> tuple[int, Any]:
    answer = site.answer(target, host=host, cookie=cookie)
    is_json = answer.content_type == "application/json" and answer.body
    return int(answer.status), json.loads(answer.body) if is_json else answer.body


def test_the_address_that_was_printed_sets_a_cookie_that_scripts_cannot_read_and_leaves_the_token_out(
    site: server.Site,
) -> None:
    answer = site.answer(f"/?token={TOKEN}", host="localhost:8321", cookie="")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    assert answer.headers["Set-Cookie"] == f"{COOKIE}; HttpOnly; SameSite=Strict; Path=/"
    assert got(site, "/")[0] == 200


@pytest.mark.parametrize("target", ["/", "/page.js", "/api/runs", "/api/runs/small", "/?token=wrong", "/nothing"])
@pytest.mark.parametrize("cookie", ["", "rljob_ui=wrong", "rljob_ui=", "other=1", "\x00"])
def test_without_the_token_nothing_is_answered(site: server.Site, target: str, cookie: str) -> None:
    status, body = got(site, target, cookie=cookie)
    assert status == 403
    assert "rljob ui" in body["problem"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8321", "", "[::1]evil", "[::1", "0.0.0.0"])
def test_a_name_that_is_not_this_machines_is_refused_even_with_the_token(site: server.Site, host: str) -> None:
    assert got(site, "/api/runs", host=host)[0] == 403


@pytest.mark.parametrize("target", ["http://[::1/", "/?" + "&".join("a=1" for _ in range(60))])
def test_an_address_that_cannot_be_read_is_refused(site: server.Site, target: str) -> None:
    status, body = got(site, target)
    assert status == 400
    assert "the address is none" in body["problem"]


def test_runs_are_listed_with_their_state_and_last_values(site: server.Site) -> None:
    _, body = got(site, "/api/runs")
    (listed,) = body["runs"]
    assert (listed["name"], listed["state"], listed["step"]) == ("small", "finished", 1)
    assert listed["changed_at"].endswith("Z")


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: pathlib.Path) -> None:
    assert views.Runs(tmp_path / "none").listed()["runs"] == []


def test_a_run_that_cannot_be_read_is_listed_with_its_problem_among_the_others(
    site: server.Site, run: layout.RunDir
) -> None:
    broken = run.path.parent / "broken"
    broken.mkdir()
    (broken / layout.IDENTITY).write_text("{")
    _, body = got(site, "/api/runs")
    problems = {listed["name"]: listed.get("problem") for listed in body["runs"]}
    assert problems["small"] is None
    assert "broken" in problems["broken"]


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e", "../small", "small%2f..", ""])
def test_only_a_run_that_is_listed_can_be_asked_for(site: server.Site, name: str) -> None:
    status, body = got(site, f"/api/runs/{name}")
    assert status == 404
    assert body["problem"]


def test_a_run_says_how_it_stands_and_has_its_curves(site: server.Site) -> None:
    _, body = got(site, "/api/runs/small")
    assert body["state"] == "finished"
    assert any("not running" in line for line in body["why"])
    assert "Reward" in [chart["title"] for chart in body["charts"]]


def step(number: int, **changes: Any) -> history.Step:
    return history.Step(step=number, started_at=0.0, finished_at=1.0, reward_mean=0.5, **changes)


def test_curves_have_a_point_a_step_and_leave_out_what_is_no_number() -> None:
    statistic = enums.StepStat.ENTROPY
    run = history.Run(
        steps=[step(1, stats={statistic: 0.7}), step(2, stats={statistic: float("nan")}), step(3)],
        evaluations=[history.Evaluation(suite="s", step=2, accuracy=0.25, n=4)],
    )
    by_title = {chart.title: chart for chart in views.charts(run)}
    assert by_title["Reward"].series["mean"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert by_title["Entropy"].series == {"policy": [(1, 0.7)]}
    assert by_title["Held-out accuracy"].series == {"s": [(2, 0.25)]}
    assert "Gradient norm" not in by_title


def test_rewards_have_a_curve_of_trained_answers_where_a_filter_left_some_out() -> None:
    (rewards, *_) = views.charts(
        history.Run(steps=[step(1, trained_reward_mean=0.25), step(2, trained_reward_mean=0.5)])
    )
    assert rewards.series["mean"] == [(1, 0.5), (2, 0.5)]
    assert rewards.series["mean of trained answers"] == [(1, 0.25), (2, 0.5)]
    (rewards, *_) = views.charts(history.Run(steps=[step(1, trained_reward_mean=0.5)]))
    assert "mean of trained answers" not in rewards.series


def test_without_steps_there_are_no_curves() -> None:
    assert views.charts(history.Run()) == []


def test_what_json_has_no_number_for_is_null() -> None:
    assert views.plain({"a": [float("inf"), 1.5], "b": (float("nan"), "x")}) == {"a": [None, 1.5], "b": [None, "x"]}


def test_a_trajectory_has_its_parts_versions_and_verdict(site: server.Site, dumped: Dump) -> None:
    dumped("g1", version=3, reward=1.0, reason="ok", completion="2")
    _, body = got(site, "/api/runs/small/trajectories")
    (row,) = body["rows"]
    assert [(part["role"], part["text"], part["tokens"]) for part in row["parts"]] == [
        ("prompt", "1 + 1 = ", 3),
        ("gen", "2", 2),
    ]
    assert (row["version_rle"], row["reason"], row["reward"]) == ([[3, 2]], "ok", 1.0)


def test_tokens_that_were_dumped_by_themselves_have_their_log_probability_and_version(
    site: server.Site, dumped: Dump
) -> None:
    segments = [{"role": "prompt", "len": 3, "text": "1 + 1 = "}, {"role": "gen", "len": 1, "text": "2"}]
    segments += [{"role": "context", "len": 1, "text": "."}, {"role": "gen", "len": 2, "text": "ok"}]
    tokens = {"texts": ["2", ".", "o", "k"], "logprobs": [-0.5, None, -1.5, -2.0]}
    dumped("g1", version=3, version_rle=[[2, 1], [3, 2]], seqlen=7, segments=segments, tokens=tokens)
    _, body = got(site, "/api/runs/small/trajectories")
    assert [part["by_token"] for part in body["rows"][0]["parts"]] == [
        [],
        [["2", -0.5, 2]],
        [],
        [["o", -1.5, 3], ["k", -2.0, 3]],
    ]


def test_a_line_whose_tokens_lack_log_probabilities_is_left_out(site: server.Site, dumped: Dump) -> None:
    dumped("g1", tokens={"texts": ["2", "3"], "logprobs": [-0.5]})
    _, body = got(site, "/api/runs/small/trajectories")
    assert (body["rows"], body["unreadable"]) == ([], 1)


def test_a_long_text_is_cut_and_says_by_how_much(site: server.Site, dumped: Dump) -> None:
    dumped("g1", completion="x" * (views.MOST_CHARS + 7))
    _, body = got(site, "/api/runs/small/trajectories")
    part = body["rows"][0]["parts"][1]
    assert (len(part["text"]), part["characters_left_out"]) == (views.MOST_CHARS, 7)


def test_trajectories_come_in_pages_newest_weights_first(site: server.Site, dumped: Dump) -> None:
    for version in range(views.MOST_ROWS + 3):
        dumped(f"g{version}", version=version)
    _, first = got(site, "/api/runs/small/trajectories")
    _, second = got(site, f"/api/runs/small/trajectories?offset={first['next']}")
    versions = [row["head_version"] for row in (*first["rows"], *second["rows"])]
    assert versions == sorted(range(views.MOST_ROWS + 3), reverse=True)
    assert (first["next"], second["next"]) == (views.MOST_ROWS, None)


def test_filters_say_which_trajectories(site: server.Site, dumped: Dump) -> None:
    dumped("g1", version=1, reward=1.0, reason="ok")
    dumped("g2", version=2, reward=0.0)
    dumped("g3", version=3, kind="eval-rollout")

    def groups(query: str) -> list[str]:
        return [row["group_id"] for row in got(site, f"/api/runs/small/trajectories?{query}")[1]["rows"]]

    assert groups("reward=%3E0.5") == ["g1"]
    assert groups("version=2") == ["g2"]
    assert groups("reason=ok") == ["g1"]
    assert groups("kind=evaluation") == ["g3"]
    assert groups("truncated=true") == []


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("reward=big", "--reward is 'big'"),
        ("reason=nonsense", "--reason is 'nonsense'"),
        ("version=one", "version is 'one', but must be a whole number"),
        ("offset=-1", "offset is '-1', but must be a whole number"),
        ("offset=999999999", "must be a whole number from 0 to 100000"),
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(site: server.Site, query: str, problem: str) -> None:
    status, body = got(site, f"/api/runs/small/trajectories?{query}")
    assert status == 400
    assert problem in body["problem"]


@pytest.fixture
def serving(site: server.Site) -> Iterator[int]:
    """Return the port of a server."""
    with server.Server(site, port=0) as serves:
        thread = threading.Thread(target=serves.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serves.server_port
        serves.shutdown()
        thread.join()


def asked(port: int, method: str, target: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(server.HOST, port, timeout=30)
    connection.request(method, target, headers={"Cookie": COOKIE})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_every_answer_forbids_foreign_scripts_and_copies(serving: int) -> None:
    for target in ("/", "/api/runs", "/none"):
        headers = asked(serving, "GET", target).headers
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(serving: int, method: str) -> None:
    assert asked(serving, method, "/api/runs").status == 501


def test_a_port_that_is_taken_is_an_error_with_its_number(serving: int, site: server.Site) -> None:
    with pytest.raises(errors.UnavailableError, match=f"cannot listen on 127.0.0.1:{serving}"):
        server.Server(site, port=serving)
