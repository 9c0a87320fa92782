"""`rljob push`, against a stand-in for the hub's client: no request leaves this process."""

import pathlib
import types
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub import errors as hub_errors
from typer.testing import Result

from rljob_api import errors
from rljob_workers.local import hub as hubs
from rljob_workers.local.rundir import layout


def answer(status: int, message: str = "", kind: type[hub_errors.HfHubHTTPError] | None = None) -> Exception:
    response: Any = types.SimpleNamespace(headers={}, request=None, status_code=status)
    return (kind or hub_errors.HfHubHTTPError)(
        f"{status} for hf_token_of_a_user", response=response, server_message=message
    )


class FakeHub:
    """Writes down what it is asked. private: None where there is no repository. refuses: what its commit raises."""

    def __init__(self, *, private: bool | None = None, refuses: Exception | None = None) -> None:
        self.private, self.refuses = private, refuses
        self.events: list[str] = []
        self.files: dict[str, bytes] = {}

    def model_info(self, repo_id: str) -> Any:
        self.events.append(f"info {repo_id}")
        if self.private is None:
            raise answer(404, kind=hub_errors.RepositoryNotFoundError)
        return types.SimpleNamespace(private=self.private)

    def create_repo(self, repo_id: str, *, private: bool) -> None:
        self.events.append(f"create {repo_id} private={private}")

    def create_commit(self, repo_id: str, operations: list[CommitOperationAdd], *, commit_message: str) -> None:
        self.events.append(f"commit {repo_id}: {commit_message}")
        if self.refuses is not None:
            raise self.refuses
        for operation in operations:
            with operation.as_file() as file:
                self.files[operation.path_in_repo] = file.read()


@pytest.fixture
def exported(run: layout.RunDir) -> layout.RunDir:
    """A finished run with a model of two files, and one of an adapter."""
    folder = run.path / "export"
    (folder / "adapter").mkdir()
    for name in ("config.json", "model.safetensors", "adapter/adapter_config.json"):
        (folder / name).write_text(name)
    return run


def pushed(run: layout.RunDir, hub: FakeHub, *, public: bool = False) -> int:
    options = hubs.Options(repository="team/sums", public=public)
    return hubs.push(run, options, connect=lambda: hub)


def test_a_new_repository_is_private_and_has_the_model_and_its_card_in_one_commit(
    exported: layout.RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = FakeHub()
    assert pushed(exported, hub) == 0
    assert hub.events == [
        "info team/sums",
        "create team/sums private=True",
        "commit team/sums: Add the model of a run",
    ]
    assert set(hub.files) == {"README.md", "config.json", "model.safetensors", "adapter/adapter_config.json"}
    assert hub.files["model.safetensors"] == b"model.safetensors"
    assert b"| steps | 1 of 1 |" in hub.files["README.md"]
    assert capsys.readouterr().out == "pushed 4 files to https://huggingface.co/team/sums\n"


def test_public_is_asked_for_by_name(exported: layout.RunDir) -> None:
    hub = FakeHub()
    pushed(exported, hub, public=True)
    assert "create team/sums private=False" in hub.events


def test_a_repository_that_is_there_gets_another_commit(exported: layout.RunDir) -> None:
    hub = FakeHub(private=True)
    pushed(exported, hub)
    assert hub.events == ["info team/sums", "commit team/sums: Add the model of a run"]


def test_nothing_is_sent_to_a_public_repository_unless_that_is_asked_for(
    exported: layout.RunDir,
) -> None:
    hub = FakeHub(private=False)
    with pytest.raises(errors.ManifestError, match="is public: add --public"):
        pushed(exported, hub)
    assert hub.events == ["info team/sums"]
    assert pushed(exported, FakeHub(private=False), public=True) == 0


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "set HF_TOKEN, or log in with `hf auth login`"), (403, "needs the right to write to that user")],
)
def test_a_token_that_is_refused_is_told_with_what_to_do(exported: layout.RunDir, status: int, told: str) -> None:
    with pytest.raises(errors.StorageAccessError, match="the hub refused team/sums") as refused:
        pushed(exported, FakeHub(refuses=answer(status)))
    assert told in str(refused.value)
    assert "hf_token_of_a_user" not in str(refused.value)


def test_any_other_answer_is_told_with_the_hubs_own_words(exported: layout.RunDir) -> None:
    with pytest.raises(errors.StorageError, match="the hub answered 413 for team/sums: too large"):
        pushed(exported, FakeHub(refuses=answer(413, "too large")))


def test_a_hub_that_cannot_be_reached_is_told(exported: layout.RunDir) -> None:
    with pytest.raises(errors.StorageError, match="cannot be reached for team/sums: offline"):
        pushed(exported, FakeHub(refuses=hub_errors.OfflineModeIsEnabled("offline")))


def test_a_run_without_an_exported_model_is_refused_before_the_hub_is_asked(run: layout.RunDir) -> None:
    hub = FakeHub()
    with pytest.raises(errors.ManifestError, match="has no exported model"):
        pushed(run, hub)
    assert hub.events == []


def test_links_and_a_card_of_the_base_model_are_left_out(exported: layout.RunDir, tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").write_text("of another folder")
    (exported.path / "export" / "link.json").symlink_to(tmp_path / "elsewhere")
    (exported.path / "export" / "README.md").write_text("of the base model")
    hub = FakeHub()
    pushed(exported, hub)
    assert "link.json" not in hub.files
    assert b"of the base model" not in hub.files["README.md"]


def test_a_dry_run_prints_the_card_and_the_files(rljob: Callable[..., Result], exported: layout.RunDir) -> None:
    result = rljob("push", "small", "--to", "team/sums", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.startswith("---\nlibrary_name:")
    assert result.stdout.splitlines()[-4:] == [
        "README.md", "adapter/adapter_config.json", "config.json", "model.safetensors",
    ]  # fmt: skip
    assert str(exported.path) not in result.stdout


@pytest.mark.parametrize("name", ["sums", "a/b/c", "/a", "a/", "-a/b", "https://huggingface.co/a/b"])
@pytest.mark.usefixtures("exported")
def test_what_is_no_name_of_a_repository_is_refused(rljob: Callable[..., Result], name: str) -> None:
    result = rljob("push", f"--to={name}", "--dry-run")
    assert (result.exit_code, result.stderr.startswith(f"error: --to is {name!r}")) == (2, True)
