"""The effective settings of Kopf are those of docs/design/operator.md#s-2."""

import itertools
from collections.abc import Iterable

import kopf

from rljob_operator.kube import kinds, watch


def test_every_setting_is_the_one_of_the_reference() -> None:
    found = watch.settings(namespaced=False)
    assert (found.networking.request_timeout, found.networking.connect_timeout) == (30, 5)
    watching = found.watching
    assert (watching.server_timeout, watching.client_timeout, watching.inactivity_timeout) == (300, 330, 70)
    assert found.persistence.finalizer.startswith("operator.rljob.dev/")
    assert (found.posting.enabled, found.peering.standalone, found.queueing.worker_limit) == (False, True, None)
    assert found.execution.default_backoff == 5
    assert len(watching.label_selectors) == len(kinds.WATCHED) - 1
    of_pods = watching.label_selectors.pop(("", "v1", "pods"))
    assert of_pods == "rljob.dev/uid", "whatever else was taken away"
    assert set(watching.label_selectors.values()) == {"app.kubernetes.io/managed-by=rljob-operator"}


class Uncopied:
    """A part of an object that must not be copied."""

    def __deepcopy__(self, memo: object) -> "Uncopied":
        raise AssertionError("copied")


def test_kopf_copies_no_object_to_find_changes_that_no_handler_is_told_of() -> None:
    persistence = watch.settings(namespaced=False).persistence
    body = kopf.Body({"metadata": {"labels": {"large": Uncopied()}}, "spec": Uncopied()})  # type: ignore[typeddict-item]
    assert persistence.diffbase_storage.fetch(body=body) is None
    essence = persistence.diffbase_storage.build(body=body, extra_fields=())
    assert persistence.progress_storage.clear(essence=essence) == {}


def test_resources_are_scanned_only_where_the_whole_cluster_is_watched() -> None:
    assert not watch.settings(namespaced=False).scanning.disabled
    assert watch.settings(namespaced=True).scanning.disabled


def test_a_watch_is_tried_again_for_ever() -> None:
    waits = watch.settings(namespaced=True).networking.error_backoffs
    assert isinstance(waits, Iterable)
    for _ in range(2):  # each request restarts
        tries = list(itertools.islice(waits, 1000))
        assert len(tries) == 1000
        assert (tries[0], max(tries)) == (1, 30)
