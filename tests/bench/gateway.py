"""`python -m tests.bench.gateway --calls 10000 --sessions 5000`: ids of many calls by both clients; what is added to
calls of many open sessions. Prints a line of JSON each; exit code 1 if a sampled token was not trained, or too much was
added to one call in a hundred.
"""

import argparse
import asyncio
import dataclasses
import json

from rljob_testing import gateway_load
from rljob_workers.rollout.gateway import garbage

# What a call may take beyond its generation, at the 99th percentile.
MOST_ADDED_S = 0.05


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gateway", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=5_000)
    parser.add_argument("--calls-each", type=int, default=4)
    parser.add_argument("--most-s", type=float, default=20.0, help="longest generation, and longest pause, seconds")
    given = parser.parse_args()
    compared = asyncio.run(gateway_load.compare_ids(given.calls))
    print(json.dumps(dataclasses.asdict(compared)), flush=True)
    # As the rollout's program does.
    garbage.Survivors().watch()
    added = asyncio.run(gateway_load.time_calls(given.sessions, calls_each=given.calls_each, most_s=given.most_s))
    print(json.dumps(dataclasses.asdict(added)), flush=True)
    return int(compared.num_trained != compared.num_tokens or added.p99_s > MOST_ADDED_S)


if __name__ == "__main__":
    raise SystemExit(main())
