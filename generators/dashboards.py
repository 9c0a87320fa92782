"""The chart's Grafana dashboards, rows in the order in which a person asks: `python -m generators.dashboards`."""

import json
import pathlib

from generators import CHART
from generators.panels import Board, Json, Mark, Panel, Query, Row, Variable, board

FOLDER = CHART / "files" / "dashboards"
NAMESPACES = 'rljob_namespace=~"$rljob_namespace"'
JOB = 'rljob_namespace="$rljob_namespace", rljob="$rljob"'
_KEY = "rljob_namespace, rljob"
_REWARD, _DEVIATION = (f"rljob_sampled_reward_{what}{{{JOB}}}" for what in ("mean", "std"))
_RATE = "[$__rate_interval]"


def _p95(metric: str, by: str, function: str, window: str) -> str:
    return f"histogram_quantile(0.95, sum by (le, {by}) ({function}({metric}_bucket{window})))"


def _mean(metric: str, by: str, function: str, window: str) -> str:
    sums = (f"sum by ({by}) ({function}({metric}_{part}{window}))" for part in ("sum", "count"))
    return " / ".join(sums)


def quantile(level: float, metric: str, by: str = "") -> str:
    """Return a quantile of a job's histogram, over all that is not in `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({level}, sum by ({labels}) (rate({metric}_bucket{{{JOB}}}{_RATE})))"


def rate(metric: str, by: str, more: str = "") -> str:
    """Return events per second of a job by a label."""
    return f"sum by ({by}) (rate({metric}{{{JOB}{more}}}{_RATE}))"


# Phases that are stacked; the whole step is one more series.
_NO_TOTAL = ', phase!="total"'
_CACHED, _UNAVAILABLE = ', outcome="cached"', ', result="unavailable"'

FLEET = (
    Row(
        "Now",
        (
            Panel(
                title="Jobs by state",
                question="What is running, queued or stuck?",
                good="Running and Queued; Stalled and Failed are empty.",
                otherwise="Find the job in the table below and open its run.",
                unit="short",
                queries=[Query(f"count by (state) (rljob_state{{{NAMESPACES}}})", "{{state}}")],
                stacked=True,
            ),
            Panel(
                title="Alerts that fire",
                question="What does Prometheus complain about?",
                good="Nothing.",
                otherwise="Each alert has a section in docs/runbooks.",
                unit="short",
                kind="table",
                queries=[
                    Query(
                        f'count by (alertname, severity, {_KEY}) (ALERTS{{alertname=~"RLJob.+", alertstate="firing"}})'
                    )
                ],
                columns=["alerts"],
            ),
            Panel(
                title="Stalled",
                question="Which jobs make no progress, and who holds them up?",
                good="Empty.",
                otherwise="The runbook of RLJobStalled has a line for each reason.",
                unit="short",
                kind="table",
                queries=[Query(f"max by ({_KEY}, reason, role) (rljob_stalled{{{NAMESPACES}}})")],
                columns=["stalled"],
            ),
            Panel(
                title="Jobs",
                question="Which run needs me?",
                good="Steps grow, waits are low, progress is minutes old.",
                otherwise="Open the run; its rows follow the same questions.",
                unit="short",
                kind="table",
                width=24,
                height=10,
                queries=[
                    Query(f"max by ({_KEY}, state) (rljob_state{{{NAMESPACES}}})"),
                    Query(f"max by ({_KEY}) (rljob_step{{{NAMESPACES}}})"),
                    Query(f"max by ({_KEY}) (rljob_max_steps{{{NAMESPACES}}})"),
                    Query(f"max by ({_KEY}) (rljob_sampled_reward_mean{{{NAMESPACES}}})"),
                    Query(f"rljob:trainer_wait:share5m{{{NAMESPACES}}}"),
                    Query(f"rljob:rollout_wait:share5m{{{NAMESPACES}}}"),
                    Query(f"max by ({_KEY}) (rljob_trainer_attempt{{{NAMESPACES}}})"),
                    Query(f"time() - max by ({_KEY}) (rljob_last_progress_timestamp_seconds{{{NAMESPACES}}})"),
                ],
                columns=[
                    "there",
                    "step",
                    "of",
                    "reward",
                    "trainer waits",
                    "rollouts wait",
                    "attempt",
                    "seconds since progress",
                ],
            ),
        ),
    ),
    Row(
        "Pods and failures",
        (
            Panel(
                title="Pods wanted and ready",
                question="Are accelerators idle or missing?",
                good="Ready is what is desired.",
                otherwise="See which job is starting or unschedulable.",
                unit="short",
                queries=[
                    Query(
                        f'sum by (role, state) (rljob_role_pods{{{NAMESPACES}, state=~"desired|ready"}})',
                        "{{role}} {{state}}",
                    )
                ],
            ),
            Panel(
                title="Pods pending and failed",
                question="Where do pods not come up?",
                good="Zero, but for minutes after a start.",
                otherwise="Describe the pods of that job.",
                unit="short",
                queries=[
                    Query(
                        f'sum by ({_KEY}, role, state) (rljob_role_pods{{{NAMESPACES}, state=~"pending|failed"}}) > 0',
                        "{{rljob_namespace}}/{{rljob}} {{role}} {{state}}",
                    )
                ],
            ),
            Panel(
                title="Trainer attempts that ended in a day",
                question="What kills runs?",
                good="Requested ones alone.",
                otherwise="application: the program's log; infrastructure: nodes and network.",
                unit="short",
                queries=[
                    Query(
                        f"sum by ({_KEY}, class) (increase(rljob_restarts_total{{{NAMESPACES}}}[1d]))",
                        "{{rljob_namespace}}/{{rljob}} {{class}}",
                    )
                ],
            ),
            Panel(
                title="Starts by phase",
                question="Where do starts lose time?",
                good="Minutes from the first pod to the first step, most of them load.",
                otherwise="queue: the operator. schedule: free nodes. pull: images. load: model files, engines.",
                unit="s",
                width=12,
                queries=[
                    Query(_mean("rljob_startup_seconds", "phase", "increase", "[1d]"), "{{phase}} mean"),
                    Query(_p95("rljob_startup_seconds", "phase", "increase", "[1d]"), "{{phase}} p95"),
                ],
            ),
            Panel(
                title="From a lost pod to progress again",
                question="How long does a failure hold a run up?",
                good="Minutes: pulling, loading, the next step.",
                otherwise="The role that takes longest: image pulls, model files, or free nodes.",
                unit="s",
                width=12,
                # Since the operator began: the first of a role would be no increase.
                queries=[
                    Query(
                        "sum by (role) (rljob_recovery_seconds_sum) / sum by (role) (rljob_recovery_seconds_count)",
                        "{{role}} mean",
                    )
                ],
            ),
            Panel(
                title="Length of runs that ended in a week",
                question="How long do runs last, and how do they end?",
                good="Those that fail end early.",
                otherwise="Long runs that fail: what was lost is what lies after their last checkpoint.",
                unit="s",
                width=12,
                queries=[Query(_mean("rljob_run_seconds", "outcome", "increase", "[7d]"), "{{outcome}} mean")],
            ),
            Panel(
                title="Failed jobs",
                question="How many runs ended without success?",
                good="Zero.",
                otherwise="The condition Failed of each has the reason.",
                unit="short",
                kind="stat",
                width=6,
                queries=[Query(f'count(rljob_condition{{{NAMESPACES}, type="Failed"}} == 1)', "failed")],
            ),
            Panel(
                title="Tokens per second",
                question="How much work do all jobs do?",
                good="Steady while jobs run.",
                otherwise="Look at the waits in the table.",
                unit="short",
                width=18,
                queries=[Query(f"sum by (kind) (rljob:tokens:rate5m{{{NAMESPACES}}})", "{{kind}}")],
            ),
        ),
    ),
)

RUN = (
    Row(
        "How far, how good, healthy?",
        (
            Panel(
                title="Step",
                question="How far is the run?",
                good="It grows.",
                otherwise="See who waits.",
                unit="short",
                kind="stat",
                width=4,
                height=4,
                queries=[Query(f"max(rljob_step{{{JOB}}})", "step"), Query(f"max(rljob_max_steps{{{JOB}}})", "of")],
            ),
            Panel(
                title="Time left",
                question="When is it done, at the pace of the last half hour?",
                good="It falls.",
                otherwise="Absent means that no step ended in that time.",
                unit="s",
                kind="stat",
                width=4,
                height=4,
                queries=[
                    Query(
                        f"(max(rljob_max_steps{{{JOB}}}) - max(rljob_step{{{JOB}}}))"
                        f" / (max(delta(rljob_step{{{JOB}}}[30m])) > 0) * 1800",
                        "left",
                    )
                ],
            ),
            Panel(
                title="Reward of the last step",
                question="How good is it?",
                good="It rises over the run.",
                otherwise="See reward and signal below.",
                unit="short",
                kind="stat",
                width=4,
                height=4,
                queries=[Query(f"max(rljob_sampled_reward_mean{{{JOB}}})", "reward")],
            ),
            Panel(
                title="Lag",
                question="How many steps are the slowest rollout's weights behind?",
                good="At most the staleness bound.",
                otherwise="The board of rollouts and weights shows which pod.",
                unit="short",
                kind="stat",
                width=4,
                height=4,
                queries=[Query(f"max(rljob_rollout_version_lag{{{JOB}}})", "steps")],
            ),
            Panel(
                title="Since progress",
                question="When did anything move last?",
                good="Seconds to minutes.",
                otherwise="At the stall timeout the cause is named next to this.",
                unit="s",
                kind="stat",
                width=4,
                height=4,
                queries=[Query(f"time() - max(rljob_last_progress_timestamp_seconds{{{JOB}}})", "ago")],
            ),
            Panel(
                title="Stall",
                question="Who holds up the run?",
                good="No data.",
                otherwise="The runbook of RLJobStalled has a line for each reason.",
                unit="short",
                kind="stat",
                width=4,
                height=4,
                queries=[Query(f"max by (reason, role) (rljob_stalled{{{JOB}}})", "{{reason}} ({{role}})")],
            ),
        ),
    ),
    Row(
        "Does it learn?",
        (
            Panel(
                title="Reward",
                question="Does the policy get better on what it trains on?",
                good="The mean rises; the spread does not vanish early.",
                otherwise="Flat from the start: look at signal. Falls: look at policy health.",
                unit="short",
                queries=[
                    Query(f"max({_REWARD})", "mean"),
                    Query(f"max({_REWARD}) + max({_DEVIATION})", "mean + std"),
                    Query(f"max({_REWARD}) - max({_DEVIATION})", "mean - std"),
                    Query(f"max(rljob_reward_mean{{{JOB}}})", "mean of the trained ones"),
                ],
            ),
            Panel(
                title="Rewards by name",
                question="Which part of the reward moves?",
                good="All that matter rise.",
                otherwise="One rises while the task's own falls: it is being gamed.",
                unit="short",
                queries=[Query(f"max by (reward) (rljob_reward_component_mean{{{JOB}}})", "{{reward}}")],
            ),
            Panel(
                title="Evaluation",
                question="Does it get better on held-out data too?",
                good="It rises with the reward.",
                otherwise="Reward rises and this does not: overfitting, or a reward that is gamed.",
                unit="percentunit",
                queries=[Query(f"max by (suite, metric) (rljob_eval_score{{{JOB}}})", "{{suite}} {{metric}}")],
            ),
        ),
    ),
    Row(
        "Where does the time go?",
        (
            Panel(
                title="Who waits",
                question="Which role is the bottleneck?",
                good="Trainer and rollouts both wait little; verifiers are not full.",
                otherwise="Trainer waits: more rollouts. Rollouts wait: fewer. Verifiers full: more of them first.",
                unit="percentunit",
                most=1,
                queries=[
                    Query(f"rljob:trainer_wait:share5m{{{JOB}}}", "trainer waits"),
                    Query(f"rljob:rollout_wait:share5m{{{JOB}}}", "rollouts wait"),
                    Query(
                        f"sum(rljob_verifier_busy_slots{{{JOB}}}) / sum(rljob_verifier_slots{{{JOB}}})",
                        "verifiers busy",
                    ),
                ],
            ),
            Panel(
                title="Step time by phase",
                question="Where does a step go?",
                good="Most of it is forward and backward.",
                otherwise="wait: rollouts. publish: weights. checkpoint: the volume.",
                unit="s",
                stacked=True,
                queries=[
                    Query(
                        f"{rate('rljob_step_seconds_sum', 'phase', _NO_TOTAL)}"
                        f" / {rate('rljob_step_seconds_count', 'phase', _NO_TOTAL)}",
                        "{{phase}}",
                    )
                ],
            ),
            Panel(
                title="Ledger flow",
                question="Where do groups pile up?",
                good="Queued and leased in balance, few submitted.",
                otherwise="Many submitted: the trainer is slow. Limit at 0: the staleness bound holds rollouts back.",
                unit="short",
                queries=[
                    Query(f"max by (queue) (rljob_queue_depth{{{JOB}}})", "{{queue}}"),
                    Query(f"max(rljob_inflight_limit{{{JOB}}})", "still admitted"),
                ],
            ),
            Panel(
                title="Trajectories by outcome",
                question="How much work is wasted?",
                good="Nearly all accepted.",
                otherwise="stale: too many rollouts. infra_failure: see by reason. filtered: see signal.",
                unit="ops",
                stacked=True,
                queries=[Query(rate("rljob_trajectories_total", "outcome"), "{{outcome}}")],
            ),
            Panel(
                title="Groups dropped",
                question="Which groups are never trained, and why?",
                good="Few, and by a filter that is meant.",
                otherwise="infra_exhausted and data_exhausted: prompts that are given up; too_long and"
                " invalid_record: left out, as onInvalidRecord: Drop says; see the log.",
                unit="ops",
                stacked=True,
                queries=[Query(rate("rljob_groups_dropped_total", "reason"), "{{reason}}")],
            ),
            Panel(
                title="Infrastructure failures",
                question="What loses work that was not the policy's fault?",
                good="None.",
                otherwise="Runbook of RLJobInfraFailureShareHigh.",
                unit="ops",
                stacked=True,
                queries=[Query(rate("rljob_infra_failures_total", "role, reason"), "{{role}} {{reason}}")],
            ),
        ),
    ),
    Row(
        "Is the update sane?",
        (
            Panel(
                title="Entropy and divergences",
                question="Does the policy still explore, and how far has it moved?",
                good="Entropy falls slowly; the mismatch stays near 0.",
                otherwise="Entropy near 0: collapse. Mismatch above 0.1: engine and trainer disagree.",
                unit="short",
                queries=[
                    Query(f"max(rljob_entropy{{{JOB}}})", "entropy (nats)"),
                    Query(f"max(rljob_entropy_coef{{{JOB}}})", "entropy coefficient"),
                    Query(f"max(rljob_kl_reference{{{JOB}}})", "KL to the reference (nats)"),
                    Query(f"max(rljob_kl_teacher{{{JOB}}})", "KL to the teacher (nats)"),
                    Query(f"max(rljob_mismatch_kl{{{JOB}}})", "engine against trainer (nats)"),
                    Query(f"max(rljob_logprob_abs_diff{{{JOB}}})", "mean difference of log-probabilities"),
                ],
            ),
            Panel(
                title="Clipped and masked tokens",
                question="How much of a batch does not act?",
                good="Below a few per cent.",
                otherwise="Clipped: steps are too large or data too old. Masked: the correction rejects a lot.",
                unit="percentunit",
                queries=[
                    Query(f"max by (bound) (rljob_clip_fraction{{{JOB}}})", "clipped {{bound}}"),
                    Query(f"max by (reason) (rljob_masked_token_ratio{{{JOB}}})", "masked {{reason}}"),
                ],
            ),
            Panel(
                title="Gradient norm and loss",
                question="Is the optimisation stable?",
                good="No spikes that grow.",
                otherwise="Lower the learning rate, or clip harder.",
                unit="short",
                queries=[
                    Query(f"max(rljob_grad_norm{{{JOB}}})", "gradient norm"),
                    Query(f"max by (component) (rljob_loss{{{JOB}}})", "loss {{component}}"),
                ],
            ),
            Panel(
                title="Lengths of answers",
                question="Are answers growing?",
                good="They change slowly.",
                otherwise="Growth without reward: a length penalty, or a bug in the stop condition.",
                unit="short",
                queries=[
                    Query(quantile(0.5, "rljob_response_tokens"), "p50"),
                    Query(quantile(0.95, "rljob_response_tokens"), "p95"),
                ],
            ),
            Panel(
                title="Lengths by fate",
                question="Are long answers trained as often as short ones?",
                good="Trained and stale answers have the same mean length, and none is cancelled.",
                otherwise="Set async.onStale to Mask, or raise async.maxOffPolicySteps.",
                unit="short",
                queries=[
                    Query(
                        f"sum by (fate) (increase(rljob_answer_tokens_total{{{JOB}}}{_RATE}))"
                        f" / sum by (fate) (increase(rljob_answers_total{{{JOB}}}{_RATE}))",
                        "mean tokens, {{fate}}",
                    ),
                ],
            ),
            Panel(
                title="Answers cut",
                question="Are answers cut by the length limit?",
                good="Below a few per cent.",
                otherwise="Raise the limit: a truncated answer is graded as it is.",
                unit="percentunit",
                most=1,
                queries=[Query(f"max(rljob_truncated_ratio{{{JOB}}})", "cut")],
            ),
            Panel(
                title="Signal",
                question="Is there a gradient at all?",
                good="Well below 0.9.",
                otherwise="Runbook of RLJobNoLearningSignal.",
                unit="percentunit",
                most=1,
                queries=[Query(f"rljob:zero_advantage:share30m{{{JOB}}}", "groups that teach nothing")],
            ),
        ),
    ),
)

ROLLOUT = (
    Row(
        "Staleness and versions",
        (
            Panel(
                title="Staleness of consumed groups",
                question="How off-policy are consumed tokens?",
                good="Most at 0 or 1 step, none beyond the bound.",
                otherwise="Fewer rollouts, or a smaller bound.",
                unit="short",
                kind="heatmap",
                queries=[
                    Query(f"sum by (le) (increase(rljob_trajectory_staleness_steps_bucket{{{JOB}}}{_RATE}))", "{{le}}")
                ],
            ),
            Panel(
                title="Versions",
                question="Which weights are published, live and still served?",
                good="The three lines are close.",
                otherwise="Published runs ahead: rollouts fail to take weights.",
                unit="short",
                queries=[Query(f"max by (state) (rljob_policy_version{{{JOB}}})", "{{state}}")],
            ),
            Panel(
                title="Lag by pod",
                question="Who serves old weights?",
                good="At most the bound.",
                otherwise="Runbook of RLJobVersionLagHigh.",
                unit="short",
                queries=[
                    Query(f"max by (pod) (rljob_rollout_version_lag{{{JOB}}})", "{{pod}}"),
                    Query(f'max(rljob_setting{{{JOB}, name="max_off_policy_steps"}})', "bound"),
                ],
            ),
        ),
    ),
    Row(
        "What does a publish cost?",
        (
            Panel(
                title="Weight update by phase, p50",
                question="Where does a typical update take its time?",
                good="Fetching, which does not stop generation.",
                otherwise="pause or apply: the pod is busy or throttled.",
                unit="s",
                width=6,
                queries=[Query(quantile(0.5, "rljob_weight_sync_seconds", "phase"), "{{phase}}")],
            ),
            Panel(
                title="Weight update by phase, p95",
                question="How bad does it get?",
                good="Close to the p50.",
                otherwise="One slow pod or a network that is shared.",
                unit="s",
                width=6,
                queries=[Query(quantile(0.95, "rljob_weight_sync_seconds", "phase"), "{{phase}}")],
            ),
            Panel(
                title="Bytes fetched",
                question="How much do weights load the network?",
                good="In proportion to steps and rollouts.",
                otherwise="More: rollouts restart and load again.",
                unit="Bps",
                width=6,
                queries=[Query(rate("rljob_weight_sync_bytes_total", "kind"), "{{kind}}")],
            ),
            Panel(
                title="Bytes fetched, by source",
                question="Do rollouts serve weights to one another?",
                good="With several rollouts, most from peer.",
                otherwise="All from store: rollouts do not reach each other on their port for weights.",
                unit="Bps",
                width=6,
                queries=[Query(rate("rljob_weight_source_bytes_total", "source"), "{{source}}")],
            ),
            Panel(
                title="Sources that failed",
                question="Do rollouts fail one another?",
                good="Single ones that were busy or moved.",
                otherwise="digest: the log names who sent other bytes. unavailable: slow or dead pods.",
                unit="ops",
                width=6,
                queries=[Query(rate("rljob_weight_source_failures_total", "reason"), "{{reason}}")],
            ),
            Panel(
                title="Bytes served to other rollouts",
                question="Is the work of serving shared?",
                good="Alike for all pods.",
                otherwise="One pod serves most: it has what the others lack, or their links are slow.",
                unit="Bps",
                width=6,
                queries=[Query(rate("rljob_weight_served_bytes_total", "pod"), "{{pod}}")],
            ),
            Panel(
                title="Generation paused",
                question="How much of its time is a rollout paused for updates?",
                good="A few per cent.",
                otherwise="Publish less often, or look at the apply phase.",
                unit="percentunit",
                width=6,
                queries=[Query(rate("rljob_generation_paused_seconds_total", "pod"), "{{pod}}")],
            ),
            Panel(
                title="Weights that a version changes",
                question="How much of the weights does a step move?",
                good="A share that stays alike over the run.",
                otherwise="0: the steps do nothing. 1: the first version of a trainer's attempt.",
                unit="percentunit",
                queries=[Query(f"max(rljob_weight_changed_ratio{{{JOB}}})", "changed")],
            ),
            Panel(
                title="Failed updates",
                question="Do rollouts fail to take weights?",
                good="No data.",
                otherwise="Runbook of RLJobWeightSyncFailing.",
                unit="ops",
                width=12,
                queries=[Query(rate("rljob_weight_sync_failures_total", "pod, reason"), "{{pod}} {{reason}}")],
            ),
            Panel(
                title="Waits of rollouts",
                question="What do slots wait for?",
                good="Little in sum.",
                otherwise="staleness: the trainer. weights: updates. verifier: grading. no_prompts: data.",
                unit="percentunit",
                width=12,
                stacked=True,
                queries=[
                    Query(
                        "avg by (reason) (sum by (reason, pod)"
                        f" (rate(rljob_rollout_wait_seconds_total{{{JOB}}}{_RATE})))",
                        "{{reason}}",
                    )
                ],
            ),
        ),
    ),
    Row(
        "Engines",
        (
            Panel(
                title="Requests running and waiting",
                question="Are engines busy, or queueing?",
                good="Many running, few waiting.",
                otherwise="Waiting: the KV cache is full. None running: see the waits.",
                unit="short",
                queries=[
                    Query(
                        f"vllm:num_requests_running and on (instance) rljob_rollout_serving_version{{{JOB}}}",
                        "{{pod}} running",
                    ),
                    Query(
                        f"vllm:num_requests_waiting and on (instance) rljob_rollout_serving_version{{{JOB}}}",
                        "{{pod}} waiting",
                    ),
                ],
            ),
            Panel(
                title="KV cache in use",
                question="Is memory for sequences short?",
                good="Below 0.9.",
                otherwise="Fewer sequences at once, or shorter ones.",
                unit="percentunit",
                most=1,
                queries=[
                    Query(
                        f"vllm:kv_cache_usage_perc and on (instance) rljob_rollout_serving_version{{{JOB}}}", "{{pod}}"
                    )
                ],
            ),
            Panel(
                title="Tokens per second by pod",
                question="Does every rollout carry its share?",
                good="All alike.",
                otherwise="One is slow: its node; its version.",
                unit="short",
                queries=[Query(rate("rljob_tokens_total", "pod, kind", ', kind="generated"'), "{{pod}}")],
            ),
            Panel(
                title="Episodes",
                question="How long does one episode take?",
                good="Stable.",
                otherwise="Longer answers, slow tools or slow grading.",
                unit="s",
                queries=[
                    Query(quantile(0.5, "rljob_episode_seconds"), "p50"),
                    Query(quantile(0.95, "rljob_episode_seconds"), "p95"),
                ],
            ),
            Panel(
                title="A group's way",
                question="Where does a group spend its life?",
                good="Generating.",
                otherwise="packed: it waits for a step; verify: grading is slow.",
                unit="s",
                queries=[Query(quantile(0.5, "rljob_group_seconds", "phase"), "{{phase}} p50")],
            ),
        ),
    ),
    Row(
        "Scaling and losses",
        (
            Panel(
                title="Pressure",
                question="Is the fleet too small or too large?",
                good="Around 1.",
                otherwise="Above: more rollouts are worth it. Below: they wait.",
                unit="short",
                queries=[
                    Query(f"max(rljob_rollout_pressure_ratio{{{JOB}}})", "pressure"),
                    Query("vector(1)", "target"),
                ],
            ),
            Panel(
                title="Rollout pods",
                question="Why did the fleet change?",
                good="Ready follows desired.",
                otherwise="Pending pods, or an autoscaler that swings.",
                unit="short",
                queries=[
                    Query(f'max by (state) (rljob_role_pods{{{JOB}, role="rollout"}})', "{{state}}"),
                ],
            ),
            Panel(
                title="Drains and leases",
                question="Do we lose work when pods go?",
                good="Drains end clean, few leases expire.",
                otherwise="Released: longer drainSeconds. Expired: pods die without a drain.",
                unit="short",
                queries=[
                    Query(f"sum by (result) (increase(rljob_drain_seconds_count{{{JOB}}}[15m]))", "drains {{result}}"),
                    Query(f"sum(increase(rljob_leases_expired_total{{{JOB}}}[15m]))", "leases expired"),
                    Query(
                        f"sum by (class) (increase(rljob_prompt_retries_total{{{JOB}}}[15m]))",
                        "prompts again, {{class}}",
                    ),
                ],
            ),
            Panel(
                title="Pods made again",
                question="Why are pods lost?",
                good="Drains alone.",
                otherwise="oom: more memory, fewer sequences. crash: the log of the pod before. node: the node.",
                unit="short",
                queries=[
                    Query(
                        f"sum by (role, cause) (increase(rljob_pod_replacements_total{{{JOB}}}[1h])) > 0",
                        "{{role}} {{cause}}",
                    )
                ],
            ),
            Panel(
                title="Number of rollouts changed",
                question="Who scales, and does it swing?",
                good="A few changes an hour.",
                otherwise="Up and down in turn: a longer scaleDownStabilizationSeconds.",
                unit="short",
                queries=[
                    Query(
                        f"sum by (direction, source) (increase(rljob_rollout_scale_total{{{JOB}}}[1h]))",
                        "{{direction}} by {{source}}",
                    )
                ],
            ),
            Panel(
                title="Calls of replaced processes",
                question="Do processes speak that were replaced?",
                good="Zero, but for seconds after a replacement.",
                otherwise="It continues: two processes with one name; look for a node that was cut off.",
                unit="short",
                queries=[Query(f"sum(increase(rljob_fenced_calls_total{{{JOB}}}[15m]))", "refused")],
            ),
        ),
    ),
)

VERIFIER = (
    Row(
        "Is the reward trustworthy?",
        (
            Panel(
                title="Gradings by outcome",
                question="How do gradings end?",
                good="pass and fail; little else.",
                otherwise="timeouts: a slow grader. infra_error: the service. forced_exit, forbidden: see isolation.",
                unit="ops",
                stacked=True,
                queries=[Query(rate("rljob_verify_total", "outcome"), "{{outcome}}")],
            ),
            Panel(
                title="Pass rate by reward",
                question="Did a grader break at some version?",
                good="It moves slowly.",
                otherwise="It drops to 0 at once: runbook of RLJobVerifierAlwaysFails.",
                unit="percentunit",
                most=1,
                queries=[Query(f"rljob:verify_pass:share15m{{{JOB}}}", "{{reward}}")],
            ),
            Panel(
                title="Why answers fail",
                question="What do gradings find?",
                good="wrong more than no_answer and parse_error.",
                otherwise="no_answer: the template, or answers that are cut.",
                unit="ops",
                stacked=True,
                queries=[Query(rate("rljob_verify_total", "reward, reason"), "{{reward}} {{reason}}")],
            ),
        ),
    ),
    Row(
        "Is grading the bottleneck?",
        (
            Panel(
                title="Latency by reward",
                question="How long does a grading take?",
                good="Far below an episode.",
                otherwise="A slow reward: its code, or its limit.",
                unit="s",
                queries=[
                    Query(quantile(level, "rljob_verify_seconds", "reward"), f"{{{{reward}}}} p{round(100 * level)}")
                    for level in (0.5, 0.95, 0.99)
                ],
            ),
            Panel(
                title="CPU seconds by reward",
                question="How much of the latency is computing?",
                good="Most of it.",
                otherwise="Little: gradings wait for cores.",
                unit="s",
                queries=[Query(quantile(0.95, "rljob_verify_cpu_seconds", "reward"), "{{reward}} p95")],
            ),
            Panel(
                title="Slots",
                question="Are verifiers full?",
                good="Busy below slots, nothing waits.",
                otherwise="Runbook of RLJobVerifierSaturated.",
                unit="short",
                queries=[
                    Query(f"sum(rljob_verifier_busy_slots{{{JOB}}})", "busy"),
                    Query(f"sum(rljob_verifier_waiting{{{JOB}}})", "waiting"),
                    Query(f"sum(rljob_verifier_slots{{{JOB}}})", "slots"),
                ],
            ),
        ),
    ),
    Row(
        "Do judges answer, and what do they cost?",
        (
            Panel(
                title="Calls of judges by outcome",
                question="What becomes of the questions to judges?",
                good="answered and cached; no data for a job without a reward of type judge.",
                otherwise="busy: callsPerMinute or maxConcurrent. refused: key, URL, model. unreadable: the template.",
                unit="ops",
                stacked=True,
                queries=[Query(rate("rljob_judge_calls_total", "reward, outcome"), "{{reward}} {{outcome}}")],
            ),
            Panel(
                title="Questions that the cache answered",
                question="How much is saved by what was judged before?",
                good="It rises as answers repeat.",
                otherwise="0 with answers that repeat: the judge's pod was restarted, which empties the cache.",
                unit="percentunit",
                most=1,
                queries=[
                    Query(
                        f"{rate('rljob_judge_calls_total', 'reward', _CACHED)}"
                        f" / {rate('rljob_judge_calls_total', 'reward')}",
                        "{{reward}}",
                    )
                ],
            ),
            Panel(
                title="Answers without a verdict",
                question="How many answers get no reward, because a judge cannot be asked?",
                good="0.",
                otherwise="They are sent again, then leave their group: docs/judges.md, and calls by outcome.",
                unit="percentunit",
                most=1,
                queries=[
                    Query(
                        f"{rate('rljob_judge_verdicts_total', 'reward', _UNAVAILABLE)}"
                        f" / {rate('rljob_judge_verdicts_total', 'reward')}",
                        "{{reward}}",
                    )
                ],
            ),
            Panel(
                title="Seconds of a judge's call",
                question="How long does a judge take?",
                good="Far below an episode.",
                otherwise="Its own load; near callSeconds calls end without an answer.",
                unit="s",
                queries=[
                    Query(quantile(level, "rljob_judge_seconds", "reward"), f"{{{{reward}}}} p{round(100 * level)}")
                    for level in (0.5, 0.95)
                ],
            ),
            Panel(
                title="Tokens of judges per second",
                question="What do judges read and write, which providers charge for?",
                good="Steady; completions are short.",
                otherwise="Long completions: maxTokens, a template that asks for less. Long prompts: maxAnswerChars.",
                unit="short",
                queries=[Query(rate("rljob_judge_tokens_total", "reward, kind"), "{{reward}} {{kind}}")],
            ),
            Panel(
                title="Answers that wait for a judge",
                question="Do rollouts wait for verdicts?",
                good="Few, and not more with time.",
                otherwise="Runbook of RLJobStalled, JudgeSlow: maxConcurrent, callsPerMinute, or a faster judge.",
                unit="short",
                queries=[Query(f"sum(rljob_judge_waiting{{{JOB}}})", "waiting")],
            ),
        ),
    ),
    Row(
        "Is the sandbox what we asked for?",
        (
            Panel(
                title="Layers of isolation",
                question="Does every required layer hold on every verifier?",
                good="All 1.",
                otherwise="Runbook of RLJobSandboxIsolationLost.",
                unit="short",
                queries=[
                    Query(
                        f"min by (layer, required) (rljob_isolation_layer{{{JOB}}})", "{{layer}} required={{required}}"
                    )
                ],
            ),
            Panel(
                title="Survivors",
                question="Was anything left after a kill?",
                good="0, always.",
                otherwise="Runbook of RLJobSandboxSurvivors.",
                unit="short",
                queries=[Query(f"sum(rljob_sandbox_survivors_total{{{JOB}}})", "processes")],
            ),
            Panel(
                title="Grading workers",
                question="How often are workers killed or lost?",
                good="They are retired in time.",
                otherwise="killed: gradings beyond their limits. lost: memory.",
                unit="ops",
                queries=[
                    Query(rate("rljob_verifier_workers_ended_total", "reason"), "{{reason}}"),
                    Query(f"sum(rate(rljob_verifier_workers_started_total{{{JOB}}}{_RATE}))", "started"),
                ],
            ),
        ),
    ),
)

TRAINER = (
    Row(
        "How fast?",
        (
            Panel(
                title="Tokens trained per second",
                question="How fast is the training?",
                good="Steady.",
                otherwise="Compare with the waits next to it.",
                unit="short",
                queries=[Query(f'rljob:tokens:rate5m{{{JOB}, kind="trained"}}', "trained")],
            ),
            Panel(
                title="Waits of the trainer",
                question="What does rank 0 wait for?",
                good="Little.",
                otherwise="batch: more rollouts. publish: the weight store. checkpoint: the volume. peers: a rank.",
                unit="percentunit",
                stacked=True,
                queries=[Query(rate("rljob_trainer_wait_seconds_total", "reason"), "{{reason}}")],
            ),
            Panel(
                title="Step time by phase, p95",
                question="Which phase has outliers?",
                good="Close to the mean of the run's board.",
                otherwise="publish and checkpoint: storage; wait: rollouts.",
                unit="s",
                queries=[Query(quantile(0.95, "rljob_step_seconds", "phase"), "{{phase}}")],
            ),
            Panel(
                title="Utilisation",
                question="How much of the accelerators' arithmetic does a step use?",
                good="A quarter or more; no data on CPUs and on devices whose peak is not known.",
                otherwise="More tokens per micro-batch; short rows and small models stay low.",
                unit="percentunit",
                queries=[Query(f"max(rljob_mfu_ratio{{{JOB}}})", "MFU")],
            ),
            Panel(
                title="Accelerator memory",
                question="How near is the fullest device to its limit?",
                good="Allocated well below the device's memory; no data on CPUs.",
                otherwise="Fewer tokens per micro-batch, a higher ZeRO stage, or offloading.",
                unit="bytes",
                queries=[Query(f"max by (kind) (rljob_gpu_memory_bytes{{{JOB}}})", "{{kind}}")],
            ),
            Panel(
                title="Resident memory of rank 0",
                question="How near is the host's limit?",
                good="Flat after the first steps.",
                otherwise="It grows: a leak; offloading needs more.",
                unit="bytes",
                queries=[
                    Query(f"process_resident_memory_bytes and on (instance) rljob_learning_rate{{{JOB}}}", "{{pod}}")
                ],
            ),
            Panel(
                title="Learning rate",
                question="Where is the schedule?",
                good="As the manifest says.",
                otherwise="After a restart it must continue, not start over.",
                unit="short",
                queries=[Query(f"max(rljob_learning_rate{{{JOB}}})", "learning rate")],
            ),
            Panel(
                title="Values that are not finite",
                question="Did a step go wrong?",
                good="0.",
                otherwise="Runbook of RLJobNonFinite.",
                unit="short",
                queries=[Query(f"sum by (what) (increase(rljob_nonfinite_total{{{JOB}}}[15m]))", "{{what}}")],
            ),
        ),
    ),
    Row(
        "What would a crash cost?",
        (
            Panel(
                title="Age of the last checkpoint",
                question="How much would be lost now?",
                good="Below the line.",
                otherwise="Runbook of RLJobCheckpointStale.",
                unit="s",
                queries=[
                    Query(
                        f"time() - max(rljob_checkpoint_last_success_timestamp_seconds{{{JOB}}})", "since the last one"
                    ),
                    Query(f"rljob:checkpoint_allowance:seconds{{{JOB}}}", "allowed"),
                ],
            ),
            Panel(
                title="Checkpoints that failed in a day",
                question="Could every checkpoint be written?",
                good="Zero.",
                otherwise="Runbook of RLJobCheckpointFailing.",
                unit="short",
                queries=[Query(f"sum(increase(rljob_checkpoint_failures_total{{{JOB}}}[1d]))", "failed")],
            ),
            Panel(
                title="Steps that a lost node would cost",
                question="Do checkpoints reach the place where they last?",
                good="It falls to zero at every checkpoint, or soon after.",
                otherwise="Runbook of RLJobCheckpointUploadFailing.",
                unit="short",
                queries=[
                    Query(f"max(rljob_checkpoint_lag_steps{{{JOB}}})", "steps"),
                    Query(
                        f"sum(increase(rljob_checkpoint_upload_failures_total{{{JOB}}}[10m]))", "uploads that failed"
                    ),
                ],
            ),
            Panel(
                title="Bytes uploaded",
                question="How much goes to the object store?",
                good="A checkpoint's size, once for each.",
                otherwise="Uploads that take longer than the steps between two: save less often.",
                unit="Bps",
                queries=[
                    Query(f"sum(rate(rljob_checkpoint_upload_bytes_total{{{JOB}}}[10m]))", "bytes"),
                    Query(quantile(0.95, "rljob_checkpoint_upload_seconds"), "p95 seconds of an upload"),
                ],
            ),
            Panel(
                title="Seconds per checkpoint",
                question="What does a checkpoint cost?",
                good="Small against what lies between two.",
                otherwise="A slow volume: save less often, or leave out the optimizer.",
                unit="s",
                queries=[Query(quantile(0.95, "rljob_checkpoint_seconds"), "p95")],
            ),
            Panel(
                title="Ledger",
                question="Is the coordinator's disk fast enough?",
                good="Milliseconds.",
                otherwise="Runbook of RLJobLedgerSlow.",
                unit="s",
                queries=[
                    Query(quantile(0.5, "rljob_ledger_commit_seconds"), "commit p50"),
                    Query(quantile(0.95, "rljob_ledger_commit_seconds"), "commit p95"),
                ],
            ),
            Panel(
                title="Attempts",
                question="Did the trainer restart?",
                good="One attempt.",
                otherwise="Runbook of RLJobTrainerRestarting.",
                unit="short",
                width=12,
                queries=[
                    Query(f"max(rljob_trainer_attempt{{{JOB}}})", "attempt"),
                    Query(
                        f"sum by (class) (increase(rljob_restarts_total{{{JOB}}}[1h]))", "ended in an hour: {{class}}"
                    ),
                ],
            ),
            Panel(
                title="Size of the ledger",
                question="Does the ledger fill its volume?",
                good="It grows slowly.",
                otherwise="A larger volume.",
                unit="bytes",
                width=12,
                queries=[Query(f"max(rljob_ledger_bytes{{{JOB}}})", "ledger")],
            ),
        ),
    ),
)


OPERATOR = (
    Row(
        "Is it fast?",
        (
            Panel(
                title="From a change to the child",
                question="How fast is a spec turned into pods?",
                good="Below a second.",
                otherwise="See queue and requests.",
                unit="s",
                queries=[
                    Query(_mean("rljob_operator_spec_to_child_seconds", "kind", "rate", _RATE), "{{kind}} mean"),
                    Query(_p95("rljob_operator_spec_to_child_seconds", "kind", "rate", _RATE), "{{kind}} p95"),
                ],
            ),
            Panel(
                title="Seconds of a pass",
                question="How long does one look at a job take?",
                good="Well below a second.",
                otherwise="A slow API server, or a coordinator that does not answer.",
                unit="s",
                queries=[
                    Query(_mean("rljob_operator_reconcile_seconds", "result", "rate", _RATE), "{{result}} mean"),
                    Query(_p95("rljob_operator_reconcile_seconds", "result", "rate", _RATE), "{{result}} p95"),
                ],
            ),
            Panel(
                title="Passes by result",
                question="How many passes are there, and do they succeed?",
                good="Nearly all ok.",
                otherwise="error: its log. requeue: it lost a race and looks again.",
                unit="ops",
                stacked=True,
                queries=[Query(f"sum by (result) (rate(rljob_operator_reconcile_seconds_count{_RATE}))", "{{result}}")],
            ),
        ),
    ),
    Row(
        "Is it behind or failing?",
        (
            Panel(
                title="Jobs that wait",
                question="Is it behind?",
                good="Near 0.",
                otherwise="More concurrency, or a job whose passes hang.",
                unit="short",
                queries=[Query("max(rljob_operator_queue_depth)", "jobs")],
            ),
            Panel(
                title="Longest overdue",
                question="How late is the job that is due the longest?",
                good="Seconds.",
                otherwise="Runbook of RLJobOperatorQueueStuck.",
                unit="s",
                queries=[Query("max(rljob_operator_queue_oldest_seconds)", "overdue")],
            ),
            Panel(
                title="Errors by class",
                question="What fails?",
                good="No data.",
                otherwise="Runbook of RLJobOperatorErrors.",
                unit="ops",
                queries=[Query(f"sum by (class) (rate(rljob_operator_reconcile_errors_total{_RATE}))", "{{class}}")],
            ),
        ),
    ),
    Row(
        "Is it a good citizen?",
        (
            Panel(
                title="Requests by verb and code",
                question="How much does it ask of the API server?",
                good="Few per second and job; code 2xx.",
                otherwise="403: rights. 409: races. 429: its budget of requests.",
                unit="reqps",
                width=12,
                queries=[
                    Query(f"sum by (verb, code) (rate(rljob_operator_api_requests_total{_RATE}))", "{{verb}} {{code}}")
                ],
            ),
            Panel(
                title="Writes and changes",
                question="Does it write without a reason?",
                good="Writes rise with changes only.",
                otherwise="Runbook of RLJobOperatorWriteStorm.",
                unit="short",
                width=12,
                queries=[
                    Query(
                        'sum(rate(rljob_operator_api_requests_total{verb=~"patch|post|delete"}[5m]))',
                        "writes per second",
                    ),
                    Query("sum(changes(rljob_condition[5m]))", "conditions changed in 5 minutes"),
                ],
            ),
        ),
    ),
    Row(
        "Is it blind?",
        (
            Panel(
                title="Watch lag",
                question="Does it see changes in time?",
                good="0.",
                otherwise="Runbook of RLJobOperatorWatchLagging.",
                unit="s",
                queries=[Query("max by (kind) (rljob_operator_watch_lag_seconds)", "{{kind}}")],
            ),
            Panel(
                title="Answers of coordinators",
                question="Does it reach the jobs?",
                good="ok alone.",
                otherwise="no_answer: coordinators, NetworkPolicy, certificates.",
                unit="ops",
                queries=[Query(f"sum by (result) (rate(rljob_operator_status_reports_total{_RATE}))", "{{result}}")],
            ),
            Panel(
                title="Age of reports",
                question="Does it know how runs are now?",
                good="Below 10 s, however many run.",
                otherwise="Operator's CPU; network to the jobs' namespaces.",
                unit="s",
                queries=[Query("max(rljob_operator_report_age_seconds)", "99 of 100 are younger")],
            ),
            Panel(
                title="Runs listened to",
                question="How many runs are under way?",
                good="As many as run.",
                otherwise="Fewer: see the answers of coordinators.",
                unit="short",
                width=12,
                queries=[Query("sum(rljob_operator_status_streams)", "streams")],
            ),
            Panel(
                title="Objects kept",
                question="How much does it hold in memory?",
                good="In proportion to jobs.",
                otherwise="It grows without jobs: report a bug.",
                unit="short",
                width=12,
                queries=[Query("max by (kind) (rljob_operator_cache_objects)", "{{kind}}")],
            ),
            Panel(
                title="Certificates",
                question="When does the first certificate of each job end?",
                good="More than two days ahead: they last seven and are renewed at two thirds.",
                otherwise="Runbook of RLJobCertificateExpiring.",
                unit="s",
                width=24,
                height=6,
                queries=[
                    Query(
                        f"min by ({_KEY}) (rljob_certificate_expiry_timestamp_seconds) - time()",
                        "{{rljob_namespace}}/{{rljob}}",
                    )
                ],
            ),
            Panel(
                title="Memory",
                question="How near is its limit?",
                good="Flat, far below the limit.",
                otherwise="A higher limit in the chart's resources.",
                unit="bytes",
                width=12,
                queries=[Query("process_resident_memory_bytes and on (instance) rljob_operator_info", "{{pod}}")],
            ),
            Panel(
                title="CPU",
                question="Is it busy?",
                good="Far below one core.",
                otherwise="See passes and requests.",
                unit="short",
                width=12,
                queries=[
                    Query(
                        f"rate(process_cpu_seconds_total{_RATE}) and on (instance) rljob_operator_info", "{{pod}} cores"
                    )
                ],
            ),
        ),
    ),
)


def _variables(*, several: bool, job: bool) -> list[Variable]:
    variables = [
        Variable("rljob_namespace", "Namespace", "label_values(rljob_state, rljob_namespace)", several=several)
    ]
    if job:
        variables.append(
            Variable("rljob", "Job", 'label_values(rljob_state{rljob_namespace="$rljob_namespace"}, rljob)')
        )
    return variables


def _marks(matchers: str) -> list[Mark]:
    job = "{{rljob_namespace}}/{{rljob}}"
    kinds = (
        ("New attempt", f"changes(rljob_trainer_attempt{{{matchers}}}[1m]) > 0", "red"),
        (
            "Rollouts scaled",
            f'changes(rljob_role_pods{{{matchers}, role="rollout", state="desired"}}[1m]) > 0',
            "blue",
        ),
        (
            "Suspended or resumed",
            f'changes(rljob_condition{{{matchers}, type="Suspended"}}[1m]) > 0',
            "orange",
        ),
    )
    return [Mark(name, expr, colour, job) for name, expr, colour in kinds]


def boards() -> dict[str, Json]:
    of_job = (("run", RUN), ("rollout", ROLLOUT), ("verifier", VERIFIER), ("trainer", TRAINER))
    titles = {"run": "run", "rollout": "rollouts and weights", "verifier": "verifiers and judges", "trainer": "trainer"}
    definitions = [
        Board(
            name="fleet",
            title="rljob / fleet",
            rows=FLEET,
            variables=_variables(several=True, job=False),
            marks=_marks(NAMESPACES),
        ),
        *(
            Board(
                name=name,
                title=f"rljob / {titles[name]}",
                rows=rows,
                variables=_variables(several=False, job=True),
                marks=_marks(JOB),
            )
            for name, rows in of_job
        ),
        Board(
            name="operator",
            title="rljob / operator",
            rows=OPERATOR,
            variables=[],
            marks=_marks('rljob_namespace=~".+"'),
        ),
    ]
    return {definition.name: board(definition) for definition in definitions}


def text(content: Json) -> str:
    """Return a dashboard as its file has it."""
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def file_of(name: str) -> pathlib.Path:
    return FOLDER / f"{name}.json"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for _name, _board in boards().items():
        file_of(_name).write_text(text(_board), encoding="utf-8")
