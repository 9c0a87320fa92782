"""`python -m tests.bench.foreign --venvs <folder>`: run programs of others as agents, environments and tasks of real
jobs, one after the other, with the small model, vLLM and DeepSpeed; --save writes the rows of docs/integrations.md.

A job takes one to three minutes of two cores. Exit code 1 if one failed. The environments of --venvs are made by the
commands of the page.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from rljob_api import process_config
from rljob_testing import examples, foreign_things, runs
from rljob_testing.foreign_things import THINGS, Place, Thing
from rljob_workers.models import builtin

PAGE = examples.ROOT / "docs/integrations.md"
RESULTS = examples.ROOT / "docs/integrations.jsonl"
MODEL = "builtin:smollm2-135m-instruct"
BEGIN, END = "<!-- table: python -m tests.bench.foreign -->", "<!-- end of the table -->"
TIMEOUT_S = 900.0
GAVE_UP = "gave an attempt up: "


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run showed. num_sessions: attempts that were closed; turns: calls of a session, least and most; num_rows:
    rows trained; num_tool_calls: answers that hold one; num_given_up: attempts without a reward, with the first reason;
    gap_nats: mean difference of log-probabilities between rollout and trainer; problem: "" for a run that ended well.
    """

    name: str
    versions: str
    command: str
    num_sessions: int = 0
    rewards: tuple[float, ...] = ()
    turns: tuple[int, ...] = ()
    num_rows: int = 0
    num_tool_calls: int = 0
    num_given_up: int = 0
    given_up_because: str = ""
    gap_nats: float = 0.0
    wall_s: float = 0.0
    problem: str = ""


