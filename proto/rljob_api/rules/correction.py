"""Rows 4, 6, 7 and 8: rollout correction and its second filter."""

from collections.abc import Iterator

from rljob_api.manifest.base import optional_number
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.loss import CorrectionSpec, RejectSpec
from rljob_api.messages import ignored, refuse

BLOCK = "algorithm.loss.rolloutCorrection"


def _filters(spec: JobSpec) -> Iterator[tuple[str, CorrectionSpec | RejectSpec]]:
    block = spec.algorithm.loss.rollout_correction
    if block is not None:
        yield BLOCK, block
        if block.reject is not None:
            yield f"{BLOCK}.reject", block.reject


def behaviour_with_correction(spec: JobSpec) -> Iterator[str]:
    """Row 4."""
    block = spec.algorithm.loss.rollout_correction
    if spec.algorithm.loss.proximal == "behaviour" and block is not None:
        yield ignored(BLOCK, block, "proximal is 'behaviour', where the weight is always 1")


def mode_that_ignores(spec: JobSpec) -> Iterator[str]:
    """Row 6."""
    block = spec.algorithm.loss.rollout_correction
    if block is None:
        return
    bounded = block.low is not None or block.high is not None
    if block.mode == "truncate" and block.metric != "ratio":
        yield refuse(f"{BLOCK}.metric", block.metric, "mode truncate clamps the ratio itself: use ratio, or mode: mask")
    if block.mode == "truncate" and block.weighting == "none":
        yield refuse(f"{BLOCK}.weighting", "none", "mode truncate clamps the weight: use ratio, or mode: mask")
    if block.mode == "none" and bounded:
        key, value = ("high", block.high) if block.high is not None else ("low", block.low)
        yield ignored(f"{BLOCK}.{key}", value, "mode is 'none', which has no bounds")
    if block.mode == "mask" and not bounded:
        yield refuse(f"{BLOCK}.mode", "mask", "neither low nor high is set, so nothing would be masked: set one")
    reject = block.reject
    if reject is not None and reject.low is None and reject.high is None:
        yield refuse(f"{BLOCK}.reject", reject, "neither low nor high is set, so nothing would be masked: set one")


def bounds_without_meaning(spec: JobSpec) -> Iterator[str]:
    """Row 7."""
    for path, block in _filters(spec):
        low, high = optional_number(block.low), optional_number(block.high)
        if block.metric == "ratio":
            yield from _ratio_bounds(path, block)
        elif block.metric != "k1":
            if low is not None:
                yield refuse(
                    f"{path}.low",
                    block.low,
                    f"metric {block.metric} is never negative and has no lower bound: leave it out",
                )
            if high is not None and high <= 0:
                yield refuse(f"{path}.high", block.high, f"metric {block.metric} needs an upper bound above 0")
        if low is not None and high is not None and low > high:
            yield refuse(f"{path}.low", block.low, f"it is above high '{block.high}', so nothing would be kept")
        if block.metric == "binaryKl" and block.level == "sequence":
            yield refuse(f"{path}.metric", "binaryKl", "it is defined for single tokens: use level: token, or k3")


def _ratio_bounds(path: str, block: CorrectionSpec | RejectSpec) -> Iterator[str]:
    low, high = optional_number(block.low), optional_number(block.high)
    if high is not None and high <= 1:
        yield refuse(f"{path}.high", block.high, 'an upper bound of a ratio must be above 1: "2" is usual')
    if low is not None and low <= 0:
        yield refuse(
            f"{path}.low", block.low, "a ratio is always above 0: leave it out, or use a bound between 0 and 1"
        )
    if low is not None and low >= 1:
        yield refuse(f"{path}.low", block.low, 'a lower bound of a ratio must be below 1: "0.5" is usual')


def aggregate_at_the_wrong_level(spec: JobSpec) -> Iterator[str]:
    """Row 8, and its reverse: at sequence level there is no statistic without agg."""
    for path, block in _filters(spec):
        if block.level == "token" and block.agg is not None:
            yield ignored(f"{path}.agg", block.agg, "level is 'token', where nothing is aggregated")
        if block.level == "sequence" and block.agg is None:
            yield refuse(f"{path}.level", "sequence", "agg is not set: choose mean, sum or max")
        if isinstance(block, RejectSpec) or block.level != "sequence":
            continue
        if block.agg == "max" and block.metric == "ratio" and block.weighting in (None, "ratio"):
            yield refuse(
                f"{path}.agg", "max", "the largest ratio of a row is no weight: use mean or sum, or weighting: none"
            )
