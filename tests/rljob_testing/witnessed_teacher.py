"""What a trainer's teacher said of each sampled token, and how far that is from the model that the job names.

The named model is read anew, by transformers alone, and reads each row by itself: nothing of ours loads, packs or
scores it.
"""

import pathlib
from collections.abc import Mapping, Sequence

import torch
import transformers
from torch.nn.functional import log_softmax

from rljob_api import types
from rljob_workers.trainer.model import batch_tensors, logprobs, reference

_SAID: list[torch.Tensor] = []


class WitnessedTeacher(reference.FrozenModel):
    """A frozen model whose scores are kept until the step's update was made. For jobs whose only one is the teacher."""

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        scored = super().score(tensors)
        _SAID.append(scored)
        return scored

    def teach(self, tensors: batch_tensors.BatchTensors, count: int) -> tuple[torch.Tensor, logprobs.Likeliest]:
        scored, lesson = super().teach(tensors, count)
        _SAID.append(scored)
        return scored, lesson


class NamedModel:
    """The model of a folder, in float32, and what it is compared with."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Load it, and let the trainer of this process load its teacher with the witness."""
        vars(reference)["FrozenModel"] = WitnessedTeacher
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def begin(self) -> None:
        """Leave out what the teacher said so far: when it is loaded, the trainer proves with rows of its own that
        packing is exact.
        """
        _SAID.clear()

    def compared(self, micro_batches: Sequence[types.MicroBatch]) -> Mapping[str, object]:
        """Return what the teacher said of a step: of how many of its sampled tokens, and the largest distance to the
        named model, in nats.
        """
        scored = torch.cat([*_SAID, torch.empty(0)]).double()
        apart = torch.cat([self.logprobs(batch) for batch in micro_batches])
        distance = float((scored - apart).abs().max()) if scored.shape == apart.shape else float("inf")
        return {"taught": len(scored), "sampled": len(apart), "distance": distance}

    def logprobs(self, batch: types.MicroBatch) -> torch.Tensor:
        """Return log-probabilities [N] of the sampled tokens at temperature 1, one context at a time."""
        found = []
        with torch.no_grad():
            for target in batch.target_index:
                context = [batch.tokens[place] for place in path(batch.segments, target)]
                logits = self._model(torch.tensor([context])).logits[0, -2]
                found.append(log_softmax(logits.double(), dim=-1)[context[-1]])
        return torch.stack(found)


def path(segments: Sequence[types.Segment], place: int) -> list[int]:
    """Return the places of a token and of all before it that it sees, in order."""
    index = next(index for index, one in enumerate(segments) if one.start <= place < one.end)
    places, end = list[int](), place + 1
    while index >= 0:
        segment = segments[index]
        places = [*range(segment.start, end), *places]
        index = segment.parent
        end = segments[index].end
    return places
