"""What a manifest may not combine: small pure functions, each a sentence or none, listed in one table.

Numbers are the rows of the table of refused settings in the algorithms reference; words are rules of the resource.
They speak of values that were written: an unset field never breaks a rule by its default alone.
"""

from collections.abc import Callable, Iterator

from rljob_api.manifest.job import JobSpec
from rljob_api.rules import advantages, batch, code, correction, loss, resource, rewards, sampling, warned

Rule = Callable[[JobSpec], Iterator[str]]

RULES: tuple[tuple[str, Rule], ...] = (
    ("1", loss.kl_loss_with_k1),
    ("2", loss.kl_and_reference_model),
    ("3", loss.reuse_with_several_updates),
    ("4", correction.behaviour_with_correction),
    ("5", loss.needs_proximal_before_the_split),
    ("6", correction.mode_that_ignores),
    ("7", correction.bounds_without_meaning),
    ("8", correction.aggregate_at_the_wrong_level),
    ("9", loss.field_outside_its_surrogate),
    ("10", loss.out_of_range),
    ("11", advantages.group_of_one),
    ("12", advantages.normalisation_that_ignores),
    ("13", advantages.rewards_shaped_twice),
    ("14", advantages.gae_without_use),
    ("15", advantages.critic_and_estimator),
    ("16", loss.constant_denominator_without_constant),
    ("17", advantages.truncated_is_terminal_and_not),
    ("18", advantages.overlong_never_acts),
    ("19", batch.filter_accepts_nothing),
    ("20", batch.synchronous_with_async_settings),
    ("21", batch.publishes_too_rarely),
    ("22", batch.empty_minibatch_or_unplaceable_row),
    ("23", sampling.training_distribution),
    # Row 24 (recipe and foreign names) is refused on reading: rljob_api.aliases.
    ("divisibility", batch.rows_divide_among_ranks),
    ("model length", sampling.requests_fit_the_engine),
    ("stops", sampling.stops_that_the_template_replaces),
    ("inflight", batch.inflight_above_the_cap),
    ("fractions", resource.shares_in_range),
    ("optimizer", resource.optimizer_in_range),
    ("sources", resource.one_place_per_source),
    ("names", resource.names_are_unique),
    ("success rate", batch.bounds_written_twice),
    ("filter metric", resource.filter_metric_exists),
    ("compat", resource.compat_needs_an_original),
    ("reward options", rewards.options_exist),
    ("packages", rewards.packages_have_a_use),
    ("isolation", resource.unsafe_isolation_is_admitted),
    ("runtime class", resource.one_runtime_class),
    ("replicas", resource.replica_bounds),
    ("extra keys", resource.keys_that_we_set),
    ("offload", resource.offload_needs_sharding),
    ("storage", resource.one_kind_of_storage),
    ("model source", resource.a_source_has_a_use),
    ("fork", resource.one_checkpoint_to_fork_from),
    ("security", resource.issuer_and_tls),
    ("pod labels", resource.reserved_labels),
    ("verifier pods", resource.verifiers_are_confined),
    ("user code", code.file_and_module_agree),
)

WARNINGS: tuple[Rule, ...] = warned.WARNINGS


def problems(spec: JobSpec) -> list[str]:
    """Return a sentence for every broken rule, in the table's order."""
    return [sentence for _, rule in RULES for sentence in rule(spec)]


def warnings(spec: JobSpec) -> list[str]:
    """Return a sentence for every legal but doubtful combination."""
    return [sentence for rule in WARNINGS for sentence in rule(spec)]
