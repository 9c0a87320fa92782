"""A ledger at the bench: short calls that play rollout and trainer, and a config to start from."""

import json
import pathlib
from collections.abc import Callable, Mapping

import pytest

from rljob_api import process_config, types
from rljob_api.manifest.data import SftSpec
from rljob_testing import ledger_bench, sections
from rljob_workers.coordinator.policy import prompts

FEW: Mapping[str, object] = {
    "data.filterGroups.maxExtraGroups": 1000,
    "evaluation.everySteps": 2,
    "checkpoint.everySteps": 5,
}


@pytest.fixture
def version_maker() -> Callable[..., types.WeightVersion]:
    return ledger_bench.make_version


@pytest.fixture
def make_bench(tmp_path: pathlib.Path) -> Callable[..., ledger_bench.Bench]:
    """Return a maker of benches: B 2, G 2, eta 1 unless a change of the spec says otherwise; 3 examples a supervised
    step.
    """

    def make(
        *,
        num_prompts: int = 50,
        epochs: int = 0,
        path: pathlib.Path | None = None,
        sft_steps: int = 0,
        num_examples: int = 12,
        **changes: object,
    ) -> ledger_bench.Bench:
        index = prompts.SourceIndex(name="train", prompt_ids=tuple(f"p{i}" for i in range(num_prompts)))
        order = prompts.TaskOrder([index], seed=7, epochs=epochs)
        examples = None
        if sft_steps:
            changes = {"sft": SftSpec.model_validate({"steps": sft_steps, "examplesPerStep": 3}), **changes}
            own = prompts.SourceIndex(name="examples", prompt_ids=tuple(f"x{i}" for i in range(num_examples)))
            examples = prompts.TaskOrder([own], seed=8)
        config = sections.make_config(process_config.CoordinatorConfig, tmp_path, FEW, **{"max_steps": 100, **changes})
        return ledger_bench.Bench(
            path=path or tmp_path / "ledger.sqlite",
            config=config,
            order=order,
            examples=examples,
            sft_steps=sft_steps,
        )

    return make


@pytest.fixture
def make_config(tmp_path: pathlib.Path) -> Callable[..., process_config.CoordinatorConfig]:
    """Return a maker of coordinator configs over a small data file and a suite: B 2, G 2, eta 1."""
    (tmp_path / "train.jsonl").write_text("".join(_record(f"p{i}") for i in range(20)), encoding="utf-8")
    (tmp_path / "held_out.jsonl").write_text("".join(_record(f"e{i}") for i in range(3)), encoding="utf-8")

    def source(name: str, *, drop: bool) -> dict[str, object]:
        invalid = "Drop" if drop else "Fail"
        return {"name": name, "path": f"{name}.jsonl", "maxPromptTokens": 56, "onInvalidRecord": invalid}

    def make(
        *, suites: bool = False, drop: bool = False, suite_drops: bool = False, **changes: object
    ) -> process_config.CoordinatorConfig:
        data = {
            "data.train": [source("train", drop=drop)],
            "evaluation.suites": [source("held_out", drop=suite_drops)] if suites else [],
        }
        return sections.make_config(process_config.CoordinatorConfig, tmp_path, {**FEW, **data}, **changes)

    return make


def _record(prompt_id: str) -> str:
    return json.dumps({"id": prompt_id, "prompt": f"{prompt_id}=", "answer": "1"}) + "\n"
