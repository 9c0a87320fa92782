"""From YAML text to an RLJob, read as clients of an API server read it: a manifest means the same in both places.

PyYAML differs from kubectl in two ways that matter here: `1e-5` is a number (not text), and a repeated key is an error.
"""

import json
import re
from collections.abc import Sequence, Set

import yaml
from pydantic import JsonValue, ValidationError

from rljob_api import errors
from rljob_api.manifest.base import WrittenFloat
from rljob_api.manifest.job import RLJob
from rljob_api.validation import messages

MAX_TEXT_LENGTH = 1 << 20
# Keys whose value is free-form: there a null is a value, elsewhere it means "unset", as in the API server.
FREE_FORM_KEYS = frozenset({"config", "extra", "extraArgs", "affinity"})

_FLOAT = re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_FLOAT_TAG = "tag:yaml.org,2002:float"
_INT_TAG = "tag:yaml.org,2002:int"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own class attribute, copied so that theirs stays as it is
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP_TAG, _FLOAT_TAG)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                keys.add(key.value)
        return dict(super().construct_mapping(node, deep=deep))


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> WrittenFloat:
    value = WrittenFloat(yaml.SafeLoader.construct_yaml_float(loader, node))
    value.text = node.value
    return value


_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
_Loader.add_constructor(_FLOAT_TAG, _construct_float)


def load_manifest(text: str) -> RLJob:
    """Return the RLJob that a YAML text describes; fields are checked one by one, not against each other.

    Raises ManifestError with one sentence per problem, naming field, value and what would be right.
    """
    document = load_document(text)
    try:
        return RLJob.model_validate_json(to_json(document))
    except ValidationError as error:
        raise errors.ManifestError(*messages.explain_errors(error, document=document, model=RLJob)) from error


def load_document(text: str, *, keep_nulls_below: Sequence[str] = ()) -> JsonValue:
    """Return the one YAML document of a text, nulls pruned but below the keys of `keep_nulls_below` and of free form.

    Raises ManifestError for none, several, or no mapping.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise errors.ManifestError(f"the manifest has {len(text)} characters, but may have at most {MAX_TEXT_LENGTH}")
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise errors.ManifestError(f"the manifest is not YAML: {_where(error)}") from error
    if len(documents) != 1:
        raise errors.ManifestError(f"the manifest holds {len(documents)} documents, but must hold exactly one object")
    if not isinstance(documents[0], dict):
        raise errors.ManifestError("the manifest is not a mapping; it must begin with apiVersion: rljob.dev/v1alpha1")
    return _without_nulls(documents[0], FREE_FORM_KEYS | set(keep_nulls_below))


def to_json(document: JsonValue) -> str:
    """Return the document as JSON text. Raises ManifestError for YAML that JSON has no word for, such as !!binary."""
    try:
        return json.dumps(document)
    except (TypeError, ValueError) as error:
        raise errors.ManifestError(f"the manifest holds a value that JSON cannot express: {error}") from error


def _without_nulls(value: JsonValue, free: Set[str]) -> JsonValue:
    if isinstance(value, list):
        return [_without_nulls(item, free) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        str(key): item if key in free else _without_nulls(item, free) for key, item in value.items() if item is not None
    }


def _where(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
