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
        return asyncio.run(_check(invocation))
    boot.configure_process(invocation.config)
    return boot.run_main(functools.partial(_run, invocation))


async def _check(invocation: boot.Invocation[process_config.JudgeConfig]) -> int:
    """Ask every judge once, and look for the files of one of the job's own, which serves in the run alone; print a line
    per problem and return 2, or 0 if there are warnings alone.
    """
    config, server = invocation.config, invocation.config.server
    from rljob_workers.judge import model_server, service
    from rljob_workers.runtime import clock, metrics

    own_metrics = metrics.Metrics(role=enums.Role.JUDGE, job=config.job)
    try:
        judges = service.make_judges(config, environment=os.environ, metrics=own_metrics, clock=clock.SystemClock())
    except errors.ManifestError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return int(enums.ExitCode.BAD_INPUT)
    answers = (
        service.first_answer(reward.name, judge)
        for reward, judge in zip(config.rewards, judges, strict=True)
        if server is None or not server.answers_at(str(reward.config.get("url")))
    )
    code = 0 if server is None else await model_server.checked(invocation.config_path)
    unfit = [each for each in await asyncio.gather(*answers) if each is not None]
    for each in unfit:
        print(f"{'warning' if each.answered else 'error'}: {each.sentence}", file=sys.stderr)
    return code or int(enums.ExitCode.OK if all(each.answered for each in unfit) else enums.ExitCode.BAD_INPUT)


def _run(invocation: boot.Invocation[process_config.JudgeConfig]) -> int:
    asyncio.run(_serve(invocation))
    return int(enums.ExitCode.OK)


async def _serve(invocation: boot.Invocation[process_config.JudgeConfig]) -> None:
    from rljob_workers.judge import model_server, service
    from rljob_workers.runtime import clock

    config, model = invocation.config, None
    if config.server is not None:
        model = model_server.ModelServer(
            config.server, config_path=invocation.config_path, environment=os.environ, clock=clock.SystemClock()
        )
    judge = service.Service(config, environment=os.environ, model=model)
    await boot.serve(judge, functools.partial(health.probes_of, config, judge))


if __name__ == "__main__":
    sys.exit(main())
