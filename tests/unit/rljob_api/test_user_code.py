"""spec.workflow.code: the manifest's field, its rule, and where a process finds the file."""

import dataclasses
from collections.abc import Callable

import pytest

from rljob_api import errors, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation import rules

MakeJob = Callable[..., RLJob]
CODE = {"workflow.type": "mine:Game", "workflow.code": {"path": "code/mine.py"}}


def placed(job: RLJob, *, code_dir: str = "") -> str:
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/manifest", cache_dir="/c", ports=range(20), num_cores=2
    )
    return resolve.resolve(job, dataclasses.replace(placement, code_dir=code_dir)).rollouts[0].user_code


def test_the_file_is_relative_to_the_manifest(make_job: MakeJob) -> None:
    assert placed(make_job(CODE)) == "/manifest/code/mine.py"


def test_in_a_cluster_the_file_is_a_key_of_the_mounted_config_map(make_job: MakeJob) -> None:
    job = make_job({**CODE, "workflow.code": {"path": "code/mine.py", "configMap": "my-code"}})
    assert placed(job, code_dir="/etc/code") == "/etc/code/mine.py"
    assert placed(job) == "/manifest/code/mine.py"


def test_without_a_file_there_is_none(make_job: MakeJob) -> None:
    assert placed(make_job({"workflow.type": "installed.flow:Game"})) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"workflow.code": {"path": "mine.py"}},
            "spec.workflow.code.path is 'mine.py', but workflow.type rlvr is in no file of yours: name mine:<class>",
        ),
        (
            {"workflow.type": "other:Game", "workflow.code": {"path": "mine.py"}},
            "spec.workflow.code.path is 'mine.py', but workflow.type other:Game wants a file other.py",
        ),
        (
            {"data.template": "other:ask", "workflow.code": {"path": "mine.py"}},
            "spec.workflow.code.path is 'mine.py', but data.template other:ask wants a file other.py",
        ),
    ],
)
def test_a_file_that_the_type_does_not_name_is_refused(
    changes: dict[str, object], said: str, make_job: MakeJob
) -> None:
    assert rules.problems(make_job(changes).spec) == [said]


def test_a_file_may_be_named_by_the_template_alone(make_job: MakeJob) -> None:
    job = make_job({"data.template": "mine:ask", "workflow.code": {"path": "mine.py"}})
    assert rules.problems(job.spec) == []
    assert placed(job) == "/manifest/mine.py"


@pytest.mark.parametrize("path", ["mine.txt", "my-code.py", "1st.py", "code/"])
def test_a_path_that_cannot_be_a_module_is_refused(path: str, make_job: MakeJob) -> None:
    with pytest.raises(errors.ManifestError, match=r"spec\.workflow\.code\.path"):
        make_job({"workflow.type": "mine:Game", "workflow.code": {"path": path}})


def test_the_file_may_be_named_by_the_predicate_of_the_filter_alone(make_job: MakeJob) -> None:
    changes = {"workflow.code": {"path": "code/mine.py"}, "data.filterGroups.predicate": "mine:hard"}
    assert rules.problems(make_job(changes).spec) == []
    (sentence,) = rules.problems(make_job({**changes, "data.filterGroups.predicate": "other:hard"}).spec)
    assert "data.filterGroups.predicate other:hard wants a file other.py" in sentence
