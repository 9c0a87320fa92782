"""`rljob-environment --config role.json`: lends places with a shell to episodes, until it is asked to stop."""

import asyncio
import functools
import sys
from collections.abc import Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.runtime import boot, health


def main(argv: Sequence[str] | None = None) -> int:
    invocation = boot.parse(
        process_config.EnvironmentConfig,
        program="rljob-environment",
        about="Lends confined places with a shell to the episodes of rollouts.",
        argv=argv,
    )
    if invocation.check:
        return asyncio.run(_check(invocation.config))
    boot.configure_process(invocation.config)
    return boot.run_main(functools.partial(_run, invocation.config))


async def _check(config: process_config.EnvironmentConfig) -> int:
    """Start one place and end it; print what is wrong and return 2."""
    from rljob_workers.environment import service

    try:
        worker = await service.launch_of(config)()
    except (errors.SandboxError, errors.UnavailableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(enums.ExitCode.BAD_INPUT)
    await worker.teardown()
    return int(enums.ExitCode.OK)


def _run(config: process_config.EnvironmentConfig) -> int:
    asyncio.run(_serve(config))
    return int(enums.ExitCode.OK)


async def _serve(config: process_config.EnvironmentConfig) -> None:
    from rljob_workers.environment import service

    environment = service.Service(config)
    await boot.serve(environment, functools.partial(health.probes_of, config, environment))


if __name__ == "__main__":
    sys.exit(main())
