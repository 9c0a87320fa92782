"""Pictures of records: where a column's values point, what of them is accepted, and their marks in a prompt.

A file is opened here, its size and format are looked at before it is decoded, and it is decoded once: whoever reads it
later, an engine or a trainer, reads the same bytes. What it says of itself is not trusted: 1 kB of PNG may unfold to
gigabytes.
"""

import base64
import binascii
import io
import pathlib
import warnings
from collections.abc import Mapping, Sequence

from PIL import Image, UnidentifiedImageError

from rljob_api import enums, errors

# Where in a prompt a picture stands.
MARK = "<image>"
FORMATS = ("PNG", "JPEG", "WEBP")
# Height x width, as many as a photograph of 4 megapixels has.
MOST_POINTS = 1 << 22
_DATA = "data:"
_ADDRESSES = ("http://", "https://", "s3://", "gs://", "az://", "file://")


def of_record(value: object, name: str, folder: pathlib.Path | None) -> tuple[bytes, ...]:
    """Return the files of a record's column `name`, each decoded once for a test.

    value: a list of names of files below `folder`, data: addresses, or objects with `bytes`, as parquet files have
    them. folder: None for a source without one. Raises DataError that says which is wrong.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= enums.MAX_PICTURES:
        what = f"a list of {len(value)}" if isinstance(value, list) else f"a {type(value).__name__}"
        raise errors.DataError(f"column {name!r} is {what}, not a list of 1 to {enums.MAX_PICTURES} pictures")
    files: list[bytes] = []
    for index, member in enumerate(value):
        where = f"{name}[{index}]"
        files.append(_file(member, where, folder))
        if sum(map(len, files)) > enums.MAX_PICTURES_BYTES:
            raise errors.DataError(
                f"{where}: the pictures of a record have more than {enums.MAX_PICTURES_BYTES >> 20} MiB together:"
                " store them smaller"
            )
        decode(files[-1], where)
    return tuple(files)


def decode(data: bytes, where: str) -> Image.Image:
    """Return the picture in RGB. Raises DataError for what is no picture, of another format, or too large."""
    try:
        with warnings.catch_warnings():
            # Its own bound is far above ours, and only warns.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
        points = picture.width * picture.height
        if points > MOST_POINTS:
            raise errors.DataError(
                f"{where} has {picture.width} x {picture.height} points, more than {MOST_POINTS}: store it smaller"
            )
        return picture.convert("RGB")
    except UnidentifiedImageError as error:
        raise errors.DataError(f"{where} is no picture of a format that is read: {', '.join(FORMATS)}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise errors.DataError(f"{where} is a broken picture: {error}") from error


def marked(prompt: object, count: int) -> object:
    """Return a prompt, a text or messages, with one mark for each of `count` pictures: its own, or else some at the
    beginning of the first message of the user. Raises DataError for another number of them.
    """
    texts = [prompt] if isinstance(prompt, str) else [str(message["content"]) for message in _messages(prompt)]
    marks = sum(text.count(MARK) for text in texts)
    if marks == count:
        return prompt
    if marks:
        raise errors.DataError(f"the prompt has {marks} marks {MARK} for {count} pictures: write one for each, or none")
    if isinstance(prompt, str):
        return MARK * count + prompt
    messages = _messages(prompt)
    first = next((place for place, message in enumerate(messages) if message.get("role") == "user"), None)
    if first is None:
        raise errors.DataError(f"the prompt has no message of the user to put pictures in: write {MARK} where they are")
    return [
        {**message, "content": f"{MARK * count}{message['content']}"} if place == first else message
        for place, message in enumerate(messages)
    ]


def _messages(prompt: object) -> Sequence[Mapping[str, object]]:
    assert isinstance(prompt, Sequence), "a prompt is a text or messages"
    return prompt


def _file(member: object, where: str, folder: pathlib.Path | None) -> bytes:
    if isinstance(member, Mapping) and isinstance(member.get("bytes"), bytes):
        return bytes(member["bytes"])
    if not isinstance(member, str) or not member:
        raise errors.DataError(f"{where} is a {type(member).__name__}, not the name of a file or a data: address")
    if member.startswith(_DATA):
        return _of_address(member, where)
    if member.startswith(_ADDRESSES):
        raise errors.DataError(f"{where} is an address: nothing is fetched; use files next to the data, or data:")
    if folder is None:
        raise errors.DataError(f"{where} names a file, and the source is no file on a disk: use data: addresses")
    path = (folder / member).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise errors.DataError(f"{where} leaves the folder of the data file: give a path below it")
    try:
        with path.open("rb") as file:
            return file.read(enums.MAX_PICTURES_BYTES + 1)
    except OSError as error:
        raise errors.DataError(f"{where}: {member[:200]!r} cannot be read: {error.strerror}") from error


def _of_address(address: str, where: str) -> bytes:
    head, _, body = address.partition(",")
    if not head.endswith(";base64"):
        raise errors.DataError(f"{where} is a data: address without ;base64, which is needed")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise errors.DataError(f"{where} is a data: address whose base64 is broken: {error}") from error
