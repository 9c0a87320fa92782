"""The command line: exit codes, sentences, and what is printed. Nothing is started here."""

import json
import pathlib
import resource
import subprocess
import sys

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from rljob_testing.run_folders import finished_run
from rljob_workers.cli import app as commands
from rljob_workers.cli.app import app

MANIFEST: dict[str, object] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "maxSteps": 4,
        "model": {"name": "builtin:smollm2-135m-instruct"},
        "data": {"template": "raw", "train": [{"name": "t", "path": "t.jsonl", "maxPromptTokens": 32}]},
        "algorithm": {"groupSize": 4, "promptsPerStep": 2},
        "rollout": {"engine": {"maxModelLen": 64, "maxNumSeqs": 4}, "sampling": {"maxTokens": 8}},
        "verifier": {"rewards": [{"name": "sum", "type": "exact"}]},
    },
}


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rljob(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def write(folder: pathlib.Path, **spec: object) -> str:
    body = MANIFEST | {"spec": {**MANIFEST["spec"], **spec}}  # type: ignore[dict-item]  # a literal above
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    return str(path)


def errors_of(result: Result) -> list[str]:
    return [line.removeprefix("error: ") for line in result.stderr.splitlines() if line.startswith("error: ")]


def test_help_takes_less_than_a_second_and_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom rljob_workers.cli.__main__ import main\nsys.argv = ['rljob', '--help']\n"
        "try:\n    main()\nfinally:\n"
        "    print([m for m in ('torch', 'grpc', 'matplotlib', 'rich', 'pydantic', 'yaml') if m in sys.modules])\n"
    )
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time: a clock on the wall would measure what else this machine does.
    assert end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime < 1.0
    assert found.stdout.splitlines()[-1] == "[]"


def test_plan_shows_values_with_why_and_memory(here: pathlib.Path) -> None:
    result = rljob("plan", write(here))
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith("spec.")}
    # (maxOffPolicySteps + 1) x promptsPerStep = 2 x 2
    assert rows["spec.async.maxInflightGroups"].split()[1] == "4"
    assert "(maxOffPolicySteps + 1) x promptsPerStep" in rows["spec.async.maxInflightGroups"]
    assert rows["spec.maxSteps"].split() == ["spec.maxSteps", "4", "written"]
    assert "135 M parameters" in result.stdout
    assert "the engine counts as dead after 11 s in which it loads nothing" in result.stdout
    assert "restart rules" in result.stdout


def test_plan_as_json_is_json(here: pathlib.Path) -> None:
    body = json.loads(rljob("plan", write(here), "-o", "json").stdout)
    assert body["job"] == "small"
    assert [config["kind"] for config in body["configs"]] == ["coordinator", "verifier", "rollout", "trainer"]


def test_plan_refuses_what_cannot_work_with_exit_code_two(here: pathlib.Path) -> None:
    result = rljob("plan", write(here, algorithm={"groupSize": 1, "promptsPerStep": 2}))
    assert result.exit_code == 2
    (problem,) = errors_of(result)
    assert "spec.algorithm.groupSize is 1" in problem


def test_plan_for_a_cluster_asks_where_state_goes_and_plan_for_this_machine_does_not(here: pathlib.Path) -> None:
    assert rljob("plan", write(here)).exit_code == 0
    refused = rljob("plan", write(here), "--for-cluster")
    assert refused.exit_code == 2
    (problem,) = errors_of(refused)
    assert problem.startswith("spec.storage.type is null, but say where ledger, checkpoints and model go")
    taken = rljob("plan", write(here), "--for-cluster", "--set", "spec.storage.type=Ephemeral")
    assert taken.exit_code == 0


def test_plan_shows_the_values_that_were_set(here: pathlib.Path) -> None:
    words = ("--set", "spec.maxSteps=9", "--set", "spec.algorithm.loss.clipLow=0.3")
    body = json.loads(rljob("plan", write(here), "-o", "json", *words).stdout)
    shown = {row["path"]: (row["value"], row["why"]) for row in body["values"]}
    assert shown["spec.maxSteps"] == ("9", "written")
    assert shown["spec.algorithm.loss.clipLow"] == ("'0.3'", "written")
    assert body["configs"][0]["spec"]["maxSteps"] == 9


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("spec.maxSteps", "--set spec.maxSteps is not of the form path=value, for example spec.maxSteps=5"),
        ("spec.maxSteps=[", "--set: '[' is not a valid YAML value"),
        (
            "spec.data.train.name=x",
            "--set spec.data.train.name=x addresses a field inside a list or scalar; set the whole value instead",
        ),
        ("spec.algorithm.groupSize=1", "spec.algorithm.groupSize is 1, but advantageEstimator grpo"),
        ("spec.maxStep=3", "spec.maxStep"),
    ],
)
def test_plan_and_run_refuse_the_same_change_in_the_same_words(here: pathlib.Path, change: str, sentence: str) -> None:
    planned, ran = (rljob(command, write(here), "--set", change) for command in ("plan", "run"))
    assert (planned.exit_code, ran.exit_code) == (2, 2)
    assert errors_of(planned) == errors_of(ran)
    assert errors_of(planned)[0].startswith(sentence)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"maxStep": 3}, ("maxStep", "maxSteps")),
        (
            {"algorithm": {"groupSize": 5, "promptsPerStep": 3}, "trainer": {"processesPerNode": 2}},
            ("promptsPerStep", "15", "2"),
        ),
        (
            {"rollout": {"engine": {"maxModelLen": 64}, "sampling": {"maxTokens": 60}}},
            ("maxTokens", "maxModelLen", "64"),
        ),
        ({"trainer": {"optimizer": {"learningRate": "fast"}}}, ("learningRate", "fast", "1e-6")),
        ({"verifier": {"rewards": [{"name": "r", "type": "exakt"}]}}, ("exakt", "exact")),
    ],
)
def test_run_refuses_bad_manifests_and_starts_nothing(
    here: pathlib.Path, spec: dict[str, object], words: tuple[str, ...]
) -> None:
    result = rljob("run", write(here, **spec))
    assert result.exit_code == 2
    assert all(any(word in problem for problem in errors_of(result)) for word in words)
    assert not (here / "runs").exists()


