import json
from typing import Any

import pytest
import yaml

from rljob_api import devices, enums, errors, resolve, suites
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.reward_options import JUDGE, JudgeOptions, SecretKey, problems
from rljob_api.validation import rules
from rljob_api.validation.load import load_manifest
from rljob_testing import examples

EXAMPLE = examples.EXAMPLES / "addition-judge-cpu.yaml"
URL = {"url": "https://example.com/v1", "model": "m"}
# A reward that asks the model of spec.judge.
OWN = {"url": "", "model": ""}
SMALL = {"model": "builtin:smollm2-135m-instruct"}


def job(reward: dict[str, Any] | None = None, **sections: object) -> RLJob:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    if reward is not None:
        document["spec"]["verifier"]["rewards"] = [{"name": "judged", "type": "judge", "config": {**URL, **reward}}]
    for section, change in sections.items():
        document["spec"].setdefault(section, {}).update(change)
    return load_manifest(json.dumps(document))


def resolved(made: RLJob) -> resolve.ResolvedJob:
    ports = range(6000, 6000 + resolve.num_local_ports(made))
    placement = resolve.local_placement(
        made, uid="u", run_dir="/run", base_dir="/data", cache_dir="/cache", ports=ports, num_cores=2
    )
    return resolve.resolve(made, placement)


def wrong(**options: object) -> list[str]:
    return [f"{path}: {reason}" for path, _, reason in problems(JUDGE, {**URL, **options})]


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/v1",
        "http://127.0.0.1:8000/v1",
        "http://[::1]:8000",
        "http://localhost:8000",
        "http://judge:8000",
        "http://judge.team.svc:8000/v1",
        "http://judge.team.svc.cluster.local",
        "http://10.1.2.3:8000",
    ],
)
def test_a_judge_is_called_by_tls_or_nearby(url: str) -> None:
    assert wrong(url=url) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "http://8.8.8.8/v1",
        "http://169.254.169.254/latest",
        "http://0.0.0.0:80",
        "http://svc.example.com.evil",
        "ftp://example.com",
        "file:///etc/passwd",
        "https://user:secret@example.com/v1",
        "https://example.com/v1?key=secret",
        "https://example.com/v1#a",
        "https://exa mple.com/v1",
        "https://example.com:99999/v1",
        "https://example.com/v1\r\nX: y",
        "https://",
    ],
)
def test_a_url_where_a_key_would_be_in_danger_is_refused(url: str) -> None:
    (problem,) = wrong(url=url)
    assert problem.startswith("url: must ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"template": "{question}"}, "template of form rubric lacks {answer}"),
        ({"form": "reference", "template": "{answer}"}, "template of form reference lacks {reference}"),
        ({"form": "pairwise", "template": "{answer_a}"}, "template of form pairwise lacks {answer_b}"),
        ({"template": "{answer}{answer_b}"}, "template of form rubric has no {answer_b}"),
        ({"scale": [2, 1]}, "scale is [2, 1]"),
        ({"form": "reference", "scale": [0, 1]}, "scale has no effect on form reference"),
        ({"opponents": 2}, "opponents has no effect on form rubric"),
        ({"form": "score", "maxTokens": 3}, "maxTokens has no effect on form score"),
        ({"temprature": 1}, "judge has no such option"),
        ({"apiKey": {"name": "a", "key": "../b"}}, "apiKey.key: "),
        ({"url": ""}, "model is written and url is not: write both, or neither"),
        ({"model": ""}, "url is written and model is not: write both, or neither"),
        ({**OWN, "apiKey": {"name": "a", "key": "b"}}, "apiKey is of a url"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    (problem,) = wrong(**options)
    assert said in problem


def test_the_port_of_a_url_is_written_or_that_of_its_scheme() -> None:
    urls = ("https://a.b", "http://judge", "http://judge:8000")
    assert [JudgeOptions(url=url, model="m").port for url in urls] == [443, 80, 8000]


@pytest.mark.parametrize(
    ("reward", "sections", "said"),
    [
        ({"form": "pairwise"}, {"algorithm": {"groupSize": 1}}, "there is no other answer to compare with"),
        ({"form": "pairwise"}, {"evaluation": {"suites": [{"name": "s", "path": "x.jsonl"}]}}, "suite s too"),
        ({"form": "pairwise"}, {"workflow": {"type": "multi_turn_math"}}, "are not graded side by side"),
    ],
)
def test_a_comparison_that_has_no_group_is_refused(reward: dict[str, Any], sections: dict[str, Any], said: str) -> None:
    assert said in "\n".join(rules.problems(job(reward, **sections).spec))


def test_keys_whose_variables_would_be_one_are_refused() -> None:
    assert SecretKey(name="open-ai", key="token").variable == SecretKey(name="open.ai", key="token").variable
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    document["spec"]["verifier"]["rewards"] = [
        {"name": name, "type": "judge", "config": {**URL, "apiKey": {"name": name, "key": "token"}}}
        for name in ("open-ai", "open.ai")
    ]
    (problem,) = rules.problems(load_manifest(json.dumps(document)).spec)
    assert "RLJOB_JUDGE_KEY_OPEN_AI_TOKEN is the variable of another key" in problem


def test_a_job_has_a_judge_exactly_where_a_reward_asks_one() -> None:
    assert suites.roles(job().spec)[-1] is enums.Role.JUDGE
    plain = load_manifest((examples.EXAMPLES / "addition-cpu.yaml").read_text(encoding="utf-8"))
    assert enums.Role.JUDGE not in suites.roles(plain.spec)
    assert resolved(plain).judge is None
    assert resolved(plain).rollouts[0].judge_address == ""
    assert resolve.num_local_ports(job()) == resolve.num_local_ports(plain) + 2


def test_rewards_are_shared_out_between_verifier_and_judge() -> None:
    made = resolved(job())
    assert made.judge is not None
    assert [reward.name for reward in made.judge.rewards] == ["equal"]
    assert [(reward.name, reward.suite) for reward in made.verifiers[0].rewards] == [("sum", "held-out")]
    assert made.rollouts[0].judge_address == f"127.0.0.1:{made.judge.port}"
    assert made.rollouts[0].judge_timeout_s == 180.0
    assert made.judge in made.configs
    taken = [made.judge.port, made.judge.health_port, made.verifiers[0].port, made.verifiers[0].health_port]
    assert len(set(taken)) == 4


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({}, "at most 128 calls of m and 65536 completion tokens; twice that if no first reply has a verdict"),
        ({"form": "pairwise", "opponents": 2}, "at most 256 calls of m"),
        ({"form": "pairwise", "opponents": 64}, "at most 448 calls of m"),
        ({"form": "score"}, "at most 128 calls of m; groups"),
    ],
)
def test_a_plan_says_how_many_calls_a_step_takes_at_most(reward: dict[str, Any], said: str) -> None:
    (line,) = suites.judge_calls(job(reward).spec)
    assert said in line


