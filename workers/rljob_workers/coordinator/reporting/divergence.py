"""Whether a run loses what it has learned, from its last steps and its best ones. Pure; `rljob_api.learning` judges."""

from rljob_api import learning, types
from rljob_api.manifest.job import JobSpec
from rljob_workers.coordinator.ledger import best_steps, queries


def points(facts: queries.Facts) -> list[learning.Point]:
    """Return the points of the last steps of RL: a supervised one has no reward."""
    return [learning.point_of(s.step, s.summary, s.stats) for s in facts.steps if s.step > facts.sft_steps]


def better(facts: queries.Facts) -> best_steps.Best | None:
    """Return the best steps where they are not those that are kept; None where nothing is to be kept."""
    newest, before = points(facts), facts.best
    best = learning.best(None if before is None else before.mean, newest)
    if best is None:
        return None
    lowest = min([point.reward for point in newest] + ([] if before is None else [before.lowest]))
    is_kept = before is not None and (best, lowest) == (before.mean, before.lowest)
    return None if is_kept else best_steps.Best(mean=best, lowest=lowest)


def concern(spec: JobSpec, facts: queries.Facts) -> types.Concern | None:
    """Return what is to be said of a run that diverges."""
    best = facts.best
    return learning.divergence(
        None if best is None else best.mean,
        points(facts),
        lowest=0.0 if best is None else best.lowest,
        learning_rate=float(spec.trainer.optimizer.learning_rate),
        checkpoint=None if best is None else best.checkpoint,
    )
