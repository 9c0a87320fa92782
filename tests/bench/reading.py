"""`python -m tests.bench.reading --pairs 20000 --seed 1`: false rewards and refusals of `math` and math-verify.

Pairs are `rljob_testing.answer_pairs`: true or false because they were made so. math-verify is called as its users call
it. Exit 1 if `math` rewards a wrong answer.
"""

import argparse
import collections
import json
import logging
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

import math_verify

from rljob_api import process_config
from rljob_testing import answer_pairs
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.math import math_grader

Judge = Callable[[answer_pairs.Pair], bool]


def ours() -> Judge:
    """Return the reward `math`, warm."""
    grader = math_grader.MathGrader(process_config.GraderConfig(name="r", type="math"))
    grader.warm()

    def judge(pair: answer_pairs.Pair) -> bool:
        answer = base.Answer(prompt="", completion=pair.completion, columns={"answer": pair.gold})
        return grader.grade(answer).score == 1.0

    return judge


def theirs(pair: answer_pairs.Pair) -> bool:
    """Return math-verify's word; what it raises is not a reward."""
    try:
        gold = math_verify.parse(f"${pair.gold}$", parsing_timeout=None)
        return bool(
            math_verify.verify(gold, math_verify.parse(pair.completion, parsing_timeout=None), timeout_seconds=None)
        )
    except Exception:  # noqa: BLE001  # the boundary of a foreign library
        return False


def errors(pairs: Sequence[answer_pairs.Pair], judge: Judge) -> list[tuple[answer_pairs.Pair, bool]]:
    """Return the pairs that were judged wrongly, with what was said."""
    return [(pair, said) for pair in pairs if (said := judge(pair)) != pair.right]


def table(pairs: Sequence[answer_pairs.Pair], both: Sequence[Sequence[tuple[answer_pairs.Pair, bool]]]) -> str:
    """Return a Markdown table: class, pairs, then false rewards and false refusals of each."""
    totals = collections.Counter((pair.kind, pair.right) for pair in pairs)
    counts = [collections.Counter((pair.kind, said) for pair, said in wrong) for wrong in both]
    lines = [
        "| class | wrong, right pairs | `math`: rewards | refusals | math-verify: rewards | refusals |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        cells = [count[kind, said] for count in counts for said in (True, False)]
        lines.append(
            f"| {kind} | {totals[kind, False]:,}, {totals[kind, True]:,} | " + " | ".join(map(str, cells)) + " |"
        )
    sums = [sum(count[key] for key in count if key[1] is said) for count in counts for said in (True, False)]
    wrong = sum(not pair.right for pair in pairs)
    lines.append(f"| all | {wrong:,}, {len(pairs) - wrong:,} | " + " | ".join(f"{total:,}" for total in sums) + " |")
    return "\n".join(lines)


def main() -> int:
    """Judge, print the table, write every error."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reading", description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/reading"))
    parser.add_argument("--ours-alone", action="store_true", help="leave math-verify out")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    pairs = answer_pairs.pairs(arguments.pairs, arguments.seed)
    both = []
    for name, judge in (("math", ours()), ("math-verify", theirs))[: 1 if arguments.ours_alone else 2]:
        started_s = time.process_time()
        both.append(errors(pairs, judge))
        print(f"{name}: {len(pairs) / (time.process_time() - started_s):,.0f} pairs/s", file=sys.stderr, flush=True)
    print(table(pairs, both))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, wrong in zip(("math", "math-verify"), both, strict=False):
        rows = [
            {"kind": pair.kind, "said": said, "completion": pair.completion, "gold": pair.gold} for pair, said in wrong
        ]
        (arguments.out / f"{name}.jsonl").write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
    return int(any(said for _, said in both[0]))


if __name__ == "__main__":
    sys.exit(main())
