"""The other side of C-7a and C-7b: math-verify in this process, as its users call it.

`python -m tests.bench.rows.math_verify_peer` reads one JSON list [completion, gold] and prints the seconds it took.
"""

import json
import sys
import time
from collections.abc import Sequence

from tests.bench.rows import maths_answers


def verdicts(cases: Sequence[maths_answers.Case]) -> list[bool]:
    """Return math-verify's verdicts with its defaults, time limits of 5 s by alarm included."""
    import math_verify

    return [
        bool(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(completion)))
        for completion, gold in cases
    ]


def main() -> None:
    """Time one case."""
    completion, gold = json.loads(sys.stdin.read())
    verdicts([("1", "1")])
    started_s = time.perf_counter()
    verdicts([(completion, gold)])
    print(time.perf_counter() - started_s)


if __name__ == "__main__":
    main()
