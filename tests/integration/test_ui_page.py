"""The page of `rljob ui` in a real browser without a network, on a run that was made by hand."""

import pathlib
import threading
from collections.abc import Iterator

import pytest

from rljob_testing import browser, run_folders
from rljob_workers.cli.ui import server, views

TOKEN = "the-token"
# What a policy may write: it has to be read, and never run.
WRITTEN = "<img src=x onerror=\"document.title='broken in'\"> & <b>2</b>"


@pytest.fixture
def address(tmp_path: pathlib.Path) -> Iterator[str]:
    """Return the address that `rljob ui` prints."""
    browser.require()
    run = run_folders.finished_run(tmp_path)
    run_folders.dump_row(run, "g1", version=2, head_version=1, version_rle=[[1, 1], [2, 1]], completion=WRITTEN)
    tokens = {"texts": [WRITTEN, "<b>last</b>"], "logprobs": [-0.25, -4.0]}
    run_folders.dump_row(run, "g2", version=2, completion=f"{WRITTEN}<b>last</b>", tokens=tokens)
    with server.Server(server.Site(views.Runs(run.path.parent), token=TOKEN), port=0) as serves:
        thread = threading.Thread(target=serves.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{serves.server_port}/?token={TOKEN}"
        serves.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("place", "texts"),
    [
        ("", ["small", "finished", "held-out"]),
        ("#/run/small", ["Reward", "<svg", "polyline", "not running"]),
        (
            "#/run/small/trajectories",
            [
                "group g1, sample 0",
                "versions 1 to 2",
                "onerror",
                "sampled, 2 tokens",
                "(log-probability -4), version 2",
            ],
        ),
        ("#/run/small/trajectories?reward=big", ["--reward is 'big', but must be a number"]),
        ("#/run/none", ["there is no run 'none'"]),
    ],
    ids=["runs", "run", "trajectories", "wrong-filter", "no-run"],
)
def test_a_place_shows_its_data_and_texts_stay_texts(
    address: str, tmp_path: pathlib.Path, place: str, texts: list[str]
) -> None:
    shown, console = browser.opened(address + place, tmp_path / "profile")
    assert [text for text in texts if text not in shown] == []
    assert "<img" not in shown
    assert "<title>rljob</title>" in shown
    # A refused filter and a run that is not there are answers with a status, which the browser reports itself.
    assert [line for line in console if "Failed to load resource" not in line] == []
