"""`rljob run` without its command line: everything wired together, one run segment, and what is left behind."""

import dataclasses
import pathlib
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rljob_api import enums, errors, process_config, resolve
from rljob_workers.local import prepare, processes
from rljob_workers.local.checks import missing, preflight
from rljob_workers.local.report import render, summary
from rljob_workers.local.run import display, failure_policy, launch, live, outcome, progress, runner, supervise
from rljob_workers.local.rundir import history, journal, layout
from rljob_workers.rpc import status as transport_status
from rljob_workers.runtime import atomic, health, judge_costs
from rljob_workers.runtime import clock as clocks

_TICK_S = 0.2
_ASK_TIMEOUT_S = 2.0


def run_job(
    manifest: prepare.Manifest,
    *,
    path: pathlib.Path,
    skip_check: bool,
    stream: TextIO,
    programs: launch.Programs = launch.own_programs,
) -> int:
    """Run the job in `path` until it finishes, fails or is stopped; return the exit code.

    Raises ManifestError, with nothing started and nothing overwritten, for a job or directory that cannot be used.
    """
    prepare.admit_here(manifest)
    if problems := [*missing.entry_points(manifest.job.spec), *missing.tracker_packages(manifest.job.spec)]:
        raise errors.ManifestError(*problems)
    directory = layout.RunDir(path)
    identity = directory.admit(name=manifest.job.metadata.name, spec=manifest.spec, manifest_dir=manifest.folder)
    if identity.finished:
        print(_already(directory), file=stream)
        return int(enums.ExitCode.OK)
    entries = journal.read(directory.journal)
    resolved = prepare.resolve_here(manifest, run_dir=directory.path, uid=identity.uid)
    configs = launch.process_names(resolved.configs)
    prepare.gpus_here(configs)
    for warning in resolve.warnings(manifest.job):
        print(f"warning: {warning}", file=stream, flush=True)
    if not skip_check:
        check(configs, programs=programs, stream=stream)
    with directory.lock() as lock:
        # Another run may have begun here while the checks ran.
        directory.admit(name=manifest.job.metadata.name, spec=manifest.spec, manifest_dir=manifest.folder)
        directory.claim(identity, manifest.text)
        ended = run_segment(manifest, directory, configs, programs, journal.last_attempt(entries), lock, stream)
        if ended.ending is runner.Ending.FINISHED:
            directory.record(identity.model_copy(update={"finished": True}))
        return _conclude(manifest, directory, ended, stream)


def _already(directory: layout.RunDir) -> str:
    return (
        f"the run in {directory.path} is finished; nothing to do. Its report is {directory.report}. "
        f"To continue it, raise spec.maxSteps; to start over, choose another directory with --run-dir."
    )


def check(configs: Mapping[str, process_config.ProcessConfig], *, programs: launch.Programs, stream: TextIO) -> None:
    """Let the programs check their inputs and report their warnings. Raises ManifestError with all problems."""
    for warning in preflight.check(configs, programs=programs, waiting=_checking(stream)):
        print(f"warning: {warning}", file=stream, flush=True)


def _checking(stream: TextIO) -> Callable[[float], None]:
    """Return a callback that reports now and then that the checks are running."""
    reported_s = -8.0

    def waiting(elapsed_s: float) -> None:
        nonlocal reported_s
        if elapsed_s - reported_s >= 8.0:
            reported_s = elapsed_s
            print(f"[{progress.duration(elapsed_s):>6}] checking data, model and tokenizer", file=stream, flush=True)

    return waiting


def run_segment(
    manifest: prepare.Manifest,
    directory: layout.RunDir,
    configs: Mapping[str, process_config.ProcessConfig],
    programs: launch.Programs,
    attempt: int,
    lock: int,
    stream: TextIO,
) -> runner.Outcome:
    """Run the processes of `configs`, with or without a trainer, until they are done, failed or stopped.

    The run's lock must be held: what an earlier segment left of temporary files is removed, and what this one leaves.
    """
    with directory.temporary_files() as temporary:
        env = launch.environment(temporary, cache=prepare.cache_dir(), withheld=launch.agents_own(configs.values()))
        return _run_segment(manifest, directory, configs, programs, attempt, env, lock, stream)


