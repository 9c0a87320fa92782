"""How a rule says what is wrong."""

from rljob_api import sentences


def refuse(path: str, value: object, reason: str) -> str:
    """Return "spec.<path> is <value>, but <reason>"."""
    return f"spec.{path} is {sentences.show(value)}, but {reason}"


def ignored(path: str, value: object, because: str) -> str:
    """Return the refusal of a written value that the chosen path would not read."""
    return refuse(path, value, f"{because}: leave it out")
