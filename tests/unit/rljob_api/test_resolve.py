import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rljob_api import errors, process_config, resolve
from rljob_api.manifest.algorithm import CriticSpec, NormalizeSpec
from rljob_api.manifest.base import num_bytes
from rljob_api.manifest.data import CurriculumSpec
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.loss import CorrectionSpec
from rljob_api.process_config import VERIFY_QUEUE_S, VERIFY_TRIES
from rljob_api.validation import crd
from rljob_api.validation.load import load_manifest
from rljob_testing.sections import section

MakeJob = Callable[..., RLJob]
PORTS = tuple(range(7000, 7030))


def placed(job: RLJob, *, base_dir: str = "/work/jobs") -> resolve.Placement:
    return resolve.local_placement(
        job, uid="uid-1", run_dir="/runs/job", base_dir=base_dir, cache_dir="/cache", ports=PORTS, num_cores=2
    )


def resolved(job: RLJob) -> resolve.ResolvedJob:
    return resolve.resolve(job, placed(job))


def test_all_problems_are_raised_at_once(make_job: MakeJob) -> None:
    written: dict[str, object] = {"algorithm.groupSize": 1, "algorithm.loss.klCoef": "0.1"}
    job = make_job({**written, "rollout.engine.maxModelLen": 100})
    with pytest.raises(errors.ManifestError) as caught:
        resolved(job)
    begins = [sentence.split(" is ")[0] for sentence in caught.value.problems]
    assert begins == ["spec.rollout.engine.maxModelLen", "spec.algorithm.loss.klCoef", "spec.algorithm.groupSize"]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"job": "old"}, "/runs/old"),
        ({"uri": "/elsewhere/checkpoints"}, "/elsewhere/checkpoints"),
        ({"uri": "../kept/step-000000010"}, "/manifests/kept/step-000000010"),
        ({"uri": "file:///elsewhere/step-000000010"}, "/elsewhere/step-000000010"),
    ],
)
def test_a_fork_begins_in_another_run_s_folder_and_evaluates_its_own_first_version(
    make_job: MakeJob, written: dict[str, object], path: str
) -> None:
    job = make_job({"resumeFrom": {**written, "step": 10}})
    found = resolve.resolve(job, placed(job, base_dir="/manifests/mine"))
    assert (found.trainer.fork_from, found.trainer.spec.resume_from.step) == (path, 10)
    assert found.coordinator.first_version == 1


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"path": "models/m"}, "/work/jobs/models/m"),
        ({"path": "/models/m"}, "/models/m"),
        ({"claimName": "models", "path": "m"}, "/work/jobs/m"),
        ({"secretName": "hub"}, "org/m"),
    ],
)
def test_a_model_s_source_is_a_folder_here_and_its_tokenizer_comes_with_it(
    make_job: MakeJob, source: dict[str, object], path: str
) -> None:
    found = resolved(make_job({"model": {"name": "org/m", "source": source}})).trainer
    assert (found.model.name, found.model.path, found.spec.model.tokenizer) == ("org/m", path, "org/m")


def test_a_run_that_is_no_fork_begins_with_the_model_files(make_job: MakeJob) -> None:
    found = resolved(make_job())
    assert (found.trainer.fork_from, found.coordinator.first_version) == ("", 0)


def test_rows_that_do_not_divide_among_processes_are_refused(make_job: MakeJob) -> None:
    job = make_job({"algorithm.promptsPerStep": 3, "algorithm.groupSize": 5, "trainer.nodes": 2})
    with pytest.raises(errors.ManifestError, match="promptsPerStep x groupSize = 15 cannot be divided among 2 trainer"):
        resolved(job)


PRESETS = {
    "grpo": ("Group", "Group", False, "Subtracted"),
    "drgrpo": ("Group", "None", False, "Subtracted"),
    "rloo": ("Group", "None", True, "Subtracted"),
    "liteppo": ("Group", "Batch", False, "Own"),
}


@pytest.mark.covers("algorithms 5")
@pytest.mark.parametrize("estimator", PRESETS)
def test_estimator_is_a_preset_of_reward_normalisation(estimator: str, make_job: MakeJob) -> None:
    block = resolved(make_job({"algorithm.advantageEstimator": estimator})).coordinator.spec.algorithm.normalize_reward
    assert (block.mean, block.std, block.leave_one_out, block.std_center) == PRESETS[estimator]
    assert (block.unbiased, block.eps) == (True, 1e-6)


