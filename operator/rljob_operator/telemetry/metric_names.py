"""Every metric of the operator: name, type, help, labels, buckets. `metrics.py` makes these and no others.

Metrics of a job name the job in their labels; the four programs of a job declare theirs in `rljob_api.enums`.
"""

from rljob_api.metric_names import Metric

JOB = ("rljob_namespace", "rljob")
# Few buckets, at bounds that are asked for: the operator may have 60 series of its own. Sum and count give the mean.
_SECONDS = (0.1, 3.0)
# Half of the changes reach a child within the first, all but a hundredth within the second: the promise to jobs.
TO_CHILD_SECONDS = (0.5, 3.0)
_MINUTES = (60.0, 600.0)
_DAYS = (86_400.0,)
# Phases of rljob_startup_seconds.
STARTUP_PHASES = QUEUE, SCHEDULE, PULL, LOAD, FIRST_STEP = ("queue", "schedule", "pull", "load", "first_step")
# What `resource` says of requests: what is written often by itself, what makes pods and all else together, and
# EVERY_KIND for lists and watches, which are made of all.
EVERY_KIND, WORKLOADS, OTHERS = "all", "workloads", "others"
REQUESTED = ("rljobs", "rljobs/status", "pods", "events", WORKLOADS, OTHERS, EVERY_KIND)
# Labels of rljob_operator_spec_to_child_seconds: children that make pods, and what these need.
WORKLOAD, OTHER_CHILD = "workload", "other"


def _g(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="g", help=text, labels=labels)


def _c(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="c", help=text, labels=labels)


def _h(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Metric:
    return Metric(name=name, kind="h", help=text, labels=labels, buckets=buckets)


METRICS: tuple[Metric, ...] = (
    _g("rljob_info", "One per job.", *JOB, "queue", "model", "operator_version"),
    _g("rljob_state", "The summary word that holds.", *JOB, "state"),
    _g("rljob_condition", "1 where a condition is True.", *JOB, "type"),
    _g("rljob_stalled", "Present while stalled.", *JOB, "reason", "role"),
    _g("rljob_role_pods", "Pods by role and state.", *JOB, "role", "state"),
    _g("rljob_trainer_attempt", "Number of the trainer's attempt.", *JOB),
    _g("rljob_isolation_layer", "1 where every verifier pod has a layer.", *JOB, "layer", "required"),
    _g(
        "rljob_certificate_expiry_timestamp_seconds",
        "Unix time at which the certificate of a role ends.",
        *JOB,
        "role",
    ),
    _g(
        "rljob_owner_info", "One for each owner label of a job, to join with others by its value.", *JOB, "key", "value"
    ),
    # Gauges, though they grow: what the last status says, after a restart of the operator, may be a little less, which
    # would count as a counter that began again.
    _g("rljob_usage_gpu_seconds", "GPUs that pods asked for, times seconds on a node, so far.", *JOB, "role"),
    _g("rljob_usage_cpu_core_seconds", "Cores that pods asked for, times seconds on a node, so far.", *JOB, "role"),
    _g("rljob_usage_tokens", "Tokens by kind, over all segments of a job.", *JOB, "kind"),
    _c("rljob_restarts_total", "Ends of trainer attempts by class.", *JOB, "role", "class"),
    _c(
        "rljob_pod_replacements_total",
        "Pods recreated after a loss and containers restarted, by cause.",
        *JOB,
        "role",
        "cause",
    ),
    _c(
        "rljob_rollout_scale_total",
        "Changes of the desired number of rollouts; source is the job's autoscaler where it has one.",
        *JOB,
        "direction",
        "source",
    ),
    _h(
        "rljob_recovery_seconds",
        "Seconds from a lost pod until its role is complete and another step is finished, of all jobs.",
        "role",
        buckets=_MINUTES,
    ),
    _h(
        "rljob_startup_seconds",
        "Seconds of starts, of all jobs. queue: requested, no pod yet; first_step: from the first pod to the first"
        " finished step; of each pod schedule: to its node, pull: until its containers run, load: until it is ready.",
        "phase",
        buckets=_MINUTES,
    ),
    _h(
        "rljob_run_seconds",
        "Seconds from the first pod of a run, since it was last resumed, to its end, of all jobs.",
        "outcome",
        buckets=_DAYS,
    ),
    _g(
        "rljob_operator_info",
        "The operator's version, and whether the served RLJob has every field that it reads.",
        "version",
        "crd_matches",
    ),
    _h("rljob_operator_reconcile_seconds", "Seconds of a pass.", "result"),
    _c("rljob_operator_reconcile_errors_total", "Passes that failed, by class.", "class"),
    _h(
        "rljob_operator_spec_to_child_seconds",
        "Seconds from an observed change to an applied child; workload: one that creates pods.",
        "kind",
        buckets=TO_CHILD_SECONDS,
    ),
    _c(
        "rljob_operator_api_requests_total",
        "Requests to the API server. resource is all for lists and watches, workloads for what makes pods; code is 2xx"
        " for success, 0 for no answer.",
        "verb",
        "resource",
        "code",
    ),
    _c(
        "rljob_operator_status_reports_total",
        "Reports of coordinators; no_answer: streams that ended, and tries to open one that failed.",
        "result",
    ),
    _g("rljob_operator_status_streams", "Coordinators that are listened to and say how their runs are."),
    _g(
        "rljob_operator_report_age_seconds",
        "Age that 99 of 100 last reports of running jobs do not exceed; silent coordinators are left out.",
    ),
    _g("rljob_operator_leader", "1 in the process that may write in a shard of the namespaces, 0 in others.", "shard"),
    _g("rljob_operator_queue_depth", "Keys that wait."),
    _g("rljob_operator_queue_oldest_seconds", "Seconds that the longest overdue key waits."),
    _g(
        "rljob_operator_refused_lists",
        "Kinds that could not be listed in a namespace or in the cluster when it was tried last; the log names them.",
    ),
    _g("rljob_operator_cache_objects", "Objects in the cache.", "kind"),
    _g("rljob_operator_watch_lag_seconds", "Age of the oldest change that only a list saw.", "kind"),
)