def anywhere(text: str, out: pathlib.Path, venvs: pathlib.Path | None) -> str:
    """Return a text for a checkout in any place, where folders are those of docs/integrations.md."""
    places = {str(out): "$PWD/build/foreign", str(examples.ROOT): "$PWD"}
    if venvs is not None:
        places = {str(venvs.absolute()): "$PWD/venvs", **places}
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def versions(thing: Thing, python: pathlib.Path) -> str:
    """Return the versions of a thing's packages."""
    script = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    done = subprocess.run([python, "-c", script, *thing.packages], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def measure(thing: Thing, out: pathlib.Path, venvs: pathlib.Path | None, steps: int) -> Seen:
    """Run a thing and read what its run left behind."""
    python = foreign_things.python_of(thing, venvs)
    if python is None:
        return Seen(name=thing.name, versions="", command="", problem=f"no environment {thing.venv} in --venvs")
    folder = out / thing.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cache = out / "cache"
    model = builtin.ensure_model(process_config.ModelFiles(name=MODEL, cache_dir=str(cache)))
    place = Place(python=python, folder=folder, model=model)
    changes = {"spec.maxSteps": steps, **thing.settings(place)}
    settings = [f"{path}={json.dumps(value)}" for path, value in changes.items()]
    run = runs.RunFolder(folder, cache)
    start = time.monotonic()
    try:
        code, output = run.run(thing.manifest, timeout_s=TIMEOUT_S, settings=settings, variables=thing.variables(place))
        problem = "" if code == 0 else anywhere(f"exit code {code}: {output[-600:]}", out, venvs)
    except subprocess.TimeoutExpired:
        problem = f"did not end within {TIMEOUT_S:g} s"
    finally:
        run.end()
    (folder / "output.txt").write_text(problem, encoding="utf-8")
    command = ["rljob", "run", str(thing.manifest.relative_to(examples.ROOT))]
    command += [part for setting in settings for part in ("--set", setting)]
    seen = Seen(
        name=thing.name, versions=versions(thing, python), command=anywhere(shlex.join(command), out, venvs),
        problem=problem, wall_s=round(time.monotonic() - start),
    )  # fmt: skip
    if not problem:
        seen = dataclasses.replace(seen, **figures(run), problem=run.audit())
    # Two gigabytes that nothing reads any more.
    for part in ("checkpoints", "export", "state/weights"):
        shutil.rmtree(folder / "run" / part, ignore_errors=True)
    return seen


def figures(run: runs.RunFolder) -> dict[str, object]:
    """Return the figures of a run that ended."""
    steps = run.steps()
    lines = [
        json.loads(line)
        for path in sorted((run.folder / "run/dumps/rollout").glob("*/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    turns: dict[tuple[str, int, int], int] = {}
    num_tool_calls = 0
    for line in lines:
        session = line["group_id"], line["sample_idx"], line["attempt"]
        spans = [part["text"] for part in line["segments"] or () if part["role"] == "gen"] or [line["completion"]]
        turns[session] = turns.get(session, 0) + len(spans)
        num_tool_calls += sum("<tool_call>" in text for text in spans)
    agents = run.folder / "run/logs/agents.jsonl"
    reasons = re.findall(rf"{GAVE_UP}([^\n]*)", agents.read_text()) if agents.exists() else []
    rewards = [line["raw_reward"] for line in lines]
    return {
        "num_sessions": len(turns),
        "rewards": (min(rewards), statistics.fmean(rewards), max(rewards)),
        "turns": (min(turns.values()), max(turns.values())),
        "num_rows": sum(step["rows"] for step in steps),
        "num_tool_calls": num_tool_calls,
        "num_given_up": len(reasons),
        "given_up_because": reasons[0][:200] if reasons else "",
        "gap_nats": max(step["stats"]["mismatch/abs_diff"] for step in steps),
    }


def table(all_seen: Mapping[str, Seen]) -> str:
    """Return the rows of the page."""
    head = (
        "| thing | version | what it does | had to be said | sessions | turns | reward | rows trained | gap | remark |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for thing in THINGS:
        seen = all_seen.get(thing.name)
        if seen is not None:
            lines.append(f"| {' | '.join(cells(thing, seen))} |")
    return "\n".join(lines)


def cells(thing: Thing, seen: Seen) -> Sequence[str]:
    """Return one row."""
    remarks = [thing.remark] if thing.remark else []
    if seen.num_tool_calls:
        remarks.append(f"{seen.num_tool_calls} answers call a tool")
    if seen.num_given_up:
        remarks.append(f"{seen.num_given_up} attempts given up: {seen.given_up_because}")
    if seen.problem:
        remarks.append(f"FAILED: {seen.problem}")
    remark = re.sub(r"\s+", " ", "; ".join(remarks)).replace("|", "/")
    figures_of_run: Sequence[str] = ("-",) * 5
    if seen.rewards:
        least, mean, most = seen.rewards
        turns = "-".join(str(count) for count in dict.fromkeys(seen.turns))
        figures_of_run = (
            str(seen.num_sessions), turns, f"{least:.2g} to {most:.2g}, mean {mean:.2g}", str(seen.num_rows),
            f"{seen.gap_nats:.3f}",
        )  # fmt: skip
    return (f"`{thing.name}`", seen.versions, thing.does, thing.configured, *figures_of_run, remark)


def stored() -> dict[str, Seen]:
    """Return what was stored of each thing."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {seen["name"]: Seen(**seen) for seen in map(json.loads, lines)}


def save(all_seen: Mapping[str, Seen]) -> None:
    """Store everything, and write the table into the page."""
    lines = [json.dumps(dataclasses.asdict(all_seen[thing.name])) for thing in THINGS if thing.name in all_seen]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(all_seen)}\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Run the chosen things one after the other."""
    names = [thing.name for thing in THINGS]
    parser = argparse.ArgumentParser(prog="python -m tests.bench.foreign", description=__doc__)
    parser.add_argument("--things", default="all", help=f"comma-separated, of {', '.join(names)}; or all")
    parser.add_argument(
        "--venvs", type=pathlib.Path, help="folder of environments, one for each thing that has its own"
    )
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/foreign"))
    parser.add_argument("--save", action="store_true", help="store the figures in docs/integrations.jsonl and the page")
    arguments = parser.parse_args()
    chosen = names if arguments.things == "all" else arguments.things.split(",")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"--things has {', '.join(unknown)}; expected some of {', '.join(names)}")
    all_seen = stored()
    worst = 0
    for thing in THINGS:
        if thing.name not in chosen:
            continue
        seen = measure(thing, arguments.out.resolve(), arguments.venvs, arguments.steps)
        print(json.dumps(dataclasses.asdict(seen)), flush=True)
        worst = max(worst, int(bool(seen.problem)))
        all_seen[thing.name] = seen
        if arguments.save:
            save(all_seen)
    print(table(all_seen))
    return worst


if __name__ == "__main__":
    sys.exit(main())
