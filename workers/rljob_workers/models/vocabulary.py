"""Whether two models write the same tokens with the same ids: a teacher scores ids, not texts.

Read from tokenizer.json alone, so that a manifest is checked where nothing is installed that computes. Merges and chat
templates may differ: no text is encoded for a teacher.
"""

import filecmp
import json
from collections.abc import Mapping
from pathlib import Path

from rljob_api import errors
from rljob_workers.models import families

FILE = "tokenizer.json"


def read(folder: Path) -> dict[str, int] | None:
    """Return the ids of the tokens of a Hugging Face folder, added ones among them; None if tokenizer.json is missing
    or is none.
    """
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        vocab, added = document["model"]["vocab"], document.get("added_tokens") or []
        # A Unigram model has a list of (token, score).
        ids = dict(vocab) if isinstance(vocab, dict) else {piece[0]: place for place, piece in enumerate(vocab)}
        return ids | {token["content"]: int(token["id"]) for token in added}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def check_teacher(name: str, teacher: Path, *, policy: Path, tokenizer: Path) -> None:
    """Raise ManifestError if the teacher called `name` would read other tokens than the policy writes.

    teacher, policy: folders of the models; tokenizer: the folder of the policy's.
    """
    problem = _difference(teacher, tokenizer) or _too_few(families.read(teacher), families.read(policy))
    if problem:
        raise errors.ManifestError(
            f"spec.teacher.model is {name!r}, but {problem}; a teacher has the policy's tokenizer: take a larger"
            " model of its family, or one that was trained from it"
        )


def _difference(teacher: Path, tokenizer: Path) -> str:
    if all((folder / FILE).is_file() for folder in (teacher, tokenizer)) and filecmp.cmp(
        teacher / FILE, tokenizer / FILE, shallow=False
    ):
        return ""
    theirs, ours = read(teacher), read(tokenizer)
    if theirs is None or ours is None:
        folder = teacher if theirs is None else tokenizer
        return f"{folder} has no {FILE} to compare vocabularies by, which AutoTokenizer's save_pretrained writes"
    if theirs == ours:
        return ""
    token = min(text for text in ours.keys() | theirs.keys() if ours.get(text) != theirs.get(text))
    return (
        f"its vocabulary is another one ({len(theirs)} tokens, the policy's has {len(ours)}): {token[:40]!r} is"
        f" {theirs.get(token, 'missing')} there and {ours.get(token, 'missing')} in the policy's"
    )


def _too_few(teacher: Mapping[str, object], policy: Mapping[str, object]) -> str:
    """The policy may sample ids beyond its tokenizer's: rows that its output head is filled up with."""
    theirs, ours = teacher.get("vocab_size"), policy.get("vocab_size")
    if isinstance(theirs, int) and isinstance(ours, int) and theirs < ours:
        return f"its output has {theirs} ids (vocab_size of config.json), fewer than the policy's {ours}"
    return ""
