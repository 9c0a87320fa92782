"""What `rljob trajectories` shows. Dumps are written by hand, the ledger by the coordinator's own schema."""

import json
import pathlib
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from rljob_workers import coordinator
from rljob_workers.local.rundir import layout

Rljob = Callable[..., Result]
Dump = Callable[..., None]


@pytest.fixture
def trained(run: layout.RunDir) -> None:
    """A ledger in which g1 was trained in step 1 and g2 was dropped; the batch is not kept any more."""
    schema = pathlib.Path(coordinator.__path__[0], "ledger", "schema.sql").read_text(encoding="utf-8")
    database = sqlite3.connect(run.state / "ledger.sqlite")
    database.executescript(f"{schema}\nPRAGMA user_version = 1;")
    columns = "kind, source, prompt_index, prompt_id, epoch, position, copy, queue_key, group_size, attempt, created_at"
    common = "'train', 'sums', 0, 'p1', 0, 0, 0, 0, 2, 0, 0.0"
    database.execute(
        f"INSERT INTO groups (group_id, state, step, min_step, drop_reason, {columns})"
        f" VALUES ('g1', 'trained', 1, 0, NULL, {common}), ('g2', 'dropped', NULL, 0, 'stale', {common})"
    )
    database.commit()
    database.close()


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_newest_version_comes_first_and_as_many_as_asked_for(rljob: Rljob, dumped: Dump) -> None:
    for version in (0, 9, 10):
        dumped(f"g{version}", version=version)
    result = rljob("trajectories", "small", "--limit", "2", "-o", "json")
    assert [row["group_id"] for row in rows(result)] == ["g10", "g9"]
    assert "showed the first 2; --limit 0 shows all" in result.stderr
    assert len(rows(rljob("trajectories", "small", "--limit", "0", "-o", "json"))) == 3