def test_eval_of_a_manifest_without_suites_is_bad_input_and_starts_nothing(here: pathlib.Path) -> None:
    result = rljob("eval", write(here))
    assert (result.exit_code, errors_of(result)) == (
        2, ["spec.evaluation.suites is empty, so there is nothing to evaluate: name a source"],
    )  # fmt: skip
    assert not (here / "runs").exists()


def test_eval_names_a_suite_that_does_not_exist(here: pathlib.Path) -> None:
    suites = [{"name": "math", "path": "m.jsonl", "maxPromptTokens": 32}]
    result = rljob("eval", write(here, evaluation={"suites": suites}), "--suite", "maths")
    assert result.exit_code == 2
    assert errors_of(result) == ["--suite maths is not in spec.evaluation.suites; expected one of math"]


def test_eval_refuses_the_directory_of_a_training_run(here: pathlib.Path) -> None:
    finished_run(here)
    suites = [{"name": "math", "path": "m.jsonl", "maxPromptTokens": 32}]
    result = rljob("eval", write(here, evaluation={"suites": suites}), "--run-dir", "runs/small")
    assert result.exit_code == 2
    assert "holds the run of job 'small', not of 'small-eval'" in result.stderr


def test_help_of_eval_tells_its_exit_codes() -> None:
    result = rljob("eval", "--help")
    assert result.exit_code == 0
    assert all(word in result.output for word in ("--model", "--suite", "--step", "--json", "Exit code 0"))


def test_missing_manifest_is_a_sentence(here: pathlib.Path) -> None:
    result = rljob("run", "nowhere.yaml")
    assert result.exit_code == 2
    assert errors_of(result) == ["cannot read the manifest nowhere.yaml: No such file or directory"]


def test_run_refuses_the_directory_of_another_job(here: pathlib.Path) -> None:
    directory = finished_run(here, "other")
    result = rljob("run", write(here), "--run-dir", str(directory.path), "--skip-check")
    assert result.exit_code == 2
    assert "holds the run of job 'other', not of 'small'" in errors_of(result)[0]


def test_unknown_command_is_bad_input() -> None:
    assert rljob("lunch").exit_code == 2


def test_status_of_a_run_that_ended_tells_its_last_state(here: pathlib.Path) -> None:
    finished_run(here)
    result = rljob("status")
    assert result.exit_code == 0
    assert result.stdout.split("  ") == [
        "not running (finished)",
        "step 1",
        "reward 0.38",
        "checkpoint of step 1",
        "held-out 25.0% at step 1\n",
    ]


def test_status_as_json(here: pathlib.Path) -> None:
    finished_run(here)
    for words in (("--json",), ("-o", "json"), ("--output", "json")):
        body = json.loads(rljob("status", "small", *words).stdout)
        assert (body["running"], body["last_step"], body["status"]) == (False, 1, None)


def test_status_asks_which_run_when_there_are_two(here: pathlib.Path) -> None:
    finished_run(here, "one")
    finished_run(here, "two")
    result = rljob("status")
    assert result.exit_code == 2
    assert "one, two" in errors_of(result)[0]


def test_status_without_a_run_says_so() -> None:
    result = rljob("status")
    assert result.exit_code == 2
    assert "no run was found below runs/" in errors_of(result)[0]


def test_report_writes_the_page_where_it_is_told(here: pathlib.Path) -> None:
    finished_run(here)
    result = rljob("report", "small", "-o", str(here / "page.html"))
    assert result.exit_code == 0
    assert result.stdout.strip() == str(here / "page.html")
    assert "rljob report: small" in (here / "page.html").read_text()


def test_crd_prints_the_definitions() -> None:
    result = rljob("crd")
    assert result.exit_code == 0
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(result.stdout)]
    assert names == ["rljobs.rljob.dev", "rljobruntimes.rljob.dev", "clusterrljobruntimes.rljob.dev"]


def test_report_as_json_says_where_the_page_is_and_the_figures(here: pathlib.Path) -> None:
    finished_run(here)
    body = json.loads(rljob("report", "small", "--json").stdout)
    assert pathlib.Path(body["report"]).is_file()
    assert (body["summary"]["steps"], body["summary"]["reward_mean"]) == (1, [0.375])


def test_job_may_be_named_by_its_directory(here: pathlib.Path) -> None:
    finished_run(here)
    assert rljob("status", "runs/small").stdout == rljob("status", "small").stdout


def test_version_is_printed() -> None:
    assert rljob("version").stdout.startswith("rljob 0.")
    assert rljob("version").stdout == f"rljob {json.loads(rljob('version', '-o', 'json').stdout)['version']}\n"


def test_file_that_may_not_be_read_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> int:
        raise PermissionError(13, "Permission denied", "runs/small/job.json")

    with pytest.raises(typer.Exit) as ended:
        commands._exit_with(refused)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "error: cannot read runs/small/job.json: permission denied\n"
