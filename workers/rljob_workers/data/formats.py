"""The families of data sets, and how each becomes canonical columns: prompt, answer, id. Pure.

`auto` recognises a family by its columns: GSM8K (question, answer), math sets (problem, answer), id2info records
(query_id with solutions or input_output), counting sets with messages, else the columns that the manifest names.
`dialogue` is never guessed: messages to continue from, whose reward may need no gold.
"""

import math
import statistics
from collections.abc import Mapping

from rljob_api import errors
from rljob_api.manifest.data import DataSourceSpec
from rljob_workers.data import pictures, readers, record_task

# Columns of AReaL's records, and those that they imply: environments, workflows and rewards of a user's own read them.
SCORES, BASE_SCORE, PROBLEM_ID, QUERY_ID = "scores", "base_score", "problem_id", "query_id"
# Families whose prompt is a conversation, and families that may have no answer column.
_CHATS = ("clevr", "dialogue")
_WITHOUT_GOLD = ("code", "dialogue")


def canonical(record: readers.RawRecord, config: DataSourceSpec) -> dict[str, object]:
    """Return the record's own columns with prompt, answer and id added. Raises DataError naming the column."""
    if record.problem:
        raise errors.DataError(record.problem)
    columns = dict(record.columns)
    family = recognise(columns, config)
    prompt_column, answer_column, id_column = _names(columns, config, family)
    if family == "code" and record_task.INPUT_OUTPUT not in columns:
        raise errors.DataError(
            f"a record of code needs the column {record_task.INPUT_OUTPUT!r}; its columns: {_has(columns)}"
        )
    shows = config.columns.images is not None
    columns["prompt"] = _prompt(columns, prompt_column, is_chat=family in _CHATS, shows=shows)
    # A repository brings tests instead.
    if answer_column not in columns and (family in _WITHOUT_GOLD or record_task.REPOSITORY in columns):
        columns["answer"] = ""
    else:
        columns["answer"] = _answer(columns, answer_column, has_many=_allows_null(config))
    columns["id"] = _identity(columns, id_column, record)
    if QUERY_ID in columns:
        columns |= implied_columns(columns, is_code=family == "code")
    return columns


def recognise(columns: Mapping[str, object], config: DataSourceSpec) -> str:
    """Return the family of a record: the configured one, or by its columns; `named` is what the manifest's names
    say.
    """
    if config.format is not None:
        return config.format
    # Whatever else it has: AReaL's records of code have solutions too, an empty list.
    if "query_id" in columns and record_task.INPUT_OUTPUT in columns:
        return "code"
    if config.reasoning_gym or config.columns.prompt in columns:
        return "id2info" if "query_id" in columns and "solutions" in columns else "named"
    if "question" in columns and "answer" in columns:
        return "gsm8k"
    if "problem" in columns and "answer" in columns:
        return "problem"
    return "clevr" if "messages" in columns else "named"


def _names(columns: Mapping[str, object], config: DataSourceSpec, family: str) -> tuple[str, str, str]:
    """Return the names of the prompt, answer and id columns; what the manifest names wins where the record has it."""
    guessed = {
        "gsm8k": ("question", "answer"),
        "problem": ("problem", "answer"),
        "clevr": ("messages", "answer"),
        "dialogue": ("messages", "answer"),
        "id2info": ("prompt", "solutions"),
        "code": ("prompt", "answer"),
        "math": ("problem" if "problem" in columns else "prompt", "solutions" if "solutions" in columns else "answer"),
    }.get(family, (config.columns.prompt, config.columns.answer))
    if config.reasoning_gym:
        guessed = ("question", "answer")
    named = (config.columns.prompt, config.columns.answer)
    prompt, answer = (name if name in columns else guess for name, guess in zip(named, guessed, strict=True))
    return prompt, answer, config.columns.id or ("query_id" if "query_id" in columns else "")


def _has(columns: Mapping[str, object]) -> str:
    return ", ".join(sorted(columns)) or "none"


