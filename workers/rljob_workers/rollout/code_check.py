"""`python -m rljob_workers.rollout.code_check FILE WORKFLOW CONFIG FUNCTIONS ENVIRONMENT`: imports user code and
looks at its form.

Options of built-in workflows are looked at too.
A program of its own, because `rljob plan` must not import a user's module into itself. Prints `error: file:line: ...`.
"""

import json
import sys
from collections.abc import Sequence

from rljob_api import enums, errors
from rljob_workers.rollout import prompts
from rljob_workers.rollout.episodes import custom, registry


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 after printing what is wrong. The last three are JSON: `workflow.config`, the user's templates and
    predicate by field below spec, and whether the job has environments.
    """
    file, workflow, config, functions, environment = sys.argv[1:] if argv is None else argv
    try:
        if ":" in workflow:
            custom.check(workflow, file=file, config=json.loads(config), has_environment=json.loads(environment))
        else:
            registry.options_of(workflow, json.loads(config))
        for field, function in json.loads(functions).items():
            prompts.load_template(function, file=file, field=f"spec.{field}")
    except errors.ManifestError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return int(enums.ExitCode.BAD_INPUT)
    return int(enums.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
