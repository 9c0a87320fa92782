"""The programs of the cluster: each is looked up, or built from the checked-in Go modules into a cache folder.

Kubernetes' own are of the version that `$RLJOB_KUBERNETES` says, such as 1.35 or 1.35.4, else of the checked-in one:
go.mod of another version is derived from that, since each of its modules has the minor version in its own.

A finished program is renamed into `<cache>/tools/<module>-<key>/`; the key covers go.mod, go.sum, flags and the Go
version, and linked from `<cache>/bin/`; so a build that was cut off leaves nothing half-made. `$KUBEBUILDER_ASSETS` is
looked at first.
"""

import dataclasses
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MODULES = pathlib.Path(__file__).parents[2] / "cluster" / "tools"
OWN_KUBERNETES = "v1.36.3"
# The supported minor versions, each by the patch that the tests are run with: docs/kubernetes_versions.md.
SUPPORTED_KUBERNETES = {"1.34": "v1.34.4", "1.35": "v1.35.4", "1.36": OWN_KUBERNETES}
BUILD_TIMEOUT_S = 7200


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """A program: its name, the folder of its tools module, the package that it is built from."""

    name: str
    module: str
    package: str


_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kubectl")
# etcd of a release that Kubernetes is made for: from an older one the API server does not serve lists from its cache.
LIGHT = (*_CONTROL_PLANE, "etcd")
NODES = ("kube-scheduler", "kubelet", "kube-proxy", "coredns")
CHART = ("helm", "kubeconform")
# A real S3 service.
STORE = ("minio",)
# What installs our plug-in for kubectl.
RELEASE = ("krew",)
# What the tests of every checkout need; nodes take minutes more to build and are asked for.
TESTS = (*LIGHT, *CHART, *STORE, *RELEASE)
TOOLS: Sequence[Tool] = (
    *(Tool(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}") for name in (*_CONTROL_PLANE, *NODES[:3])),
    Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Tool("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
    Tool("kubeconform", "kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
    Tool("coredns", "coredns", "github.com/coredns/coredns"),
    Tool("minio", "minio", "github.com/minio/minio"),
    Tool("krew", "krew", "sigs.k8s.io/krew/cmd/krew"),
    Tool("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    Tool("keda-operator", "keda", "github.com/kedacore/keda/v2/cmd/operator"),
    Tool("keda-adapter", "keda", "github.com/kedacore/keda/v2/cmd/adapter"),
)


def kubernetes_version(text: str) -> str:
    """Return the version that a word means: a minor version, a release, or the checked-in version where it is empty.

    Raises ValueError.
    """
    number = text.removeprefix("v")
    version = SUPPORTED_KUBERNETES.get(number, f"v{number}") if text else OWN_KUBERNETES
    if not re.fullmatch(r"v1\.[0-9]{1,3}\.[0-9]{1,3}", version):
        minors = ", ".join(SUPPORTED_KUBERNETES)
        raise ValueError(f"RLJOB_KUBERNETES is {text!r}, but must be one of {minors} or a release such as 1.35.4")
    return version


KUBERNETES_VERSION = kubernetes_version(os.environ.get("RLJOB_KUBERNETES", ""))


class MissingProgramError(RuntimeError):
    """A program of the cluster is neither built nor installed; the message says how to get it."""


def cache_dir() -> pathlib.Path:
    """Return the cache folder of this user, outside of any checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "rljob"


def find(name: str) -> pathlib.Path:
    """Return the path of a program. Raises MissingProgramError."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    tool = next((tool for tool in TOOLS if tool.name == name), None)
    candidates = [pathlib.Path(assets) / name] if assets else []
    if tool is not None and shutil.which("go"):
        candidates.append(_target(tool))
    elif installed := shutil.which(name):
        candidates.append(pathlib.Path(installed))
    for path in candidates:
        if os.access(path, os.X_OK):
            return path
    how = "`make cluster-tools` builds it" if tool else "`tests/cluster/packages.sh` installs it"
    raise MissingProgramError(f"{name} is missing: {how}")


def build(names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Make each program be there; yield its name and whether it had to be built. Raises MissingProgramError.

    Two builders at once wait for each other, so that they do not compile the same packages twice.
    """
    for name in names:
        try:
            find(name)
            yield name, False
        except MissingProgramError:
            tool = next(tool for tool in TOOLS if tool.name == name)
            with lock(cache_dir() / "tools" / f"{tool.module}.lock"):
                if not _target(tool).exists():
                    _compile(tool)
            yield name, True


def _target(tool: Tool) -> pathlib.Path:
    return cache_dir() / "tools" / f"{tool.module}-{_key(tool)}" / tool.name


def _key(tool: Tool) -> str:
    go = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True, timeout=30)
    parts = [
        go_mod(tool),
        # Another version's sums are not checked in: Go's checksum database is what they are held against.
        (MODULES / tool.module / "go.sum").read_text() if is_own(tool) else "",
        " ".join(_flags(tool)),
        go.stdout.strip(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def is_own(tool: Tool) -> bool:
    """Return whether a program is of the version that is checked in."""
    return tool.module != "kubernetes" or KUBERNETES_VERSION == OWN_KUBERNETES


def go_mod(tool: Tool) -> str:
    """Return the tools module."""
    text = (MODULES / tool.module / "go.mod").read_text()
    if is_own(tool):
        return text
    return of_version(text, own=OWN_KUBERNETES, other=KUBERNETES_VERSION)


def of_version(text: str, *, own: str, other: str) -> str:
    """Return a tools module for another version of Kubernetes; `go mod tidy` adds what that one requires.

    Staged modules are v0.<minor>.<patch> where Kubernetes is v1.<minor>.<patch>.
    """
    head, _, rest = text.partition("tool (")
    tools, _, rest = rest.partition(")")
    staged_own, staged_other = (version.replace("v1.", "v0.", 1) for version in (own, other))
    replaced = re.findall(rf"^\t(\S+) => \1 {re.escape(staged_own)}$", rest, flags=re.MULTILINE)
    lines = [f"replace {name} => {name} {staged_other}" for name in replaced]
    return f"{head}tool ({tools})\n\nrequire k8s.io/kubernetes {other}\n\n" + "\n".join(lines) + "\n"


def _flags(tool: Tool) -> list[str]:
    """Return the build flags; Kubernetes learns its version from the linker, and wants no cloud providers."""
    if tool.module != "kubernetes":
        return ["-trimpath", "-ldflags", "-s -w"]
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = [
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in (("gitVersion", KUBERNETES_VERSION), ("gitMajor", major), ("gitMinor", minor))
    ]
    return ["-trimpath", "-tags", "providerless", "-ldflags", " ".join(["-s", "-w", *stamps])]


def _compile(tool: Tool) -> None:
    target = _target(tool)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        fresh, module = pathlib.Path(folder) / tool.name, MODULES / tool.module
        if not is_own(tool):
            module = pathlib.Path(folder) / "module"
            module.mkdir()
            (module / "go.mod").write_text(go_mod(tool))
            _go(["mod", "tidy"], module, tool)
        _go(["build", *_flags(tool), "-o", str(fresh), tool.package], module, tool)
        fresh.rename(target)
    if is_own(tool):
        _link(target)


def _go(words: Sequence[str], module: pathlib.Path, tool: Tool) -> None:
    done = subprocess.run(
        ["go", *words], cwd=module, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True,
        timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise MissingProgramError(f"building {tool.name} failed: {done.stderr[-2000:]}")


def _link(target: pathlib.Path) -> None:
    """Point `<cache>/bin/<name>` at the program, in one step."""
    link = cache_dir() / "bin" / target.name
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


@contextmanager
def lock(path: pathlib.Path) -> Iterator[None]:
    """Hold a lock that belongs to a path, against other processes; wait for anyone who holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
