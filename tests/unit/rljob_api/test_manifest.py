import json
from collections.abc import Callable

import pytest

from rljob_api import errors
from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest

Text = Callable[..., str]


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(errors.ManifestError) as caught:
        load_manifest(text)
    return caught.value.problems


def test_manifest_is_read_with_camel_case_keys(make_job: Callable[..., RLJob]) -> None:
    job = make_job({"algorithm": {"groupSize": 4}, "async": {"maxOffPolicySteps": 2}})
    assert (job.spec.algorithm.group_size, job.spec.async_.max_off_policy_steps) == (4, 2)


SENTENCES: dict[str, tuple[dict[str, object], str]] = {
    "learning rate that is no number": (
        {"trainer.optimizer": {"learningRate": "fast"}},
        "spec.trainer.optimizer.learningRate is 'fast', but must be a decimal number such as \"1e-6\"",
    ),
    "decimal without quotes": (
        {"rollout.sampling": {"temperature": 0.5}},
        'spec.rollout.sampling.temperature is 0.5, but must be a decimal number such as "1.0":'
        ' write it in quotes, "0.5"',
    ),
    "name of another system": (
        {"algorithm": {"num_generations": 4}},
        "spec.algorithm.num_generations is not a field; `num_generations` is `algorithm.groupSize` here",
    ),
    "slip of the pen": (
        {"algorithm": {"groupSiz": 4}},
        "spec.algorithm.groupSiz is not a field; groupSize is probably meant",
    ),
    "our field in another case": (
        {"algorithm": {"group_size": 4}},
        "spec.algorithm.group_size is not a field; groupSize is probably meant",
    ),
    "our field in the wrong section": (
        {"promptsPerStep": 4},
        "spec.promptsPerStep is not a field; `promptsPerStep` is `algorithm.promptsPerStep` here",
    ),
    "whole number below its bound": (
        {"algorithm": {"groupSize": 0}},
        "spec.algorithm.groupSize is 0, but must be at least 1",
    ),
    "fraction where a whole number belongs": (
        {"maxSteps": 1.5},
        "spec.maxSteps is 1.5, but must be a whole number from 1 to 2147483647",
    ),
    "text where a whole number belongs": (
        {"maxSteps": "10"},
        "spec.maxSteps is '10', but must be a whole number from 1 to 2147483647",
    ),
    "true where a whole number belongs": (
        {"maxSteps": True},
        "spec.maxSteps is true, but must be a whole number from 1 to 2147483647",
    ),
    "unknown choice": (
        {"trainer.optimizer": {"schedule": "cosin"}},
        "spec.trainer.optimizer.schedule is 'cosin', but must be one of Constant, Linear, Cosine; did you mean Cosine?",
    ),
    "unknown reward": (
        {"verifier.rewards.0.type": "exct"},
        "spec.verifier.rewards[0].type is 'exct', but must be one of math, code, repository-tests, exact,"
        " reasoning_gym, judge, boxed, answer_tag, gsm8k, clevr_count_70k, areal-math, areal-code, plugin:<name>,"
        " module:name;"
        " did you mean exact?",
    ),
    "unknown tracker": (
        {"observability.trackers": [{"name": "a", "type": "tensorbord"}]},
        "spec.observability.trackers[0].type is 'tensorbord', but must be one of tensorboard, wandb, mlflow, trackio,"
        " plugin:<name>; did you mean tensorboard?",
    ),
    "quantity with a wrong suffix": (
        {"verifier.memory": "4GBs"},
        "spec.verifier.memory is '4GBs', but must be a quantity such as \"512Mi\"",
    ),
    "recipe name for a loss": (
        {"algorithm": {"loss": {"type": "grpo"}}},
        "spec.algorithm.loss.type is 'grpo', but that is a recipe name: write spec.algorithm.advantageEstimator: grpo"
        " and leave loss.type ppo",
    ),
    "list that is too long": (
        {"rollout.sampling": {"stop": ["x"] * 17}},
        "spec.rollout.sampling.stop is "
        + '["x", "x", "x", "x", "x", "x", "x", "x", "x", "x", "x", "..., but must have at most 16 items',
    ),
    "list that is empty": (
        {"verifier.rewards": []},
        "spec.verifier.rewards is [], but must have at least 1 items",
    ),
    "text where a mapping belongs": (
        {"trainer": "big"},
        "spec.trainer is 'big', but must be a mapping",
    ),
    "lambda that is no decay": (
        {"algorithm": {"gae": {"lambda": "vapo"}}},
        'spec.algorithm.gae.lambda is \'vapo\', but must be a decimal number such as "0.95", "vapo{0.05}" or'
        ' "relativePosition{0.25}"',
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_refusal_names_field_value_and_remedy(case: str, manifest_text: Text) -> None:
    changes, sentence = SENTENCES[case]
    assert problems_of(manifest_text(changes)) == (sentence,)


@pytest.mark.parametrize("key", ["async", "maxSteps", "max_steps"])
def test_a_field_of_the_spec_that_stands_beside_it_is_sent_there(key: str, manifest_text: Text) -> None:
    name = "async" if key == "async" else "maxSteps"
    text = json.dumps({key: 1, **json.loads(manifest_text({}))})
    assert f"{key} is not a field; spec.{name} is probably meant" in problems_of(text)


@pytest.mark.covers("algorithms 12")
@pytest.mark.parametrize("name", ["grpo", "drgrpo", "dapo"])
def test_recipe_name_as_loss_type_is_answered_with_our_fields(name: str, manifest_text: Text) -> None:
    (sentence,) = problems_of(manifest_text({"algorithm": {"loss": {"type": name}}}))
    assert sentence.startswith(f"spec.algorithm.loss.type is '{name}', but that is a recipe name: write spec.")


@pytest.mark.covers("algorithms 12", "workflows 6.2")
@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("n_samples", "algorithm.groupSize"),
        ("eps_clip", "algorithm.loss.clipLow"),
        ("kl_ctl", "algorithm.loss.klCoef"),
        ("beta", "algorithm.loss.klCoef"),
        ("max_head_offpolicyness", "async.maxOffPolicySteps"),
        ("ppo_n_minibatches", "algorithm.minibatches"),
        ("stop_properly_penalty_coef", "algorithm.zeroTruncated"),
        ("use_loss", "algorithm.loss.klPlacement"),
        ("dppo_mask_low", "algorithm.loss.clipLow"),
        ("cliprange_value", "algorithm.critic.valueClip"),
        ("gae_timestep_unit", "algorithm.gae.unit"),
        ("successRateLowerBound", "data.filterGroups.lower"),
        ("filter_reward_ub", "data.filterGroups.upper"),
        ("should_accept_fn", "data.filterGroups.predicate"),
        ("presence-penalty", None),
    ],
)
def test_foreign_name_is_answered_with_ours(key: str, ours: str | None, manifest_text: Text) -> None:
    (sentence,) = problems_of(manifest_text({"rollout.sampling": {key: 1}}))
    assert sentence.startswith(f"spec.rollout.sampling.{key} is not a field; ")
    assert (f"`{key}` is `{ours}` here" in sentence) if ours else ("spec.rollout.sampling has temperature" in sentence)


