"""What Helm makes of the chart."""

import json
import pathlib
from typing import Any

import pytest
from generators import CHART

from rljob_api import enums
from rljob_api.validation import definitions
from rljob_operator.__main__ import arguments
from rljob_operator.kube import permissions
from rljob_operator.settings import DEFAULT_DNS, DEFAULT_EGRESS, Settings
from rljob_testing.charts import CI_VALUES, Helm, HelmError, Manifest, only

MONITORING, KEDA = "monitoring.coreos.com/v1", "keda.sh/v1alpha1"
Rights = set[tuple[str, str, str]]


def _rights(rules: list[dict[str, Any]]) -> Rights:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _table(*conditions: str, scopes: tuple[str, ...] = ("jobs", "cluster")) -> Rights:
    return {
        (rule.group, resource, verb)
        for rule in permissions.RULES
        if rule.when in conditions and rule.scope in scopes
        for resource in rule.resources
        for verb in rule.verbs
    }


def _settings(manifests: list[Manifest]) -> Settings:
    return Settings.model_validate_json(only(manifests, "ConfigMap", "rljob-operator")["data"]["settings.json"])


@pytest.mark.parametrize("values", [None, *CI_VALUES], ids=lambda path: path.name if path else "defaults")
def test_lint_is_clean(helm: Helm, values: pathlib.Path | None) -> None:
    helm.run("lint", "--strict", str(CHART), *([f"--values={values}"] if values else []))


@pytest.mark.parametrize("apis", [(), (MONITORING, KEDA)], ids=["bare", "with monitoring and KEDA"])
@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.name)
def test_a_render_is_the_same_every_time(helm: Helm, values: pathlib.Path, apis: tuple[str, ...]) -> None:
    first = helm.template(files=[values], api_versions=apis)
    assert first == helm.template(files=[values], api_versions=apis)
    named = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in first]
    assert len(named) == len(set(named))


@pytest.mark.covers("sandbox S-2")
def test_runtime_classes_that_jobs_may_ask_for_are_admitted_by_the_policy_too(helm: Helm) -> None:
    made = helm.template(
        {"jobs": {"runtimeClasses": ["gvisor"]}, "isolationPolicy": {"runtimeClasses": ["kata", "gvisor"]}}
    )
    assert _settings(made).jobs.runtime_classes == ("gvisor",)
    policy = only(made, "ValidatingAdmissionPolicy", "rljob-operator-isolation")
    (rule,) = [each for each in policy["spec"]["validations"] if "runtimeClassName in" in each["expression"]]
    assert rule["expression"].endswith("object.spec.runtimeClassName in ['gvisor', 'kata']")


def test_a_misspelt_value_is_refused_by_name(helm: Helm) -> None:
    with pytest.raises(HelmError, match="concurency"):
        helm.template({"concurency": 9})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"integrations": {"certManager": True}}, "integrations.certManager = true"),
        ({"tracing": {"endpoint": "http://c:4317"}}, "tracing.endpoint"),
    ],
)
def test_what_nothing_serves_is_refused(helm: Helm, values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmError, match=f"not supported yet: {named}"):
        helm.template(values)


def test_the_definition_is_the_generated_one_with_labels_and_the_keep_policy(helm: Helm) -> None:
    rendered = [each for each in helm.template() if each["kind"] == "CustomResourceDefinition"]
    generated = definitions.definitions()
    assert [each["metadata"]["name"].partition(".")[0] for each in rendered] == list(generated)
    for made, definition in zip(rendered, generated.values(), strict=True):
        own = definition["metadata"]["annotations"]
        assert made["metadata"]["annotations"] == {**own, "helm.sh/resource-policy": "keep"}
        assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "rljob-operator"
        assert {**made, "metadata": {"name": made["metadata"]["name"], "annotations": own}} == definition
    kinds = [each["kind"] for each in helm.template({"crds": {"enabled": False}})]
    assert "CustomResourceDefinition" not in kinds
    loose = [each for each in helm.template({"crds": {"keep": False}}) if each["kind"] == "CustomResourceDefinition"]
    assert "helm.sh/resource-policy" not in loose[0]["metadata"]["annotations"]


