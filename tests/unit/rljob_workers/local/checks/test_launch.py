"""From a manifest to commands: names of processes, trainer attempts, policies, memory."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from rljob_api import enums, errors, process_config, resolve
from rljob_api.validation.load import load_manifest
from rljob_testing.clock import FakeClock
from rljob_workers.local import prepare
from rljob_workers.local.checks import model_memory, preflight
from rljob_workers.local.run import failure_policy, launch
from rljob_workers.local.rundir import journal, layout
from rljob_workers.runtime import device, machine

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  maxSteps: 4
  startupDeadlineSeconds: 77
  model: {name: "builtin:smollm2-135m-instruct"}
  data: {template: "raw", train: [{name: t, path: data/t.jsonl, maxPromptTokens: 32}]}
  algorithm: {groupSize: 4, promptsPerStep: 2}
  rollout: {replicas: 2, drainSeconds: 120, engine: {maxModelLen: 64, maxNumSeqs: 4}, sampling: {maxTokens: 8}}
  verifier: {rewards: [{name: sum, type: exact}]}
  failurePolicy:
    maxTrainerRestarts: 3
    maxInfraRestarts: 7
    stall: {timeoutSeconds: 44, action: Fail}
    rules:
      - {action: FailJob, role: trainer, exitCodes: {operator: NotIn, values: [75]}}
      - {action: Ignore, containerReasons: [OOMKilled]}
"""


def manifest(folder: pathlib.Path) -> prepare.Manifest:
    return prepare.Manifest(job=load_manifest(MANIFEST), text=MANIFEST, path=folder / "job.yaml")


def configs(folder: pathlib.Path) -> dict[str, process_config.ProcessConfig]:
    resolved = prepare.resolve_here(manifest(folder), run_dir=folder / "run", uid="u-1")
    return launch.process_names(resolved.configs)


def test_processes_are_named_by_role_and_numbered_where_there_are_more(tmp_path: pathlib.Path) -> None:
    assert list(configs(tmp_path)) == ["coordinator", "verifier", "rollout-0", "rollout-1", "trainer"]


def test_everything_listens_on_loopback_on_ports_of_its_own(tmp_path: pathlib.Path) -> None:
    found = configs(tmp_path)
    assert {config.health_host for config in found.values()} == {"127.0.0.1"}
    health = [config.health_port for config in found.values()]
    assert len(set(health)) == len(health)


def test_relative_data_paths_are_relative_to_the_manifest(tmp_path: pathlib.Path) -> None:
    coordinator = configs(tmp_path)["coordinator"]
    assert isinstance(coordinator, process_config.CoordinatorConfig)
    assert coordinator.spec.data.train[0].path == str(tmp_path / "data" / "t.jsonl")


def test_each_start_of_the_trainer_is_a_new_attempt_recorded_before_it_exists(tmp_path: pathlib.Path) -> None:
    directory = layout.RunDir(tmp_path / "run")
    directory.claim(directory.admit(name="small", spec={}, manifest_dir=tmp_path), MANIFEST)
    log = journal.Journal(directory.journal)
    launcher = launch.Launcher(
        configs=configs(tmp_path),
        directory=directory,
        programs=lambda _: ("true",),
        log=log,
        clock=FakeClock(),
        attempt=4,
        env=launch.environment(tmp_path, cache=tmp_path),
    )
    children = [launcher.spawn("trainer", enums.Role.TRAINER) for _ in range(2)]
    while any(child.poll() is None for child in children):
        pass
    log.close()
    assert [entry.attempt for entry in journal.read(directory.journal)] == [5, 6]
    written = json.loads((directory.configs / "trainer.json").read_text())
    assert written["attempt"] == 6
    assert {child.poll() for child in children} == {0}