@pytest.mark.covers("algorithms 5")
def test_written_normalisation_replaces_the_preset_as_a_whole(make_job: MakeJob) -> None:
    job = make_job(
        {
            "algorithm": {
                "advantageEstimator": "liteppo",
                "normalizeReward": {"mean": "Batch", "std": "Batch", "eps": "1e-5"},
            }
        }
    )
    block = resolved(job).coordinator.spec.algorithm.normalize_reward
    assert block == section(NormalizeSpec, mean="Batch", std="Batch", eps=1e-5)


def test_defaults_follow_from_other_fields(make_job: MakeJob) -> None:
    job = make_job(
        {
            "async.maxOffPolicySteps": 2,
            "algorithm.promptsPerStep": 4,
            "algorithm.loss": {"clipLow": "0.4", "aggregation": "Constant"},
            "rollout.sampling.maxTokens": 100,
            "data.train.0.maxPromptTokens": 30,
        }
    )
    result = resolved(job)
    assert result.coordinator.spec.async_.max_inflight_groups == 12
    assert result.coordinator.spec.data.filter_groups.max_extra_groups == 40
    assert result.trainer.spec.algorithm.loss.clip_high == 0.4
    assert result.trainer.spec.algorithm.loss.constant_denominator == 100.0
    assert result.rollouts[0].spec.rollout.engine.max_model_len == 144  # 130 tokens in whole blocks of 16


def test_suite_with_longer_prompts_lengthens_the_context(make_job: MakeJob) -> None:
    suites = [{"name": "s", "path": "s", "maxPromptTokens": 2000}]
    result = resolved(make_job({"evaluation": {"suites": suites, "sampling": {"maxTokens": 16}}}))
    assert result.rollouts[0].spec.rollout.engine.max_model_len == 2048  # training: 1024 + 1024; suite: 2016


def test_asynchronous_defaults(make_job: MakeJob) -> None:
    staleness = resolved(make_job()).coordinator.spec.async_
    assert (staleness.max_off_policy_steps, staleness.on_stale, staleness.in_flight_weight_updates) == (1, "Mask", True)


def test_synchronous_job_does_not_update_in_flight(make_job: MakeJob) -> None:
    result = resolved(make_job({"async.maxOffPolicySteps": 0}))
    assert result.coordinator.spec.async_.in_flight_weight_updates is False
    assert result.rollouts[0].spec.async_.in_flight_weight_updates is False
    assert result.coordinator.spec.async_.max_inflight_groups == 32


def test_group_of_one_is_not_filtered_for_spread(make_job: MakeJob) -> None:
    block = {"mean": "Batch", "std": "Batch"}
    result = resolved(make_job({"algorithm": {"groupSize": 1, "normalizeReward": block}}))
    assert result.coordinator.spec.data.filter_groups.enabled is False


def test_a_curriculum_is_the_coordinators_and_none_unless_written(make_job: MakeJob) -> None:
    written = make_job({"data.curriculum": {"filterThreshold": "0.9", "maxFilterPercentage": "0.1"}})
    found = resolved(written).coordinator.spec.data.curriculum
    assert found == section(CurriculumSpec, filter_threshold=0.9, max_filter_percentage=0.1)
    assert resolved(make_job({})).coordinator.spec.data.curriculum is None


@pytest.mark.covers("algorithms 6.1")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, "Behavior", id="samples may be old and a step makes one update"),
        pytest.param({"async.maxOffPolicySteps": 0}, "Recompute", id="synchronous"),
        pytest.param({"algorithm.minibatches": 2}, "Recompute", id="later updates are bounded anyway"),
        pytest.param({"algorithm.loss.type": "sapo"}, "Recompute", id="a loss without that band"),
        pytest.param({"algorithm.loss.m2Threshold": "0.04"}, "Recompute", id="M2PO needs the distance between the two"),
        pytest.param({"algorithm.loss.rolloutCorrection": {"high": "3"}}, "Recompute", id="a written correction"),
        pytest.param({"algorithm.loss.proximal": "LogLinear"}, "LogLinear", id="a written centre"),
    ],
)
def test_old_samples_are_bounded_around_the_policy_that_sampled_them(
    changes: dict[str, object], expected: str, make_job: MakeJob
) -> None:
    loss = resolved(make_job(changes)).trainer.spec.algorithm.loss
    assert loss.proximal == expected
    assert (loss.rollout_correction is None) == (expected == "Behavior")


