"""What the figures are read from: expositions, the audit log, statuses in the order in which they were written."""

import json
import pathlib

import pytest

from rljob_testing.operator_audit import AuditLog, transitions
from rljob_testing.operator_series import series, share_within, total

TEXT = """
# TYPE waits_seconds histogram
waits_seconds_bucket{{kind="Job",le="0.5"}} {0}
waits_seconds_bucket{{kind="Job",le="3.0"}} {1}
waits_seconds_bucket{{kind="Job",le="+Inf"}} {2}
waits_seconds_count{{kind="Job"}} {2}
waits_seconds_sum{{kind="Job"}} 9
# TYPE requests_total counter
requests_total{{verb="GET",code="200"}} 3
requests_total{{verb="GET",code="404"}} 1
requests_total{{verb="POST",code="200"}} 5
"""


def test_totals_are_over_the_series_that_have_the_labels() -> None:
    found = series(TEXT.format(0, 0, 0))
    assert total(found, "requests_total", verb="GET") == 4
    assert total(found, "requests_total") == 9
    assert total(found, "requests_total", verb="PUT") == 0


def test_share_is_of_what_was_observed_between_two_scrapes() -> None:
    before, after = series(TEXT.format(10, 10, 10)), series(TEXT.format(11, 13, 14))
    assert share_within(before, after, "waits_seconds", seconds=0.5) == 0.25
    assert share_within(before, after, "waits_seconds", seconds=3.0) == 0.75


def test_share_of_nothing_or_to_no_bucket_is_refused() -> None:
    found = series(TEXT.format(1, 1, 1))
    with pytest.raises(ValueError, match="observed nothing"):
        share_within(found, found, "waits_seconds", seconds=0.5)
    with pytest.raises(ValueError, match=r"no bucket of waits_seconds ends at 0.7"):
        share_within(found, found, "waits_seconds", seconds=0.7)


def _line(verb: str, resource: str, **more: object) -> str:
    meant = {"resource": resource, "apiGroup": "rljob.dev", "namespace": "team", "name": "run", **more}
    at = "2026-01-02T03:04:05.250000Z"
    return json.dumps({"verb": verb, "objectRef": meant, "responseStatus": {"code": 200}, "stageTimestamp": at})


def test_writes_after_a_mark_are_read_with_their_subresource_and_an_unfinished_line_is_left(
    tmp_path: pathlib.Path,
) -> None:
    audit = AuditLog(tmp_path, user="somebody")
    assert audit.writes() == []
    log = pathlib.Path(audit.flags["audit-log-path"])
    log.write_text(_line("patch", "rljobs") + "\n")
    mark = audit.mark()
    later = [_line("list", "rljobs"), _line("patch", "rljobs", subresource="status")]
    log.write_text("\n".join([_line("patch", "rljobs"), *later, '{"verb": "del']))
    (only,) = audit.writes(mark)
    assert (only.verb, only.resource, only.status, only.name) == ("patch", "rljobs/status", 200, "run")
    assert only.at == 1767323045.25


def test_only_what_changes_the_status_of_a_condition_is_a_transition() -> None:
    def status(ready: str, step: int) -> dict[str, object]:
        return {"step": step, "conditions": [{"type": "Ready", "status": ready}]}

    written = [status("False", 0), status("False", 0), status("True", 0), status("True", 1), status("False", 1)]
    assert transitions(written) == 3
