"""The boundary "grader": whatever a grader raises is a verdict on that one answer, never the end of its batch."""

from collections.abc import Callable
from dataclasses import replace

from rljob_api import errors, names
from rljob_workers.verifier.graders import protocol

Decide = Callable[[protocol.Answer], protocol.Grade | None]


def guarded(decide: Decide, answer: protocol.Answer) -> protocol.Grade | None:
    """Return what `decide` returns, or the grade of its failure. The completion's text is not in the detail.

    Raises GraderError: a reward function that returns no number is wrong for every answer.
    """
    try:
        return decide(answer)
    except errors.GraderError:
        raise
    except MemoryError:
        grade = protocol.failed(names.VerdictReason.RESOURCE_LIMIT, detail="memory limit")
        return replace(grade, outcome=names.VerifyOutcome.OOM)
    except RecursionError:
        return protocol.failed(names.VerdictReason.PARSE_ERROR, detail="nested too deep")
    except Exception as error:  # noqa: BLE001  # the named boundary
        return protocol.failed(names.VerdictReason.CRASH, detail=f"the grader raised {type(error).__name__}")