def test_text_shows_prompt_verdict_versions_and_completion(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1", reward=1.0, raw_reward=1.0, reason="ok", completion="2\n", tail_version=1, version=0)
    assert rljob("trajectories").stdout.splitlines() == [
        "group g1 sample 0  prompt p1",
        "  reward 1  ok  versions 0 to 1  stop",
        "  prompt (3 tokens)",
        "  | 1 + 1 = ",
        "  completion (2 tokens)",
        "  | 2",
        "",
    ]


def test_siblings_share_one_prompt_on_the_screen(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1")
    dumped("g1", 1)
    assert rljob("trajectories").stdout.count("| 1 + 1 = ") == 1


def test_turns_are_shown_with_their_own_versions_and_rewards(rljob: Rljob, dumped: Dump) -> None:
    turn = {"success": False, "prompt_len": 3, "answer_len": 1, "version_start": 2, "stop_reason": "stop"}
    dumped(
        "g1",
        segments=[
            {"role": "prompt", "len": 3, "text": "1 + 1 = "},
            {"role": "gen", "len": 1, "text": "3"},
            {"role": "context", "len": 4, "text": "try again"},
            {"role": "gen", "len": 1, "text": "2"},
        ],
        turns=[
            {**turn, "raw_reward": 0.0, "version_end": 2, "reason": "wrong"},
            {**turn, "raw_reward": 0.5, "version_end": 3, "reason": "ok"},
        ],
    )
    shown = rljob("trajectories").stdout
    assert [line.strip() for line in shown.splitlines() if line.endswith("tokens)")] == [
        "prompt (3 tokens)", "completion (1 tokens)", "context (4 tokens)", "completion (1 tokens)",
    ]  # fmt: skip
    assert "turn 1/2: version 2  reward 0  wrong" in shown
    assert "turn 2/2: versions 2 to 3  reward 0.5  ok" in shown


@pytest.mark.covers("security")
def test_text_of_the_policy_cannot_act_on_the_terminal_or_fake_a_line(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1", completion="\x1b[2J\x1b]0;owned\x07\ngroup g2 sample 0\r", query_id="p\x1b[1m\n", stop_reason="\x9b")
    shown = rljob("trajectories").stdout
    assert set(filter(lambda char: not char.isprintable(), shown)) == {"\n"}
    assert r"  | \x1b[2J\x1b]0;owned\x07" in shown.splitlines()
    assert r"  | group g2 sample 0\r" in shown.splitlines()
    as_json = rljob("trajectories", "-o", "json").stdout
    assert set(filter(lambda char: not char.isprintable(), as_json)) == {"\n"}


def test_long_texts_are_cut_on_the_screen_and_whole_in_json(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1", completion="x" * 3000)
    assert "... 1000 more characters" in rljob("trajectories").stdout
    assert "x" * 3000 in rljob("trajectories", "--max-chars", "0").stdout
    assert rows(rljob("trajectories", "-o", "json"))[0]["completion"] == "x" * 3000


def test_filters_by_reward_reason_version_group_prompt_and_kind(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1", 0, version=1, reward=1.0, reason="ok")
    dumped("g1", 1, version=1, truncated=True, reason="no_answer")
    dumped("g2", 0, version=2, query_id="p2")
    dumped("e1", 0, version=2, kind="eval-rollout")

    def found(*words: str) -> list[str]:
        return [f"{row['group_id']}.{row['sample_idx']}" for row in rows(rljob("trajectories", *words, "-o", "json"))]

    assert found("--reward", "1") == ["g1.0"]
    assert found("--reason", "no_answer", "--reason", "wrong") == ["g2.0", "g1.1"]
    assert found("--version", "1") == ["g1.0", "g1.1"]
    assert found("--group", "g2") == ["g2.0"]
    assert found("--prompt", "p2") == ["g2.0"]
    assert found("--truncated") == ["g1.1"]
    assert found("--evaluation") == ["e1.0"]


@pytest.mark.usefixtures("trained")
def test_ledger_says_in_which_step_a_group_was_trained_or_why_it_was_not(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1")
    dumped("g2")
    dumped("g2", attempt=1)
    dumped("g3")
    facts = ("group_id", "state", "step", "age", "drop_reason", "advantage")
    assert [tuple(row[name] for name in facts) for row in rows(rljob("trajectories", "-o", "json"))] == [
        ("g3", "", None, None, "", None),
        ("g2", "dropped", None, None, "stale", None),
        ("g2", "superseded", None, None, "", None),
        ("g1", "trained", 1, 0, "", None),
    ]
    assert "sums/p1\n  reward 0  wrong  version 0  trained in step 1  stop" in rljob("trajectories").stdout


@pytest.mark.usefixtures("trained")
def test_step_and_drop_reason_are_filters_of_the_ledger(rljob: Rljob, dumped: Dump) -> None:
    dumped("g1")
    dumped("g2")
    assert [row["group_id"] for row in rows(rljob("trajectories", "--step", "1", "-o", "json"))] == ["g1"]
    assert [row["group_id"] for row in rows(rljob("trajectories", "--reason", "stale", "-o", "json"))] == ["g2"]
    result = rljob("trajectories", "--step", "7")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "step 7 has no groups" in result.stderr


def test_files_beyond_the_limit_are_not_read(rljob: Rljob, dumped: Dump, run: layout.RunDir) -> None:
    dumped("g2")
    # Reading a folder as a file would fail.
    (run.dumps / "rollout/0/g1.jsonl").mkdir()
    assert [row["group_id"] for row in rows(rljob("trajectories", "--limit", "1", "-o", "json"))] == ["g2"]


def test_half_written_and_foreign_lines_are_left_out_and_counted(
    rljob: Rljob, dumped: Dump, run: layout.RunDir
) -> None:
    dumped("g1")
    with (run.dumps / "rollout/0/g1.jsonl").open("a") as file:
        file.write('{"other": 1}\n{"group_id": "g1", "sample')
    result = rljob("trajectories", "-o", "json")
    assert len(rows(result)) == 1
    assert "2 lines of the dumps could not be read" in result.stderr


def test_ledger_that_cannot_be_read_is_a_sentence(rljob: Rljob, dumped: Dump, run: layout.RunDir) -> None:
    dumped("g1")
    (run.state / "ledger.sqlite").write_text("no ledger")
    result = rljob("trajectories")
    assert result.exit_code == 1
    assert "ledger.sqlite cannot be read: file is not a database" in result.stderr


def test_copy_of_a_jobs_storage_needs_only_its_dumps(
    rljob: Rljob, dumped: Dump, run: layout.RunDir, tmp_path: pathlib.Path
) -> None:
    dumped("g1")
    run.dumps.rename(tmp_path / "dumps")
    assert [row["group_id"] for row in rows(rljob("trajectories", "--run-dir", str(tmp_path), "-o", "json"))] == ["g1"]


def test_run_without_dumps_says_which_field_writes_them(rljob: Rljob, run: layout.RunDir) -> None:
    result = rljob("trajectories", "small")
    assert result.exit_code == 2
    assert "spec.observability.trajectoryDump is None" in result.stderr


def test_dumps_of_the_other_kind_are_pointed_at(rljob: Rljob, dumped: Dump) -> None:
    dumped("e1", kind="eval-rollout")
    result = rljob("trajectories", "small")
    assert result.exit_code == 2
    assert "holds no trajectories of training, only others: add --evaluation" in result.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--reward", "good"), "--reward is 'good'"),
        (("--reason", "bad"), "--reason is 'bad'"),
        (("--limit", "-1"), "--limit"),
        (("--distinct",), "write --examples too"),
        (("--output", "yaml"), "'yaml' is not one of 'text', 'json'"),
    ],
)
def test_bad_options_are_named_with_exit_code_two(
    rljob: Rljob, dumped: Dump, words: tuple[str, ...], problem: str
) -> None:
    dumped("g1")
    result = rljob("trajectories", *words)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_answers_are_written_as_examples_but_for_those_that_are_cut_or_have_several_turns(
    rljob: Rljob, dumped: Dump
) -> None:
    dumped("g1", completion="2\n")
    dumped("g2", truncated=True)
    answered = {"role": "gen", "len": 1, "text": "2"}
    asked = {"role": "prompt", "len": 3, "text": "1 + 1 = "}
    dumped("g3", segments=[asked, answered, {"role": "context", "len": 4, "text": "no"}, answered])
    found = rows(rljob("trajectories", "--examples", "--limit", "0"))
    assert found == [{"id": "g1-0-0", "prompt": "1 + 1 = ", "answer": "2\n", "rendered": True}]


def test_distinct_examples_are_each_prompt_with_each_answer_once(rljob: Rljob, dumped: Dump) -> None:
    for group, completion in (("g1", "2\n"), ("g2", "2\n"), ("g3", "3\n")):
        dumped(group, completion=completion)
    found = rows(rljob("trajectories", "--examples", "--distinct"))
    assert sorted(str(example["answer"]) for example in found) == ["2\n", "3\n"]
