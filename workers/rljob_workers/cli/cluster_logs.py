"""`rljob logs` of a job in a cluster: the pods that there are, merged by time, or as they write."""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator

from rljob_api import enums, errors
from rljob_workers.cli import cluster, kubectl
from rljob_workers.cli import logs as local_logs
from rljob_workers.local.run import child
from rljob_workers.local.rundir import log_lines

# Each pod's log is a connection that is open at the same time as the others.
MAX_PODS = 64
_MOST_ENDS = 4
# What `kubectl logs --prefix --timestamps` puts before a line.
_PREFIX = re.compile(r"(?:\[pod/(?P<pod>[^/\]]+)/[^\]]*\] )?(?P<time>\S+) ?(?P<text>.*)", re.DOTALL)


def logs(client: kubectl.Kubectl, job: str, options: local_logs.Options) -> int:
    """Print the lines of all pods of the job. Raises ManifestError for bad options, ClusterError."""
    cluster_job = cluster.find(client, job)
    pods = cluster.pods(client, cluster_job.name)
    sources = {_short(pod.name, cluster_job.name): pod.name for pod in pods}
    chosen = local_logs.checked_roles(options.roles, sorted(sources))
    if len(chosen) > MAX_PODS:
        raise errors.ManifestError(f"{len(chosen)} pods are more than {MAX_PODS} at once: choose with --role")
    line_filter = local_logs.filter_of(options, None)
    if options.follow:
        lines = _arriving(client, cluster_job.name, -1 if options.tail is None else options.tail)
    else:
        # The last lines of all are among the last of each, unless a filter comes between.
        limit = (
            [f"--tail={options.tail}"] if options.tail is not None and line_filter == local_logs.LineFilter() else []
        )
        lines = log_lines.merge(_stream(client, sources[source], source, limit) for source in sorted(chosen))
    shown: Iterable[log_lines.Line] = (line for line in lines if line.source in chosen and line_filter.matches(line))
    if options.tail is not None and not options.follow:
        shown = collections.deque(shown, maxlen=options.tail)
    local_logs.show(shown, as_json=options.as_json)
    return int(enums.ExitCode.OK)


def last_lines(client: kubectl.Kubectl, pods: Iterable[cluster.Pod], count: int) -> dict[str, list[str]]:
    """Return the last lines of each pod that ran, readable; of a container that waits to run again, how it ended.

    The logs of more than a few pods no one reads: the first ones are asked.
    """
    return {
        pod.name: _last(client, pod, count) for pod in itertools.islice((pod for pod in pods if pod.ran), _MOST_ENDS)
    }


def _last(client: kubectl.Kubectl, pod: cluster.Pod, count: int) -> list[str]:
    words = ["logs", pod.name, f"--container={cluster.CONTAINER}", f"--tail={count}"]
    words += ["--previous"] if pod.ran_before else []
    try:
        lines = [text for text in client.lines(words, max_bytes=log_lines.MAX_LINE_BYTES) if text.strip()]
    except errors.ClusterError:
        # It went meanwhile, or its log did: what the cluster says of the pod is still reported.
        return []
    return [child.readable(text) for text in lines[-count:]]


def line_of(text: str, *, source: str, job: str, before: float = 0.0) -> log_lines.Line:
    """Return a line that kubectl printed with --timestamps, and with --prefix where `source` is empty."""
    match = _PREFIX.fullmatch(text)
    if match is None:
        return log_lines.parse(text, source=source, before=before)
    pod = source or _short(match["pod"] or "", job)
    return log_lines.parse(match["text"], source=pod, before=max(before, log_lines.unix_s(match["time"], before)))


def _stream(client: kubectl.Kubectl, pod: str, source: str, limit: list[str]) -> Iterator[log_lines.Line]:
    before = 0.0
    words = ["logs", pod, f"--container={cluster.CONTAINER}", "--timestamps", *limit]
    try:
        for text in client.lines(words, max_bytes=log_lines.MAX_LINE_BYTES):
            line = line_of(text, source=source, job="", before=before)
            before = line.at
            yield line
    except errors.ClusterError as error:
        # A pod that has not started, or is gone, has no log; those of the others are still worth reading.
        yield log_lines.Line(at=before, source=source, msg=str(error), fields={"level": "warning", "msg": str(error)})


def _arriving(client: kubectl.Kubectl, job: str, tail: int) -> Iterator[log_lines.Line]:
    """Yield lines in the order in which they come: no one knows what a slow pod will still say."""
    words = [
        "logs", f"--selector={cluster.JOB_LABEL}={job}", f"--container={cluster.CONTAINER}", "--timestamps", "--prefix",
        "--follow", f"--max-log-requests={MAX_PODS}", f"--tail={tail}",
    ]  # fmt: skip
    for text in client.lines(words, max_bytes=log_lines.MAX_LINE_BYTES):
        yield line_of(text, source="", job=job)


def _short(pod: str, job: str) -> str:
    return pod.removeprefix(f"{job}-")
