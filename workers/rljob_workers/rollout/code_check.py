"""`python -m rljob_workers.rollout.code_check FILE MODULE:CLASS [CONFIG]`: imports user code and looks at its form.

A program of its own, because `rljob plan` must not import a user's module into itself. Prints `error: file:line: ...`.
"""

import json
import sys
from collections.abc import Sequence

from rljob_api import errors, names
from rljob_workers.rollout.episodes import custom


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 after printing what is wrong. CONFIG is `workflow.config` as JSON."""
    file, reference, *rest = sys.argv[1:] if argv is None else argv
    try:
        custom.check(reference, file=file, config=json.loads(rest[0]) if rest else {})
    except errors.ManifestError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return int(names.ExitCode.BAD_INPUT)
    return int(names.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