def _kind(value: object) -> str:
    """Return what a value is, never the value: these sentences are logged, and it may be a prompt."""
    kind = type(value).__name__
    return f"an empty {kind}" if isinstance(value, str | list) and not (value and str(value).strip()) else f"a {kind}"


def _prompt(columns: Mapping[str, object], name: str, *, is_chat: bool, shows: bool) -> object:
    if name not in columns:
        raise errors.DataError(f"the record has no prompt column {name!r}; its columns: {_has(columns)}")
    value = columns[name]
    if isinstance(value, list) and value:
        return [_message(member, f"{name}[{index}]", shows=shows) for index, member in enumerate(value)]
    if is_chat or not isinstance(value, str) or not value.strip():
        expected = "a list of messages" if is_chat else "a text"
        raise errors.DataError(f"prompt column {name!r} is {_kind(value)}, not {expected}")
    return value


def _message(value: object, where: str, *, shows: bool) -> dict[str, object]:
    """Return a message with its content as one text, pictures by their marks; keys that a chat template may read
    alongside it stay.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise errors.DataError(f"{where} is {_kind(value)}, not a message: it needs 'role' and 'content'")
    content = value.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{index}]", shows) for index, part in enumerate(content))
    if not isinstance(content, str):
        raise errors.DataError(f"{where}.content is {type(content).__name__}, not a text")
    return {**value, "content": content}


def _part(value: object, where: str, shows: bool) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    text = value.get("text") if isinstance(value, Mapping) else None
    if kind == "image" and shows:
        return pictures.MARK
    if kind != "text" or not isinstance(text, str):
        raise errors.DataError(
            f"{where} is of type {kind!r}; only parts of type 'text' are read, and of type 'image' where the source's"
            " columns.images names the column of the pictures"
        )
    return text


def _allows_null(config: DataSourceSpec) -> bool:
    return bool(config.reasoning_gym)


def _answer(columns: Mapping[str, object], name: str, *, has_many: bool) -> object:
    """A number becomes its text; a list stays, any member will do. `has_many`: a generator's null means many are
    right.
    """
    if name not in columns:
        raise errors.DataError(f"the record has no answer column {name!r}; its columns: {_has(columns)}")
    value = columns[name]
    if value is None and has_many:
        return None
    if isinstance(value, list):
        if not value:
            raise errors.DataError(f"answer column {name!r} is an empty list")
        return [_text(member, name) for member in value]
    return _text(value, name)


def _text(value: object, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise errors.DataError(f"answer column {name!r} holds {type(value).__name__}, not a text or number")
    text = str(value)
    if not text.strip():
        raise errors.DataError(f"answer column {name!r} is empty")
    return text


def _identity(columns: Mapping[str, object], name: str, record: readers.RawRecord) -> str:
    if not name:
        if isinstance(columns.get("id"), str | int):
            return str(columns["id"])
        return f"{record.file}:{record.line}" if record.file else str(record.line)
    value = columns.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or str(value) == "":
        raise errors.DataError(f"id column {name!r} is {_kind(value)}, not a text or integer")
    if "@" in str(value) and name == "query_id":
        raise errors.DataError(f"id {value!r} contains '@', which separates ids from sample numbers")
    return str(value)


def implied_columns(columns: Mapping[str, object], *, is_code: bool) -> dict[str, object]:
    """Return the columns to add to a record that has a query_id. Raises DataError naming the column.

    `problem_id` is the query_id unless the record has its own; `base_score` is the mean of `scores`.
    """
    added: dict[str, object] = {}
    if is_code and PROBLEM_ID not in columns:
        added[PROBLEM_ID] = str(columns[QUERY_ID])
    if SCORES in columns:
        added[BASE_SCORE] = statistics.fmean(_scores(columns[SCORES]))
    return added


def _scores(value: object) -> list[float]:
    if not isinstance(value, list) or not value:
        raise errors.DataError(f"column {SCORES!r} must be a list of at least one number, not {type(value).__name__}")
    for index, score in enumerate(value):
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise errors.DataError(f"{SCORES}[{index}] must be a finite number, not {type(score).__name__}")
    return [float(score) for score in value]
