"""The model card: what is told of a run, and what never is."""

import copy
from typing import Any

import pytest
import yaml

from rljob_workers.local import model_card
from rljob_workers.local.rundir import history

SPEC: dict[str, Any] = {
    "maxSteps": 120,
    "model": {"name": "HuggingFaceTB/SmolLM2-135M-Instruct", "source": {"secretName": "hub-token"}},
    "data": {
        "train": [
            {"name": "answers", "path": "/home/ada/answers.jsonl", "phase": "SFT"},
            {"name": "gsm", "hub": "openai/gsm8k", "split": "train"},
            {"name": "made", "reasoningGym": {"name": "chain_sum"}},
            {"name": "bucket", "uri": "s3://secret-bucket/questions.jsonl"},
        ]
    },
    "algorithm": {"advantageEstimator": "grpo", "groupSize": 8, "promptsPerStep": 4, "loss": {"type": "ppo"}},
    "trainer": {"optimizer": {"type": "AdamW", "learningRate": "1e-6"}},
    "verifier": {"env": [{"name": "KEY", "value": "hunter2"}]},
}
STEPS = [
    history.Step(step=1, started_at=0.0, finished_at=1.0, reward_mean=None),
    history.Step(step=2, started_at=1.0, finished_at=2.0, reward_mean=0.25),
    history.Step(step=3, started_at=2.0, finished_at=3.0, reward_mean=0.75),
]
EVALUATIONS = [
    history.Evaluation(suite="held-out", step=0, accuracy=0.1, n=40),
    history.Evaluation(suite="held-out", step=3, accuracy=0.625, n=40),
]
RUN = history.Run(steps=STEPS, evaluations=EVALUATIONS)


def card(changes: dict[str, Any] | None = None, *, local_model: bool = False, job: str = "sums") -> str:
    spec = copy.deepcopy(SPEC) | (changes or {})
    versions = {"rljob": "0.1.0", "vllm": "0.32.0"}
    return model_card.text(job=job, spec=spec, run=RUN, versions=versions, local_model=local_model)


def header(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_the_hub_reads_base_model_data_sets_and_algorithm_of_the_header() -> None:
    assert header(card()) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["rljob", "reinforcement-learning", "grpo"],
        "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "datasets": ["openai/gsm8k"],
    }


def test_provenance_has_steps_data_rewards_held_out_results_and_versions() -> None:
    told = card()
    for row in (
        "| steps | 3 of 120, the first 1 supervised |",
        "| trained on | `answers`: records that are not public, as examples |",
        "|  | `gsm`: openai/gsm8k of the hub, split train |",
        "|  | `made`: tasks `chain_sum` of reasoning-gym |",
        "| mean reward | 0.250 in the first step, 0.500 in the last 2 |",
        "| versions where it was pushed | rljob 0.1.0, vllm 0.32.0 |",
        "| `held-out` | 10.0% (step 0) | 62.5% (step 3) | 40 |",
    ):
        assert row in told.splitlines()
    assert "advantages grpo, loss ppo, optimizer AdamW, learning rate 1e-6" in told


@pytest.mark.parametrize("private", ["/home/ada", "secret-bucket", "hunter2", "hub-token", "KEY"])
def test_no_path_store_secret_or_variable_is_told(private: str) -> None:
    assert private not in card()


@pytest.mark.parametrize("name", ["/models/mine", "./mine", "../a/b", "s3://bucket/model", "models/inner/mine"])
def test_a_base_model_in_a_folder_is_not_named(name: str) -> None:
    told = card({"model": {"name": name}})
    assert name not in told
    assert "| base model | one that is not public |" in told
    assert "base_model" not in header(told)


def test_the_revision_of_the_base_model_is_told() -> None:
    told = card({"model": {"name": "org/base", "revision": "v1.2"}})
    assert "| base model | org/base at v1.2 |" in told
    assert header(told)["base_model"] == "org/base"


def test_a_folder_whose_name_reads_as_a_repositorys_is_not_named_either() -> None:
    assert "HuggingFaceTB" not in card(local_model=True)


def test_the_digest_of_the_settings_changes_with_them() -> None:
    rows = [
        next(line for line in each.splitlines() if line.startswith("| job |")) for each in (card(), card({"seed": 2}))
    ]
    assert rows[0] != rows[1]
    assert rows[0] == next(line for line in card().splitlines() if line.startswith("| job |"))


def test_names_stay_in_their_places() -> None:
    told = card({"data": {"train": [{"name": "a | b\n# c", "hub": "x/y\nbase_model: z"}]}}, job="a\n---\nlicense: mit")
    assert "license" not in header(told)
    assert "`a _ b__ c`: records that are not public" in told
    assert header(told).get("datasets") is None
