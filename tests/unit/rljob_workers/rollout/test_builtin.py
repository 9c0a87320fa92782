import pathlib

import pytest

from rljob_api import errors, process_config
from rljob_workers.models import builtin


def config(name: str, cache: pathlib.Path, **changes: str) -> process_config.ModelFiles:
    return process_config.ModelFiles(name=name, cache_dir=str(cache), **changes)


def make_folder(path: pathlib.Path, *files: str) -> pathlib.Path:
    path.mkdir()
    for name in files:
        (path / name).write_text("{}")
    return path


def test_a_local_folder_is_used_as_it_is(tmp_path: pathlib.Path) -> None:
    folder = make_folder(tmp_path / "m", "config.json", "model.safetensors")
    assert builtin.ensure_model(config(str(folder), tmp_path)) == folder.resolve()


@pytest.mark.parametrize(
    ("files", "message"),
    [((), "has no config.json"), (("config.json",), r"has no \*.safetensors file")],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path: pathlib.Path, files: tuple[str, ...], message: str) -> None:
    folder = make_folder(tmp_path / "m", *files)
    with pytest.raises(errors.ManifestError, match=f"spec.model.name is '{folder}', but.*{message}"):
        builtin.ensure_model(config(str(folder), tmp_path))


@pytest.mark.parametrize("name", ["/nowhere/model", "./model", "model"])
def test_a_name_that_is_neither_folder_nor_hub_id_says_what_would_be_right(name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match=f"spec.model.name is '{name}', but there is no folder.*builtin:"):
        builtin.ensure_model(config(name, tmp_path))


def test_an_unknown_builtin_lists_the_known_ones(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        errors.ManifestError, match="unknown built-in model; expected one of builtin:smollm2-135m-instruct"
    ):
        builtin.ensure_model(config("builtin:gpt", tmp_path))


def test_a_converted_builtin_is_found_by_its_marker(tmp_path: pathlib.Path) -> None:
    folder = make_folder(tmp_path / f"smollm2-135m-instruct-v{builtin.CONVERTER_VERSION}", builtin.MARKER)
    assert builtin.ensure_model(config("builtin:smollm2-135m-instruct", tmp_path)) == folder.resolve()


def test_a_builtin_that_came_with_the_image_is_taken_and_the_cache_stays_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked = tmp_path / "baked"
    baked.mkdir()
    folder = make_folder(baked / f"smollm2-135m-instruct-v{builtin.CONVERTER_VERSION}", builtin.MARKER)
    monkeypatch.setenv(builtin.BAKED, str(baked))
    assert builtin.ensure_model(config("builtin:smollm2-135m-instruct", tmp_path / "cache")) == folder.resolve()
    assert not (tmp_path / "cache").exists()


def test_a_builtin_that_the_image_does_not_have_is_looked_for_in_the_cache(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(builtin.BAKED, str(tmp_path / "baked"))
    folder = make_folder(tmp_path / f"smollm2-135m-instruct-v{builtin.CONVERTER_VERSION}", builtin.MARKER)
    assert builtin.ensure_model(config("builtin:smollm2-135m-instruct", tmp_path)) == folder.resolve()


def test_the_tokenizer_is_the_models_own_unless_another_is_named(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model"
    other = make_folder(tmp_path / "other", "tokenizer.json")
    assert builtin.ensure_tokenizer(config("a/b", tmp_path), "a/b", model) == model
    assert builtin.ensure_tokenizer(config("a/b", tmp_path), "", model) == model
    assert builtin.ensure_tokenizer(config("a/b", tmp_path), str(other), model) == other.resolve()


def test_a_missing_tokenizer_names_its_own_field(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match="spec.model.tokenizer is '/nowhere', but"):
        builtin.ensure_tokenizer(config("a/b", tmp_path), "/nowhere", tmp_path)
