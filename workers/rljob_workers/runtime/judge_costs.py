"""What the judges of a run have cost so far, by reward: a file in the judge's own folder that its restarts continue.

The judge writes it, and the runner of one machine has it in summary.json.
"""

import pathlib
from collections.abc import Mapping

import pydantic

from rljob_workers.runtime import atomic

FILE = "costs.json"


class Cost(pydantic.BaseModel):
    """Calls that were made, whatever became of them; questions answered from memory; tokens as the model counts them;
    seconds of all calls.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def plus(self, other: "Cost") -> "Cost":
        mine, theirs = self.model_dump(), other.model_dump()
        return Cost.model_validate({name: mine[name] + theirs[name] for name in mine})


_Costs = pydantic.TypeAdapter(dict[str, Cost])


def read(folder: pathlib.Path) -> dict[str, Cost]:
    """Return the costs by reward; none where no judge has written any."""
    try:
        return _Costs.validate_json((folder / FILE).read_bytes())
    except (OSError, pydantic.ValidationError):
        return {}


def write(folder: pathlib.Path, costs: Mapping[str, Cost]) -> None:
    """Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(folder / FILE, _Costs.dump_json(dict(costs), indent=1).decode())
