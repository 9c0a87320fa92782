"""`python -m rljob_workers.verifier.code_check FILE TYPE CONFIG`: loads a custom reward or a plugin, checks its form.

A program of its own, because `rljob plan` must not import foreign code into itself. Prints `error: ...` per problem.
"""

import json
import sys
from collections.abc import Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.verifier.graders import registry


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 after printing what is wrong. CONFIG is the reward's `config` as JSON."""
    file, type_, config = sys.argv[1:] if argv is None else argv
    reward = process_config.GraderConfig(name=type_, type=type_, config=json.loads(config), user_code=file)
    try:
        for grader in registry.build([reward], registry.BUILT_IN):
            grader.warm()
    except errors.ManifestError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return int(enums.ExitCode.BAD_INPUT)
    return int(enums.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
