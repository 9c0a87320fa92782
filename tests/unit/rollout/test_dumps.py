import json
import pathlib

import pytest

from rljob_api import names, types
from rljob_testing import makers
from rljob_testing import rollout as fakes
from rljob_workers.rollout import dumps


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


def test_segments_name_prompt_gen_and_context_runs() -> None:
    row = make_row([-1, 2, -1, 2, -1], [0, 1, 0, 1, 0])
    assert dumps.segments(row, fakes.FakeTokens()) == [
        {"role": "prompt", "len": 1, "text": "A"},
        {"role": "gen", "len": 1, "text": "B"},
        {"role": "context", "len": 1, "text": "C"},
        {"role": "gen", "len": 1, "text": "D"},
        {"role": "context", "len": 1, "text": "E"},
    ]


def test_rows_are_appended_under_kind_and_newest_version(tmp_path: pathlib.Path) -> None:
    dumper = dumps.Dumper(str(tmp_path), fakes.FakeTokens())
    group = makers.make_group(group_id="g", rewards=(1.0, 0.0), versions=3)
    dumper.dump(fakes.make_lease(), group)
    dumper.dump(fakes.make_lease(kind=names.GroupKind.EVALUATION), group)
    lines = (tmp_path / "rollout" / "3" / "g.jsonl").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [1.0, 0.0]
    assert (tmp_path / "eval-rollout" / "3" / "g.jsonl").exists()


def test_an_unwritable_folder_is_counted_and_stops_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    dumper = dumps.Dumper(str(tmp_path / "file"), fakes.FakeTokens())
    dumper.dump(fakes.make_lease(), makers.make_group())
    assert dumper.num_failed == 2


def test_without_a_folder_nothing_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dumps.Dumper("", fakes.FakeTokens()).dump(fakes.make_lease(), makers.make_group())
    assert list(tmp_path.iterdir()) == []
