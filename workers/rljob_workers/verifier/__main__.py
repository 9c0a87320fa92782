"""`rljob-verifier --config role.json`: grades completions over gRPC until it is asked to stop."""

import asyncio
import functools
import sys
from collections.abc import Sequence

from rljob_api import enums, process_config
from rljob_workers.runtime import boot, health


def main(argv: Sequence[str] | None = None) -> int:
    invocation = boot.parse(
        process_config.VerifierConfig, program="rljob-verifier", about="Grades completions in isolation.", argv=argv
    )
    if invocation.check:
        return _check(invocation)
    boot.configure_process(invocation.config)
    return boot.run_main(functools.partial(_run, invocation.config))


def _check(invocation: boot.Invocation[process_config.VerifierConfig]) -> int:
    """Print one line per problem and return 2, or 0 if there are warnings alone."""
    from rljob_workers.verifier import check

    sources = check.read_sources(invocation.sources) if invocation.sources else []
    findings = check.findings(invocation.config, sources)
    for line in findings.lines:
        print(line, file=sys.stderr)
    return int(enums.ExitCode.BAD_INPUT if findings.problems else enums.ExitCode.OK)


def _run(config: process_config.VerifierConfig) -> int:
    asyncio.run(_serve(config))
    return int(enums.ExitCode.OK)


async def _serve(config: process_config.VerifierConfig) -> None:
    from rljob_workers.verifier import service

    verifier = service.Service(config)
    await boot.serve(verifier, functools.partial(health.probes_of, config, verifier))


if __name__ == "__main__":
    sys.exit(main())