def test_correction_is_truncation_at_2_by_default(make_job: MakeJob) -> None:
    synchronous = make_job({"async.maxOffPolicySteps": 0})
    assert resolved(synchronous).trainer.spec.algorithm.loss.rollout_correction == section(
        CorrectionSpec, level="Token", mode="Truncate", metric="Ratio", low=None, high=2.0, weighting="Ratio"
    )


def test_correction_that_masks_has_only_the_bounds_that_were_written(make_job: MakeJob) -> None:
    job = make_job({"algorithm.loss.rolloutCorrection": {"mode": "Mask", "low": "0.5"}})
    correction = resolved(job).trainer.spec.algorithm.loss.rollout_correction
    assert correction is not None
    assert (correction.low, correction.high) == (0.5, None)


def test_behavior_has_no_correction(make_job: MakeJob) -> None:
    loss = resolved(make_job({"algorithm.loss.proximal": "Behavior"})).trainer.spec.algorithm.loss
    assert loss.rollout_correction is None


@pytest.mark.covers("workflows 1.1")
def test_evaluation_is_greedy_and_otherwise_like_training(make_job: MakeJob) -> None:
    job = make_job({"rollout.sampling": {"maxTokens": 8, "stop": ["\n"]}})
    sampling = resolved(job).coordinator.sampling_of("any")
    assert (sampling.greedy, sampling.temperature, sampling.max_tokens, sampling.stop) == (True, 0.0, 8, ("\n",))


@pytest.mark.covers("workflows 1.1")
def test_evaluation_sampling_may_differ(make_job: MakeJob) -> None:
    job = make_job({"evaluation.sampling": {"temperature": "0.6", "topP": "0.95", "maxTokens": 16, "stop": []}})
    sampling = resolved(job).coordinator.sampling_of("any")
    assert (sampling.greedy, sampling.temperature, sampling.top_p, sampling.max_tokens) == (False, 0.6, 0.95, 16)


@pytest.mark.covers("workflows 8.2")
def test_r1_template_stops_at_its_closing_tag_and_keeps_it(make_job: MakeJob) -> None:
    coordinator = resolved(make_job({"data.template": "r1"})).coordinator
    for sampling in (coordinator.sampling, coordinator.sampling_of("any")):
        assert (sampling.stop, sampling.include_stop) == (("</answer>",), True)


def test_relative_paths_are_relative_to_the_manifest(make_job: MakeJob) -> None:
    job = make_job({"data.train.0.path": "data/sums.jsonl", "model.name": "../models/small"})
    result = resolved(job)
    assert result.coordinator.spec.data.train[0].path == "/work/jobs/data/sums.jsonl"
    assert result.trainer.model.path == "/work/models/small"


@pytest.mark.parametrize(
    ("name", "path"),
    [("builtin:smollm2-135m-instruct", ""), ("org/model", "org/model"), ("/models/a", "/models/a")],
)
def test_model_name_says_what_is_loaded(name: str, path: str, make_job: MakeJob) -> None:
    trainer = resolved(make_job({"model.name": name})).trainer
    assert trainer.model == process_config.ModelFiles(name=name, path=path, cache_dir="/cache")
    assert trainer.spec.model.tokenizer == name


def test_processes_find_each_other(make_job: MakeJob) -> None:
    result = resolved(make_job({"rollout.replicas": 2, "verifier.replicas": 2}))
    control = f"127.0.0.1:{result.coordinator.control_port}"
    assert {rollout.coordinator_address for rollout in result.rollouts} == {control}
    assert result.trainer.coordinator_address == control
    assert result.trainer.store_address == result.coordinator.store_address
    assert result.rollouts[0].verifier_addresses == tuple(f"127.0.0.1:{one.port}" for one in result.verifiers)
    assert result.coordinator.spec.rollout.replicas == 2


