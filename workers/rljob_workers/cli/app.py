"""The commands of `rljob` and their options. What they do is in the module of the same name."""

import pathlib
import sys
from collections.abc import Callable, Sequence
from json import dumps as json_text  # options are named json
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import rljob_api
from rljob_api import errors, names
from rljob_workers.cli import choices

if TYPE_CHECKING:
    from rljob_workers.cli import kubectl

app = typer.Typer(
    name="rljob",
    help="Reinforcement learning for language models, from one manifest: on this machine or in a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ManifestArgument = Annotated[pathlib.Path, typer.Argument(metavar="JOB.yaml", help="The RLJob manifest.")]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="Name of the job, its manifest or directory; if left out the only run below runs/.",
        autocompletion=choices.jobs,
    ),
]
OutputOption = Annotated[choices.Output, typer.Option("--output", "-o", help="How to print.")]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="path=value", help="Replace a field, as spec.maxSteps=5; may be repeated."),
]
RunDirOption = Annotated[
    pathlib.Path | None, typer.Option("--run-dir", help="The run's directory.", show_default="runs/<job name>")
]

ClusterOption = Annotated[bool, typer.Option("--cluster", help="Of a job in a cluster, as `kubectl rljob` is.")]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="In this namespace of a cluster.", show_default=False)
]
ContextOption = Annotated[
    str, typer.Option("--context", help="In the cluster of this kubectl context.", show_default=False)
]
_PLUG_IN = "kubectl rljob"


def _cluster_of(
    ctx: typer.Context, *, run_dir: pathlib.Path | None, cluster: bool, namespace: str, context: str
) -> "kubectl.Kubectl | None":
    """Return the cluster that a command is about, by an option or as kubectl's plug-in; None for this machine.

    Raises ManifestError if a run directory is named too.
    """
    asked = cluster or bool(namespace or context)
    if asked and run_dir is not None:
        raise errors.ManifestError(
            "--run-dir names a run on this machine; --cluster, --namespace and --context in a cluster: leave one out"
        )
    if not asked and (run_dir is not None or ctx.find_root().info_name != _PLUG_IN):
        return None
    from rljob_workers.cli import kubectl

    return kubectl.Kubectl(namespace=namespace, context=context)


def _exit_with(command: Callable[[], int]) -> NoReturn:
    """End with the command's exit code: 0 done, 1 failed, 2 bad input (nothing started), 130 stopped by the user."""
    try:
        code = command()
    except errors.ManifestError as error:
        code = _print_errors(error.problems, names.ExitCode.BAD_INPUT)
    except errors.DataError as error:
        code = _print_errors([str(error)], names.ExitCode.BAD_INPUT)
    except errors.RLJobError as error:
        code = _print_errors([str(error)], names.ExitCode.FAILED)
    except PermissionError as error:
        code = _print_errors([f"{error.filename} may not be read: permission denied"], names.ExitCode.FAILED)
    except KeyboardInterrupt:
        code = int(names.ExitCode.INTERRUPTED)
    raise typer.Exit(code)


def _print_errors(problems: Sequence[str], code: names.ExitCode) -> int:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return int(code)


@app.command()
def run(
    manifest: ManifestArgument,
    run_dir: RunDirOption = None,
    skip_check: Annotated[bool, typer.Option("--skip-check", help="Do not check data and model first.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Instead of spec.seed.", show_default=False)] = None,
    changes: ChangesOption = None,
) -> None:
    """Run a job on this machine; the same command again goes on from its last checkpoint.

    Ctrl-C saves a checkpoint and ends; a second Ctrl-C ends at once.
    """
    from rljob_workers.cli import run as command

    made = [*(changes or []), *([] if seed is None else [f"spec.seed={seed}"])]
    _exit_with(lambda: command.run(manifest, run_dir=run_dir, skip_check=skip_check, changes=made))


