"""--check on a tiny model's tokenizer: one byte is one token."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
import torch  # noqa: F401  # here, where other tests need it, no check goes without

from rljob_api import errors, process_config, types
from rljob_testing import models, sections
from rljob_testing.ports import free_ports
from rljob_workers.rollout import __main__ as program
from rljob_workers.rollout import tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("model")
    models.make_tiny_tokenizer(folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def rollout_config(
    model: str, tmp_path: pathlib.Path, changes: Mapping[str, object] | None = None, *, user_code: str = ""
) -> pathlib.Path:
    path = tmp_path / "rollout.json"
    config = config_of(process_config.RolloutConfig, tmp_path, {"model.name": model, **(changes or {})})
    path.write_text(json.dumps(json.loads(config) | {"user_code": user_code}))
    return path


def coordinator_config(
    tmp_path: pathlib.Path, *, prompts: list[str], max_prompt_tokens: int = 30, suites: Sequence[str] = ()
) -> pathlib.Path:
    data = tmp_path / "train.jsonl"
    lines = [json.dumps({"id": f"r{i}", "prompt": prompt, "answer": "1"}) for i, prompt in enumerate(prompts)]
    data.write_text("\n".join(lines) + "\n")
    source = {"name": "train", "path": str(data), "maxPromptTokens": max_prompt_tokens, "columns": {"id": "id"}}
    path = tmp_path / "coordinator.json"
    changes = {
        "data.train": [source],
        "evaluation.suites": [source | {"name": name} for name in suites],
        "evaluation.sampling.maxTokens": 16,
    }
    path.write_text(config_of(process_config.CoordinatorConfig, tmp_path, changes))
    return path


def config_of(kind: type[process_config.ProcessConfig], folder: pathlib.Path, changes: Mapping[str, object]) -> str:
    small = {"data.template": "raw", "rollout.engine.maxModelLen": 32, "model.dtype": "bfloat16"}
    return sections.make_config(kind, folder, {**small, **changes}).model_dump_json()


def check(
    rollout: pathlib.Path, coordinator: pathlib.Path | None, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str]]:
    sources = ["--sources", str(coordinator)] if coordinator else []
    code = program.main(["--config", str(rollout), "--check", *sources])
    return code, capsys.readouterr().err.splitlines()


def test_prompts_that_fit_pass(model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = coordinator_config(tmp_path, prompts=["x" * 24])
    assert check(rollout_config(str(model), tmp_path), sources, capsys) == (0, [])


@pytest.mark.parametrize("has_code", [False, True])
def test_the_check_loads_no_torch_unless_code_that_may_need_it_is_loaded(
    model: pathlib.Path, tmp_path: pathlib.Path, has_code: bool
) -> None:
    changes: dict[str, object] = {}
    if has_code:
        (tmp_path / "own.py").write_text(
            "import torch\n\ndef render(record):\n    return str(torch.tensor(7).item())\n"
        )
        changes = {"data.template": "own:render"}
    rollout = rollout_config(str(model), tmp_path, changes, user_code=str(tmp_path / "own.py") if has_code else "")
    program = (
        "import sys; from rljob_workers.rollout import __main__ as program; "
        f"code = program.main(['--config', {str(rollout)!r}, '--check', '--sources', {str(sources_of(tmp_path))!r}]);"
        "print(code, 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["0", str(has_code)], ended.stderr
    assert ended.stderr == ""


def sources_of(tmp_path: pathlib.Path) -> pathlib.Path:
    return coordinator_config(tmp_path, prompts=["x" * 24])


def test_a_prompt_that_leaves_too_little_context_names_file_line_and_numbers(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = coordinator_config(tmp_path, prompts=["x", "x" * 25])
    code, problems = check(rollout_config(str(model), tmp_path), sources, capsys)
    assert code == 2
    assert problems == [
        f"error: {tmp_path}/train.jsonl:2: record 'r1' has 25 prompt tokens, which with maxTokens 8 is more than"
        " spec.rollout.engine.maxModelLen 32; shorten it, lower maxTokens or raise maxModelLen"
    ]


def test_prompts_above_max_prompt_tokens_are_one_warning(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = coordinator_config(tmp_path, prompts=["x" * 11, "x", "x" * 12], max_prompt_tokens=10)
    code, (warning,) = check(rollout_config(str(model), tmp_path), sources, capsys)
    assert code == 0
    assert warning.startswith(f"warning: source 'train': 2 of 3 records are left out: {tmp_path}/train.jsonl:1: record")
    assert "train.jsonl:3: record 'r2' has 12 prompt tokens, but maxPromptTokens of source 'train' is 10" in warning


def test_a_source_that_would_drop_all_its_prompts_is_a_problem(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = coordinator_config(tmp_path, prompts=["x" * 11, "x" * 12], max_prompt_tokens=10)
    code, (problem,) = check(rollout_config(str(model), tmp_path), sources, capsys)
    assert code == 2
    assert problem.startswith("error: source 'train': none of its 2 records can be used: ")


def test_a_missing_model_is_one_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, problems = check(rollout_config("/nowhere", tmp_path), None, capsys)
    assert code == 2
    assert problems[0].startswith("error: spec.model.name is '/nowhere', but there is no folder /nowhere;")


def test_a_server_of_tools_that_is_named_wrongly_is_refused_and_one_that_is_not_reached_from_here_is_not(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(**server: object) -> list[str]:
        changes = {"workflow.type": "tool_use", "workflow.config": {"mcp": [{"name": "search", **server}]}}
        return check(rollout_config(str(model), tmp_path, changes), None, capsys)[1]

    assert lines(command=["no-such-program"]) == [
        "error: spec.workflow.config.mcp[0]: command of search begins with 'no-such-program', which is no program here:"
        " it must be in the image of spec.rollout, or on the machine of rljob run"
    ]
    (port,) = free_ports(1)
    (warning,) = (line for line in lines(url=f"http://127.0.0.1:{port}/mcp") if line.startswith("warning: "))
    assert "spec.workflow.config.mcp[0]: MCP server search (http://127.0.0.1:" in warning
    assert "each rollout waits for it when it starts" in warning


@pytest.mark.covers("workflows 3")
def test_tokenizer_round_trips_ids_and_skips_special_tokens_in_text(model: pathlib.Path) -> None:
    tokens = tokenizer.PromptTokenizer(model, template="raw")

    record = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "<|im_start|> a  b ."})
    ids = tokens.prompt_ids(record)
    assert ids[0] == 1
    assert tokens.decode_exact(ids) == "<|im_start|> a  b ."
    assert tokens.decode(ids) == " a  b ."
    assert tokens.eos_ids == (2,)


@pytest.mark.covers("workflows 3")
def test_chat_template_opens_the_answer(model: pathlib.Path) -> None:

    tokens = tokenizer.PromptTokenizer(model, template="chat")
    ids = tokens.prompt_ids(types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi"}))
    assert tokens.decode_exact(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("column", ["prompt", "messages"])
def test_messages_under_either_name_become_one_conversation(model: pathlib.Path, column: str) -> None:
    tokens = tokenizer.PromptTokenizer(model, template="chat")
    asked = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    ids = tokens.prompt_ids(types.PromptRecord(prompt_id="p", source="s", columns={column: asked}))
    turns = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
    assert tokens.decode_exact(ids) == turns + "<|im_start|>assistant\n"


@pytest.mark.covers("workflows 8.1")
def test_a_template_of_the_users_is_tokenised_as_it_is(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "asking.py"
    file.write_text("def ask(record):\n    return '<|im_start|>' + record['question']\n")
    tokens = tokenizer.PromptTokenizer(model, template="asking:ask", code=str(file))
    ids = tokens.prompt_ids(types.PromptRecord(prompt_id="p", source="s", columns={"question": "hi"}))
    assert (ids[0], tokens.decode_exact(ids)) == (1, "<|im_start|>hi")


@pytest.mark.covers("workflows 3")
def test_ids_of_the_record_are_used_as_they_are(model: pathlib.Path) -> None:

    tokens = tokenizer.PromptTokenizer(model, template="chat")
    record = types.PromptRecord(prompt_id="p", source="s", columns={"input_ids": [5, 6], "prompt": "hi"})
    assert tokens.prompt_ids(record) == (5, 6)


def test_a_record_without_any_prompt_names_record_and_keys(model: pathlib.Path) -> None:

    tokens = tokenizer.PromptTokenizer(model, template="raw")
    with pytest.raises(errors.DataError, match="record p of s has no 'prompt', 'messages' or 'input_ids'"):
        tokens.prompt_ids(types.PromptRecord(prompt_id="p", source="s", columns={}))


def test_a_record_that_the_models_chat_template_refuses_names_record_and_reason(model: pathlib.Path) -> None:
    tokens = tokenizer.PromptTokenizer(model, template="chat")
    tokens._tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    for columns in ({"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}):
        with pytest.raises(errors.DataError, match="record p of s: the chat template: TemplateError"):
            tokens.prompt_ids(types.PromptRecord(prompt_id="p", source="s", columns=columns))


def test_a_suite_has_prompts_of_its_own_template_and_the_model_is_loaded_once(model: pathlib.Path) -> None:
    training = tokenizer.PromptTokenizer(model, template="raw")
    suite = training.with_template("chat", code="", field="spec.evaluation.suites: template of 's'")
    record = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi"})
    assert suite.decode_exact(suite.prompt_ids(record)) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert training.decode_exact(training.prompt_ids(record)) == "hi"


def test_a_template_of_a_suite_that_does_not_exist_is_named_by_its_field(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = {"name": "held-out", "path": "d.jsonl", "template": "missing:render"}
    config = rollout_config(str(model), tmp_path, {"evaluation.suites": [suite]})
    code, problems = check(config, None, capsys)
    assert code == 2
    assert problems[0].startswith("error: spec.evaluation.suites: template of 'held-out' is 'missing:render', but")


def test_a_prompt_of_a_suite_is_measured_in_the_suites_own_template(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = coordinator_config(tmp_path, prompts=["x"], suites=["train"])
    suite = {"name": "train", "path": "train.jsonl", "template": "chat"}
    rollout = rollout_config(str(model), tmp_path, {"evaluation.suites": [suite]})
    code, problems = check(rollout, sources, capsys)
    # <|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n, where a special token is one token and a byte another.
    assert (code, len(problems)) == (2, 1)
    assert f"has {1 + 5 + 1 + 1 + 1 + 1 + 10} prompt tokens, which with maxTokens" in problems[0]
