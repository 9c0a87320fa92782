"""The real rollout program, which also writes down what it was promised and what its engine served.

`python -m rljob_testing.witnessed_rollout --config FILE`, one JSON object a line into $RLJOB_WITNESS:
    {"acknowledged": group id, "attempt": n, "outcome": text}    an answer that the coordinator gave
    {"served": version, "state_hash": text}                     a version that became live, and what the image holds
With RLJOB_WITNESS_ENGINE=fake the engine without a model (`engines/fake.py`) replaces vLLM; all else is ours. torch,
which only vLLM needs here, is then hidden from transformers, whose tokenizers would import it. RLJOB_WITNESS_TOKEN_S:
seconds per token of that engine.
"""

import dataclasses
import mmap
import os
import sys

from rljob_api import types
from rljob_testing.witnessed_trainer import tell
from rljob_workers.rollout import __main__ as program
from rljob_workers.rollout.engines import base, fake
from rljob_workers.rollout.engines.vllm import engine
from rljob_workers.rpc import work
from rljob_workers.runtime import clock
from rljob_workers.weights import image

ENGINE = "RLJOB_WITNESS_ENGINE"
TOKEN_S = "RLJOB_WITNESS_TOKEN_S"


class WitnessedClient(work.WorkClient):
    """Reports on each answer to a submission."""

    async def submit(self, group: types.PromptGroup) -> types.SubmitReply:
        """Hand in a group."""
        answer = await super().submit(group)
        tell(acknowledged=group.group_id, attempt=group.attempt, outcome=str(answer.outcome))
        return answer


class Witness:
    """What a version's commit found in the image."""

    def __init__(self, settings: base.Settings) -> None:
        """Map the image."""
        with open(settings.image_path, "rb") as file:
            self._image = memoryview(mmap.mmap(file.fileno(), settings.image_bytes, prot=mmap.PROT_READ))
        self._layout: types.Layout | None = None

    def loads(self, layout: types.Layout) -> None:
        """Note the layout of what is loaded."""
        self._layout = layout

    def served(self, version: types.VersionId) -> None:
        """Tell what is served from now on, once something was loaded."""
        if self._layout is not None:
            digests = image.digests(self._image, self._layout)
            tell(served=int(version), state_hash=image.state_hash(self._layout, digests))


class WitnessedFake(fake.FakeEngine):
    """The engine without a model, built as vLLM is."""

    def __init__(self, settings: base.Settings) -> None:
        """Build it."""
        super().__init__(
            clock=clock.SystemClock(), behavior=fake.Behavior(token_s=float(os.environ.get(TOKEN_S, "0.01")))
        )
        self._witness = Witness(settings)

    async def load(self, layout: types.Layout) -> None:
        """Load."""
        self._witness.loads(layout)
        await super().load(layout)

    async def commit(self, version: types.VersionId) -> None:
        """Take the label."""
        await super().commit(version)
        self._witness.served(version)


class WitnessedVllm(engine.VllmEngine):
    """vLLM."""

    def __init__(self, settings: base.Settings) -> None:
        """Build it."""
        super().__init__(settings)
        self._witness = Witness(settings)

    async def load(self, layout: types.Layout) -> None:
        """Load."""
        self._witness.loads(layout)
        await super().load(layout)

    async def commit(self, version: types.VersionId) -> None:
        """Take the label."""
        await super().commit(version)
        self._witness.served(version)


def install(engine_type: str) -> None:
    """Put the witnesses where the program that assembles a rollout looks for its engine and its client."""
    vllm = engine.REGISTRATION
    vars(engine)["REGISTRATION"] = (
        dataclasses.replace(vllm, make=WitnessedFake, prepare=lambda: None)
        if engine_type == "fake"
        else dataclasses.replace(vllm, make=WitnessedVllm)
    )
    vars(work)["WorkClient"] = WitnessedClient


def main() -> int:
    """Run the program with witnesses in place."""
    engine_type = os.environ.get(ENGINE, "")
    if engine_type == "fake":
        # Where the entry is None, there is no such module.
        sys.modules.update({"torch": None})  # type: ignore[dict-item]
    install(engine_type)
    return program.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