def test_no_port_is_given_twice(make_job: MakeJob) -> None:
    result = resolved(make_job({"rollout.replicas": 3, "verifier.replicas": 2}))
    ports = [
        result.coordinator.control_port,
        result.coordinator.store_port,
        result.trainer.rendezvous_port,
        *(config.health_port for config in result.configs),
        *(verifier.port for verifier in result.verifiers),
    ]
    assert len(set(ports)) == len(ports) == 3 + 2 + 2 * 2 + 3


def test_replicas_share_the_groups_in_flight(make_job: MakeJob) -> None:
    few = resolved(make_job({"rollout": {"replicas": 2, "engine": {"maxNumSeqs": 256}}}))
    assert [rollout.max_groups_in_flight for rollout in few.rollouts] == [32, 32]  # 2 x 32 groups, 2 replicas
    small = resolved(make_job({"rollout": {"engine": {"maxNumSeqs": 16}}}))
    assert small.rollouts[0].max_groups_in_flight == 4  # twice 16 sequences, 8 to a group


def test_verifier_limits_are_plain_numbers(make_job: MakeJob) -> None:
    verifier = resolved(make_job({"verifier.memory": "1Gi", "verifier.timeoutSeconds": 5})).verifiers[0]
    (reward,) = verifier.rewards
    assert (reward.memory_bytes, reward.output_bytes) == (1 << 30, 64 << 10)
    assert (reward.cpu_limit_s, reward.wall_limit_s) == (5.0, 15.0)
    assert verifier.num_slots == 2


def test_caller_waits_longer_than_the_verifier_may_take(make_job: MakeJob) -> None:
    result = resolved(make_job({"verifier.timeoutSeconds": 20}))
    # A wall cap of three times the CPU limit, four times as much on the slowest machine, and one retry after a lost
    # worker.
    assert result.rollouts[0].verify_timeout_s > 2 * 4 * 3 * result.verifiers[0].rewards[0].cpu_limit_s


def test_wall_limit_of_an_answer_with_a_program_is_the_same_on_any_machine(make_job: MakeJob) -> None:
    job = make_job({"verifier.rewards": [{"name": "passes", "type": "code"}]})
    (rollout, *_), (verifier, *_) = resolved(job).rollouts, resolved(job).verifiers
    (reward,) = verifier.rewards
    assert rollout.verify_timeout_s == VERIFY_TRIES * reward.wall_limit_s + VERIFY_QUEUE_S


@pytest.mark.covers("workflows 1.1")
def test_a_top_k_of_1e8_means_all_tokens(make_job: MakeJob) -> None:
    job = make_job({"rollout.sampling.topK": 100_000_000, "evaluation.sampling.topK": 100_000_000})
    coordinator = resolved(job).coordinator
    assert (coordinator.sampling.top_k, coordinator.sampling_of("any").top_k) == (0, 0)


def test_dumps_can_be_switched_off(make_job: MakeJob) -> None:
    assert resolved(make_job()).rollouts[0].dump_dir == "/runs/job/dumps"
    assert resolved(make_job({"observability.trajectoryDump": "None"})).rollouts[0].dump_dir == ""


def test_reasoning_gym_source_is_passed_on(make_job: MakeJob) -> None:
    gym = {"name": "chain_sum", "size": 20, "config": {"max_terms": 3}}
    (source,) = resolved(make_job({"data.train": [{"name": "g", "reasoningGym": gym}]})).coordinator.spec.data.train
    task = source.reasoning_gym
    assert (task.name, task.size, task.config, source.path) == ("chain_sum", 20, {"max_terms": 3}, None)


def test_legacy_turns_are_not_clipped_by_default(make_job: MakeJob) -> None:
    job = make_job({"workflow": {"type": "multi_turn_math", "config": {"layout": "legacy"}}})
    assert job.spec.algorithm.rewards.clip is None
    assert make_job().spec.algorithm.rewards.clip == 20.0