@app.command("eval")
def evaluate(
    manifest: ManifestArgument,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Folder in Hugging Face layout (such as RUN/export), hub id or builtin name.",
            show_default="spec.model.name",
        ),
    ] = "",
    suites: Annotated[
        list[str] | None, typer.Option("--suite", metavar="NAME", help="Only this suite; may be repeated.")
    ] = None,
    step: Annotated[int, typer.Option("--step", min=0, help="The step that the results are filed under.")] = 0,
    run_dir: Annotated[
        pathlib.Path | None,
        typer.Option("--run-dir", help="The evaluation's directory.", show_default="runs/<job name>-eval/<time>"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    skip_check: Annotated[bool, typer.Option("--skip-check", help="Do not check data and model first.")] = False,
    changes: ChangesOption = None,
) -> None:
    """Evaluate a model on the suites of a manifest (spec.evaluation), without training.

    Prints accuracy, score and lengths by suite and their average, and writes every response. Exit code 0: all suites
    have a result; 1: some items could not be graded, or a process failed; 2: bad input, nothing was started.
    """
    from rljob_workers.cli import run as command
    from rljob_workers.local import evaluate as evaluation

    options = evaluation.Options(suites=tuple(suites or ()), step=step, as_json=json)
    _exit_with(
        lambda: command.evaluate(
            manifest, model=model, options=options, run_dir=run_dir, skip_check=skip_check, changes=changes or ()
        )
    )


@app.command()
def plan(
    manifest: ManifestArgument,
    output: OutputOption = choices.Output.TEXT,
    changes: ChangesOption = None,
) -> None:
    """Show what a manifest means: every effective value and why, warnings, memory; refuse what cannot work."""
    from rljob_workers.cli import run as command

    _exit_with(lambda: command.plan(manifest, as_json=output is choices.Output.JSON, changes=changes or ()))


@app.command()
def status(
    ctx: typer.Context,
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every two seconds until the run ends.")
    ] = False,
    output: OutputOption = choices.Output.TEXT,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Show how a run stands: one line per process, one progress line, who waits for whom."""
    from rljob_workers.cli import cluster_status
    from rljob_workers.cli import inspect as command

    as_json = json or output is choices.Output.JSON

    def show() -> int:
        client = _cluster_of(ctx, run_dir=run_dir, cluster=cluster, namespace=namespace, context=context)
        if client is not None:
            return cluster_status.status(client, job, as_json=as_json, again=watch)
        return command.status(job, run_dir=run_dir, as_json=as_json, again=watch)

    _exit_with(show)


@app.command()
def why(
    ctx: typer.Context,
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    events: Annotated[int, typer.Option("--events", min=0, help="How many of the last events to show.")] = 8,
    output: OutputOption = choices.Output.TEXT,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Tell why a run is where it is: who waits for whom, who holds it up, and the last events.

    Of a run that ended: how, and what broke.
    """
    from rljob_workers.cli import cluster_status
    from rljob_workers.cli import inspect as command

    as_json = output is choices.Output.JSON

    def show() -> int:
        client = _cluster_of(ctx, run_dir=run_dir, cluster=cluster, namespace=namespace, context=context)
        if client is not None:
            return cluster_status.why(client, job, as_json=as_json, num_events=events)
        return command.why(job, run_dir=run_dir, as_json=as_json, num_events=events)

    _exit_with(show)


@app.command()
def logs(
    ctx: typer.Context,
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            help="Only this role or process, or the runner; may be repeated.",
            autocompletion=choices.roles,
        ),
    ] = None,
    step: Annotated[
        str, typer.Option("--step", metavar="K or K-L", help="Only what belongs to these steps.", show_default=False)
    ] = "",
    group: Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="Only about this group.")] = None,
    level: Annotated[choices.Level, typer.Option("--level", help="At least this severe.")] = choices.Level.DEBUG,
    since: Annotated[
        str, typer.Option("--since", metavar="SPAN or TIME", help="Such as 10m or a time.", show_default=False)
    ] = "",
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only the last lines, so many.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    output: OutputOption = choices.Output.TEXT,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Show the logs of all processes of a run, merged by time (UTC); with the runner's own starts and endings.

    --step shows lines that name the step and, on this machine, of those that name none what was written while it was
    worked on. --follow in a cluster shows lines as they come. With --output json it is one JSON object a line.
    """
    from rljob_workers.cli import cluster_logs
    from rljob_workers.cli import logs as command

    options = command.Options(
        roles=tuple(role or ()),
        step=step,
        groups=tuple(group or ()),
        level=level,
        since=since,
        tail=tail,
        follow=follow,
        as_json=output is choices.Output.JSON,
    )

    def show() -> int:
        client = _cluster_of(ctx, run_dir=run_dir, cluster=cluster, namespace=namespace, context=context)
        if client is not None:
            return cluster_logs.logs(client, job, options)
        return command.logs(job, run_dir=run_dir, options=options)

    _exit_with(show)


@app.command()
def trajectories(
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Trained in this step (--evaluation: of its weights).")
    ] = None,
    version: Annotated[
        list[int] | None, typer.Option("--version", help="Finished under this weight version; may be repeated.")
    ] = None,
    reward: Annotated[
        str, typer.Option("--reward", metavar="TEST", help="Such as 1, '>0.5', '<=0' or 0.2..0.8.", show_default=False)
    ] = "",
    reason: Annotated[
        list[str] | None,
        typer.Option(
            "--reason",
            help="Of the verdict or of the group's drop, such as no_answer; may be repeated.",
            autocompletion=choices.reasons,
        ),
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="Of this group only.")] = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", metavar="ID", help="Of this prompt only.")] = None,
    truncated: Annotated[bool, typer.Option("--truncated", help="Cut by length only.")] = False,
    evaluation: Annotated[bool, typer.Option("--evaluation", help="Of evaluations, not of training.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many to show at most; 0: all.")] = 10,
    max_chars: Annotated[int, typer.Option("--max-chars", min=0, help="Of each text; 0: all. Not for JSON.")] = 2000,
    output: OutputOption = choices.Output.TEXT,
) -> None:
    """Look at what the policy wrote: prompt, turns, verdict, versions, advantage; the newest weights first.

    Reads the run's dumps (spec.observability.trajectoryDump) and ledger. Text of the policy is shown with control
    characters as escapes; with --output json it is one JSON object a line, texts whole.
    """
    from rljob_workers.cli import trajectories as command

    def show() -> int:
        wanted = command.RowFilter(
            reward=command.reward_test(reward) if reward else None,
            reasons=command.checked_reasons(reason or ()),
            prompt_ids=tuple(prompt or ()),
            truncated=truncated,
        )
        options = command.Options(
            wanted=wanted,
            step=step,
            versions=tuple(version or ()),
            groups=tuple(group or ()),
            evaluation=evaluation,
            limit=limit,
            max_chars=max_chars,
            as_json=output is choices.Output.JSON,
        )
        return command.trajectories(job, run_dir=run_dir, options=options)

    _exit_with(show)


@app.command()
def report(
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    output: Annotated[
        pathlib.Path | None, typer.Option("--output", "-o", help="The page.", show_default="report.html in the run")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print where the page is and the run's figures as JSON.")
    ] = False,
) -> None:
    """Make the report of a run, finished or not: one HTML page with its curves, readable offline."""
    from rljob_workers.cli import run as command

    _exit_with(lambda: command.report(job, run_dir=run_dir, output=output, as_json=json))


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition of RLJob, for `kubectl apply -f -`."""
    from rljob_api import crd as definition

    print(definition.text(), end="")


@app.command()
def version(output: OutputOption = choices.Output.TEXT) -> None:
    """Print the version."""
    as_json = output is choices.Output.JSON
    print(json_text({"version": rljob_api.__version__}) if as_json else f"rljob {rljob_api.__version__}")
