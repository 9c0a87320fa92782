"""`rljob-rollout --config role.json`: generates, has graded, hands in, until drained. `--check` starts nothing."""

import sys
from collections.abc import Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.runtime import boot, device


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rollout and return its exit code: 0 drained, 2 the check found problems, 75 engine, 78 config."""
    invocation = boot.parse(
        process_config.RolloutConfig,
        program="rljob-rollout",
        about="Generates with vLLM, runs episodes and submits scored prompt groups of one RL run.",
        argv=argv,
    )
    problems = _without_device(invocation.config)
    if invocation.check:
        return _check(invocation, problems)
    if problems:
        return boot.refuse(problems)
    boot.configure_process(invocation.config)
    return boot.run_main(lambda: _run(invocation.config))


def _without_device(config: process_config.RolloutConfig) -> list[str]:
    engine = config.spec.rollout.engine
    return device.problems(
        config.device,
        needed=engine.num_gpus,
        because=f"spec.rollout.engine.tensorParallelSize {engine.tensor_parallel_size}",
        image=device.image_kind(),
        engine=device.engine_kind(engine.type),
        num_visible=len(device.gpus()),
    )


def _check(invocation: boot.Invocation[process_config.RolloutConfig], problems: Sequence[str]) -> int:
    # After parsing: --help needs none of it.
    from rljob_workers.rollout import check

    findings = check.findings(invocation.config, invocation.sources)
    for line in (*(f"error: {problem}" for problem in problems), *findings.lines):
        print(line, file=sys.stderr)
    return int(enums.ExitCode.BAD_INPUT if problems or findings.problems else enums.ExitCode.OK)


def _run(config: process_config.RolloutConfig) -> int:
    from rljob_workers.rollout import app

    try:
        app.serve(config)
    except errors.EngineError as error:
        # A broken engine is the machine's doing: the supervisor starts another process.
        raise errors.UnavailableError(f"the engine could not be kept alive: {error}") from error
    return int(enums.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
