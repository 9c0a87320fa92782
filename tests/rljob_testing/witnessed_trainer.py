"""The real trainer program, whose rank 0 also writes down which groups each update was made from.

`python -m rljob_testing.witnessed_trainer --config FILE`, one JSON object a line into $RLJOB_WITNESS:
    {"trained": step, "groups": [ids], "digest": text}    reported before the coordinator hears of the step

With $RLJOB_WITNESS_TEACHER, the folder of the job's teacher, also what `witnessed_teacher.NamedModel` finds.

The launcher starts this module again as each rank; there RANK is set.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rljob_api import types
from rljob_workers.rpc import train as batches
from rljob_workers.trainer import __main__ as program
from rljob_workers.trainer import worker

if TYPE_CHECKING:
    from rljob_testing.witnessed_teacher import NamedModel

WITNESS, TEACHER = "RLJOB_WITNESS", "RLJOB_WITNESS_TEACHER"


def tell(**what: object) -> None:
    """Append one line; it is in the kernel's hands before anything that follows from it."""
    descriptor = os.open(os.environ[WITNESS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, json.dumps(what).encode() + b"\n")
    os.close(descriptor)


class WitnessedBatches(batches.BatchClient):
    """Reports on each step whose update was made. named: the model that the job's teacher must be, if it has one."""

    named: "ClassVar[NamedModel | None]" = None

    def fetch(self, *, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> batches.Batch:
        """Fetch a batch and note what it is."""
        fetched = super().fetch(step=step, rank=rank, world_size=world_size, wait_s=wait_s, stop=stop)
        self._groups = sorted({row.group_id for batch in fetched[1] for row in batch.rows})
        self._digest = digest(fetched[1])
        self._batches = fetched[1]
        if self.named is not None:
            self.named.begin()
        return fetched

    def commit_step(
        self,
        *,
        step: int,
        stats: Mapping[str, float],
        started_at: float,
        finished_at: float,
        storage_problem: str = "",
    ) -> None:
        """Tell, then commit."""
        compared = self.named.compared(self._batches) if self.named is not None else {}
        tell(trained=step, groups=self._groups, digest=self._digest, **compared)
        super().commit_step(
            step=step,
            stats=stats,
            started_at=started_at,
            finished_at=finished_at,
            storage_problem=storage_problem,
        )


def digest(micro_batches: Sequence[types.MicroBatch]) -> str:
    """Return a hash of all that a rank is given for a step."""
    sha = hashlib.sha256()
    for batch in micro_batches:
        for field in dataclasses.fields(batch):
            value = getattr(batch, field.name)
            sha.update(value.tobytes() if isinstance(value, memoryview) else repr(value).encode())
    return sha.hexdigest()[:32]


def main() -> int:
    """Run the launcher, or a rank with the witness in place."""
    if "RANK" not in os.environ:
        vars(program)["_RANK_MODULE"] = "rljob_testing.witnessed_trainer"
        return program.main(sys.argv[1:])
    # Where the rank that puts all together looks for it.
    vars(batches)["BatchClient"] = WitnessedBatches
    if TEACHER in os.environ:
        from rljob_testing import witnessed_teacher

        WitnessedBatches.named = witnessed_teacher.NamedModel(pathlib.Path(os.environ[TEACHER]))
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
