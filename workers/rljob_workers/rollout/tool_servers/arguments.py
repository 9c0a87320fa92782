"""Whether arguments of a call fit the JSON Schema of the tool. References to other places are not followed."""

from collections.abc import Mapping

import jsonschema.exceptions
import jsonschema.validators
import referencing
import referencing.exceptions

# Of what is wrong, which may quote the arguments.
_MOST_CHARS = 256


class Arguments:
    """Those of one tool."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        """Raises ValueError for a schema that is none."""
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.validators.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.exceptions.SchemaError as error:
            raise ValueError(error.message[:_MOST_CHARS]) from error
        self._validator = kind(schema, registry=referencing.Registry())

    def problem(self, arguments: Mapping[str, object]) -> str:
        """Return in words what does not fit, empty if all does."""
        try:
            wrong = jsonschema.exceptions.best_match(self._validator.iter_errors(dict(arguments)))
        except (RecursionError, referencing.exceptions.Unresolvable) as error:
            return f"the arguments cannot be checked ({type(error).__name__})"
        if wrong is None:
            return ""
        place = ".".join(map(str, wrong.absolute_path))
        return f"{place}: {wrong.message}"[:_MOST_CHARS] if place else str(wrong.message)[:_MOST_CHARS]
