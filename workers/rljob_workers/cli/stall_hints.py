"""What to look at first, by the reason of a stall. Reasons are `rljob_api.conditions.STALL_REASONS`."""

from collections.abc import Mapping

HINTS: Mapping[str, str] = {
    "TrainerWaitingForTrajectories": "the trainer is idle: rollouts generate too slowly or are not ready; look at "
    "their logs, then add rollouts or shorten responses",
    "RolloutWaitingForWeights": "rollouts wait for a version that the trainer has not published; look at the "
    "trainer's log",
    "RolloutWaitingForTrainer": "the staleness bound admits no more groups until the trainer steps; look at the "
    "trainer's log",
    "VerifierSaturated": "gradings wait for a slot, or for a verifier that hangs; look at its log, then add verifiers "
    "or slots, or lower the graders' time limits",
    "VerifierFailing": "most gradings fail for infrastructure, which is no reward; look at the verifier's log",
    "AllGroupsFiltered": "every group is rejected by the filter; compare spec.data.filterGroups with the rewards "
    "that `rljob trajectories` shows",
    "WeightSyncStuck": "a rollout does not take over the newest weight version; look at its log and at the weight "
    "store",
    "CheckpointStuck": "the trainer is stuck in its last checkpoint; look at the storage and the trainer's log",
    "CollectiveHang": "trainer ranks wait for each other; look for the rank that is behind in the trainer's logs",
    "DataSourceStuck": "the coordinator has no prompt to give; look at spec.data.train and the coordinator's log",
    "CoordinatorUnreachable": "the coordinator does not answer; look at its log; the run goes on once it is back",
    "LedgerStuck": "the ledger cannot commit; look at the disk: full, slow, or a network file system",
    "PodsUnschedulable": "a pod has no node; look at its events: quota, accelerators, taints",
    "ImagePullFailed": "an image cannot be pulled; look at its name and the pull secrets",
    "WaitCycle": "processes wait for each other in a circle, which is a fault of rljob; restart the last of the chain "
    "and report it with these lines",
    "Unknown": "nobody says what it waits for; look at the trainer's log first",
}