def test_rights_are_those_of_the_table_and_no_others(helm: Helm) -> None:
    made = helm.template()
    assert _rights(only(made, "ClusterRole", "rljob-operator")["rules"]) == _table("always", "tls")
    more = helm.template(api_versions=[MONITORING, KEDA])
    assert _rights(only(more, "ClusterRole", "rljob-operator")["rules"]) == _table(
        "always", "tls", "keda", "podMonitor"
    )


def test_a_list_of_namespaces_renders_roles_there_and_nothing_cluster_wide(helm: Helm) -> None:
    made = helm.template(files=[CHART / "ci" / "namespaced-values.yaml"])
    mine = [each for each in made if each["kind"] == "Role" and each["metadata"]["name"] == "rljob-operator"]
    roles = {each["metadata"]["namespace"]: _rights(each["rules"]) for each in mine}
    expected = _table("always", "tls", scopes=("jobs",))
    assert roles == {"team-a": expected, "team-b": expected}
    assert not [each for each in made if each["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    assert _settings(made).watch_namespaces == ("team-a", "team-b")


def test_queues_and_gangs_bring_their_rights_and_no_others(helm: Helm) -> None:
    made = helm.template({"integrations": {"kueue": True}, "jobs": {"gangScheduler": "native"}})
    rights = _rights(only(made, "ClusterRole", "rljob-operator")["rules"])
    assert rights == _table("always", "tls", "kueue", "native", scopes=("jobs", "cluster", "shared"))
    assert {right[0] for right in rights} & {"scheduling.volcano.sh", "scheduling.x-k8s.io"} == set()
    settings = _settings(made)
    assert (settings.integrations.kueue, settings.jobs.gang_scheduler) == ("true", "native")


def test_flavors_are_read_cluster_wide_also_where_jobs_are_not(helm: Helm) -> None:
    made = helm.template({"watch": {"namespaces": ["team-a"]}, "integrations": {"kueue": True}})
    shared = only(made, "ClusterRole", "rljob-operator-rljob-system-queues")
    assert _rights(shared["rules"]) == _table("kueue", scopes=("shared",))


def test_a_default_queue_without_kueue_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"jobs\.defaultQueue = research needs Kueue"):
        helm.template({"jobs": {"defaultQueue": "research"}, "integrations": {"kueue": False}})


def test_a_selector_of_namespaces_renders_the_right_to_follow_them_and_the_operators_setting(helm: Helm) -> None:
    made = helm.template({"watch": {"namespaceSelector": "team=research"}})
    expected = _table("always", "tls", "namespaceSelector")
    assert _rights(only(made, "ClusterRole", "rljob-operator")["rules"]) == expected
    assert ("", "namespaces", "watch") in expected
    assert _settings(made).watch_namespace_selector == "team=research"


def test_namespaces_and_their_labels_are_not_both_taken(helm: Helm) -> None:
    with pytest.raises(HelmError, match="name namespaces, or their labels, not both"):
        helm.template({"watch": {"namespaces": ["a"], "namespaceSelector": "team=research"}})


def test_without_the_operators_certificates_no_secret_may_be_touched(helm: Helm) -> None:
    made = helm.template({"jobs": {"tlsModes": ["Disabled"]}})
    rights = _rights(only(made, "ClusterRole", "rljob-operator")["rules"])
    assert not [right for right in rights if right[1] == "secrets"]


def test_no_right_is_wider_than_needed() -> None:
    for rule in permissions.RULES:
        assert not {"*", "bind", "escalate", "impersonate"} & {*rule.verbs, *rule.resources}, rule
        assert not {"nodes", "pods/exec"} & {*rule.resources}, rule
        if "secrets" in rule.resources:
            assert not {"list", "watch"} & {*rule.verbs}


def test_viewers_and_editors_are_aggregated(helm: Helm) -> None:
    made = helm.template()
    viewer, editor = only(made, "ClusterRole", "rljob-viewer"), only(made, "ClusterRole", "rljob-editor")
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    assert {key.removeprefix(prefix) for key in viewer["metadata"]["labels"] if key.startswith(prefix)} == {
        "view",
        "edit",
        "admin",
    }
    assert {key.removeprefix(prefix) for key in editor["metadata"]["labels"] if key.startswith(prefix)} == {
        "edit",
        "admin",
    }
    assert {verb for _, _, verb in _rights(viewer["rules"])} == {"get", "list", "watch"}
    assert ("rljob.dev", "rljobs/scale", "patch") in _rights(editor["rules"])


def test_the_operator_understands_its_command_line_and_finds_the_settings_there(helm: Helm) -> None:
    (container,) = only(helm.template(), "Deployment", "rljob-operator")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["rljob-operator"]
    given = arguments().parse_args(container["args"])
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "settings"]
    assert given.config == pathlib.Path(mount["mountPath"]) / "settings.json"