def test_a_process_sees_the_gpus_that_were_planned_for_it_and_the_others_what_they_saw(tmp_path: pathlib.Path) -> None:
    directory = layout.RunDir(tmp_path / "run")
    directory.claim(directory.admit(name="small", spec={}, manifest_dir=tmp_path), MANIFEST)
    log = journal.Journal(directory.journal)
    seen = tmp_path / "seen"
    seen.mkdir()
    launcher = launch.Launcher(
        configs=configs(tmp_path),
        directory=directory,
        programs=lambda role: ("sh", "-c", f'echo "$CUDA_VISIBLE_DEVICES" > {seen}/{role}'),
        log=log,
        clock=FakeClock(),
        attempt=0,
        env={**launch.environment(tmp_path, cache=tmp_path), "CUDA_VISIBLE_DEVICES": "all"},
        gpus={"trainer": ("4", "5")},
    )
    for child in [launcher.spawn(str(role), role) for role in (enums.Role.TRAINER, enums.Role.COORDINATOR)]:
        while child.poll() is None:
            pass
    log.close()
    assert {path.name: path.read_text().strip() for path in seen.iterdir()} == {"trainer": "4,5", "coordinator": "all"}


def test_failure_policy_of_the_manifest_is_carried_out(tmp_path: pathlib.Path) -> None:
    spec = manifest(tmp_path).job.spec
    policy = failure_policy.restart_policy_of(spec)
    assert (policy.max_app_restarts, policy.max_infra_restarts) == (3, 7)
    # The rule about a container's reason cannot match without a cluster.
    assert [rule.model_dump(exclude_defaults=True) for rule in policy.rules] == [
        {"action": "FailJob", "role": "trainer", "exitCodes": {"operator": "NotIn", "values": (75,)}}
    ]
    limits = failure_policy.limits_of(spec)
    assert (limits.startup_s, limits.active_s, limits.stall_s, limits.on_stall) == (77.0, None, 44.0, "Fail")
    assert failure_policy.bounds_of(spec).drain_s == 15.0


def test_shape_of_a_model_folder_is_counted_from_its_config(tmp_path: pathlib.Path) -> None:
    # SmolLM2-135M's own config.json; its published parameter count is 134,515,008.
    config = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = process_config.ModelFiles(name="mine", path=str(tmp_path), cache_dir="")
    found = model_memory.shape_of(model)
    assert found is not None
    assert found.num_params == 134_515_008
    builtin = process_config.ModelFiles(name="builtin:smollm2-135m-instruct", cache_dir="")
    assert model_memory.shape_of(builtin) == found


def test_shape_of_an_absent_model_is_unknown(tmp_path: pathlib.Path) -> None:
    assert model_memory.shape_of(process_config.ModelFiles(name=str(tmp_path / "no"), cache_dir="")) is None


HYBRID = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}


