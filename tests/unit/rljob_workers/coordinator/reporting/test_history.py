import json
import pathlib

import pytest

from rljob_workers.coordinator.reporting import history


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "history.jsonl"


def lines(path: pathlib.Path) -> list[tuple[int, str]]:
    return [(event["seq"], event["kind"]) for event in map(json.loads, path.read_text(encoding="utf-8").splitlines())]


LEDGER = [(1, '{"kind":"a"}'), (2, '{"kind":"b"}'), (5, '{"kind":"c"}')]


def test_lines_carry_their_sequence_number(path: pathlib.Path) -> None:
    history.HistoryFile(path).append(LEDGER)
    assert lines(path) == [(1, "a"), (2, "b"), (5, "c")]


def test_no_line_is_written_twice(path: pathlib.Path) -> None:
    file = history.HistoryFile(path)
    file.append(LEDGER[:2])
    file.append(LEDGER)
    assert lines(path) == [(1, "a"), (2, "b"), (5, "c")]


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_torn_last_line_is_cut_off_and_written_again(path: pathlib.Path, cut: int) -> None:
    history.HistoryFile(path).append(LEDGER)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    file = history.HistoryFile(path)
    file.append([line for line in LEDGER if line[0] > file.last_seq])
    assert path.read_bytes() == whole


def test_an_empty_file_begins_at_the_beginning(path: pathlib.Path) -> None:
    path.touch()
    assert history.HistoryFile(path).last_seq == 0
