"""The commands of `rljob` and their options. What they do is in the module of the same name."""

import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from json import dumps as json_text  # options are named json
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import rljob_api
from rljob_api import enums, errors
from rljob_workers.cli import choices, extras

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
        help="Name of the job, its manifest or run directory. Default: the only run below runs/.",
        autocompletion=choices.jobs,
    ),
]
OutputOption = Annotated[choices.Output, typer.Option("--output", "-o", help="Output format.")]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="path=value", help="Override a field, for example spec.maxSteps=5. May be repeated."),
]
RuntimeOption = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--runtime", metavar="FILE", help="Manifest of the job's runtime: its values count, its pod templates not."
    ),
]
RunDirOption = Annotated[
    pathlib.Path | None, typer.Option("--run-dir", help="Run directory.", show_default="runs/<job name>")
]

ClusterOption = Annotated[
    bool, typer.Option("--cluster", help="Look up the job in a cluster, as `kubectl rljob` does.")
]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace of the job; implies --cluster.", show_default=False)
]
ContextOption = Annotated[
    str, typer.Option("--context", help="kubectl context to use; implies --cluster.", show_default=False)
]
# Of commands that are about a cluster alone.
ClusterNamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace of the job.", show_default="that of the context")
]
ClusterContextOption = Annotated[
    str, typer.Option("--context", help="kubectl context to use.", show_default="the current one")
]
_PLUG_IN = "kubectl rljob"


def _cluster_of(
    ctx: typer.Context, *, run_dir: pathlib.Path | None, cluster: bool, namespace: str, context: str
) -> "kubectl.Kubectl | None":
    """Return the cluster that a command is about, by an option or as kubectl's plug-in; None for this machine.

    Raises ManifestError if a run directory is named too.
    """
    in_cluster = cluster or bool(namespace or context)
    if in_cluster and run_dir is not None:
        raise errors.ManifestError(
            "--run-dir selects a run on this machine and cannot be combined with --cluster, --namespace or --context"
        )
    if not in_cluster and (run_dir is not None or ctx.find_root().info_name != _PLUG_IN):
        return None
    from rljob_workers.cli import kubectl

    return kubectl.Kubectl(namespace=namespace, context=context)


def _exit_with(command: Callable[[], int]) -> NoReturn:
    """End with the command's exit code: 0 done, 1 failed, 2 bad input (nothing started), 130 stopped by the user."""
    try:
        code = command()
    except errors.ManifestError as error:
        code = _print_errors(error.problems, enums.ExitCode.BAD_INPUT)
    except errors.DataError as error:
        code = _print_errors([str(error)], enums.ExitCode.BAD_INPUT)
    except errors.RLJobError as error:
        code = _print_errors([str(error)], enums.ExitCode.FAILED)
    except PermissionError as error:
        code = _print_errors([f"cannot read {error.filename}: permission denied"], enums.ExitCode.FAILED)
    except KeyboardInterrupt:
        code = int(enums.ExitCode.INTERRUPTED)
    raise typer.Exit(code)


def _require(command: str, modules: Mapping[str, str]) -> None:
    """End with a sentence where the command's extras are not installed; called before anything of them is imported."""
    try:
        extras.require(command, modules)
    except errors.ManifestError as error:
        raise typer.Exit(_print_errors(error.problems, enums.ExitCode.BAD_INPUT)) from error


def _print_errors(problems: Sequence[str], code: enums.ExitCode) -> int:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return int(code)