@pytest.mark.parametrize(
    ("values", "device", "rollout", "trainer"),
    [
        ({}, "cpu", "rljob/rljob-worker:0.1.0", "rljob/rljob-worker:0.1.0"),
        ({"jobs": {"device": "cuda"}}, "cuda", "rljob/rljob-worker-cuda:0.1.0", "rljob/rljob-worker-cuda:0.1.0"),
        (
            {
                "jobs": {"device": "cuda", "images": {"rollout": {"repository": "own/vllm"}}},
                "global": {"imageRegistry": "r.example.com"},
            },
            "cuda",
            "r.example.com/own/vllm:0.1.0",
            "r.example.com/rljob/rljob-worker-cuda:0.1.0",
        ),
    ],
)
def test_the_device_of_jobs_names_the_workers_image(
    values: dict[str, object], device: str, rollout: str, trainer: str, helm: Helm
) -> None:
    jobs = _settings(helm.template(values)).jobs
    assert jobs.device == device
    assert (jobs.images[enums.Role.ROLLOUT], jobs.images[enums.Role.TRAINER]) == (rollout, trainer)
    assert jobs.images[enums.Role.COORDINATOR].endswith("rljob/rljob-slim:0.1.0")


def test_the_operator_reads_the_settings_that_the_values_say(helm: Helm) -> None:
    made = helm.template(files=[CHART / "ci" / "monitoring-values.yaml"])
    found = _settings(made)
    assert found.jobs.images[enums.Role.ROLLOUT] == "mirror.example.org/rljob/rljob-worker:0.1.0"
    assert found.jobs.image_pull_secrets == ("mirror",)
    assert [(block.cidr, block.ports) for block in found.jobs.egress] == [("10.20.0.0/16", (443, 9000))]
    assert found.jobs.operator_namespace == "rljob-system"
    assert found.integrations.keda == "true"
    rendered = _settings(helm.template())
    assert rendered == Settings.model_validate(
        {
            "jobs": {"images": dict(rendered.jobs.images), "operatorNamespace": "rljob-system"},
            "leaderElection": {"enabled": True, "namespace": "rljob-system"},
        }
    ), "values.yaml and settings.py have other defaults"


def test_what_jobs_reach_outside_is_what_an_operator_without_settings_lets_them_reach(helm: Helm) -> None:
    made = _settings(helm.template()).jobs
    assert (made.egress, made.dns) == (DEFAULT_EGRESS, DEFAULT_DNS)
    opened = _settings(helm.template({"jobs": {"allowMetadataAddress": True, "dns": []}})).jobs
    assert (opened.allow_metadata_address, opened.dns) == (True, ())


def test_the_operator_is_bound_by_the_account_that_it_has(helm: Helm) -> None:
    made = helm.template({"serviceAccount": {"name": "own"}}, namespace="platform")
    named = "system:serviceaccount:platform:own"
    (condition,) = only(made, "ValidatingAdmissionPolicy", "rljob-operator-operator")["spec"]["matchConditions"]
    assert named in condition["expression"]
    (rule,) = only(made, "ValidatingAdmissionPolicy", "rljob-operator-trusted-templates")["spec"]["validations"]
    assert named in rule["expression"]
    off = helm.template({"operatorPolicy": {"enabled": False}, "isolationPolicy": {"enabled": False}})
    assert not [each for each in off if each["kind"].startswith("ValidatingAdmissionPolicy")]


