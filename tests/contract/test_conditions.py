"""The page on conditions has the types and reasons of the code, all of them and no others, in their order."""

import pathlib
import re

from rljob_api.conditions import DEGRADED_BY_RUN, REASONS, STALL_REASONS, UPLOADS_FAILING, ConditionType
from rljob_api.validation import crd
from rljob_testing import condition_rules

ROOT = pathlib.Path(__file__).parents[2]
WRITERS = [
    *sorted((ROOT / "operator").rglob("*.py")),
    *sorted((ROOT / "workers").rglob("*.py")),
    ROOT / "proto/rljob_api/lifecycle.py",
]
# Of jobs that wait for a quota or for all pods at once.
OF_QUEUES = {
    "Admitted", "CapabilityMissing", "ExceedsMaxQuota", "NoMatchingFlavor", "Deactivated", "QueueNameConflict",
    "Preempted", "QuotaEvicted", "WaitingForGang",
}  # fmt: skip
NAMED_BY_CONSTANTS = {*STALL_REASONS, *DEGRADED_BY_RUN, UPLOADS_FAILING}
PAGE = (ROOT / "docs/conditions.md").read_text()
T = ConditionType


def documented() -> dict[str, list[tuple[str, ...]]]:
    """Return the reasons of each row by status: True, False, Unknown."""
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| `[A-Z]", line)]
    return {row[0].strip(" `"): [tuple(re.findall(r"`(\w+)`", cell)) for cell in row[2:5]] for row in rows}


def test_every_type_is_documented_in_the_order_of_a_status() -> None:
    assert list(documented()) == [str(kind) for kind in ConditionType]


def test_every_reason_is_documented_under_its_status_and_no_other() -> None:
    in_code = {
        str(kind): [REASONS[kind].get(status, ()) for status in ("True", "False", "Unknown")] for kind in ConditionType
    }
    assert documented() == in_code


def test_every_reason_is_written_by_somebody() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in WRITERS)
    nobodys = [
        f"{kind}={status}: {reason}"
        for kind, by_status in REASONS.items()
        for status, reasons in by_status.items()
        for reason in reasons
        if f'"{reason}"' not in sources and reason not in {*OF_QUEUES, *NAMED_BY_CONSTANTS}
    ]
    assert not nobodys, "alerts and runbooks would wait for these in vain"


def test_what_generic_tools_conclude_is_what_the_page_says() -> None:
    current = {**dict.fromkeys(T, "False"), T.ACCEPTED: "True"}
    states = {
        "starting": {**current, T.RECONCILING: "True"},
        "running": {**current, T.RUNNING: "True"},
        "suspended": {**current, T.SUSPENDED: "True"},
        "complete": {**current, T.COMPLETE: "True"},
        "failed": {**current, T.FAILED: "True", T.STALLED: "True"},
        "not accepted": {**current, T.ACCEPTED: "False", T.STALLED: "True"},
    }
    rows = dict(re.findall(r"^\| ([a-z, ]+) \| (InProgress|Current|Failed) \|$", PAGE, flags=re.MULTILINE))
    for word, statuses in states.items():
        assert condition_rules.contradictions(statuses) == []
        said = next(conclusion for words, conclusion in rows.items() if word in words.split(", "))
        assert condition_rules.kstatus(statuses, generation=1, observed_generation=1) == said, word


def test_every_column_of_kubectl_get_is_documented_with_its_field() -> None:
    rows = re.findall(r"^\| (\w+)( \(`-o wide`\))? \| `(\.[^`]+)` \| (.+) \|$", PAGE, flags=re.MULTILINE)
    shown = [(name, path, int(bool(wide)), text) for name, wide, path, text in rows]
    assert shown == [(name, path, priority, text) for name, path, _, priority, text in crd.COLUMNS]