def resolved_with(
    tmp_path: pathlib.Path,
    config: dict[str, object] | None,
    *,
    lora: dict[str, object] | None = None,
    kl_coef: str = "0",
) -> resolve.ResolvedJob:
    """Return the job with a model of this config.json, the built-in one without; with an adapter and a KL term."""
    manifest = yaml.safe_load(MANIFEST)
    if config is not None:
        (tmp_path / "model").mkdir(parents=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        manifest["spec"]["model"]["name"] = str(tmp_path / "model")
    if lora is not None:
        manifest["spec"]["model"]["lora"] = lora
        manifest["spec"].setdefault("algorithm", {}).setdefault("loss", {})["klCoef"] = kl_coef
    return resolved_here(tmp_path, manifest)


def resolved_here(tmp_path: pathlib.Path, manifest: object) -> resolve.ResolvedJob:
    text = yaml.safe_dump(manifest)
    made = prepare.Manifest(job=load_manifest(text), text=text, path=tmp_path / "job.yaml")
    return prepare.resolve_here(made, run_dir=tmp_path / "run", uid="u-1")


def test_a_model_that_cannot_be_trained_is_refused_by_plan(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match=r"spec\.model\.name is .*layers of kind conv \(lfm2\)"):
        model_memory.check(resolved_with(tmp_path, HYBRID))


def test_an_adapter_of_a_mixture_of_experts_is_refused_by_plan(tmp_path: pathlib.Path) -> None:
    experts = {"model_type": "qwen3_moe", "num_experts": 4}
    assert model_memory.check(resolved_with(tmp_path / "dense", experts)) == []
    with pytest.raises(errors.ManifestError, match=r"mixture of experts \(num_experts is 4\).*leave spec\.model\.lora"):
        model_memory.check(resolved_with(tmp_path / "adapted", experts, lora={"rank": 8}))


def test_plan_says_how_much_of_the_model_an_adapter_trains_and_what_a_version_weighs(tmp_path: pathlib.Path) -> None:
    resolved = resolved_with(tmp_path, None, lora={"rank": 16, "targets": ["q_proj", "v_proj"]}, kl_coef="0.1")
    # Of SmolLM2-135M: 30 layers, q 576 to 576 and v 576 to 192.
    trained = 30 * 16 * (576 + 576 + 576 + 192)
    (line,) = [line for line in model_memory.lines(resolved) if line.startswith("adapter")]
    assert line == (
        f"adapter: {trained / 1e6:.2f} M parameters are trained, 0.7% of the model's; as the reference model the model"
        " is shared, which saves 0.27 GB on each rank"
    )
    assert model_memory.update_lines(resolved)[0] == "version: 1.8 MB, the adapter alone, in bfloat16"


def judged_by(tmp_path: pathlib.Path, **judge: object) -> list[str]:
    manifest = yaml.safe_load(MANIFEST)
    manifest["spec"] |= {"device": "cpu", "judge": judge}
    manifest["spec"]["verifier"] = {"rewards": [{"name": "graded", "type": "judge", "config": {}}]}
    return model_memory.lines(resolved_here(tmp_path, manifest))


def test_plan_counts_the_model_that_the_judge_serves(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "dtype_for_this_cpu", lambda dtype: dtype)
    small = "builtin:smollm2-135m-instruct"
    lines = judged_by(tmp_path, model=small, extraArgs={"kv_cache_memory_bytes": 256 << 20})
    # 2 B x 134.5 M.
    assert "judge: 0.54 GB (weights 0.27 GB, key-value cache 0.27 GB)" in lines
    lines = judged_by(tmp_path, model=small)
    assert "judge: 2.42 GB (weights 0.27 GB, key-value cache 2.15 GB)" in lines, "2 GiB unless it is said"
    # 4.95 GB were measured with it: server 0.77, engine 0.71, its worker 3.43, the judge 0.04.
    assert ", judge 5.22 GB, " in lines[-1]


def test_plan_says_of_a_judge_whose_model_is_not_here_that_it_is_in_no_sum(tmp_path: pathlib.Path) -> None:
    lines = judged_by(tmp_path, model="example/judge-8b")
    assert "judge: unknown, example/judge-8b has no config.json on this machine; it is in no sum below" in lines
    assert "judge" not in lines[-1]


@pytest.mark.parametrize(("gigabytes", "warned"), [(1, False), (10, True)])
def test_a_start_that_is_shorter_than_reading_the_files_is_warned_of(
    tmp_path: pathlib.Path, gigabytes: int, warned: bool
) -> None:
    resolved = resolved_with(tmp_path, {"model_type": "llama"})
    with (tmp_path / "model" / "model.safetensors").open("wb") as file:
        file.truncate(gigabytes * 10**9)
    warnings = model_memory.check(resolved)
    if warned:
        # 10 GB at 100 MB/s, twice; the manifest gives the start 77 s.
        assert warnings == [
            "spec.startupDeadlineSeconds is 77, but the 10 GB of model files, read twice from a disk of 100 MB/s, take"
            " 200 s: raise it"
        ]
    else:
        assert warnings == []


def test_what_a_job_takes_of_a_machine_without_gpus_is_added_up_and_compared_with_what_is_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "gpus", lambda: ())
    resolved = resolved_with(tmp_path, None, lora={"rank": 16})
    (line,) = [line for line in model_memory.lines(resolved) if line.startswith("all of it on this machine's CPU")]
    assert "0.27 GB of the model's files stay mapped, which all share" in line
    assert model_memory.too_large(resolved, 10**12) == []
    (warning,) = model_memory.too_large(resolved, 10**9)
    assert "but 1.00 GB are available here" in warning
    monkeypatch.setattr(device, "gpus", lambda: ("0",))
    assert model_memory.too_large(resolved, 10**9) == []
    assert not any("CPU" in line for line in model_memory.lines(resolved))