def test_a_judge_is_at_a_url_or_the_jobs_own() -> None:
    (problem,) = rules.problems(job(OWN).spec)
    assert problem.startswith("spec.verifier.rewards[0].config.url is ''")
    assert "write url and model, or spec.judge" in problem
    (problem,) = rules.problems(job({}, judge=SMALL).spec)
    assert problem.startswith("spec.judge.model is 'builtin:smollm2-135m-instruct', but no reward asks it")
    assert rules.problems(job(OWN, judge=SMALL).spec) == []


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ({"model": "https://example.com/model"}, "judge.model is 'https://example.com/model', but an address must be"),
        ({"revision": "main"}, "judge.revision is 'main', but judge.model is 'builtin:"),
        ({"extraArgs": {"host": "0.0.0.0"}}, "judge.extraArgs.host is '0.0.0.0', but the judge itself sets it"),
        ({"extraArgs": {"max-model-len": 9}}, "judge.extraArgs.max-model-len is 9, but judge.maxModelLen sets it"),
        ({"extraArgs": {"--x y": 9}}, "must be the name of an option of vllm serve"),
        ({"resources": {"limits": {"nvidia.com/gpu": "1"}}, "tensorParallelSize": 2}, "needs 2 GPUs in each pod"),
        ({"resources": {"requests": {"nvidia.com/gpu": "1"}}}, "write the number in limits alone"),
        ({"url": "https://example.com"}, "judge.url"),
    ],
)
def test_what_is_wrong_with_the_jobs_own_judge_is_named(judge: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        resolved(job(OWN, judge={**SMALL, **judge}))
    assert said in "\n".join(refused.value.problems)


def test_the_jobs_own_judge_answers_on_loopback_whatever_is_asked() -> None:
    made = resolved(job(OWN, judge={**SMALL, "maxModelLen": 512, "extraArgs": {"max_num_seqs": 4}}))
    assert made.judge is not None
    server = made.judge.server
    assert server is not None
    assert (server.model.name, server.max_model_len, server.extra_args) == (SMALL["model"], 512, {"max_num_seqs": 4})
    assert server.port not in (made.judge.port, made.judge.health_port)
    (reward,) = made.judge.rewards
    assert reward.config == {"url": f"http://127.0.0.1:{server.port}/v1", "model": "judge"}
    scored = resolved(job({**OWN, "form": "score"}, judge=SMALL))
    assert scored.judge is not None
    assert scored.judge.server is not None
    assert scored.judge.rewards[0].config["url"] == f"http://127.0.0.1:{scored.judge.server.port}"


def test_a_plan_tells_calls_of_the_jobs_own_judge_by_its_model() -> None:
    (sentence,) = suites.judge_calls(job(OWN, judge=SMALL).spec)
    assert "128 calls of builtin:smollm2-135m-instruct" in sentence


def test_gpus_of_a_judge_are_those_of_its_copies_and_stages() -> None:
    judge = {**SMALL, "tensorParallelSize": 2, "extraArgs": {"pipeline_parallel_size": 2, "data_parallel_size": 2}}
    spec = job(OWN, judge=judge).spec
    assert devices.derived_limits(spec, enums.Role.JUDGE, "cuda") == {"nvidia.com/gpu": "8"}
    assert devices.derived_limits(spec, enums.Role.JUDGE, "cpu") == {}
    assert devices.derived_limits(job({}).spec, enums.Role.JUDGE, "cuda") == {}
    written = job(OWN, judge={**SMALL, "resources": {"limits": {"nvidia.com/gpu": "1"}}}).spec
    assert written.wanted_device == "cuda"
    assert "each of 1 judge pods: nvidia.com/gpu 1" in devices.lines(written)
