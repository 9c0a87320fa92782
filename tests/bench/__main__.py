"""`python -m tests.bench --rows C14 --size smoke|full --out DIR`: run rows, print the table, store JSON.

What is measured is reported, and stored, row by row.
Exit 0: all passed or skipped; 1: a bar was missed; 2: noisy; 3: a row broke.
"""

import argparse
import importlib
import pathlib
import sys
import traceback

from tests.bench import runner

ROWS = {
    "C7a": "c7a_maths",
    "C7b": "c7b_maths",
    "C7c": "c7c_batch",
    "C13": "c13_generation",
    "C14": "c14_addition",
    "CO": "co_coordinator",
    "KL": "kl_kills",
    "TA": "ta_turnaround",
    "ST3": "st3_bubblewrap",
    "ST4": "st4_warm",
    "ST5": "st5_fresh",
    "ST6": "st6_attacks",
    "ST7": "st7_load",
    "ST8": "st8_soak",
    "WP": "wp_peers",
    "WT": "wt_weights",
}
_WORST = {"pass": 0, "skipped": 0, "fail": 1, "noisy": 2, "broke": 3}


def main() -> int:
    """Run the chosen rows one after the other."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rows", default="all", help=f"comma-separated, of {', '.join(ROWS)}; or all")
    parser.add_argument("--size", choices=["smoke", "full"], default="smoke")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"))
    arguments = parser.parse_args()
    chosen = list(ROWS) if arguments.rows == "all" else arguments.rows.split(",")
    unknown = [row for row in chosen if row not in ROWS]
    if unknown:
        parser.error(f"unknown rows {unknown}; expected one of {', '.join(ROWS)}")
    judged, worst = [], 0
    for number, name in enumerate(chosen, start=1):
        print(f"{name}, {number} of {len(chosen)}", file=sys.stderr, flush=True)
        row: runner.Row = importlib.import_module(f"tests.bench.rows.{ROWS[name]}").measure
        command = f"make bench ROWS={name} SIZE={arguments.size}"
        try:
            results = [runner.judge(measured, command) for measured in row(arguments.size, arguments.out.resolve())]
        except Exception:  # noqa: BLE001  # the boundary of a row: the others still run, the exit code tells
            traceback.print_exc()
            worst = max(worst, _WORST["broke"])
            continue
        judged += results
        runner.save(judged, arguments.out)
        for result in results:
            print(f"{result['row']}: {result['verdict']}", file=sys.stderr, flush=True)
        worst = max([worst, *(_WORST[str(result["verdict"])] for result in results)])
    print(runner.table(judged))
    return worst


if __name__ == "__main__":
    sys.exit(main())
