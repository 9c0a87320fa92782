"""Published recipes as manifests: the table of docs/design/algorithms.md#s-13, and two that are alongside it.

areal-math-code: the line on AReaL's paper below the table, with the estimator and whitening of areal-multi-turn, and
the cap on the behavior weight of its released configurations. areal-counting: AReaL's clevr_count_70k_grpo.
"""

import pytest

from rljob_api import resolve
from rljob_api.manifest.algorithm import NormalizeSpec, RewardsSpec
from rljob_api.validation.load import load_manifest
from rljob_testing import examples
from rljob_testing.sections import section

EXAMPLES = examples.EXAMPLES
FILES = {
    "areal-grpo": "arealite-gsm8k.yaml",
    "areal-multi-turn": "areal-multi-turn-math.yaml",
    "oat-drgrpo-zero": "oat-drgrpo-zero.yaml",
    "dapo": "dapo.yaml",
    "grpo-classic": "grpo-classic.yaml",
    "areal-math-code": "areal-math-code.yaml",
    "areal-counting": "arealite-clevr-count.yaml",
}
Values = tuple[object, object, object, object, object, object, object]

# In the order of FILES.
TABLE: dict[str, Values] = {
    "group size": (4, 1, 8, 16, 64, 16, 4),
    "prompts per step": (256, 512, 128, 512, 16, 512, 28),
    "off-policy steps": (2, 4, 0, 0, 0, 4, 4),
    "estimator": ("grpo", "reinforcepp", "drgrpo", "grpo", "grpo", "reinforcepp", "grpo"),
    "normalize reward": (
        ("Group", "Group", 1e-5), ("None", "None"), ("Group", "None"), ("Group", "Group", 1e-6),
        ("Group", "Group", 1e-6), ("None", "None"), ("Group", "Group", 1e-5),
    ),
    "normalize advantage": (
        ("Batch", "Batch", True, 1e-5), ("Batch", "Batch", False, 1e-5), None, None, None,
        ("Batch", "Batch", False, 1e-5), ("Batch", "Batch", True, 1e-5),
    ),
    "gamma": (1.0, 1.0, None, None, None, 1.0, 1.0),
    "overlong": (None, None, None, (20480, 4096, 0.5), None, None, None),
    "truncated": (
        (False, False), (False, False), (True, False), (False, False), (False, False), (False, False), (False, False),
    ),
    "filter": (False, False, False, True, False, False, False),
    "loss": (
        ("ppo", "TokenMean"), ("ppo", "TokenMean"), ("ppo", "Constant"), ("ppo", "TokenMean"), ("ppo", "SequenceMean"),
        ("ppo", "TokenMean"), ("ppo", "TokenMean"),
    ),
    "clip": ((0.4, 0.4), (0.2, 0.2), (0.2, 0.2), (0.2, 0.28), (0.2, 0.2), (0.2, 0.2), (0.4, 0.4)),
    "dual clip": (None,) * 7,
    "proximal": ("Recompute", "Recompute", "Recompute", "Recompute", "Reuse", "Recompute", "Recompute"),
    "correction": (
        ("Token", "Mask", "Ratio", 5.0), ("Token", "None", "Ratio", None), ("Token", "Truncate", "Ratio", 2.0),
        ("Token", "Truncate", "Ratio", 2.0), ("Token", "Truncate", "Ratio", 2.0), ("Token", "Mask", "Ratio", 5.0),
        ("Token", "Mask", "Ratio", 5.0),
    ),
    "KL": (0.0, 0.0, 0.0, 0.0, (0.04, "K3", "Loss"), 0.0, 0.0),
    "updates": ((1, 1), (4, 1), (8, 1), (16, 1), (1, 1), (4, 1), (1, 1)),
    "learning rate": (1.7e-5, 2e-5, 1e-6, 1e-6, 1e-6, 2e-5, 2e-6),
    "betas": ((0.9, 0.999), (0.9, 0.95), (0.9, 0.95), (0.9, 0.999), (0.9, 0.95), (0.9, 0.95), (0.9, 0.999)),
    "Adam eps": (1e-8, 1e-5, 1e-8, 1e-8, 1e-8, 1e-5, 1e-8),
    "weight decay": (0.017, 0.05, 0.0, 0.1, 0.0, 0.05, 0.01),
    "gradient norm, warm-up": ((1.0, 1), (1.0, 1), (1.0, 0), (1.0, 20), (1.0, 0), (1.0, 1), (1.0, 1)),
    "sampling": ((1.0, 1024), (1.0, 1024), (1.0, 3000), (1.0, 20480), (1.0, 1024), (1.0, 27648), (1.0, 512)),
}  # fmt: skip


