"""`--set spec.maxSteps=5`: a manifest with fields replaced, as text, so that the run keeps what it began with."""

import json
from collections.abc import Sequence

import yaml
from pydantic import JsonValue

from rljob_api import errors, load


def apply(text: str, overrides: Sequence[str]) -> str:
    """Return the manifest text with each `path=value` set. Values are YAML; numbers with a point or exponent are text.

    Raises ManifestError for an override without a path or `=`, and for one that goes through a list or scalar.
    """
    if not overrides:
        return text
    document = load.load_document(text)
    for override in overrides:
        path, sign, value = override.partition("=")
        if not (path and sign):
            raise errors.ManifestError(f"--set {override} is no path=value, such as spec.maxSteps=5")
        _set(document, path.split("."), _value(value), override)
    # JSON is YAML with every string quoted: "1e-5" and "no" stay the text that they are.
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _value(text: str) -> JsonValue:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise errors.ManifestError(f"--set: {text!r} is no YAML value") from error
    # The manifest has decimal strings, and 1e-5 is one for a person; a mapping or list is taken as it is.
    return text if isinstance(value, float) else value


def _set(document: JsonValue, path: list[str], value: JsonValue, override: str) -> None:
    place = document
    for key in path[:-1]:
        if isinstance(place, dict):
            place = place.setdefault(key, {})
    if not isinstance(place, dict):
        raise errors.ManifestError(f"--set {override} goes through something that is no mapping; set the whole list")
    place[path[-1]] = value