def test_a_family_that_is_not_in_the_table_is_warned_of(tmp_path: pathlib.Path) -> None:
    (warning,) = model_memory.check(resolved_with(tmp_path, {"model_type": "olmo3"}))
    assert "docs/models.md does not list" in warning


def taught(folder: pathlib.Path, vocab: dict[str, int]) -> resolve.ResolvedJob:
    """Return the job with a policy of a few tokens, and a teacher of twice its width with these."""
    config = {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 4, "num_attention_heads": 4,
        "intermediate_size": 48,
    }  # fmt: skip
    resolved = resolved_with(folder, config)
    (folder / "better").mkdir()
    (folder / "better/config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    for name, tokens in (("model", {"a": 0}), ("better", vocab)):
        (folder / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}}))
    files = process_config.ModelFiles(name=str(folder / "better"), cache_dir="")
    return dataclasses.replace(resolved, trainer=resolved.trainer.model_copy(update={"teacher": files}))


def test_plan_says_how_large_a_teacher_is_and_refuses_one_of_another_vocabulary(tmp_path: pathlib.Path) -> None:
    same = taught(tmp_path / "same", {"a": 0})
    assert model_memory.check(same) == []
    lines = model_memory.lines(same)
    assert "teacher: 0 M parameters, on each trainer rank" in lines
    assert any("teacher 0.00 GB" in line for line in lines)
    with pytest.raises(errors.ManifestError, match=r"spec\.teacher\.model is .*vocabulary is another one"):
        model_memory.check(taught(tmp_path / "other", {"b": 0}))


def test_check_that_breaks_is_no_bad_input(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Exception, match="ended with exit code 1") as caught:
        preflight.check(configs(tmp_path), programs=lambda _: ("false",), waiting=lambda _: None)
    assert type(caught.value).__name__ == "RLJobError"


def test_faults_of_the_data_are_told_while_a_model_is_still_being_fetched(tmp_path: pathlib.Path) -> None:
    commands = {enums.Role.COORDINATOR: ("sh", "-c", "echo 'error: no such file' >&2; exit 2")}
    fetching = ("sh", "-c", "echo 'error: half a sentence' >&2; exec sleep 600")
    with pytest.raises(errors.ManifestError) as caught:
        preflight.check(configs(tmp_path), programs=lambda role: commands.get(role, fetching), waiting=lambda _: None)
    assert caught.value.problems == ("no such file",)


def test_faults_that_other_checks_find_are_told_together(tmp_path: pathlib.Path) -> None:
    says = {enums.Role.ROLLOUT: "no such model", enums.Role.VERIFIER: "no gold answer"}
    with pytest.raises(errors.ManifestError) as caught:
        preflight.check(
            configs(tmp_path),
            programs=lambda role: (
                ("sh", "-c", f"echo 'error: {says[role]}' >&2; exit 2") if role in says else ("true",)
            ),
            waiting=lambda _: None,
        )
    assert caught.value.problems == ("no such model", "no gold answer")


def test_checks_may_take_as_long_as_a_start_may(tmp_path: pathlib.Path) -> None:
    short = configs(tmp_path)
    for name, config in short.items():
        if isinstance(config, process_config.SpecConfig):
            spec = config.spec.model_copy(update={"startup_deadline_seconds": 1})
            short[name] = config.model_copy(update={"spec": spec})
    with pytest.raises(errors.RLJobError, match=r"within spec\.startupDeadlineSeconds = 1"):
        preflight.check(short, programs=lambda _: ("sh", "-c", "exec sleep 60"), waiting=lambda _: None)


def test_warnings_of_the_checks_are_returned_once(tmp_path: pathlib.Path) -> None:
    warning = ("sh", "-c", "echo 'warning: 2 records are left out' >&2; echo 'another line'")
    found = preflight.check(configs(tmp_path), programs=lambda _: warning, waiting=lambda _: None)
    assert found == ["2 records are left out"]


