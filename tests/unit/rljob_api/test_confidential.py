"""Values of a pod's environment and keys in a URI may be secrets: no refusal quotes one, no role's config holds one."""

import json

import pytest

from rljob_api import cluster_placement, enums, errors, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation import explain
from rljob_api.validation.load import load_manifest
from rljob_testing import marked
from rljob_testing.marked import SECRET


def load(env: object, *, role: str = "rollout", **more: object) -> RLJob:
    spec = {
        "maxSteps": 10,
        "model": {"name": "builtin:smollm2-135m-instruct"},
        "data": {"train": [{"name": "sums", "path": "sums.jsonl"}]},
        "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
        **more,
    }
    spec[role] = {**dict(spec.get(role, {})), "pod": {"env": env}}  # type: ignore[call-overload]  # sections are maps
    metadata = {"name": "job", "uid": "u", "generation": 1}
    body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec}
    return load_manifest(json.dumps(body))


@pytest.mark.parametrize("role", ["coordinator", "rollout", "verifier", "trainer"])
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"HF_TOKEN": SECRET}, "pod.env is a mapping, but must be a list"),
        (f"HF_TOKEN={SECRET}", "pod.env is a text, but must be a list"),
        ([f"HF_TOKEN={SECRET}"], "pod.env[0] is a text, but must be a mapping"),
        ([{"name": "HF_TOKEN", "value": [SECRET]}], "pod.env[0].value is a list, but must be text"),
        ([{"name": "HF_TOKEN", "value": {"key": SECRET}}], "pod.env[0].value is a mapping, but must be text"),
        ([{"name": "HF_TOKEN", "value": 8642097531}], "is a number, but must be text: write it in quotes"),
        ([{"name": "HF_TOKEN", "value": SECRET * 200}], "is a text, but must have at most 4096 characters"),
        ([{"name": "HF_TOKEN", "valu": SECRET}], "pod.env[0].valu is not a field; value is probably meant"),
        ([{"name": {"HF_TOKEN": SECRET}, "value": SECRET}], "pod.env[0].name is a mapping, but must be text"),
    ],
)
def test_a_refused_environment_is_told_by_path_and_kind(role: str, env: object, sentence: str) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        load(env, role=role)
    assert sentence in str(refused.value)
    assert "8642097531" not in str(refused.value)
    marked.assert_untold(str(refused.value))


def test_an_environment_beside_a_refused_field_is_not_quoted() -> None:
    with pytest.raises(errors.ManifestError) as refused:
        load([{"name": "HF_TOKEN", "value": SECRET}], maxSteps="ten", trainer={"nodes": 0})
    assert len(refused.value.problems) == 2
    marked.assert_untold(str(refused.value))


def test_no_config_of_a_role_and_no_line_of_a_plan_holds_a_value_of_the_environment() -> None:
    job = load([{"name": "HF_TOKEN", "value": SECRET}])
    assert job.spec.rollout.pod.env[0].value == SECRET
    configs = resolve.resolve(job, cluster_placement.cluster_placement(job, verifier_cores=2))
    assert len(configs.configs) == len(enums.STANDARD_ROLES)
    marked.assert_untold(f"{explain.explain(job, configs)} {resolve.warnings(job)}")
    for config in configs.configs:
        marked.assert_untold(config.model_dump_json())


def loaded_and_resolved(spec: dict[str, object]) -> None:
    job = load([], **spec)
    resolve.resolve(job, cluster_placement.cluster_placement(job, verifier_cores=2))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"storage": {"type": "Persistent", "checkpoints": {"uri": f"s3://key:{SECRET}@bucket/runs"}}},
            "spec.storage.checkpoints.uri is 's3://***@bucket/runs', but must be s3://bucket/prefix",
        ),
        (
            {"storage": {"type": "Persistent", "checkpoints": {"uri": f"s3://key:a/{SECRET}/b@bucket"}}},
            "spec.storage.checkpoints.uri is 's3://***@bucket', but must be s3://bucket/prefix",
        ),
        (
            {"storage": {"type": "Persistent", "checkpoints": {"uri": f"az://account/runs?sig={SECRET}"}}},
            "spec.storage.checkpoints.uri is 'az://account/runs?***', but must be s3://bucket/prefix",
        ),
        (
            {"storage": {"type": "Persistent", "checkpoints": {"uri": f"s3://key:{'k' * 80}{SECRET}@bucket"}}},
            "spec.storage.checkpoints.uri is 's3://***@bucket', but must be",
        ),
        (
            {"storage": {"type": "Persistent", "checkpoints": f"s3://key:{SECRET}@bucket"}},
            "spec.storage.checkpoints is 's3://***@bucket', but must be a mapping",
        ),
        (
            {"storage": {"s3": {"endpoint": f"https://key:{SECRET}@minio:9000"}}},
            "spec.storage.s3.endpoint is 'https://***@minio:9000', but must match",
        ),
        (
            {"data": {"train": [{"name": "sums", "uri": f"s3://key:{SECRET}@bucket/sums.jsonl"}]}},
            "spec.data.train[0].uri is 's3://***@bucket/sums.jsonl', but must be",
        ),
        (
            {"data": {"train": [{"name": "sums", "uri": [f"s3://key:{SECRET}@bucket/a.jsonl"]}]}},
            """spec.data.train[0].uri is ["s3://***@bucket/a.jsonl"], but must be text""",
        ),
        (
            {"resumeFrom": {"uri": f"s3://key:{SECRET}@bucket/runs"}},
            "spec.resumeFrom.uri is 's3://***@bucket/runs', but only folders are read",
        ),
        (
            {"model": {"name": f"s3://key:{SECRET}@bucket/model"}},
            "spec.model.name is 's3://***@bucket/model', but an address must be s3://bucket/prefix",
        ),
        (
            {"model": {"name": "org/model", "tokenizer": f"s3://key:{SECRET}@bucket/model"}},
            "spec.model.tokenizer is 's3://***@bucket/model', but an address must be",
        ),
        (
            {"model": {"name": "org/model", "source": {"path": f"s3://key:{SECRET}@bucket/model"}}},
            "spec.model.source.path is 's3://***@bucket/model', but it is a folder",
        ),
        (
            {
                "model": {"name": "org/model", "reference": {"name": f"s3://key:{SECRET}@bucket/model"}},
                "algorithm": {"loss": {"klCoef": "0.1"}},
            },
            "spec.model.reference.name is 's3://***@bucket/model', but an address must be",
        ),
    ],
)
def test_an_address_with_keys_is_refused_without_them(spec: dict[str, object], sentence: str) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        loaded_and_resolved(spec)
    assert any(sentence in problem for problem in refused.value.problems), refused.value.problems
    assert len(refused.value.problems) == 1
    marked.assert_untold(str(refused.value))


@pytest.mark.parametrize("name", ["s3://bucket/model", "file:///models/mine", "org/model", "/models/mine"])
def test_an_address_without_keys_names_a_model(name: str) -> None:
    assert load([], model={"name": name}).spec.model.name == name
