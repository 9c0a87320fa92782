"""`rljob retry`: a failed run goes on, and what it cannot do is said before anything is sent."""

from collections.abc import Callable

import pytest
from typer.testing import Result

from rljob_testing.fake_kubectl import FakeKubectl

Rljob = Callable[..., Result]


def job(kind: str, *, retry: int = 0, seen: int | None = None, suspend: bool = False) -> dict[str, object]:
    condition = {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    spec = {"maxSteps": 4, "retry": retry, "suspend": suspend}
    status = {"summary": kind, "conditions": [condition], "retry": seen}
    return {"metadata": {"name": "mine", "namespace": "research"}, "spec": spec, "status": status}


def test_a_retry_is_the_next_number(rljob: Rljob, kubectl: FakeKubectl) -> None:
    kubectl.answers("get rljobs.rljob.dev mine", job("Failed", retry=2, seen=2))
    kubectl.answers("patch rljobs.rljob.dev mine", "rljob.rljob.dev/mine patched\n")
    result = rljob("retry", "mine", "-n", "research")
    assert (result.exit_code, result.stdout) == (0, "rljob.rljob.dev/mine patched\n"), result.output
    assert '--patch={"spec": {"retry": 3}}' in kubectl.calls()[-1]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (job("Running"), "is Running: only a run that has Failed is retried"),
        (job("Complete"), "is Complete: only a run that has Failed is retried"),
        (job("Failed", retry=1), "has spec.retry 1 already: it continues as soon as an operator sees it"),
        (job("Failed", retry=1, suspend=True), "has spec.retry 1 already: it continues once spec.suspend is false"),
    ],
)
def test_what_cannot_be_retried_is_not_changed(
    rljob: Rljob, kubectl: FakeKubectl, body: dict[str, object], sentence: str
) -> None:
    kubectl.answers("get rljobs.rljob.dev mine", body)
    result = rljob("retry", "mine")
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.stderr
    assert not any("patch" in call for call in kubectl.calls())
