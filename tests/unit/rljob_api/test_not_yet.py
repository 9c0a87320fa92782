from collections.abc import Callable, Mapping

import pytest

from rljob_api import errors
from rljob_api.validation import migration
from rljob_api.validation.load import load_manifest

UNSERVED: dict[str, object] = {
    "model.lora.dropout": "0.1",
    "observability.traces": True,
    "teacher.pod": {"image": "a/b:1"},
    "teacher.replicas": 2,
    "teacher.url": "https://host/v1",
    "trainer.masterWeightsDtype": "float32",
}
# What else a section needs.
NEEDED: dict[str, dict[str, object]] = {"teacher": {"teacher.model": "better"}}


@pytest.mark.parametrize("path", UNSERVED)
def test_field_that_nothing_serves_is_refused_with_what_works(
    path: str, manifest_text: Callable[[Mapping[str, object]], str]
) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        load_manifest(manifest_text({**NEEDED.get(path.partition(".")[0], {}), path: UNSERVED[path]}))
    works = migration.UNSUPPORTED[path]
    assert refused.value.problems == (f"spec.{path} is not supported yet: {works}; leave it out",)


def test_every_field_that_nothing_serves_has_a_case() -> None:
    assert set(UNSERVED) == set(migration.UNSUPPORTED)


ELSEWHERE: dict[str, tuple[object, str]] = {
    "queue": ({"name": "q"}, "kueue.x-k8s.io/queue-name"),
    "gang": ("volcano", "jobs.gangScheduler"),
}


@pytest.mark.parametrize("path", ELSEWHERE)
def test_what_is_said_outside_of_the_manifest_is_refused_with_where(
    path: str, manifest_text: Callable[[Mapping[str, object]], str]
) -> None:
    value, where = ELSEWHERE[path]
    with pytest.raises(errors.ManifestError) as refused:
        load_manifest(manifest_text({path: value}))
    (problem,) = refused.value.problems
    assert problem.startswith(f"spec.{path} is not a field: ")
    assert where in problem


def test_every_field_that_is_elsewhere_has_a_case() -> None:
    assert set(ELSEWHERE) == set(migration.ELSEWHERE)