def _run_segment(
    manifest: prepare.Manifest,
    directory: layout.RunDir,
    configs: Mapping[str, process_config.ProcessConfig],
    programs: launch.Programs,
    attempt: int,
    env: Mapping[str, str],
    lock: int,
    stream: TextIO,
) -> runner.Outcome:
    clock, spec = clocks.SystemClock(), manifest.job.spec
    log, interrupts = journal.Journal(directory.journal), runner.Interrupts()
    launcher = launch.Launcher(
        configs=configs,
        directory=directory,
        programs=programs,
        log=log,
        clock=clock,
        attempt=attempt,
        env=env,
        inherited_fds=(lock,),
        gpus=prepare.gpus_here(configs),
    )
    # Orphans of a role whose guard was killed come to this process, which ends them.
    processes.adopt_orphans()
    supervisor = supervise.Supervisor(
        spawn=launcher.spawn,
        policy=failure_policy.restart_policy_of(spec),
        clock=clock,
        sweep=supervise.end_leftover_processes,
    )
    coordinator = next(config for config in configs.values() if isinstance(config, process_config.CoordinatorConfig))
    address = f"{coordinator.bind_host}:{coordinator.control_port}"
    poller = live.Poller(transport_status.StatusClient(address=address, tls=coordinator.tls))
    shown = display.choose(stream=stream, title=f"rljob {manifest.job.metadata.name}")
    poller.start()
    previous = _on_interrupt(interrupts.request)
    try:
        return runner.Runner(
            processes={name: config.role for name, config in configs.items()},
            supervisor=supervisor,
            source=poller,
            shown=shown,
            directory=directory,
            log=log,
            interrupts=interrupts,
            ask_trainer=_asker(configs),
            bounds=failure_policy.bounds_of(spec),
            limits=failure_policy.limits_of(spec),
            clock=clock,
            pause=lambda: time.sleep(_TICK_S),
        ).run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        shown.close()
        poller.close()
        log.close()


def _on_interrupt(request: Callable[[], None]) -> dict[int, "signal._HANDLER"]:
    """Handle the signals that ask for an end, except those that the parent process set to be ignored (nohup)."""
    signals = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    return {number: signal.signal(number, lambda *_: request()) for number in signals}


def _asker(configs: Mapping[str, process_config.ProcessConfig]) -> Callable[[], bool] | None:
    """Return a call that asks the trainer to stop at the next step boundary (POST /stop); None without a trainer."""
    trainer = next((config for config in configs.values() if config.role is enums.Role.TRAINER), None)
    if trainer is None:
        return None
    url, token_file = f"http://{trainer.health_host}:{trainer.health_port}/stop", health.stop_token_file(trainer)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask() -> bool:
        # Another attempt is another process, with a token of its own.
        headers = {health.STOP_HEADER: health.stop_token(token_file)}
        request = urllib.request.Request(url, data=b"", method="POST", headers=headers)
        try:
            with opener.open(request, timeout=_ASK_TIMEOUT_S) as answer:
                return bool(200 <= answer.status < 300)
        except (urllib.error.URLError, OSError):
            return False

    return ask


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run directory says about its run so far."""

    run: history.Run
    entries: Sequence[journal.Entry]
    numbers: summary.Summary

    def page(self, job: str) -> str:
        return render(job=job, run=self.run, numbers=self.numbers, entries=self.entries)


def read_record(directory: layout.RunDir) -> RunRecord:
    """Read history and journal, of a run that continues or has ended."""
    entries = journal.read(directory.journal)
    run = history.with_wait_shares(history.read(directory.history), journal.rollout_wait_shares(entries))
    numbers = summary.summarize(
        run,
        wall_s=journal.wall_s(entries),
        peak_rss_bytes=journal.peaks(entries),
        judges=judge_costs.read(directory.path / "scratch" / f"{enums.Role.JUDGE}-0"),
    )
    return RunRecord(run=run, entries=entries, numbers=numbers)


def _conclude(manifest: prepare.Manifest, directory: layout.RunDir, ended: runner.Outcome, stream: TextIO) -> int:
    """Write summary and report of what there is, say the last words, return the exit code."""
    past = read_record(directory)
    atomic.write_text(directory.summary, past.numbers.model_dump_json(indent=1))
    atomic.write_text(directory.report, past.page(manifest.job.metadata.name))
    command = f"rljob run {manifest.path} --run-dir {directory.path}"
    if ended.ending is runner.Ending.FINISHED:
        where = outcome.Files(report=str(directory.report), summary=str(directory.summary))
        print(outcome.finished_text(past.run, wall_s=past.numbers.wall_s, files=where), file=stream)
        return int(enums.ExitCode.OK)
    if ended.ending is runner.Ending.STOPPED:
        print(outcome.stopped_text(ended, command=command), file=stream)
        return int(enums.ExitCode.INTERRUPTED)
    print(outcome.failed_text(ended, logs=str(directory.logs), command=command), file=sys.stderr)
    return int(enums.ExitCode.FAILED)
