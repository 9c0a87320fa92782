"""An engine by the name of `rollout.engine.type`: built in, or of an installed package."""

import json
import pathlib

import pytest

from rljob_api import errors
from rljob_api.manifest import rollout
from rljob_api.validation.load import load_manifest
from rljob_testing import packages
from rljob_workers.local.checks import missing
from rljob_workers.rollout.engines import base, fake

MODULE = """
    from rljob_workers.rollout.engines import base, fake
    from rljob_workers.runtime import clock

    REGISTRATION = base.Registration(
        environment=lambda num_threads: {"HASHED_THREADS": str(num_threads)},
        make=lambda settings: fake.FakeEngine(clock=clock.SystemClock()),
        expose_metrics=lambda registry: None,
    )
"""
ENTRY_POINTS = """
    [rljob.engines]
    hashed = hashed_engine:REGISTRATION
    no-engine = hashed_engine:base
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.install(tmp_path, "hashed_engine", entry_points=ENTRY_POINTS, module=MODULE)
    packages.put_on_path(tmp_path, monkeypatch)


def spec_of(engine: str) -> rollout.EngineSpec:
    return rollout.EngineSpec.model_validate({"type": engine})


def problems(engine: str) -> list[str]:
    """Return what `rljob plan` and `rljob run` find missing."""
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {
            "maxSteps": 10,
            "model": {"name": "builtin:smollm2-135m-instruct"},
            "data": {"train": [{"name": "sums", "path": "sums.jsonl"}]},
            "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
            "rollout": {"engine": {"type": engine}},
        },
    }
    return missing.entry_points(load_manifest(json.dumps(manifest)).spec)


@pytest.mark.parametrize("engine", rollout.ENGINES)
def test_each_engine_of_the_manifest_is_registered(engine: str) -> None:
    assert base.find(engine).environment(2)
    assert problems(engine) == []


def test_an_engine_of_an_installed_package_is_made(tmp_path: pathlib.Path) -> None:
    registration = base.find("plugin:hashed")
    assert registration.environment(3) == {"HASHED_THREADS": "3"}
    settings = base.Settings(
        model=tmp_path, engine=None, trust_remote_code=False, image_path="", image_bytes=0, progress_path="",
        loaded_bytes=lambda: 0,
    )  # type: ignore[arg-type]  # this engine reads none of it  # fmt: skip
    assert isinstance(registration.make(settings), fake.FakeEngine)
    assert problems("plugin:hashed") == []


def test_one_that_is_not_installed_is_refused_before_the_run_and_by_the_rollout() -> None:
    sentence = (
        "spec.rollout.engine.type is 'plugin:sglang', but no package that is installed here declares it as an entry"
        " point of 'rljob.engines'; installed: hashed, no-engine."
    )
    with pytest.raises(errors.ManifestError) as refused:
        base.find("plugin:sglang")
    for text in (*refused.value.problems, *problems("plugin:sglang")):
        assert text.startswith(sentence)


def test_an_engine_that_serves_no_adapters_is_refused_where_one_is_trained() -> None:
    assert base.find("vllm", adapted=True).serves_adapters
    with pytest.raises(errors.ManifestError, match=r"spec\.model\.lora is set, but the engine plugin:hashed"):
        base.find("plugin:hashed", adapted=True)


def test_an_entry_point_that_is_no_registration_is_refused() -> None:
    with pytest.raises(errors.ManifestError, match="which is module and not a Registration"):
        base.find("plugin:no-engine")


@pytest.mark.parametrize("engine", ["sglang", "module:Class", "plugin:", ""])
def test_an_unknown_type_is_refused_by_the_manifest(engine: str) -> None:
    with pytest.raises(errors.ManifestError, match="spec.rollout.engine.type"):
        problems(engine)