@app.command()
def run(
    manifest: ManifestArgument,
    run_dir: RunDirOption = None,
    skip_check: Annotated[
        bool, typer.Option("--skip-check", help="Skip the checks of data, model and tokenizer.")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Override spec.seed.", show_default=False)] = None,
    changes: ChangesOption = None,
    runtime: RuntimeOption = None,
) -> None:
    """Run a job on this machine. Run the same command again to resume from the last checkpoint.

    Ctrl-C saves a checkpoint and stops; a second Ctrl-C stops at once.
    """
    _require("run", extras.RUN)
    from rljob_workers.cli import run as command

    overrides = [*(changes or []), *([] if seed is None else [f"spec.seed={seed}"])]
    _exit_with(
        lambda: command.run(manifest, run_dir=run_dir, skip_check=skip_check, changes=overrides, runtime=runtime)
    )


@app.command("eval")
def evaluate(
    manifest: ManifestArgument,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Hugging Face folder (such as RUN/export), hub ID or built-in name.",
            show_default="spec.model.name",
        ),
    ] = "",
    suites: Annotated[
        list[str] | None, typer.Option("--suite", metavar="NAME", help="Evaluate only this suite. May be repeated.")
    ] = None,
    step: Annotated[int, typer.Option("--step", min=0, help="Training step to record the results under.")] = 0,
    run_dir: Annotated[
        pathlib.Path | None,
        typer.Option("--run-dir", help="Directory of the evaluation.", show_default="runs/<job name>-eval/<time>"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    skip_check: Annotated[
        bool, typer.Option("--skip-check", help="Skip the checks of data, model and tokenizer.")
    ] = False,
    changes: ChangesOption = None,
) -> None:
    """Evaluate a model on the suites of a manifest (spec.evaluation), without training.

    Prints accuracy, score and lengths by suite and their average, and writes every response. Exit code 0: all suites
    have a result; 1: some items could not be graded, or a process failed; 2: bad input, nothing was started.
    """
    _require("eval", extras.RUN)
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
    runtime: RuntimeOption = None,
    for_cluster: Annotated[
        bool, typer.Option("--for-cluster", help="Also refuse what every cluster refuses and one machine does not.")
    ] = False,
) -> None:
    """Validate a manifest and show every effective value with its origin, warnings and estimated memory.

    A manifest for `rljob run` needs no `storage` section: all is in the run directory. In a cluster it must say where
    ledger, checkpoints and model go, or its runtime does; `--for-cluster` refuses one that does not.
    """
    from rljob_workers.cli import plan as command

    as_json = output is choices.Output.JSON
    _exit_with(
        lambda: command.plan(manifest, as_json=as_json, changes=changes or (), runtime=runtime, for_cluster=for_cluster)
    )


@app.command()
def submit(
    manifest: ManifestArgument,
    changes: ChangesOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only ask the API server whether it would take the job.")
    ] = False,
    namespace: ClusterNamespaceOption = "",
    context: ClusterContextOption = "",
) -> None:
    """Check a manifest as a cluster would and create its RLJob there, or change the one that there is."""
    from rljob_workers.cli import kubectl
    from rljob_workers.cli import submit as command

    _exit_with(
        lambda: command.submit(
            kubectl.Kubectl(namespace=namespace, context=context), manifest, changes=changes or (), dry_run=dry_run
        )
    )


@app.command()
def retry(
    job: JobArgument = "",
    namespace: ClusterNamespaceOption = "",
    context: ClusterContextOption = "",
) -> None:
    """Let a run that failed in a cluster continue from its last checkpoint. On one machine: `rljob run` again."""
    from rljob_workers.cli import cluster, kubectl

    _exit_with(lambda: cluster.retry(kubectl.Kubectl(namespace=namespace, context=context), job))