def test_an_environment_is_tried_outside_of_the_runs_folder_which_is_not_taken_yet(tmp_path: pathlib.Path) -> None:
    shared = configs(tmp_path)
    of_verifier = shared["verifier"].model_dump(include=set(process_config.ProcessConfig.model_fields))
    of_verifier |= {"role": enums.Role.ENVIRONMENT, "bind_host": "127.0.0.1", "port": 1}
    environment = process_config.EnvironmentConfig.model_validate(of_verifier)
    copied = tmp_path / "environment.json"

    def programs(role: enums.Role) -> tuple[str, ...]:
        return ("sh", "-c", f'cp "$1" {copied}') if role is enums.Role.ENVIRONMENT else ("true",)

    preflight.check({**shared, "environment": environment}, programs=programs, waiting=lambda _: None)
    checked = process_config.EnvironmentConfig.model_validate_json(copied.read_text())
    assert not checked.scratch_dir.startswith(str(tmp_path / "run"))
    assert checked.model_copy(update={"scratch_dir": environment.scratch_dir}) == environment


def test_temporary_files_go_where_the_run_says_and_compiled_kernels_where_they_are_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/somewhere")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/chosen")
    found = launch.environment(tmp_path / "tmp", cache=tmp_path / "cache")
    assert found["TMPDIR"] == str(tmp_path / "tmp")
    assert found["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache/torchinductor")
    assert found["TRITON_CACHE_DIR"] == "/chosen"