# What the head of a manifest in small says of a value that is not the recipe's. Sizes are reported all at once.
TOLD = {
    "off-policy steps": "staleness",
    "estimator": "(grpo)",
    "normalize reward": "answers to a prompt",
    "normalize advantage": "over the batch",
    "gamma": "over the batch",
    "correction": "behavior weight",
    "clip": "clip band",
    "updates": "minibatches",
    "learning rate": "learning rate",
    "Adam eps": "optimizer",
    "weight decay": "weight decay",
    "gradient norm, warm-up": "warm-up",
    "group size": "answers to",
    "prompts per step": "the batch",
    "sampling": "maller",
}
SMALL = ("areal-grpo", "areal-multi-turn", "oat-drgrpo-zero", "areal-math-code", "areal-counting")


def resolved_recipe(name: str) -> resolve.ResolvedJob:
    return resolved_example(FILES[name])


def resolved_example(file: str) -> resolve.ResolvedJob:
    job = load_manifest((EXAMPLES / file).read_text(encoding="utf-8"))
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir=str(EXAMPLES), cache_dir="/c", ports=range(99), num_cores=2
    )
    return resolve.resolve(job, placement)


def effective(found: resolve.ResolvedJob) -> dict[str, object]:
    spec = found.trainer.spec
    algorithm, loss, optimizer = spec.algorithm, spec.algorithm.loss, spec.trainer.optimizer
    overlong, correction, sampling = algorithm.rewards.overlong, loss.rollout_correction, found.coordinator.sampling
    assert correction is not None
    assert (correction.weighting, correction.reject, correction.batch_normalize) == ("Ratio", None, False)
    return {
        "group size": algorithm.group_size,
        "prompts per step": algorithm.prompts_per_step,
        "off-policy steps": spec.async_.max_off_policy_steps,
        "estimator": algorithm.advantage_estimator,
        "normalize reward": _levels(algorithm.normalize_reward),
        "normalize advantage": _whitening(algorithm.advantage_normalization),
        "gamma": algorithm.gae.gamma if algorithm.trainer_returns else None,
        "overlong": overlong and (overlong.max_tokens, overlong.tail_tokens, overlong.factor),
        "truncated": (algorithm.zero_truncated, algorithm.mask_truncated),
        "filter": spec.data.filter_groups.enabled,
        "loss": (loss.type, loss.aggregation),
        "clip": (loss.clip_low, loss.clip_high),
        "dual clip": loss.dual_clip,
        "proximal": loss.proximal,
        "correction": (correction.level, correction.mode, correction.metric, correction.high),
        "KL": (loss.kl_coef, loss.kl_estimator, loss.kl_placement) if loss.kl_coef else 0.0,
        "updates": (algorithm.minibatches, algorithm.epochs),
        "learning rate": optimizer.learning_rate,
        "betas": optimizer.betas,
        "Adam eps": optimizer.eps,
        "weight decay": optimizer.weight_decay,
        "gradient norm, warm-up": (optimizer.max_grad_norm, optimizer.warmup_steps),
        "sampling": (sampling.temperature, sampling.max_tokens),
    }


def _levels(config: NormalizeSpec) -> tuple[object, ...]:
    return (config.mean, config.std) if config.std == "None" else (config.mean, config.std, config.eps)


def _whitening(block: NormalizeSpec | None) -> tuple[object, ...] | None:
    if block is None:
        return None
    return (block.mean, block.std, block.unbiased, block.eps)


