"""Which files of tests run in one worker of pytest-xdist, because they share a cluster: each takes 20 s of a processor.

The operator's installation is had by three (test_outages.py is the third): in one its tests would take longest of all.
"""

from collections.abc import Mapping

from xdist.scheduler import LoadFileScheduling

_OPERATOR = "tests/cluster/operator"
FILES: Mapping[str, tuple[str, ...]] = {
    "control plane": (
        "tests/cluster/test_bad_manifests.py", "tests/cluster/test_command_line.py", "tests/cluster/test_crd_rules.py",
        "tests/cluster/test_gpu_manifests.py", "tests/cluster/test_sdk.py", f"{_OPERATOR}/test_preemptions.py",
        f"{_OPERATOR}/test_queues.py", f"{_OPERATOR}/test_stories.py",
    ),
    "installation: rights": (
        f"{_OPERATOR}/test_rights.py", f"{_OPERATOR}/test_autoscaling.py",
    ),
    "installation: leaders": (
        f"{_OPERATOR}/test_leaders.py", f"{_OPERATOR}/test_applies.py", f"{_OPERATOR}/test_namespaces.py",
        f"{_OPERATOR}/test_upgrade.py", "tests/cluster/chart/test_install.py",
    ),
}  # fmt: skip
_CLUSTER_OF = {file: cluster for cluster, files in FILES.items() for file in files}


class ByCluster(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """As `--dist loadfile`, and files that share a cluster are one."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return _CLUSTER_OF.get(file, file)
