"""Pictures of records: where they come from, what is refused, and their marks in prompts."""

import base64
import io
import json
import pathlib
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from rljob_api import enums, errors
from rljob_api.manifest.data import ColumnsSpec, DataSourceSpec
from rljob_testing import models
from rljob_testing.sections import section
from rljob_workers.data import pictures, records

PNG = models.picture()
ADDRESS = "data:image/png;base64," + base64.b64encode(PNG).decode()


def source(folder: pathlib.Path, *made: dict[str, Any]) -> DataSourceSpec:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in made), encoding="utf-8")
    return section(
        DataSourceSpec, name="train", path=str(path), max_prompt_tokens=64, columns=ColumnsSpec(images="images")
    )


def bomb(width: int, height: int) -> bytes:
    """Return a PNG that says that it is so large, of a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_pictures_are_files_next_to_the_data_or_addresses_and_no_column_any_more(tmp_path: pathlib.Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen/a.jpg").write_bytes(models.picture(form="JPEG"))
    record = {"id": "a", "prompt": "what <image> and <image>?", "answer": "1", "images": ["seen/a.jpg", ADDRESS]}
    (loaded,) = records.load_source(source(tmp_path, record)).records
    assert loaded.pictures == (models.picture(form="JPEG"), PNG)
    assert loaded.columns == {"id": "a", "prompt": "what <image> and <image>?", "answer": "1"}
    assert pictures.of_record([{"bytes": PNG, "path": None}], "images", None) == (PNG,), "as parquet files have them"


def test_parts_of_type_image_and_prompts_without_marks_get_marks(tmp_path: pathlib.Path) -> None:
    parts = [{"type": "text", "text": "what is "}, {"type": "image"}, {"type": "text", "text": "?"}]
    bare = [{"role": "system", "content": "s"}, {"role": "user", "content": "what?"}]
    loaded = records.load_source(
        source(
            tmp_path,
            {"id": "a", "prompt": [{"role": "user", "content": parts}], "answer": "1", "images": [ADDRESS]},
            {"id": "b", "prompt": bare, "answer": "1", "images": [ADDRESS, ADDRESS]},
        )
    )
    first, second = (record.columns["prompt"] for record in loaded.records)
    assert first == [{"role": "user", "content": "what is <image>?"}]
    assert second == [bare[0], {"role": "user", "content": "<image><image>what?"}]


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([], "is a list of 0, not a list of 1 to 4 pictures"),
        ([ADDRESS] * 5, "is a list of 5, not a list of 1 to 4 pictures"),
        ("a.png", "is a str, not a list of 1 to 4 pictures"),
        ([3], r"images\[0\] is a int, not the name of a file or a data: address"),
        (["https://example.com/a.png"], r"images\[0\] is an address: nothing is fetched"),
        (["../a.png"], r"images\[0\] leaves the folder of the data file"),
        (["/etc/passwd"], r"images\[0\] leaves the folder of the data file"),
        (["none.png"], r"images\[0\]: 'none.png' cannot be read: No such file or directory"),
        ([ADDRESS, "data:image/png;base64,%%"], r"images\[1\] is a data: address whose base64 is broken"),
        (["data:text/plain,abc"], r"images\[0\] is a data: address without ;base64"),
        (["data:;base64,YWJj"], r"images\[0\] is no picture of a format that is read: PNG, JPEG, WEBP"),
    ],
)
def test_what_is_no_list_of_pictures_is_refused_by_place(images: object, said: str, tmp_path: pathlib.Path) -> None:
    record = {"id": "a", "prompt": "what?", "answer": "1", "images": images}
    with pytest.raises(errors.DataError, match=rf"train\.jsonl:1: .*{said}"):
        records.load_source(source(tmp_path, record))


def test_a_record_without_the_column_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.DataError, match="the record has no column 'images', which columns.images names"):
        records.load_source(source(tmp_path, {"id": "a", "prompt": "what?", "answer": "1"}))


def test_a_file_needs_a_folder_that_it_is_in() -> None:
    with pytest.raises(errors.DataError, match="the source is no file on a disk"):
        pictures.of_record(["a.png"], "images", None)


def test_a_picture_that_would_unfold_to_gigabytes_is_never_unfolded() -> None:
    file = bomb(60_000, 60_000)
    assert len(file) < 100
    with pytest.raises(errors.DataError, match="has 60000 x 60000 points, more than 4194304|is a broken picture"):
        pictures.decode(file, "images[0]")
    with pytest.raises(errors.DataError, match="has 2049 x 2048 points, more than 4194304: store it smaller"):
        pictures.decode(bomb(2049, 2048), "images[0]")


def test_a_file_that_is_cut_short_is_a_broken_picture() -> None:
    with pytest.raises(errors.DataError, match=r"images\[0\] is a broken picture"):
        pictures.decode(PNG[: len(PNG) // 2], "images[0]")


def test_formats_that_run_other_programs_are_not_read() -> None:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, format="EPS")
    with pytest.raises(errors.DataError, match="is no picture of a format that is read"):
        pictures.decode(file.getvalue(), "images[0]")


def test_the_pictures_of_a_record_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enums, "MAX_PICTURES_BYTES", 2 * len(PNG) - 1)
    with pytest.raises(errors.DataError, match=r"images\[1\]: the pictures of a record have more than"):
        pictures.of_record([ADDRESS, ADDRESS], "images", None)


@pytest.mark.parametrize(
    ("prompt", "count", "said"),
    [
        ("a <image> b", 2, "the prompt has 1 marks <image> for 2 pictures"),
        ([{"role": "user", "content": "<image><image>"}], 1, "the prompt has 2 marks <image> for 1 pictures"),
        ([{"role": "system", "content": "s"}], 1, "has no message of the user to put pictures in"),
    ],
)
def test_marks_and_pictures_are_as_many(prompt: object, count: int, said: str) -> None:
    with pytest.raises(errors.DataError, match=said):
        pictures.marked(prompt, count)
