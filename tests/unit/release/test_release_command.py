"""A release that cannot be made is refused before anything is built, with what is missing."""

import pathlib

import pytest
from release import krew
from release.__main__ import main


@pytest.fixture(autouse=True)
def only_helm_is_on_the_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "helm").write_text("#!/bin/sh\nexit 1\n")
    (programs / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return programs


def _refusal(capsys: pytest.CaptureFixture[str], *words: str, url: str = "https://example.com/rljob") -> str:
    assert main([*words, "--download-url", url]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_a_release_is_signed_unless_that_is_left_out_by_name(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = _refusal(capsys, str(tmp_path / "out"))
    assert refusal.startswith("no release: cosign is not on the PATH")
    assert "--unsigned" in refusal
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.tgz").write_text("")
    assert "is not empty" in _refusal(capsys, str(tmp_path / "out"), "--unsigned")


def test_without_helm_there_is_no_release(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = _refusal(capsys, str(tmp_path / "out"), "--unsigned", "--helm", str(tmp_path / "no-helm"))
    assert "no-helm is missing" in refusal
    assert "--helm" in refusal


def test_what_a_program_complains_of_is_in_the_refusal(
    tmp_path: pathlib.Path, only_helm_is_on_the_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helm = only_helm_is_on_the_path / "helm"
    helm.write_text("#!/bin/sh\necho the chart is broken >&2\nexit 3\n")
    from release import chart, programs

    with pytest.raises(programs.ReleaseError, match=r"failed with 3: the chart is broken"):
        chart.package(tmp_path, helm=str(helm), scratch=tmp_path, epoch=1_700_000_000)


@pytest.mark.parametrize("url", ["", "http://example.com", "example.com/rljob", "https://", "https://example.com/a b"])
def test_an_address_that_krew_cannot_download_from_is_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert f"--download-url is {url!r}" in _refusal(capsys, str(tmp_path / "out"), "--unsigned", url=url)
    assert not krew.is_download_url(url)
    assert krew.is_download_url("https://example.com/rljob/v0.1.0/")
