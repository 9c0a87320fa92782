"""`rljob-judge --config role.json`: has completions judged by language models, until it is asked to stop."""

import asyncio
import functools
import os
import sys
from collections.abc import Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.runtime import boot, health


def main(argv: Sequence[str] | None = None) -> int:
    invocation = boot.parse(
        process_config.JudgeConfig, program="rljob-judge", about="Asks language models for rewards.", argv=argv
    )
    if invocation.check:
        return asyncio.run(_check(invocation.config))
    boot.configure_process(invocation.config)
    return boot.run_main(functools.partial(_run, invocation.config))


async def _check(config: process_config.JudgeConfig) -> int:
    """Ask every judge once; print one line per problem and return 2, or 0 if there are warnings alone."""
    from rljob_workers.judge import service
    from rljob_workers.runtime import clock, metrics

    own_metrics = metrics.Metrics(role=enums.Role.JUDGE, job=config.job)
    try:
        judges = service.make_judges(config, environment=os.environ, metrics=own_metrics, clock=clock.SystemClock())
    except errors.ManifestError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return int(enums.ExitCode.BAD_INPUT)
    answers = (service.first_answer(reward.name, judge) for reward, judge in zip(config.rewards, judges, strict=True))
    unfit = [each for each in await asyncio.gather(*answers) if each is not None]
    for each in unfit:
        print(f"{'warning' if each.answered else 'error'}: {each.sentence}", file=sys.stderr)
    return int(enums.ExitCode.OK if all(each.answered for each in unfit) else enums.ExitCode.BAD_INPUT)


def _run(config: process_config.JudgeConfig) -> int:
    asyncio.run(_serve(config))
    return int(enums.ExitCode.OK)


async def _serve(config: process_config.JudgeConfig) -> None:
    from rljob_workers.judge import service

    judge = service.Service(config, environment=os.environ)
    await boot.serve(judge, functools.partial(health.probes_of, config, judge))


if __name__ == "__main__":
    sys.exit(main())
