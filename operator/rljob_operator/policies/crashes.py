"""When pods that are started anew and anew show that the job itself is wrong (operator reference 9.9). Pure."""

from collections.abc import Sequence

from rljob_api import names
from rljob_operator.model import Pod

CRASH_LOOP = "CrashLoopBackOff"


def misconfigured(pods: Sequence[Pod]) -> Pod | None:
    """Return a pod of a role whose pods all refuse their configuration again and again; None if there is none.

    A trainer's pods are not started anew: its attempts are judged one by one.
    """
    for role in (role for role in names.Role if role is not names.Role.TRAINER):
        own = [pod for pod in pods if pod.role is role and not pod.deleting]
        if own and all(_refuses(pod) for pod in own):
            return min(own, key=lambda pod: pod.name)
    return None


def _refuses(pod: Pod) -> bool:
    return pod.waiting_reason == CRASH_LOOP and pod.last_exit_code == names.ExitCode.CONFIGURATION
