import dataclasses
import json
import pathlib
from typing import cast

import pytest

from rljob_api import enums, types
from rljob_api.manifest.lifecycle import ObservabilitySpec
from rljob_testing import makers
from rljob_testing import rollout as fakes
from rljob_testing.sections import section
from rljob_workers.rollout import dumps
from rljob_workers.rollout import group as groups
from rljob_workers.rollout.episodes import protocols


def make_row(versions: list[int], loss_mask: list[int]) -> types.Trajectory:
    return types.Trajectory(
        tokens=types.ints([65 + index for index in range(len(versions))]),
        loss_mask=types.mask(loss_mask),
        logprobs=types.floats([-0.5 if sampled else 0.0 for sampled in loss_mask]),
        versions=types.ints(versions),
        turn_ids=types.ints([0 if sampled else -1 for sampled in loss_mask]),
        truncated=False,
        reward=1.0,
        raw_reward=1.0,
        verdict=makers.make_verdict(),
        sample_index=0,
    )


@pytest.mark.covers("workflows 10")
@pytest.mark.parametrize(
    ("versions", "loss_mask", "expected"),
    [
        ([-1, -1, 3, 3, 4], [0, 0, 1, 1, 1], {"head_version": 3, "tail_version": 4, "version_rle": [[3, 2], [4, 1]]}),
        ([-1, 5, 5, 5], [0, 1, 1, 1], {"head_version": 5, "tail_version": 5, "version_rle": [[5, 3]]}),
    ],
)
def test_version_summary_of_the_published_examples(
    versions: list[int], loss_mask: list[int], expected: dict[str, object]
) -> None:
    prompt_len = loss_mask.index(1)
    row = make_row(versions, loss_mask)
    assert dumps.version_summary(row) == {**expected, "prompt_len": prompt_len}
    assert dumps.segments(row, fakes.FakeTokens()) is None


@pytest.mark.covers("workflows 10")
def test_segments_name_prompt_gen_and_context_runs() -> None:
    row = make_row([-1, 2, -1, 2, -1], [0, 1, 0, 1, 0])
    assert dumps.segments(row, fakes.FakeTokens()) == [
        {"role": "prompt", "len": 1, "text": "A"},
        {"role": "gen", "len": 1, "text": "B"},
        {"role": "context", "len": 1, "text": "C"},
        {"role": "gen", "len": 1, "text": "D"},
        {"role": "context", "len": 1, "text": "E"},
    ]


def make_turn(raw_reward: float = 1.0, *, prompt_len: int = 3, answer_len: int = 2) -> protocols.TurnRecord:
    return protocols.TurnRecord(
        raw_reward=raw_reward, prompt_len=prompt_len, answer_len=answer_len, version_start=3, version_end=4,
        stop_reason="stop", reason="ok",
    )  # fmt: skip


def scored(
    group: types.PromptGroup, turns: dict[int, tuple[protocols.TurnRecord, ...]] | None = None
) -> groups.ScoredGroup:
    return groups.ScoredGroup(group=group, turns=turns or {})


def make_dumper(
    folder: pathlib.Path, *, per_version: int = 0, text: bool = False, monitor: bool = False
) -> dumps.Dumper:
    options = dumps.Options(folder=str(folder), groups_per_version=per_version, text=text, monitor=monitor)
    return dumps.Dumper(options, fakes.FakeTokens())


