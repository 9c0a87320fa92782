"""`rljob-coordinator --config role.json`: the run's ledger, batches and weight registry. `--check` validates the data
only.
"""

import asyncio
import pathlib
import sys
from collections.abc import Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.runtime import boot


def main(argv: Sequence[str] | None = None) -> int:
    """Run the coordinator and return its exit code: 0 stopped in order, 2 the check found problems, 75, 78 as
    elsewhere.
    """
    invocation = boot.parse(
        process_config.CoordinatorConfig,
        program="rljob-coordinator",
        about="Leases prompts, keeps the ledger, packs batches and serves weight versions of one RL run.",
        argv=argv,
    )
    if invocation.check:
        return check(invocation.config)
    boot.configure_process(invocation.config)
    # After parsing: --help and --check need none of it.
    from rljob_workers.coordinator import app

    return boot.run_main(lambda: asyncio.run(app.serve(invocation.config, invocation.config_path)))


def check(config: process_config.CoordinatorConfig) -> int:
    """Print one line per problem of the data sources and trackers and per source that drops records; return 2 if there
    is a problem, else 0.
    """
    from rljob_workers.coordinator.trackers import base as trackers
    from rljob_workers.data import records

    try:
        spec = records.on_this_machine(config.spec, pathlib.Path(config.cache_dir))
    except (errors.DataError, errors.StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(enums.ExitCode.BAD_INPUT)
    checked = [records.check_sources(spec.data.train), records.check_sources(spec.evaluation.suites)]
    problems = [str(problem) for source_problems, _ in checked for problem in source_problems]
    for tracker in spec.observability.trackers:
        try:
            trackers.find(tracker)
        except errors.ManifestError as error:
            problems += error.problems
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    for warning in (warning for _, source_warnings in checked for warning in source_warnings):
        print(f"warning: {warning}", file=sys.stderr)
    return int(enums.ExitCode.BAD_INPUT if problems else enums.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