@app.command()
def status(
    ctx: typer.Context,
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --output json.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds until the run ends.")] = False,
    output: OutputOption = choices.Output.TEXT,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Show the status of a run: a line per process, its progress, and who waits for whom."""
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
    events: Annotated[int, typer.Option("--events", min=0, help="Number of recent events to show.")] = 8,
    output: OutputOption = choices.Output.TEXT,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Explain what a run is waiting for: who waits for whom, what is blocking it, and recent events.

    For a run that ended: how it ended, and what failed.
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
            help="Show only this role or process, or the runner. May be repeated.",
            autocompletion=choices.roles,
        ),
    ] = None,
    step: Annotated[
        str, typer.Option("--step", metavar="K or K-L", help="Show only lines of these steps.", show_default=False)
    ] = "",
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="ID", help="Show only lines about this group.")
    ] = None,
    level: Annotated[choices.Level, typer.Option("--level", help="Minimum severity.")] = choices.Level.DEBUG,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="SPAN or TIME",
            help="Show only lines since then: 10m ago, or a time.",
            show_default=False,
        ),
    ] = "",
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Show only the last N lines.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run ends.")] = False,
    output: OutputOption = choices.Output.TEXT,
    cluster: ClusterOption = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Show the logs of all processes of a run, merged by time (UTC), with process starts and exits.

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
        int | None,
        typer.Option("--step", min=0, help="Trained in this step (with --evaluation: sampled from its weights)."),
    ] = None,
    version: Annotated[
        list[int] | None, typer.Option("--version", help="Finished under this weight version. May be repeated.")
    ] = None,
    reward: Annotated[
        str,
        typer.Option(
            "--reward", metavar="TEST", help="Filter by reward: 1, '>0.5', '<=0' or 0.2..0.8.", show_default=False
        ),
    ] = "",
    reason: Annotated[
        list[str] | None,
        typer.Option(
            "--reason",
            help="Filter by reason of a verdict or of a dropped group, such as no_answer. May be repeated.",
            autocompletion=choices.reasons,
        ),
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="Only this group.")] = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", metavar="ID", help="Only this prompt.")] = None,
    truncated: Annotated[bool, typer.Option("--truncated", help="Only truncated answers.")] = False,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Evaluation trajectories instead of training ones.")
    ] = False,
    examples: Annotated[
        bool, typer.Option("--examples", help="Write answers as examples for supervised steps, one JSON object a line.")
    ] = False,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="With --examples: each prompt with each answer once.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number to show; 0 for all.")] = 10,
    max_chars: Annotated[
        int, typer.Option("--max-chars", min=0, help="Maximum characters per text; 0 for all. Ignored for JSON.")
    ] = 2000,
    output: OutputOption = choices.Output.TEXT,
) -> None:
    """Show what the policy generated: prompt, turns, verdict, versions, advantage; newest weights first.

    Reads the run's dumps (spec.observability.trajectoryDump) and ledger. Text of the policy is shown with control
    characters as escapes; with --output json it is one JSON object a line, texts whole.
    """
    from rljob_workers.cli import trajectories as command

    def show() -> int:
        row_filter = command.RowFilter(
            reward=command.reward_test(reward) if reward else None,
            reasons=command.checked_reasons(reason or ()),
            prompt_ids=tuple(prompt or ()),
            truncated=truncated,
        )
        options = command.Options(
            row_filter=row_filter,
            step=step,
            versions=tuple(version or ()),
            groups=tuple(group or ()),
            evaluation=evaluation,
            limit=limit,
            max_chars=max_chars,
            as_json=output is choices.Output.JSON,
            as_examples=examples,
            distinct=distinct,
        )
        return command.trajectories(job, run_dir=run_dir, options=options)

    _exit_with(show)


@app.command()
def report(
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    output: Annotated[
        pathlib.Path | None, typer.Option("--output", "-o", help="Output file.", show_default="report.html in the run")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the path and the run's summary as JSON.")] = False,
) -> None:
    """Write a report of a run, finished or not: one self-contained HTML page with its curves."""
    _require("report", extras.REPORT)
    from rljob_workers.cli import run as command

    _exit_with(lambda: command.report(job, run_dir=run_dir, output=output, as_json=json))


@app.command()
def push(
    repository: Annotated[str, typer.Option("--to", metavar="ORG/NAME", help="Repository on the Hugging Face hub.")],
    job: JobArgument = "",
    run_dir: RunDirOption = None,
    public: Annotated[bool, typer.Option("--public", help="Make a repository that everyone can read.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the model card and the files; send nothing.")
    ] = False,
) -> None:
    """Push the model that a run exported to the Hugging Face hub, with a card of its provenance.

    The token is that of HF_TOKEN or of `hf auth login`. A new repository is private.
    """
    if not dry_run:
        _require("push", extras.PUSH)
    from rljob_workers.cli import run as command
    from rljob_workers.local import hub

    options = hub.Options(repository=repository, public=public, dry_run=dry_run)
    _exit_with(lambda: command.push(job, run_dir=run_dir, options=options))


@app.command()
def ui(
    ctx: typer.Context,
    folder: Annotated[
        pathlib.Path | None,
        typer.Argument(metavar="[RUNS]", help="Folder of run directories, or one of them.", show_default="runs"),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")] = 8321,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Show the jobs of a namespace, with kubectl's rights.")
    ] = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Show the runs of this machine, or the jobs of a namespace, in a browser. Read only.

    Curves, who waits for whom and trajectories; of jobs in a cluster their curves if you may exec into their
    coordinators, and no trajectories.

    Prints the address. It answers this machine alone, to who has the token in it; from elsewhere use
    `ssh -L 8321:127.0.0.1:8321`. Ctrl-C ends it, and no run.
    """
    from rljob_workers.cli.ui import cluster_runs, server, views
    from rljob_workers.local import prepare

    def serve() -> int:
        if folder is not None and (cluster or namespace or context):
            raise errors.ManifestError(
                f"RUNS is {folder}, a folder of this machine, which cannot be combined with --cluster, --namespace or"
                " --context"
            )
        client = _cluster_of(ctx, run_dir=folder, cluster=cluster, namespace=namespace, context=context)
        local = views.Runs(folder or prepare.default_run_dir(""))
        server.serve(cluster_runs.ClusterRuns(client, namespace=namespace) if client else local, port=port)
        return int(enums.ExitCode.OK)

    _exit_with(serve)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinitions of RLJob and its runtimes, for `kubectl apply -f -`."""
    from rljob_api.validation import definitions

    print(definitions.text(), end="")


@app.command()
def version(output: OutputOption = choices.Output.TEXT) -> None:
    """Print the version."""
    as_json = output is choices.Output.JSON
    print(json_text({"version": rljob_api.__version__}) if as_json else f"rljob {rljob_api.__version__}")
