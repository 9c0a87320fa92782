"""`python -m rljob_workers.verifier.code_check FILE MODULE:FUNCTION CONFIG`: imports a reward and looks at its form.

A program of its own, because `rljob plan` must not import a user's module into itself. Prints `error: file:line: ...`.
"""

import json
import sys
from collections.abc import Sequence

from rljob_api import errors, names, roles
from rljob_workers.verifier.graders import custom


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 after printing what is wrong. CONFIG is the reward's `config` as JSON."""
    file, reference, config = sys.argv[1:] if argv is None else argv
    reward = roles.GraderConfig(name=reference, type=reference, config=json.loads(config), user_code=file)
    try:
        custom.CustomGrader(reward).warm()
    except errors.ManifestError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return int(names.ExitCode.BAD_INPUT)
    return int(names.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