def test_every_kind_that_the_operator_may_write_is_bound(helm: Helm) -> None:
    policy = only(helm.template(), "ValidatingAdmissionPolicy", "rljob-operator-operator")
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    bound = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    writes = {"create", "patch", "update", "delete"}
    written = {
        (rule.group, resource) for rule in permissions.RULES if writes & {*rule.verbs} for resource in rule.resources
    }
    # Of jobs themselves the operator writes the status and deletes what its time to live is over for; its role names
    # the Leases.
    assert {
        each for each in written - bound if each[0] not in ("rljob.dev", "events.k8s.io", "coordination.k8s.io")
    } == set()


def test_operators_that_elect_a_leader_overlap_and_those_that_do_not_never_do(helm: Helm) -> None:
    alone = only(helm.template(), "Deployment")["spec"]
    assert (alone["replicas"], alone["strategy"]["type"]) == (1, "RollingUpdate")
    assert alone["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    off = helm.template({"leaderElection": {"enabled": False}})
    assert only(off, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert not _settings(off).leader_election.enabled
    assert not [each for each in off if each["metadata"]["name"] == "rljob-operator-leases"]


@pytest.mark.parametrize("key", ["replicas", "shards"])
def test_more_than_one_without_an_election_is_refused(helm: Helm, key: str) -> None:
    with pytest.raises(HelmError, match=f"{key} = 2, but leaderElection.enabled is false"):
        helm.template({key: 2, "leaderElection": {"enabled": False}})


def test_terms_under_which_two_could_lead_are_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match="renewSeconds = 12, leaseSeconds = 10: each must be below the next"):
        helm.template({"leaderElection": {"renewSeconds": 12}})


def test_each_shard_has_a_lease_in_the_operators_namespace_and_rights_on_no_other(helm: Helm) -> None:
    made = helm.template({"shards": 2, "replicas": 2, "watch": {"namespaces": ["team-a"]}})
    role = only(made, "Role", "rljob-operator-leases")
    assert role["metadata"]["namespace"] == "rljob-system"
    assert _rights(role["rules"]) == _table("leaderElection", scopes=("own",))
    names = [rule.get("resourceNames") for rule in role["rules"] if rule["verbs"] != ["create"]]
    assert names == [["rljob-operator-shard-0", "rljob-operator-shard-1"]]
    terms = _settings(made).leader_election
    assert (terms.enabled, terms.namespace, terms.name, terms.shards) == (True, "rljob-system", "rljob-operator", 2)


def test_replicas_are_kept_apart_and_one_of_them_is_always_left(helm: Helm) -> None:
    assert not [each for each in helm.template() if each["kind"] == "PodDisruptionBudget"]
    made = helm.template({"replicas": 2})
    deployment = only(made, "Deployment")["spec"]
    budget = only(made, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, deployment["selector"])
    (apart,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    own = {"nodeAffinity": {}}
    other = only(helm.template({"replicas": 2, "affinity": own}), "Deployment")
    assert other["spec"]["template"]["spec"]["affinity"] == own


def test_requests_have_a_priority_level_of_their_own_and_renewals_that_of_leader_election(helm: Helm) -> None:
    made = helm.template()
    level = only(made, "PriorityLevelConfiguration")["metadata"]["name"]
    schemas = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "FlowSchema"}
    levels = {name: schema["priorityLevelConfiguration"]["name"] for name, schema in schemas.items()}
    assert levels == {"rljob-operator": level, "rljob-operator-leases": "leader-election"}
    for schema in schemas.values():
        (rule,) = schema["rules"]
        account = {"namespace": "rljob-system", "name": "rljob-operator"}
        assert rule["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": account}]
    assert not [
        each for each in helm.template({"apiPriority": {"enabled": False}}) if "flowcontrol" in each["apiVersion"]
    ]


