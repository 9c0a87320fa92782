"""Pods without a fixed user, as the restricted-v2 constraints of OpenShift want them, of the operator and of jobs."""

import json
from typing import Any

import pytest
from generators import CHART

from rljob_api import enums
from rljob_operator.model import Observed
from rljob_operator.reconcile import desired
from rljob_operator.settings import IMAGE_USER, Settings
from rljob_testing.charts import Helm, only
from rljob_testing.operator_runs import operator_job

OPENSHIFT = CHART / "ci" / "openshift-values.yaml"
IDS = ("runAsUser", "runAsGroup", "fsGroup")


def settings_of(made: list[dict[str, Any]]) -> Settings:
    return Settings.model_validate_json(only(made, "ConfigMap", "rljob-operator")["data"]["settings.json"])


def security_of_jobs(settings: Settings) -> list[dict[str, Any]]:
    answer = desired.desired_objects(Observed(job=operator_job()), settings.jobs)
    specs: list[Any] = [each["spec"] for each in answer.workloads(1)]
    pods = [spec["template"]["spec"] for spec in specs if "template" in spec]
    assert len(pods) == len(enums.STANDARD_ROLES)
    return pods


def test_no_pod_names_a_user_and_each_must_not_be_root(helm: Helm) -> None:
    made = helm.template(files=[OPENSHIFT])
    settings = settings_of(made)
    pods = [
        only(made, "Deployment")["spec"]["template"]["spec"],
        only(made, "Pod")["spec"],
        *security_of_jobs(settings),
    ]
    for pod in pods:
        assert not [key for key in IDS if key in pod["securityContext"]]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    named = [{each["name"] for each in pod["containers"][0]["env"]} for pod in security_of_jobs(settings)]
    assert all("USER" in names for names in named)


def test_the_default_is_the_user_of_the_images(helm: Helm) -> None:
    made = helm.template()
    settings = settings_of(made)
    assert settings.jobs.pod_security_context == IMAGE_USER
    for pod in (only(made, "Deployment")["spec"]["template"]["spec"], *security_of_jobs(settings)):
        assert [pod["securityContext"][key] for key in IDS] == [65532] * len(IDS)


def test_one_of_the_three_can_be_left_to_the_cluster(helm: Helm) -> None:
    made = helm.template({"jobs": {"podSecurityContext": {"fsGroup": None}}})
    written = json.loads(only(made, "ConfigMap", "rljob-operator")["data"]["settings.json"])
    assert written["jobs"]["podSecurityContext"] == {"runAsUser": 65532, "runAsGroup": 65532}
    assert settings_of(made).jobs.pod_security_context.fs_group is None


@pytest.mark.parametrize("user", [0, -1, "root"])
def test_root_and_what_is_no_user_are_refused(helm: Helm, user: object) -> None:
    with pytest.raises(Exception, match="runAsUser"):
        helm.template({"jobs": {"podSecurityContext": {"runAsUser": user}}})
