"""What a check finds wrong with records, and what of it only leaves them out: `onInvalidRecord`. Pure."""

import dataclasses
from collections.abc import Iterable, Sequence

from rljob_api.manifest.data import DataSourceSpec
from rljob_workers.data import records

# How many of a source's records that are left out a check reports on, one by one.
NUM_TOLD = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check says: a sentence per problem, which refuses the job, and per warning, which does not."""

    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """Return what is printed: all problems, then all warnings."""
        return [f"error: {text}" for text in self.problems] + [f"warning: {text}" for text in self.warnings]


def joined(findings: Iterable[Findings]) -> Findings:
    """Return the findings of several checks in their order."""
    each = list(findings)
    return Findings(
        problems=[problem for finding in each for problem in finding.problems],
        warnings=[warning for finding in each for warning in finding.warnings],
    )


def judged(
    source: DataSourceSpec, loaded: records.LoadedSource, wrong: Sequence[tuple[int, str]], *, drops: bool
) -> Findings:
    """Return a problem for each record that cannot be used or, where such are dropped, one warning with their number;
    that no record would be left is a problem. wrong: (index of the record, sentence).
    """
    sentences = [f"{loaded.place(index)}: {text}" for index, text in wrong]
    if not drops or not wrong:
        return Findings(problems=sentences)
    summary = "; ".join(sentences[:NUM_TOLD]) + ("; ..." if len(sentences) > NUM_TOLD else "")
    num_wrong, num_records = len({index for index, _ in wrong}), len(loaded.records)
    if num_wrong == num_records:
        return Findings(problems=[f"source {source.name!r}: none of its {num_records} records can be used: {summary}"])
    return Findings(warnings=[f"source {source.name!r}: {num_wrong} of {num_records} records are left out: {summary}"])