def test_the_operators_pod_is_restricted_and_alone_has_a_token(helm: Helm) -> None:
    made = helm.template()
    deployment = only(made, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (box,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] == 30
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (True, False)
    assert only(made, "ServiceAccount", "rljob-operator")["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 65532
    assert box["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [(port["name"], port["containerPort"]) for port in box["ports"]] == [("health", 8080), ("metrics", 9090)]
    assert "cpu" not in box["resources"]["limits"]
    assert [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume] == [{"sizeLimit": "64Mi"}]


def test_selectors_hold_no_version(helm: Helm) -> None:
    selector = only(helm.template(), "Deployment")["spec"]["selector"]["matchLabels"]
    assert set(selector) == {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}


def test_other_settings_roll_the_operators_pod(helm: Helm) -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = only(helm.template(values), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum({}) == checksum({"resources": {"requests": {"cpu": "1"}}})
    assert checksum({}) != checksum({"concurrency": 9})


def test_a_digest_wins_over_a_tag_and_the_mirror_over_the_registry(helm: Helm) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    (box,) = only(helm.template(files=[CHART / "ci" / "monitoring-values.yaml"]), "Deployment")["spec"]["template"][
        "spec"
    ]["containers"]
    assert box["image"] == f"mirror.example.org/rljob/rljob-slim@{digest}"
    (own,) = only(helm.template({"image": {"registry": "r.example", "tag": "2"}}), "Deployment")["spec"]["template"][
        "spec"
    ]["containers"]
    assert own["image"] == "r.example/rljob/rljob-slim:2"


@pytest.mark.parametrize(
    ("enabled", "apis", "expected"),
    [("auto", (), False), ("auto", (MONITORING,), True), (True, (), True), (False, (MONITORING,), False)],
)
def test_a_pod_monitor_is_made_where_it_is_wanted_and_served(
    helm: Helm, enabled: object, apis: tuple[str, ...], expected: bool
) -> None:
    made = helm.template({"monitoring": {"podMonitor": {"enabled": enabled}}}, api_versions=apis)
    assert ("PodMonitor" in [each["kind"] for each in made]) is expected


def test_a_service_monitor_takes_the_place_of_the_pod_monitor(helm: Helm) -> None:
    kinds = [each["kind"] for each in helm.template({"monitoring": {"serviceMonitor": {"enabled": True}}})]
    assert "ServiceMonitor" in kinds
    assert "PodMonitor" not in kinds


def test_the_operators_policy_admits_probes_and_scrapes_alone(helm: Helm) -> None:
    spec = only(helm.template(), "NetworkPolicy")["spec"]
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == ["health", "metrics"]
    assert [port["port"] for rule in spec["egress"] for port in rule["ports"]] == [53, 53, 50051, 443, 6443]


def test_a_release_fits_into_a_secret(helm: Helm, tmp_path: pathlib.Path) -> None:
    import base64
    import gzip

    text = json.dumps(helm.template()) + "".join(
        path.read_text() for path in sorted(CHART.rglob("*")) if path.is_file() and "ci" not in path.parts
    )
    assert len(base64.b64encode(gzip.compress(text.encode()))) < 700_000


def test_nothing_is_rendered_into_namespaces_of_jobs_but_roles(helm: Helm) -> None:
    made = helm.template(files=[CHART / "ci" / "namespaced-values.yaml"])
    assert {each["kind"] for each in made if each["metadata"].get("namespace") in ("team-a", "team-b")} == {
        "Role",
        "RoleBinding",
    }


def test_a_key_stands_once_whatever_the_values_repeat(helm: Helm) -> None:
    values = {
        "podLabels": {"team": "a", "app.kubernetes.io/name": "other"},
        "podAnnotations": {"note": "b", "checksum/settings": "mine"},
        "extraEnv": [{"name": "HOME", "value": "/data"}, {"name": "A", "value": "1"}],
    }
    template = only(helm.template(values), "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "rljob-operator"
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["note"] == "b"
    assert template["metadata"]["annotations"]["checksum/settings"] != "mine"
    (box,) = template["spec"]["containers"]
    assert [each["name"] for each in box["env"]] == ["POD_NAME", "POD_UID", "HOME", "A"]
    assert [each["value"] for each in box["env"] if "value" in each] == ["/data", "1"]
    (plain,) = only(helm.template(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert [each for each in plain["env"] if "value" in each] == [{"name": "HOME", "value": "/tmp"}]
