import pathlib

import pytest

from rljob_api import process_config
from rljob_workers.models import serve


def server(**changes: object) -> process_config.ModelServerConfig:
    model = {"name": "org/judge", "path": "org/judge", "cache_dir": "/cache"}
    return process_config.ModelServerConfig.model_validate({"model": model, "port": 8000, **changes})


def options(made: process_config.ModelServerConfig, kind: str = "cuda") -> list[str]:
    return serve.arguments(made, pathlib.Path("/model"), kind=kind, cpu_dtype="float32")  # type: ignore[arg-type]


def test_a_model_is_served_on_loopback_by_the_name_that_rewards_ask_for() -> None:
    words = " ".join(options(server(tensor_parallel_size=2, max_model_len=4096)))
    assert words.startswith("--model /model --tensor-parallel-size 2 ")
    assert words.endswith("--max-model-len 4096 --served-model-name judge --host 127.0.0.1 --port 8000")
    assert "--no-enable-log-requests" in words, "prompts hold what the policy wrote"
    assert "max-model-len" not in " ".join(options(server()))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (16, ["--an-option", "16"]),
        (0.5, ["--an-option", "0.5"]),
        ("auto", ["--an-option", "auto"]),
        (True, ["--an-option"]),
        (False, ["--no-an-option"]),
        (["a", "b"], ["--an-option", "a", "b"]),
        ({"a": [1]}, ["--an-option", '{"a": [1]}']),
    ],
)
def test_an_extra_argument_is_written_as_the_command_line_reads_it(value: object, words: list[str]) -> None:
    given = options(server(extra_args={"an_option": value}))
    place = given.index(words[0])
    assert given[place : place + len(words)] == words


def test_on_processors_nothing_is_compiled_and_the_cache_does_not_take_the_machine() -> None:
    words = options(server(), kind="cpu")
    assert "--enforce-eager" in words
    assert words[words.index("--dtype") + 1] == "float32"
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(2 << 30)
    written = options(server(extra_args={"kv_cache_memory_bytes": 7, "dtype": "bfloat16"}), kind="cpu")
    assert written[written.index("--kv-cache-memory-bytes") + 1] == "7"
    assert written[written.index("--dtype") + 1] == "bfloat16"


def test_vllm_itself_reads_these_words() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    extra = {"max_num_seqs": 4, "enable_prefix_caching": False, "override_generation_config": {"top_k": 1}}
    words = options(server(extra_args=extra, max_model_len=512), kind="cpu")
    read = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    assert (read.model, read.host, read.port, read.served_model_name) == ("/model", "127.0.0.1", 8000, ["judge"])
    assert (read.max_model_len, read.max_num_seqs, read.enable_prefix_caching) == (512, 4, False)
    assert (read.override_generation_config, read.kv_cache_memory_bytes) == ({"top_k": 1}, 2 << 30)
    assert (read.enforce_eager, read.enable_log_requests, read.disable_log_stats) == (True, False, True)