SPECS = st.fixed_dictionaries(
    {
        "group": st.integers(2, 16),
        "prompts": st.integers(1, 64),
        "eta": st.integers(0, 4),
        "estimator": st.sampled_from(sorted(PRESETS)),
        "rate": st.sampled_from(["1e-6", "0.00001", "1.7e-5", "2E-5"]),
        "rollouts": st.integers(1, 3),
        "stop": st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=4), max_size=3
        ),
        "max_tokens": st.integers(1, 2000),
    }
)


@settings(max_examples=60, deadline=None)
@given(values=SPECS)
def test_resolution_is_deterministic_and_its_configs_survive_json(values: dict[str, object]) -> None:
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {
            "maxSteps": 10,
            "model": {"name": "org/model"},
            "data": {"train": [{"name": "a", "path": "a.jsonl"}]},
            "verifier": {"rewards": [{"name": "r", "type": "exact"}]},
            "algorithm": {
                "groupSize": values["group"],
                "promptsPerStep": values["prompts"],
                "advantageEstimator": values["estimator"],
            },
            "async": {"maxOffPolicySteps": values["eta"]},
            "rollout": {
                "replicas": values["rollouts"],
                "sampling": {"stop": values["stop"], "maxTokens": values["max_tokens"]},
            },
            "trainer": {"optimizer": {"learningRate": values["rate"]}},
        },
    }
    job = RLJob.model_validate_json(json.dumps(manifest))
    first, second = resolved(job), resolved(RLJob.model_validate_json(json.dumps(manifest)))
    assert first == second
    adapter: TypeAdapter[process_config.RoleConfig] = TypeAdapter(process_config.RoleConfig)
    for config in first.configs:
        assert adapter.validate_json(config.model_dump_json()) == config
    staleness = first.coordinator.spec.async_
    assert (
        staleness.max_inflight_groups
        == (staleness.max_off_policy_steps + 1) * first.coordinator.spec.algorithm.prompts_per_step
    )


def with_server_defaults(value: Any, node: Any) -> Any:
    """Return an object as an API server stores it: absent fields filled in from the schema, from the outside in."""
    if isinstance(value, dict) and "properties" in node:
        absent = {key: child["default"] for key, child in node["properties"].items() if "default" in child}
        filled = {**copy.deepcopy(absent), **value}
        return {key: with_server_defaults(item, node["properties"].get(key, {})) for key, item in filled.items()}
    if isinstance(value, list):
        return [with_server_defaults(item, node.get("items", {})) for item in value]
    return value


def test_manifest_read_back_with_server_defaults_resolves_to_the_same(
    make_job: MakeJob, manifest_text: Callable[[Mapping[str, object]], str]
) -> None:
    changes: dict[str, object] = {"async.maxOffPolicySteps": 0, "algorithm.groupSize": 4}
    sent = json.loads(manifest_text(changes))
    stored = {**sent, "spec": with_server_defaults(sent["spec"], crd.root_schema()["properties"]["spec"])}  # type: ignore[index,call-overload]
    assert stored["spec"]["suspend"] is False
    assert stored["spec"]["algorithm"]["loss"] == {}, "a runtime may say what is left out"
    assert resolved(load_manifest(json.dumps(stored))) == resolved(make_job(changes))


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("64Ki", 65536), ("512Mi", 536870912), ("1.5G", 1500000000), ("100", 100), ("0.5Ki", 512), ("1500m", 2)],
)
def test_quantity_in_bytes(quantity: str, expected: int) -> None:
    assert num_bytes(quantity) == expected


def test_rows_without_advantage_are_trained_only_where_another_term_needs_them(make_job: MakeJob) -> None:
    plain, *others = (
        make_job(changes)
        for changes in (
            {},
            {"algorithm.loss.entropyCoef": "0.01"},
            {"algorithm.entropy.target": "0.2"},
            {"algorithm.entropy.topQuantile": "0.2"},
        )
    )
    assert not resolved(plain).coordinator.spec.algorithm.trains_zero_advantage
    assert [resolved(job).coordinator.spec.algorithm.trains_zero_advantage for job in others] == [True] * 3


REFERENCE = {"model.reference": {"name": "builtin:smollm2-135m-instruct"}, "algorithm.loss.klCoef": "0.01"}


