"""What a run goes on without: groups whose prompt is left out, dumps that were not written. One sentence for each."""

from collections.abc import Iterator, Mapping

from rljob_api import names

_WHY = {
    names.DropReason.TOO_LONG: "the prompt is longer than maxPromptTokens of its source",
    names.DropReason.INVALID_RECORD: "the record cannot be graded",
}


def sentences(*, left_out: Mapping[str, int], dump_failures: int) -> Iterator[str]:
    """Yield a sentence for each loss; none if there is none. left_out: how many groups, by reason."""
    for reason, why in _WHY.items():
        if count := left_out.get(reason, 0):
            yield f"{_counted(count, 'group')} left out, because {why}; the logs of the rollouts name the first"
    if dump_failures:
        yield f"{_counted(dump_failures, 'trajectory dump')} could not be written; the logs of the rollouts say why"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