def read(path: pathlib.Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.covers("workflows 10")
def test_rows_are_appended_under_kind_and_newest_version(tmp_path: pathlib.Path) -> None:
    dumper = make_dumper(tmp_path)
    group = scored(makers.make_group(group_id="g", rewards=(1.0, 0.0), versions=3))
    lease = fakes.make_lease(group_id="g")
    dumper.dump(lease, group)
    dumper.dump(dataclasses.replace(lease, kind=enums.GroupKind.EVALUATION), group)
    assert [line["reward"] for line in read(tmp_path / "rollout" / "3" / "g.jsonl")] == [1.0, 0.0]
    assert (tmp_path / "eval-rollout" / "3" / "g.jsonl").exists()


@pytest.mark.covers("workflows 10")
def test_a_row_of_several_turns_tells_of_each_its_own_lengths_versions_and_verdict(tmp_path: pathlib.Path) -> None:
    turns = (make_turn(0.0), make_turn(1.0, prompt_len=9, answer_len=4))
    make_dumper(tmp_path).dump(fakes.make_lease(), scored(makers.make_group(rewards=(1.0,)), {0: turns}))
    (line,) = read(tmp_path / "rollout" / "0" / "group-lease.jsonl")
    told = line["turns"]
    assert isinstance(told, list)
    assert [(turn["success"], turn["prompt_len"], turn["answer_len"]) for turn in told] == [(False, 3, 2), (True, 9, 4)]
    assert [(turn["version_start"], turn["version_end"], turn["raw_reward"]) for turn in told] == [(3, 4, 0), (3, 4, 1)]


def test_a_row_of_one_turn_has_no_list_of_turns(tmp_path: pathlib.Path) -> None:
    make_dumper(tmp_path).dump(fakes.make_lease(), scored(makers.make_group(rewards=(1.0,)), {0: (make_turn(),)}))
    (line,) = read(tmp_path / "rollout" / "0" / "group-lease.jsonl")
    assert line["turns"] is None


def test_turns_belong_to_the_one_row_or_each_to_its_own() -> None:
    one, two = makers.make_trajectory(reward=0.0), makers.make_trajectory(reward=1.0)
    first, second = make_turn(0.0), make_turn(1.0)

    def told(rows: list[types.Trajectory], turns: tuple[protocols.TurnRecord, ...]) -> list[tuple[object, ...]]:
        found = dumps.turns_by_row(rows, turns)
        return [(row, tuple(held.records), held.first, held.count) for row, held in found]

    assert told([one], (first, second)) == [(one, (first, second), 0, 2)]
    assert told([one, two], (first, second)) == [(one, (first,), 0, 2), (two, (second,), 1, 2)]
    assert told([one, two], ()) == [(one, (), 0, 0), (two, (), 0, 0)]


@pytest.mark.covers("workflows 10")
def test_a_row_of_one_of_several_turns_tells_of_that_turn_and_its_number(tmp_path: pathlib.Path) -> None:
    rows = [makers.make_trajectory(prompt=(65,) * length, completion=(66, 67)) for length in (3, 7)]
    group = dataclasses.replace(makers.make_group(group_id="g"), trajectories=tuple(rows))
    turns = (make_turn(0.0, prompt_len=3), make_turn(1.0, prompt_len=7))
    make_dumper(tmp_path, text=True).dump(fakes.make_lease(group_id="g"), scored(group, {0: turns}))
    lines = read(tmp_path / "rollout" / "0" / "g.jsonl")
    assert [[turn["prompt_len"] for turn in cast("list[dict[str, int]]", line["turns"])] for line in lines] == [
        [3],
        [7],
    ]
    text = (tmp_path / "rollout" / "0" / "g.txt").read_text()
    assert [line.split(",")[0] for line in text.splitlines() if line.startswith("idx")] == ["idx: 1 / 2", "idx: 2 / 2"]


@pytest.mark.covers("workflows 10")
def test_the_text_shows_prompt_and_answer_of_that_turn_without_colours(tmp_path: pathlib.Path) -> None:
    row = makers.make_trajectory(prompt=(65, 66, 67), completion=(68, 69, 70, 71), versions=3)
    group = types.PromptGroup(
        lease_id=types.LeaseId("l"), group_id=types.GroupId("g"), attempt=1, trajectories=(row,), failures=()
    )
    turns = (make_turn(0.0, prompt_len=3, answer_len=1), make_turn(1.0, prompt_len=5, answer_len=2))
    make_dumper(tmp_path, text=True).dump(fakes.make_lease(group_id="g"), scored(group, {0: turns}))
    assert (tmp_path / "rollout" / "3" / "g.txt").read_text().splitlines() == [
        "sample 0",
        "idx: 1 / 2, seqlen: 4, head version: 3, tail version: 4.",
        "reward is 0.0, prompt is ABC",
        "sequence is: D",
        "idx: 2 / 2, seqlen: 7, head version: 3, tail version: 4.",
        "reward is 1.0, prompt is ABCDE",
        "sequence is: FG",
    ]


@pytest.mark.covers("workflows 10")
def test_the_monitor_has_one_line_a_turn_with_that_turns_own_values(tmp_path: pathlib.Path) -> None:
    turns = (make_turn(0.0), make_turn(1.0, prompt_len=9, answer_len=4))
    make_dumper(tmp_path, monitor=True).dump(fakes.make_lease(), scored(makers.make_group(rewards=(1.0,)), {0: turns}))
    assert read(tmp_path / "training_monitor" / "0" / "group-lease.jsonl") == [
        {"version_start": 3, "version_end": 4, "success": False, "prompt_len": 3, "answer_len": 2},
        {"version_start": 3, "version_end": 4, "success": True, "prompt_len": 9, "answer_len": 4},
    ]


@pytest.mark.covers("workflows 10")
def test_a_sample_is_the_first_groups_of_each_version(tmp_path: pathlib.Path) -> None:
    dumper = make_dumper(tmp_path, per_version=2)
    for index, version in enumerate((3, 3, 3, 4)):
        dumper.dump(
            fakes.make_lease(group_id=f"g{index}"), scored(makers.make_group(group_id=f"g{index}", versions=version))
        )
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl"))
    assert found == ["rollout/3/g0.jsonl", "rollout/3/g1.jsonl", "rollout/4/g3.jsonl"]


@pytest.mark.covers("workflows 10")
def test_a_row_whose_last_token_is_not_sampled_is_dumped_too(tmp_path: pathlib.Path) -> None:
    row = make_row([-1, 2, -1], [0, 1, 0])
    group = types.PromptGroup(
        lease_id=types.LeaseId("l"), group_id=types.GroupId("g"), attempt=1, trajectories=(row,), failures=()
    )
    make_dumper(tmp_path).dump(fakes.make_lease(group_id="g"), scored(group))
    (line,) = read(tmp_path / "rollout" / "2" / "g.jsonl")
    assert (line["seqlen"], line["completion"]) == (3, "BC")


@pytest.mark.covers("workflows 10")
def test_an_unwritable_folder_is_counted_and_stops_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    counted: list[int] = []
    options = dumps.Options(folder=str(tmp_path / "file"))
    dumper = dumps.Dumper(options, fakes.FakeTokens(), on_failure=lambda: counted.append(1))
    dumper.dump(fakes.make_lease(), scored(makers.make_group()))
    assert dumper.num_failed == len(counted) == 2


def test_without_a_folder_nothing_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dumps.Dumper(dumps.Options(folder=""), fakes.FakeTokens()).dump(fakes.make_lease(), scored(makers.make_group()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.covers("workflows 10")
def test_a_sample_of_dumps_is_four_groups_of_each_version() -> None:
    assert dumps.options_of(ObservabilitySpec(), "/d") == dumps.Options(folder="/d", groups_per_version=4)
    whole = section(ObservabilitySpec, trajectory_dump="All")
    assert dumps.options_of(whole, "/d") == dumps.Options(folder="/d", groups_per_version=0)


@pytest.mark.covers("workflows 10")
def test_further_files_of_a_dump_are_asked_for_by_name() -> None:
    named = section(ObservabilitySpec, trajectory_dump_also=("Text", "LegacyMonitor", "Tokens"))
    options = dumps.options_of(named, "/d")
    assert (options.text, options.monitor, options.tokens) == (True, True, True)


@pytest.mark.covers("workflows 10")
def test_each_token_after_the_prompt_has_its_text_and_if_it_was_sampled_its_log_probability(
    tmp_path: pathlib.Path,
) -> None:
    inserted = dataclasses.replace(
        makers.make_trajectory(prompt=(65,), completion=(66, 67, 68)),
        loss_mask=types.mask([0, 1, 0, 1]),
        logprobs=types.floats([0.0, -0.5, 0.0, -2.25]),
        versions=types.ints([-1, 0, -1, 0]),
        turn_ids=types.ints([-1, 0, -1, 1]),
        num_turns=2,
    )
    group = dataclasses.replace(makers.make_group(group_id="g"), trajectories=(inserted,))
    dumper = dumps.Dumper(dumps.Options(folder=str(tmp_path), tokens=True), fakes.FakeTokens())
    dumper.dump(fakes.make_lease(group_id="g"), scored(group))
    (line,) = read(tmp_path / "rollout" / "0" / "g.jsonl")
    assert line["tokens"] == {"texts": ["B", "C", "D"], "logprobs": [-0.5, None, -2.25]}
