"""The metrics of the programs: name, type, labels, help, buckets; docs/metrics.md is generated from them."""

import dataclasses

from rljob_api import enums


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: Prometheus type c, g or h, labels besides the job's, help with the unit, histogram buckets.

    role: None for the operator's, whose labels name the job where there is one.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    role: enums.Role | None = None
    buckets: tuple[float, ...] = ()


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Fewer, because each phase has them all.
_SYNC = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 300)
_DRAIN = (1, 5, 15, 30, 60, 120, 300, 600)
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def _c(role: enums.Role, name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="c", help=text, labels=labels, role=role)


def _g(role: enums.Role, name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="g", help=text, labels=labels, role=role)


def _h(role: enums.Role, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Metric:
    return Metric(name=name, kind="h", help=text, labels=labels, role=role, buckets=buckets)


_C, _R, _V, _T = enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER, enums.Role.TRAINER
_J, _E = enums.Role.JUDGE, enums.Role.ENVIRONMENT

METRICS: tuple[Metric, ...] = (
    _g(_C, "rljob_step", "Completed optimizer publishes."),
    _g(_C, "rljob_max_steps", "Steps that the job asks for."),
    _g(_C, "rljob_setting", "Job values that alerts compare with.", "name"),
    _g(_C, "rljob_policy_version", "Weight version ids by state.", "state"),
    _g(_C, "rljob_queue_depth", "Prompt groups by ledger state.", "queue"),
    _g(_C, "rljob_inflight_limit", "Groups that the staleness bound still admits."),
    _c(_C, "rljob_trajectories_total", "Submitted trajectories by outcome.", "outcome"),
    _c(_C, "rljob_answers_total", "Answers by what became of them.", "fate"),
    _c(
        _C,
        "rljob_answer_tokens_total",
        "Sampled tokens of those answers; unknown, and not counted, where cancelled.",
        "fate",
    ),
    _c(
        _C,
        "rljob_packed_tokens_total",
        "Tokens of the micro-batches of trained steps: computed; unique in a group, which is the least that could be;"
        " and of the rows, prefixes that they share counted in each.",
        "kind",
    ),
    _c(_C, "rljob_groups_dropped_total", "Dropped groups by reason.", "reason"),
    _h(
        _C,
        "rljob_trajectory_staleness_steps",
        "Age in steps of each consumed group's oldest token in the loss.",
        buckets=_STEPS,
    ),
    _c(_C, "rljob_prompt_retries_total", "Prompts offered again, by class of failure.", "class"),
    _c(
        _C,
        "rljob_infra_failures_total",
        "Infrastructure failures by role and reason; never a reward.",
        "role",
        "reason",
    ),
    _c(_C, "rljob_zero_advantage_groups_total", "Groups whose advantages are all exactly 0."),
    _c(_C, "rljob_leases_expired_total", "Leases that ran past their deadline."),
    _c(_C, "rljob_fenced_calls_total", "Calls of replaced sessions and trainer attempts, which are refused."),
    _h(_C, "rljob_group_seconds", "Seconds that a group spends in a phase.", "phase"),
    _g(_C, "rljob_wait_share_ratio", "Share of time lost waiting, sliding window.", "waiter"),
    _g(_C, "rljob_rollout_pressure_ratio", "Rollout capacity needed over capacity present; target 1."),
    _g(_C, "rljob_last_progress_timestamp_seconds", "Unix time of the last progress."),
    _g(_C, "rljob_reward_mean", "Mean raw reward of the rows that the last step trained."),
    _g(_C, "rljob_reward_std", "Standard deviation of the raw reward of the rows that the last step trained."),
    _g(
        _C,
        "rljob_sampled_reward_mean",
        "Mean raw reward of all answers that were graded for the last step, also of groups that filterGroups left out.",
    ),
    _g(_C, "rljob_sampled_reward_std", "Standard deviation of the raw reward of all answers graded for the last step."),
    _g(_C, "rljob_reward_component_mean", "Mean of each named reward, last step.", "reward"),
    _g(_C, "rljob_eval_score", "Last evaluation score.", "suite", "metric"),
    _h(_C, "rljob_response_tokens", "Sampled tokens per row.", buckets=_TOKENS),
    _g(_C, "rljob_truncated_ratio", "Share of rows cut by length, last step."),
    # Oat's actor/ metrics, one by one.
    _g(_C, "rljob_actor_rewards", "Oat's actor/rewards: mean graded reward before truncated responses count 0."),
    _g(_C, "rljob_actor_avg_reward", "Oat's actor/avg_reward: mean reward after truncated responses count 0."),
    _g(_C, "rljob_actor_num_data", "Oat's actor/num_data: graded responses of the last step."),
    _g(_C, "rljob_actor_num_transitions", "Oat's actor/num_transitions: rows of the last step."),
    _g(_C, "rljob_actor_formatted_ratio", "Oat's actor/formatted: share of responses in the expected format."),
    _g(_C, "rljob_actor_response_tok_len", "Oat's actor/response_tok_len: mean tokens of a response."),
    _g(_C, "rljob_actor_no_eos", "Oat's actor/no_eos_count: responses of the last step that were cut by length."),
    _g(_C, "rljob_actor_sampling_max_tokens", "Oat's actor/sampling_max_tokens: tokens that a call may sample."),
    _g(_C, "rljob_actor_sampling_temperature", "Oat's actor/sampling_temperature: temperature of sampling."),
    _g(_C, "rljob_actor_generate_seconds", "Oat's actor/generate_time: mean over the groups of the last step."),
    _g(_C, "rljob_actor_verify_seconds", "Oat's actor/verify_time: mean over the groups of the last step."),
    _g(_C, "rljob_actor_sum_seconds", "Oat's actor/total_time: generating plus verifying."),
    _g(
        _C,
        "rljob_actor_generate_avg_str_len",
        "Oat's actor/generate_avg_str_len: mean characters of an answer; absent where the workflow does not report it.",
    ),
    _h(_C, "rljob_ledger_commit_seconds", "Seconds per ledger transaction.", buckets=_FAST),
    _g(_C, "rljob_ledger_bytes", "Size of the ledger on disk."),
    _c(_R, "rljob_tokens_total", "Tokens by kind.", "kind"),
    _c(
        _R,
        "rljob_prefix_tokens_total",
        "Prompt tokens of calls to the engine, in whole blocks of its cache: repeated, which earlier calls with these"
        " weights began with; and cached, which the engine did not compute again.",
        "kind",
    ),
    _c(_R, "rljob_rollout_wait_seconds_total", "Slot-seconds without generation divided by slots.", "reason"),
    _g(_R, "rljob_rollout_serving_version", "Weight version id that the engine serves."),
    _g(_R, "rljob_rollout_version_lag", "Steps behind the newest published version."),
    _h(_R, "rljob_weight_sync_seconds", "Seconds of a weight update by phase.", "phase", buckets=_SYNC),
    _c(_R, "rljob_weight_sync_bytes_total", "Bytes fetched: whole images, and changes.", "kind"),
    _c(
        _R,
        "rljob_weight_source_bytes_total",
        "Bytes fetched and verified: from store, peer (a rollout), file, trainer (broadcasts).",
        "source",
    ),
    _c(_R, "rljob_weight_source_failures_total", "Times that a source did not give a piece.", "reason"),
    _c(_R, "rljob_weight_served_bytes_total", "Bytes sent to other rollouts."),
    _g(_R, "rljob_weight_changed_ratio", "Share of elements that the version fetched last changed."),
    _c(_R, "rljob_weight_sync_failures_total", "Failed weight updates.", "reason"),
    _c(_R, "rljob_generation_paused_seconds_total", "Seconds during which generation was paused."),
    _h(_R, "rljob_episode_seconds", "Seconds per episode."),
    _c(_R, "rljob_trajectory_dump_failures_total", "Trajectory dumps that could not be written."),
    _h(_R, "rljob_drain_seconds", "Seconds of a drain by result.", "result", buckets=_DRAIN),
    _h(_V, "rljob_verify_seconds", "Seconds per grading.", "reward", buckets=_FAST),
    _h(_V, "rljob_verify_cpu_seconds", "CPU seconds per grading.", "reward", buckets=_FAST[2:]),
    _c(_V, "rljob_verify_total", "Gradings that ended.", "reward", "type", "mode", "outcome", "reason"),
    _c(_V, "rljob_verifier_workers_ended_total", "Grading workers that ended, by why.", "reason"),
    _c(_V, "rljob_verifier_workers_started_total", "Grading workers that became ready."),
    _g(_V, "rljob_verifier_slots", "Gradings that can run at once."),
    _g(_V, "rljob_verifier_busy_slots", "Gradings that run now."),
    _g(_V, "rljob_verifier_waiting", "Items waiting for a slot."),
    _c(_V, "rljob_sandbox_survivors_total", "Processes left after a kill; must stay 0."),
    _c(_V, "rljob_verifier_canary_failures_total", "Canary programs with an unexpected outcome.", "canary"),
    _g(
        _V,
        "rljob_verifier_calibration_ratio",
        "CPU time of a fixed program here over that on the reference machine; limits on CPU time are times this.",
    ),
    _g(
        _V,
        "rljob_hack_ratio",
        "Share of the last 1,000 programs with visible and hidden tests that pass the visible ones alone.",
    ),
    _c(_J, "rljob_judge_calls_total", "Questions to a judge by what became of them.", "reward", "outcome"),
    _c(_J, "rljob_judge_tokens_total", "Tokens that a judge says it read and wrote.", "reward", "kind"),
    _h(_J, "rljob_judge_seconds", "Seconds per call of a judge.", "reward"),
    _c(
        _J,
        "rljob_judge_verdicts_total",
        "Answers by what the judge gave: verdict, or unavailable, which is no reward.",
        "reward",
        "result",
    ),
    _g(_J, "rljob_judge_waiting", "Answers that wait for their verdict."),
    _c(_E, "rljob_environment_claims_total", "Claims of a place by what became of them.", "result"),
    _h(_E, "rljob_environment_claim_seconds", "Seconds until a claim had its place.", buckets=_FAST),
    _h(_E, "rljob_environment_command_seconds", "Seconds per command, its start and end included."),
    _h(_E, "rljob_environment_reset_seconds", "Seconds until a place was proven empty.", buckets=_FAST),
    _c(_E, "rljob_environment_places_ended_total", "Places that are not lent again, by why.", "reason"),
    _c(_E, "rljob_environment_leases_expired_total", "Leases that ended because their episode made no call."),
    _c(_E, "rljob_environment_survivors_total", "Ends of a place that left processes; must stay 0."),
    _g(_E, "rljob_environment_places", "Episodes that can have a place at once."),
    _g(_E, "rljob_environment_free_places", "Places that are ready for an episode."),
    _g(_E, "rljob_environment_waiting", "Claims that wait for a place."),
    _h(_T, "rljob_step_seconds", "Seconds of a step by phase; total: from one finished step to the next.", "phase"),
    _c(_T, "rljob_trainer_wait_seconds_total", "Seconds in which rank 0 could not train.", "reason"),
    _g(
        _T,
        "rljob_loss",
        "Loss of the last step; policy is all of its loss, kl and entropy what these terms add to it.",
        "component",
    ),
    _g(_T, "rljob_entropy", "Mean entropy of sampled positions, nats, over all rows of the batch."),
    _g(_T, "rljob_entropy_coef", "Coefficient of the entropy bonus in the last step, where entropy.target moves it."),
    _g(_T, "rljob_grad_norm", "Global gradient norm before clipping."),
    _g(_T, "rljob_learning_rate", "Learning rate of the last update."),
    _g(_T, "rljob_kl_reference", "KL to the reference model, nats."),
    _g(_T, "rljob_kl_teacher", "Reverse KL to the teacher, nats a sampled token."),
    _g(_T, "rljob_clip_fraction", "Share of tokens where a clip bound acted.", "bound"),
    _g(_T, "rljob_masked_token_ratio", "Share of sampled tokens left out of the loss.", "reason"),
    _g(_T, "rljob_mismatch_kl", "KL between engine and trainer on rows that the current version sampled whole, nats."),
    _g(
        _T,
        "rljob_logprob_abs_diff",
        "Mean absolute log-probability difference, engine against trainer, on the same rows.",
    ),
    _c(_T, "rljob_nonfinite_total", "Non-finite values seen.", "what"),
    _g(_T, "rljob_mfu_ratio", "Model FLOPs utilisation of a step's work, without waits, against the dense bf16 peak."),
    _g(_T, "rljob_gpu_memory_bytes", "Peak of a step on the fullest accelerator.", "kind"),
    _h(_T, "rljob_checkpoint_seconds", "Seconds per checkpoint."),
    _c(_T, "rljob_checkpoint_failures_total", "Checkpoints that could not be written."),
    _g(_T, "rljob_checkpoint_last_success_timestamp_seconds", "Unix time of the last checkpoint that lasts."),
    _g(_T, "rljob_checkpoint_lag_steps", "Steps since the newest checkpoint that lasts: what a lost node would cost."),
    _c(_T, "rljob_checkpoint_upload_bytes_total", "Bytes of checkpoints that are whole in their object store."),
    _h(_T, "rljob_checkpoint_upload_seconds", "Seconds from the start of an upload until the checkpoint is whole."),
    _c(_T, "rljob_checkpoint_upload_failures_total", "Tries of an upload to the object store that failed."),
)