@pytest.mark.covers("algorithms 6.7")
def test_a_kl_term_brings_its_reference_model_to_the_trainer_and_rows_without_advantage_too(make_job: MakeJob) -> None:
    with_kl, without = resolved(make_job(REFERENCE)), resolved(make_job())
    assert with_kl.trainer.reference is not None
    assert with_kl.trainer.reference.name == "builtin:smollm2-135m-instruct"
    algorithm = with_kl.trainer.spec.algorithm
    assert (algorithm.loss.kl_coef, algorithm.loss.kl_estimator) == (0.01, "K3")
    assert not algorithm.trainer_returns
    assert with_kl.coordinator.spec.algorithm.trains_zero_advantage
    assert without.trainer.reference is None
    assert without.trainer.spec.algorithm.loss.kl_coef == 0.0


def test_a_teacher_is_brought_to_the_trainer_and_no_group_is_left_out_for_its_rewards(make_job: MakeJob) -> None:
    taught = resolved(make_job({"teacher": {"model": "../better", "revision": None}}))
    assert taught.trainer.teacher is not None
    assert taught.trainer.teacher.name == "../better"
    assert taught.trainer.teacher.path.endswith("/better")
    assert not taught.coordinator.spec.data.filter_groups.enabled
    assert resolved(make_job()).trainer.teacher is None
    assert resolved(make_job({"data.filterGroups": {}})).coordinator.spec.data.filter_groups.enabled


def test_one_answer_a_prompt_is_enough_for_a_teacher(make_job: MakeJob) -> None:
    one = {"algorithm.groupSize": 1, "algorithm.normalizeReward": {"mean": "None", "std": "None"}}
    assert resolved(make_job({"teacher": {"model": "org/better"}, **one})).trainer.spec.algorithm.rows_per_step > 0


def test_a_teacher_of_some_steps_scores_the_first_ones(make_job: MakeJob) -> None:
    spec = resolved(make_job({"teacher": {"model": "org/better", "steps": 2}})).trainer.spec
    assert [spec.is_taught(step) for step in (1, 2, 3)] == [True, True, False]
    assert resolved(make_job({"teacher": {"model": "org/better"}})).trainer.spec.is_taught(10**6)
    assert not resolved(make_job()).trainer.spec.is_taught(1)


def test_kl_in_the_reward_takes_k1_and_makes_the_trainer_compute_returns(make_job: MakeJob) -> None:
    algorithm = resolved(make_job(REFERENCE | {"algorithm.loss.klPlacement": "Reward"})).trainer.spec.algorithm
    assert (algorithm.loss.kl_estimator, algorithm.trainer_returns) == ("K1", True)
    assert (algorithm.gae.gamma, algorithm.advantage_normalization) == (1.0, None)


@pytest.mark.covers("algorithms 5")
@pytest.mark.parametrize(("estimator", "mean"), [("reinforcepp", "None"), ("reinforceppBaseline", "Group")])
def test_reinforcepp_whitens_tokens_over_the_step_and_its_baseline_is_the_group(
    make_job: MakeJob, estimator: str, mean: str
) -> None:
    config = resolved(make_job({"algorithm.advantageEstimator": estimator, "algorithm.gae.gamma": "0.9"}))
    algorithm = config.trainer.spec.algorithm
    assert algorithm.trainer_returns
    assert algorithm.gae.gamma == 0.9
    assert algorithm.advantage_normalization == section(NormalizeSpec, mean="Batch", std="Batch")
    assert (algorithm.normalize_reward.mean, algorithm.normalize_reward.std) == (mean, "None")
    assert (algorithm.trains_zero_advantage, algorithm.trains_masked) == (True, True)


def test_m2po_needs_all_sampled_tokens(make_job: MakeJob) -> None:
    config = resolved(make_job({"algorithm.loss.m2Threshold": "0.04"}))
    assert config.trainer.spec.algorithm.loss.m2_threshold == 0.04
    assert config.coordinator.spec.algorithm.trains_masked


PPO = {"algorithm.advantageEstimator": "ppo", "algorithm.critic": {}}


