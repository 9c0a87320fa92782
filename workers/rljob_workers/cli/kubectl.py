"""The user's own `kubectl`, with its kubeconfig, context and ways of signing in: no client and no secret of ours."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api import errors
from rljob_workers.local.rundir import bounded_lines

# Objects as the API serves them have no static types.
Object = Mapping[str, Any]

_REQUEST_S = 20
_LIMIT_S = 60.0
_SAID_BYTES = 64 << 10
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class Kubectl:
    """Runs kubectl in a namespace of a context; empty: those of the kubeconfig."""

    def __init__(self, *, namespace: str = "", context: str = "", program: str = "kubectl") -> None:
        """Look the program up. Raises ManifestError if it is not there or the namespace is not a name."""
        path = shutil.which(program)
        if path is None:
            raise errors.ManifestError(
                f"{program} is not on the PATH; rljob uses it to query a cluster: install it first"
            )
        if namespace:
            checked_name(namespace, "--namespace")
        where = [f"--namespace={namespace}"] if namespace else []
        self._command = [path, *where, *([f"--context={context}"] if context else [])]

    def get(self, *words: str) -> Object:
        """Return what `kubectl get ... -o json` answers. Raises ClusterError with kubectl's own words."""
        text = self._run("get", *words, "--output=json", f"--request-timeout={_REQUEST_S}s")
        try:
            answer: Object = json.loads(text)
        except ValueError:
            raise errors.ClusterError(f"kubectl get {words[0]} did not answer with JSON") from None
        return answer

    def apply(self, manifest: str, *, dry_run: bool) -> str:
        """Apply objects, server-side; return what kubectl prints. Raises ClusterError with kubectl's own words."""
        options = ["--server-side", "--field-manager=rljob", "--filename=-", f"--request-timeout={_REQUEST_S}s"]
        return self._run("apply", *options, *(["--dry-run=server"] if dry_run else []), stdin=manifest).strip()

    def patch(self, kind: str, name: str, change: Object) -> str:
        """Merge a change into an object; return what kubectl prints. Raises ClusterError with kubectl's own words."""
        options = ["--type=merge", f"--patch={json.dumps(change)}", "--field-manager=rljob"]
        return self._run("patch", kind, name, *options, f"--request-timeout={_REQUEST_S}s").strip()

    def _run(self, *words: str, stdin: str = "") -> str:
        what = " ".join(word for word in words[:2] if not word.startswith("-"))
        try:
            done = subprocess.run(
                [*self._command, *words], capture_output=True, check=False, timeout=_LIMIT_S, input=stdin.encode()
            )
        except subprocess.TimeoutExpired:
            raise errors.ClusterError(f"kubectl {what} did not end within {_LIMIT_S:.0f} s") from None
        if done.returncode:
            raise _failed(what, done.stderr)
        return done.stdout.decode("utf-8", errors="replace")

    def lines(self, words: Sequence[str], *, max_bytes: int) -> Iterator[str]:
        """Yield the lines that kubectl prints, as they come. Raises ClusterError if it ends with an error."""
        command = [*self._command, *words]
        with (
            tempfile.TemporaryFile() as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL) as process,
        ):
            assert process.stdout is not None
            try:
                for raw in bounded_lines.read(process.stdout, max_bytes=max_bytes):
                    yield raw.data.decode("utf-8", errors="replace")
                if process.wait():
                    stderr.seek(0)
                    raise _failed(words[0], stderr.read(_SAID_BYTES))
            finally:
                # The reader may stop before the end, as `rljob logs | head` does.
                process.kill()


def checked_name(name: str, where: str) -> str:
    """Return a name of Kubernetes. Raises ManifestError for any other text, which might read as an option."""
    if not _NAME.fullmatch(name):
        raise errors.ManifestError(
            f"{where} is {name!r}, but must be a name of Kubernetes: lower-case letters, digits, '-' and '.'"
        )
    return name


def _failed(what: str, stderr: bytes) -> errors.ClusterError:
    lines = [line for line in stderr.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return errors.ClusterError(f"kubectl {what}: {lines[-1] if lines else 'it failed without a message'}")
