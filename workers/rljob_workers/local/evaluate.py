"""`rljob eval` without its command line: one model on the manifest's suites; no trainer, nothing is learned.

The same coordinator, rollouts and verifiers as in training, with no step to train: version 0 is evaluated, and that is
the end. Source of metric names and files: docs/design/workflows.md#s-11.
"""

import dataclasses
import json
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import pydantic

from rljob_api import enums, errors, process_config
from rljob_api.manifest import base
from rljob_api.resolve import ResolvedJob
from rljob_workers.local import prepare, session
from rljob_workers.local.run import launch, outcome, runner
from rljob_workers.local.rundir import journal, layout
from rljob_workers.runtime import atomic

RESULTS = "eval_results"
# The coordinator evaluates the model files, which are its version 0 of step 0.
_STEP = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which suites (empty: all), under which step the results are, and whether they are printed as JSON."""

    suites: Sequence[str] = ()
    step: int = 0
    as_json: bool = False


class Evaluation(pydantic.BaseModel):
    """What an evaluation found: metrics by name, and items missing by suite."""

    step: int
    version: int
    metrics: dict[str, float]
    missing: dict[str, int] = {}


def evaluate(
    manifest: prepare.Manifest,
    options: Options,
    *,
    path: pathlib.Path,
    skip_check: bool,
    stream: TextIO,
    programs: launch.Programs = launch.own_programs,
) -> int:
    """Evaluate in `path`, continuing where an evaluation there was stopped; return the exit code.

    Raises ManifestError, with nothing started, for suites that do not exist or a directory that cannot be used.
    """
    prepare.admit_here(manifest)
    name = f"{manifest.job.metadata.name}-eval"
    suites = chosen([suite.name for suite in manifest.job.spec.evaluation.suites], options.suites)
    directory = layout.RunDir(path)
    spec = {**manifest.spec, "suites": list(suites)}
    identity = directory.admit(name=name, spec=spec, manifest_dir=manifest.folder)
    log_stream = sys.stderr if options.as_json else stream
    if not identity.finished:
        resolved = prepare.resolve_here(manifest, run_dir=directory.path, uid=identity.uid)
        configs = launch.process_names(without_training(resolved, suites))
        prepare.gpus_here(configs)
        if not skip_check:
            session.check(configs, programs=programs, stream=log_stream)
        with directory.lock() as lock:
            directory.admit(name=name, spec=spec, manifest_dir=manifest.folder)
            directory.claim(identity, manifest.text)
            attempt = journal.last_attempt(journal.read(directory.journal))
            ended = session.run_segment(manifest, directory, configs, programs, attempt, lock, log_stream)
            if ended.ending is not runner.Ending.FINISHED:
                return _unfinished(ended, directory)
            directory.record(identity.model_copy(update={"finished": True}))
    return _conclude(directory, options, suites, stream)


def chosen(suites: Sequence[str], requested: Sequence[str]) -> Sequence[str]:
    """Return the suites to evaluate, by exact name. Raises ManifestError if there are none of that name, or none."""
    if not suites:
        raise errors.ManifestError("spec.evaluation.suites is empty, so there is nothing to evaluate: name a source")
    unknown = [name for name in requested if name not in suites]
    if unknown:
        raise errors.ManifestError(
            *(
                f"--suite {name} is not in spec.evaluation.suites; expected one of {', '.join(suites)}"
                for name in unknown
            )
        )
    return [name for name in suites if name in requested] if requested else list(suites)


def without_training(resolved: ResolvedJob, suites: Sequence[str]) -> Sequence[process_config.ProcessConfig]:
    """Return the configs of an evaluation alone: no trainer, no step, the chosen suites."""
    spec = resolved.coordinator.spec
    chosen_suites = tuple(suite for suite in spec.evaluation.suites if suite.name in suites)
    evaluation = base.with_parts(spec.evaluation, suites=chosen_suites, before_training=True)
    coordinator = resolved.coordinator.model_copy(
        update={"spec": base.with_parts(spec, evaluation=evaluation), "evaluates_only": True}
    )
    return (coordinator, *resolved.graders, *resolved.environments, *resolved.rollouts, *resolved.agents)


def _unfinished(ended: runner.Outcome, directory: layout.RunDir) -> int:
    again = "the same command with the same --run-dir"
    if ended.ending is runner.Ending.STOPPED:
        print(f"stopped; {again} resumes it ({directory.path})", file=sys.stderr)
        return int(enums.ExitCode.INTERRUPTED)
    print(outcome.failed_text(ended, logs=str(directory.logs), command=again), file=sys.stderr)
    return int(enums.ExitCode.FAILED)


def _conclude(directory: layout.RunDir, options: Options, suites: Sequence[str], stream: TextIO) -> int:
    """Put the results under the wanted step, print them, and fail if a suite has none: never a zero."""
    results, folder = directory.state / RESULTS, directory.path / RESULTS
    evaluation = Evaluation.model_validate_json((results / f"{_STEP}.json").read_bytes()).model_copy(
        update={"step": options.step}
    )
    folder.mkdir(exist_ok=True)
    for suite in suites:
        shutil.copyfile(results / f"{_STEP}_{suite}.json", folder / f"{options.step}_{suite}.json")
    atomic.write_text(folder / f"{options.step}.json", evaluation.model_dump_json(indent=1))
    if options.as_json:
        print(json.dumps(evaluation.model_dump(), indent=1), file=stream)
    else:
        print(f"{table(evaluation.metrics, suites)}\n\nresponses: {folder}", file=stream)
    for suite, count in evaluation.missing.items():
        print(f"error: suite {suite} has no result: {count} of its prompts could not be graded", file=sys.stderr)
    return int(enums.ExitCode.FAILED if evaluation.missing else enums.ExitCode.OK)


_COLUMNS = ("accuracy", "score", "eval_count", "response_tok_len", "truncated", "formatted")


def table(metrics: Mapping[str, float], suites: Sequence[str]) -> str:
    """Return the metrics as a table, one row a suite and their unweighted average; "-" where there is none."""
    lines: list[tuple[str, ...]] = [("suite", *_COLUMNS)]
    for suite in [*suites, "average"]:
        values = [metrics.get(f"eval/{suite}/{column}") for column in _COLUMNS]
        lines.append((suite, *("-" if value is None else f"{value:.4g}" for value in values)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS) + 1)]
    padded = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *cells[1:]]) for line, cells in zip(lines, padded, strict=True)
    )