def test_the_judge_alone_has_the_keys_of_language_models(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJOB_JUDGE_KEY_OPENAI_TOKEN", "secret-key")
    directory = layout.RunDir(tmp_path / "run")
    directory.claim(directory.admit(name="small", spec={}, manifest_dir=tmp_path), MANIFEST)
    log = journal.Journal(directory.journal)
    seen = tmp_path / "seen"
    seen.mkdir()
    launcher = launch.Launcher(
        configs={**configs(tmp_path), "judge": configs(tmp_path)["verifier"]},
        directory=directory,
        programs=lambda role: ("sh", "-c", f'echo "$RLJOB_JUDGE_KEY_OPENAI_TOKEN" > {seen}/{role}'),
        log=log,
        clock=FakeClock(),
        attempt=0,
        env=launch.environment(tmp_path, cache=tmp_path),
    )
    roles = (enums.Role.JUDGE, enums.Role.VERIFIER, enums.Role.COORDINATOR)
    for child in [launcher.spawn(str(role), role) for role in roles]:
        while child.poll() is None:
            pass
    log.close()
    assert {path.name: path.read_text().strip() for path in seen.iterdir()} == {
        "judge": "secret-key",
        "verifier": "",
        "coordinator": "",
    }


def test_a_file_of_the_working_folder_is_no_module_of_a_role(tmp_path: pathlib.Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong one')")
    command = [*launch.own_programs(enums.Role.COORDINATOR), "--help"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=launch.environment(tmp_path, cache=tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


AGENT = """
import json, os, pathlib, sys
names = ("RLJOB_GATEWAY", "RLJOB_GATEWAY_KEY", "SEARCH_KEY", "MODE", "PYTHONSAFEPATH", "RLJOB_POD")
key = pathlib.Path(os.environ["RLJOB_GATEWAY_KEY_FILE"])
seen = {name: os.environ.get(name) for name in names}
seen |= {"key": key.read_text(), "mode": oct(key.stat().st_mode)[-3:], "folder": os.getcwd(), "args": sys.argv[1:]}
pathlib.Path("seen.json").write_text(json.dumps(seen))
"""


def with_agents(folder: pathlib.Path) -> prepare.Manifest:
    document = yaml.safe_load(MANIFEST)
    document["spec"]["workflow"] = {"type": "external"}
    document["spec"]["rollout"] |= {"gateway": {}, "replicas": 1}
    secret = {"name": "SEARCH_KEY", "valueFrom": {"secretKeyRef": {"name": "search", "key": "k"}}}
    env = [{"name": "MODE", "value": "fast"}, secret]
    command = [sys.executable, "agent.py"]
    document["spec"]["agents"] = {"command": command, "args": ["--", "x"], "pod": {"env": env}}
    text = yaml.safe_dump(document)
    return prepare.Manifest(job=load_manifest(text), text=text, path=folder / "job.yaml")


def test_an_agent_starts_in_the_manifest_s_folder_with_its_own_secrets_and_the_key_in_a_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "of agents")
    monkeypatch.delenv("RLJOB_GATEWAY_KEY", raising=False)
    given = with_agents(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    prepare.admit_here(given)
    found = launch.process_names(prepare.resolve_here(given, run_dir=tmp_path / "run", uid="u").configs)
    directory = layout.RunDir(tmp_path / "run")
    directory.claim(directory.admit(name="small", spec={}, manifest_dir=tmp_path), MANIFEST)
    log = journal.Journal(directory.journal)
    dump = f'env > "{tmp_path}/$0"'
    launcher = launch.Launcher(
        configs=found,
        directory=directory,
        programs=lambda role: ("sh", "-c", dump, str(role)),
        log=log,
        clock=FakeClock(),
        attempt=0,
        env=launch.environment(tmp_path, cache=tmp_path, withheld=launch.agents_own(found.values())),
    )
    roles = (enums.Role.AGENTS, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.COORDINATOR, enums.Role.TRAINER)
    for child in [launcher.spawn(str(role), role) for role in roles]:
        while child.poll() is None:
            pass
    log.close()
    seen = json.loads((tmp_path / "seen.json").read_text())
    key = seen.pop("key")
    assert len(key) >= 16
    assert seen == {
        "RLJOB_GATEWAY": "http://127.0.0.1:50055",
        "RLJOB_GATEWAY_KEY": None,
        "SEARCH_KEY": "of agents",
        "MODE": "fast",
        "PYTHONSAFEPATH": None,
        "RLJOB_POD": "agents-0",
        "mode": "600",
        "folder": str(tmp_path),
        "args": ["--", "x"],
    }
    others = {role: (tmp_path / str(role)).read_text() for role in roles[1:]}
    names = {role: {line.partition("=")[0] for line in text.splitlines()} for role, text in others.items()}
    assert not [role for role, seen_by in names.items() if seen_by & {"SEARCH_KEY", "MODE"}]
    assert [role for role, text in others.items() if f"RLJOB_GATEWAY_KEY={key}" in text] == [enums.Role.ROLLOUT]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"command": [], "pod": {"image": "example/agent:2"}}, "example/agent:2 is not run on one machine"),
        ({"command": ["no-such-program"], "pod": {}}, "spec.agents.command is 'no-such-program'"),
        ({"command": ["./agent.sh"], "pod": {}}, "spec.agents.command is './agent.sh'"),
        ({}, "spec.agents.pod.env: SEARCH_KEY has no value here"),
    ],
)
def test_agents_that_cannot_start_here_are_refused_by_field(
    change: dict[str, object], problem: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    document = yaml.safe_load(with_agents(tmp_path).text)
    document["spec"]["agents"] |= change
    text = yaml.safe_dump(document)
    with pytest.raises(errors.ManifestError, match=re.escape(problem)):
        prepare.admit_here(prepare.Manifest(job=load_manifest(text), text=text, path=tmp_path / "job.yaml"))


def test_fewer_agents_than_rollouts_on_one_machine_are_refused(tmp_path: pathlib.Path) -> None:
    document = yaml.safe_load(with_agents(tmp_path).text)
    document["spec"]["rollout"]["replicas"] = 2
    document["spec"]["agents"]["pod"] = {}
    text = yaml.safe_dump(document)
    with pytest.raises(errors.ManifestError, match="spec.agents.replicas is 1"):
        prepare.admit_here(prepare.Manifest(job=load_manifest(text), text=text, path=tmp_path / "job.yaml"))