@pytest.mark.covers("algorithms 13")
@pytest.mark.parametrize(("position", "name"), enumerate(FILES))
def test_recipe_has_the_values_that_were_published(position: int, name: str) -> None:
    assert effective(resolved_recipe(name)) == {key: values[position] for key, values in TABLE.items()}


@pytest.mark.parametrize("name", SMALL)
def test_a_recipe_in_small_says_which_of_its_values_are_others(name: str) -> None:
    file = FILES[name].replace(".yaml", "-cpu.yaml")
    published, small = effective(resolved_recipe(name)), effective(resolved_example(file))
    # A comment may break a line between any two words.
    head = (EXAMPLES / file).read_text(encoding="utf-8").split("\napiVersion:")[0].replace("\n#", "")
    assert [key for key in published if published[key] != small[key] and TOLD[key] not in head] == []


@pytest.mark.covers("algorithms 13")
@pytest.mark.parametrize(
    ("name", "scale", "bias", "clip"),
    [
        ("areal-grpo", 10, -0.5, 20),
        ("oat-drgrpo-zero", 1, 0, 20),
        ("dapo", 2, -0.5, 20),
        ("grpo-classic", 1, 0, 20),
        ("areal-counting", 10, -0.5, 20),
    ],
)
def test_rewards_are_shaped_as_published(name: str, scale: float, bias: float, clip: float) -> None:
    shaping = resolved_recipe(name).coordinator.spec.algorithm.rewards
    assert (shaping.scale, shaping.bias, shaping.clip) == (scale, bias, clip)


@pytest.mark.covers("algorithms 13")
def test_multi_turn_rewards_are_shaped_by_the_workflow_alone() -> None:
    found = resolved_recipe("areal-multi-turn")
    assert found.coordinator.spec.algorithm.rewards == section(RewardsSpec, clip=None)
    shaping = {"layout": "legacy", "numTurns": 5, "turnDiscount": 1.0, "rewardScale": 5, "rewardBias": 0}
    assert shaping.items() <= found.rollouts[0].spec.workflow.config.items()


@pytest.mark.covers("algorithms 13")
def test_answers_to_mathematics_and_code_earn_5_or_minus_5_in_the_workflow_alone() -> None:
    found = resolved_recipe("areal-math-code")
    assert found.coordinator.spec.algorithm.rewards == section(RewardsSpec, clip=None)
    shaping = {"shaping": "signed", "rewardScale": 5, "rewardBias": 0}
    assert shaping.items() <= found.rollouts[0].spec.workflow.config.items()


def test_mathematics_and_code_are_graded_by_task_and_programs_run_confined() -> None:
    (verifier, *_) = resolved_recipe("areal-math-code").verifiers
    assert verifier.execution.isolation.type == "Sandbox"
    assert {reward.type: reward.tasks for reward in verifier.rewards} == {
        "areal-math": ("math", "stem"),
        "areal-code": ("code",),
    }


@pytest.mark.covers("algorithms 13")
def test_dr_grpo_divides_by_the_longest_answer() -> None:
    assert resolved_recipe("oat-drgrpo-zero").trainer.spec.algorithm.loss.constant_denominator == 3000.0


@pytest.mark.covers("algorithms 13")
@pytest.mark.parametrize(("name", "steps"), [("oat-drgrpo-zero", 16), ("dapo", 20), ("grpo-classic", 20)])
def test_evaluation_is_as_often_as_published(name: str, steps: int) -> None:
    assert resolved_recipe(name).coordinator.spec.evaluation.every_steps == steps


def test_oat_trains_on_the_fast_verifier_and_is_scored_by_math_verify() -> None:
    by_suite = {reward.suite: reward.config for reward in resolved_recipe("oat-drgrpo-zero").verifiers[0].rewards}
    scored = {suite: {"verifierVersion": "math_verify"} for suite in ("aime", "amc", "math", "minerva")}
    assert by_suite == {"": {"verifierVersion": "fast"}, **scored}
