"""The words of a run: its progress line, one line per role, and what it waits for. Pure; `display.py` shows them."""

from collections.abc import Mapping

from rljob_api import enums, types
from rljob_workers.local.run import supervise

_ETA_FROM_STEP = 5
# The coordinator hears nothing of these.
_UNREPORTED = (enums.Role.VERIFIER, enums.Role.JUDGE, enums.Role.AGENTS, enums.Role.ENVIRONMENT)


def progress_line(status: types.RunStatus, *, rollouts_wanted: int) -> str:
    """Return `step 41/200  reward 0.62 (+0.03)  rollout 3/4  lag 1  ...`; unknown parts are left out."""
    parts = [
        f"step {status.step}/{status.max_steps}",
        reward(status.reward_mean, status.reward_delta),
        f"rollout {ready_rollouts(status)}/{rollouts_wanted}",
        f"lag {status.version_lag_steps}",
    ]
    parts += pace(
        step=status.step,
        max_steps=status.max_steps,
        trainer_wait_share=status.trainer_wait_share,
        rollout_wait_share=status.rollout_wait_share,
        tokens_per_s=status.tokens_per_s,
        step_s=status.step_s,
    )
    return "  ".join(part for part in parts if part)


def pace(
    *,
    step: int,
    max_steps: int,
    trainer_wait_share: float,
    rollout_wait_share: float,
    tokens_per_s: float,
    step_s: float,
) -> list[str]:
    """Return who waits (shares, 0..1), the speed, and the time to the last step, as far as it is known."""
    parts = []
    if step > 0:
        parts += [f"trainer waits {trainer_wait_share * 100:.0f} %", f"rollouts wait {rollout_wait_share * 100:.0f} %"]
    if tokens_per_s > 0:
        parts.append(f"{tokens_per_s:,.0f} tok/s")
    if step >= _ETA_FROM_STEP and step_s > 0 and step < max_steps:
        parts.append(f"ETA {duration((max_steps - step) * step_s)}")
    return parts


def reward(mean: float | None, delta: float | None) -> str:
    """Return `reward 0.62 (+0.03)`; empty without a mean."""
    if mean is None:
        return ""
    return f"reward {mean:.2f}" + ("" if delta is None else f" ({delta:+.2f})")


def ready_rollouts(status: types.RunStatus) -> int:
    return sum(pod.role == enums.Role.ROLLOUT and pod.ready for pod in status.pods)


def duration(seconds: float) -> str:
    """Return `45s`, `3m20s`, `1h12m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def role_line(name: str, state: supervise.State, status: types.RunStatus | None) -> str:
    """Return one line about a process: what it does, its version, its leases."""
    return f"{name:<14} {_doing(name, state, status)}"


def _doing(name: str, state: supervise.State, status: types.RunStatus | None) -> str:
    if state.restart_in_s is not None:
        return f"restarts in {state.restart_in_s:.0f} s"
    if not state.running:
        return "ended"
    if state.role is enums.Role.COORDINATOR:
        return "starting" if status is None else str(status.phase).lower()
    pod = None if status is None else _pod_of(name, state.role, status)
    if pod is None:
        return "running" if state.role in _UNREPORTED else "starting"
    return "  ".join(_pod_facts(pod))


def _pod_of(name: str, role: enums.Role, status: types.RunStatus) -> types.PodStatus | None:
    of_role = [pod for pod in status.pods if pod.role == role]
    return next((pod for pod in of_role if pod.pod.endswith(name)), of_role[0] if of_role else None)


def _pod_facts(pod: types.PodStatus) -> list[str]:
    facts = [pod.state.lower() or ("ready" if pod.ready else "starting")]
    if pod.role == enums.Role.ROLLOUT:
        version = f"version {pod.serving_version}" if pod.serving_version >= 0 else "no version yet"
        facts += [version, f"{pod.leases} groups"]
    if pod.role == enums.Role.TRAINER and pod.attempt > 1:
        facts.append(f"attempt {pod.attempt}")
    return facts


def phase_line(status: types.RunStatus | None, states: Mapping[str, supervise.State]) -> str:
    """Return what the run is doing when it is not simply stepping."""
    restarting = [(name, state.restart_in_s) for name, state in states.items() if state.restart_in_s is not None]
    if restarting:
        return ", ".join(f"{name} restarts in {delay_s:.0f} s" for name, delay_s in restarting)
    if status is None:
        return "starting the processes"
    loading = [name for name, state in states.items() if _is_loading(name, state, status)]
    # A trainer may still load while the rollouts evaluate; the other way round nothing is evaluated yet.
    if loading and not (status.evaluating and ready_rollouts(status)):
        return f"starting: {' and '.join(loading)} loading the model"
    if status.evaluating:
        return f"evaluating {status.evaluating}"
    if status.phase in (enums.Phase.STARTING, enums.Phase.STOPPED):
        return f"starting: {status.reason or 'waiting for the first batch'}"
    if status.phase is enums.Phase.RUNNING:
        return status.reason or _step_under_way(status)
    return status.reason or str(status.phase).lower()


def _step_under_way(status: types.RunStatus) -> str:
    return supervised_step(status.step, status.sft_steps) or f"working on step {status.step + 1}"


def supervised_step(step: int, sft_steps: int) -> str:
    """Return `supervised step 3 of 20` of a run that has finished `step` steps; empty once those are over."""
    return f"supervised step {step + 1} of {sft_steps}" if step < sft_steps else ""


def _is_loading(name: str, state: supervise.State, status: types.RunStatus) -> bool:
    if state.role not in (enums.Role.ROLLOUT, enums.Role.TRAINER) or not state.running:
        return False
    pod = _pod_of(name, state.role, status)
    if pod is None or pod.last_seen < state.started_at:
        # What the coordinator knows is of the process before this one.
        return True
    # A rollout that was ready is not for a moment while it applies new weights.
    starting = not pod.ready and pod.state.upper() in ("", enums.ReceiverState.STARTING)
    return state.role is enums.Role.ROLLOUT and starting