@pytest.mark.covers("algorithms 5", "algorithms 7")
def test_ppo_brings_a_critic_and_whitened_advantages_to_the_trainer(make_job: MakeJob) -> None:
    config = resolved(make_job(PPO))
    algorithm = config.trainer.spec.algorithm
    assert algorithm.critic == section(CriticSpec, learning_rate=9e-6, value_clip=0.5, vf_coef=1.0, warmup_steps=0)
    assert algorithm.gae.bootstrap_truncated
    assert algorithm.advantage_normalization == section(NormalizeSpec, mean="Batch", std="Batch")
    assert (algorithm.normalize_reward.mean, algorithm.normalize_reward.std) == ("None", "None")
    assert (algorithm.trainer_returns, algorithm.trains_zero_advantage, algorithm.trains_masked) == (True, True, True)
    assert resolved(make_job()).trainer.spec.algorithm.critic is None
    assert not resolved(make_job()).coordinator.spec.algorithm.trainer_returns


@pytest.mark.covers("algorithms 5.3")
@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [("0.95", "constant", 0.95), ("vapo{0.05}", "vapo", 0.05), ("relativePosition{0.25}", "relativePosition", 0.25)],
)
def test_lambda_is_a_number_or_a_rule_of_the_row(make_job: MakeJob, written: str, kind: str, value: float) -> None:
    returns = resolved(make_job(PPO | {"algorithm.gae": {"lambda": written}})).trainer.spec.algorithm.gae
    assert (returns.decay.kind, returns.decay.value) == (kind, value)


@pytest.mark.covers("algorithms 5.2")
def test_a_cut_answer_that_counts_as_zero_does_not_go_on(make_job: MakeJob) -> None:
    returns = resolved(make_job(PPO | {"algorithm.zeroTruncated": True})).trainer.spec.algorithm.gae
    assert not returns.bootstrap_truncated


def test_digests_for_checkpoints_change_with_what_is_trained_and_not_with_where_files_lie(make_job: MakeJob) -> None:
    before = resolved(make_job()).trainer.spec_digests
    moved = resolved(make_job({"data.train.0.path": "elsewhere.jsonl"})).trainer.spec_digests
    assert moved == before
    assert resolved(make_job({"data.train.0.onInvalidRecord": "Fail"})).trainer.spec_digests == before, "the default"
    for changes, part in (
        ({"algorithm.groupSize": 16}, "groups"),
        ({"data.template": "r1"}, "data"),
        ({"algorithm.loss.clipLow": "0.1"}, "algorithm"),
    ):
        assert resolved(make_job(changes)).trainer.spec_digests[part] != before[part]


def test_configs_hold_no_pod_settings_and_a_verifiers_only_its_rewards_and_how_they_run(
    make_job: MakeJob,
) -> None:
    """A process of a rollout runs a user's code, a verifier a model's: neither may read what other pods were given."""
    env = [{"name": "TOKEN", "value": "of-another-pod"}]
    changes: dict[str, object] = {f"{role}.pod.env": env for role in ("coordinator", "rollout", "trainer", "verifier")}
    found = resolved(make_job({**changes, "data.train.0.path": "questions-and-answers.jsonl"}))
    written = {config.kind: config.model_dump_json() for config in found.configs}
    assert [kind for kind, text in written.items() if "of-another-pod" in text] == []
    assert "questions-and-answers" in written["coordinator"]
    process = set(process_config.ProcessConfig.model_fields)
    own = {"kind", "bind_host", "port", "num_slots", "max_waiting", "rewards", "execution", "observability"}
    assert set(json.loads(written["verifier"])) == process | own
    assert set(json.loads(written["verifier"])["execution"]) == {
        "isolation", "allowUnsafe", "timeoutSeconds", "memory", "outputLimit", "maxConcurrent",
    }  # fmt: skip


def test_what_a_process_reads_back_is_what_was_resolved_whatever_was_written_and_whatever_was_derived(
    make_job: MakeJob,
) -> None:
    changes: dict[str, object] = {"algorithm.loss.clipLow": "0.3", "workflow.type": "multi_turn_math",
                                  "workflow.config": {"layout": "legacy"}}  # fmt: skip
    spec = resolved(make_job(changes)).trainer.spec
    assert (spec.algorithm.loss.clip_high, spec.algorithm.rewards.clip) == (0.3, None)
    again = process_config.TrainerConfig.model_validate_json(resolved(make_job(changes)).trainer.model_dump_json())
    assert again.spec.model_dump() == spec.model_dump()