def test_all_problems_are_told_at_once(manifest_text: Text) -> None:
    changes = {"maxSteps": 0, "algorithm": {"groupSize": 0}, "trainer": {"nodez": 1}}
    assert [sentence.split(" is ")[0] for sentence in problems_of(manifest_text(changes))] == [
        "spec.maxSteps",
        "spec.algorithm.groupSize",
        "spec.trainer.nodez",
    ]


def test_missing_field_is_told_with_its_purpose(manifest_text: Text) -> None:
    text = manifest_text({}).replace('"maxSteps": 10, ', "")
    assert problems_of(text) == ("spec.maxSteps is missing: Trainer steps, that is optimizer publishes",)


@pytest.mark.parametrize("word", ["no", "off"])
def test_unquoted_no_is_explained(word: str) -> None:
    text = f"apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nmetadata: {{name: a}}\nspec: {{data: {{template: {word}}}}}\n"
    assert (
        "spec.data.template is false, but must be text (YAML reads an unquoted no or off as false: write it in quotes)"
        in problems_of(text)
    )


def test_float_is_quoted_as_it_was_written() -> None:
    text = "spec: {trainer: {optimizer: {learningRate: 1e-5}}}"
    assert (
        'spec.trainer.optimizer.learningRate is 1e-5, but must be a decimal number such as "1e-6":'
        ' write it in quotes, "1e-5"' in problems_of(text)
    )


def test_null_is_the_same_as_unset(make_job: Callable[..., RLJob]) -> None:
    job = make_job({"algorithm": {"groupSize": None, "loss": {"clipLow": None}}})
    assert (job.spec.algorithm.group_size, job.spec.algorithm.loss.clip_low) == (8, 0.2)


@pytest.mark.parametrize("name", ["a" * 41, "Job", "-job", "job-", "job_1", "1job", "job.x"])
def test_job_name_that_would_not_fit_its_pods_is_refused(name: str, manifest_text: Text) -> None:
    (sentence,) = problems_of(manifest_text({}).replace('"name": "job"', f'"name": "{name}"'))
    assert sentence.startswith(f"metadata.name is '{name}', but must ")


def test_longest_job_name_is_accepted(manifest_text: Text) -> None:
    text = manifest_text({}).replace('"name": "job"', f'"name": "{"a" * 40}"')
    assert load_manifest(text).metadata.name == "a" * 40


def test_what_an_api_server_adds_is_accepted(manifest_text: Text) -> None:
    text = manifest_text({}).replace(
        '"name": "job"', '"name": "job", "uid": "u", "generation": 3, "resourceVersion": "9", "managedFields": []'
    )
    status = '"status": {"step": 4, "futureField": 1}, "kind": "RLJob"'
    job = load_manifest(text.replace('"kind": "RLJob"', status))
    assert (job.metadata.uid, job.metadata.generation, job.status and job.status.step) == ("u", 3, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the manifest holds 0 documents, but must hold exactly one object"),
        ("a: 1\n---\nb: 1\n", "the manifest holds 2 documents, but must hold exactly one object"),
        ("[1]", "the manifest is not a mapping; it must begin with apiVersion: rljob.dev/v1alpha1"),
        ("a: [", "the manifest is not YAML: line 1, column 5:"),
        ("a: 1\na: 2\n", "the manifest is not YAML: line 2, column 1: duplicate key 'a'"),
        ("a: !!binary aGk=", "the manifest holds a value that JSON cannot express:"),
        ("a: !!python/object/apply:os.getcwd []", "the manifest is not YAML: line 1, column 4:"),
    ],
)
def test_text_that_is_no_manifest_is_refused(text: str, sentence: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith(sentence)


def test_job_survives_a_round_trip_through_json(make_job: Callable[..., RLJob]) -> None:
    job = make_job({"async": {"maxOffPolicySteps": 2}, "algorithm": {"gae": {"lambda": "0.9"}}})
    assert RLJob.model_validate_json(job.model_dump_json(exclude_unset=True)) == job
