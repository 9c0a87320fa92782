"""Plays a run, step by step, as the coordinator judges it."""

from collections.abc import Sequence

from rljob_api import learning


def told(points: Sequence[learning.Point], *, lowest: float = 0.0, checkpoint: int | None = 4) -> list[tuple[int, str]]:
    """Play a run, step by step; return the steps after which it is called diverged, with the sentences."""
    best, sentences = None, []
    for end in range(1, len(points) + 1):
        best = learning.best(best, points[:end])
        concern = learning.divergence(
            best, points[max(0, end - 21) : end], lowest=lowest, learning_rate=2e-4, checkpoint=checkpoint
        )
        if concern is not None:
            assert concern.reason == "LearningDiverged"
            sentences.append((points[end - 1].step, concern.message))
    return sentences
