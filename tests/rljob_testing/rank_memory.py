"""A trainer's rank that loads a model, makes an update, and says what memory of its own that took: a program.

`python -m rljob_testing.rank_memory '<JSON>'`; prints one line of JSON, see `RankMemory`. All ranks are started alike.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence

_PERIOD_S = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Anonymous bytes beyond the libraries': the most while it loaded, those after that, the most while it trained."""

    loading: int
    loaded: int
    training: int


def of_ranks(model: pathlib.Path, changes: Mapping[str, object], *, ranks: int = 1, stage: int = 0) -> list[RankMemory]:
    """Return what each rank held."""
    from rljob_testing import trainer_makers

    with tempfile.TemporaryDirectory() as folder:
        tiny = trainer_makers.make_tiny_model(pathlib.Path(folder) / "tiny", dtype="bfloat16")
        order = {"model": str(model), "tiny": str(tiny), "changes": dict(changes), "stage": stage, "folder": folder}
        started = [_start(order, rank, ranks) for rank in range(ranks)]
        printed = [process.communicate(timeout=300)[0] for process in started]
    assert all(process.returncode == 0 for process in started), printed
    return [RankMemory(**json.loads(text.splitlines()[-1])) for text in printed]


def _start(order: Mapping[str, object], rank: int, ranks: int) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "DS_ACCELERATOR": "cpu",
        # Freed memory goes back at once, so that what is counted is what is held.
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    command = [sys.executable, "-m", __spec__.name, json.dumps(order)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def anonymous_bytes() -> int:
    """Return this process's anonymous pages."""
    lines: Sequence[str] = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class _Most:
    """The most anonymous bytes since it was made."""

    def __init__(self) -> None:
        self._most, self._over = anonymous_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self._most = max(self._most, anonymous_bytes())

    def end(self) -> int:
        self._over.set()
        self._thread.join()
        return max(self._most, anonymous_bytes())


def main() -> None:
    """Load, train, print."""
    import torch
    import torch.distributed as dist

    from rljob_testing import trainer_makers as makers
    from rljob_workers.trainer.engine import deepspeed
    from rljob_workers.trainer.model import adapters, batch_tensors
    from rljob_workers.trainer.state import export
    from rljob_workers.weights import initial

    order = json.loads(sys.argv[1])
    folder, model, device = pathlib.Path(order["folder"]), pathlib.Path(order["model"]), torch.device("cpu")
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), ranks)  # type: ignore[attr-defined]  # exported, but not in its stubs
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    config = makers.make_trainer_config(folder, order["changes"], dtype="bfloat16", zero_stage=order["stage"])
    lora, adapter = config.spec.model.lora, None
    first = initial.of_job(config.spec, model)
    part = batch_tensors.to_tensors(makers.pack(makers.make_rows(groups=2, size=3), shared=True), device)
    # What is imported and allocated once, whatever the model: by a tiny one, beforehand.
    deepspeed.Engine(config, pathlib.Path(order["tiny"]), device)
    before, most = anonymous_bytes(), _Most()
    if lora is not None:
        adapter = adapters.Adapter(lora=lora, layout=first.layout, values=export.views(first.layout, first.image()))
    built = deepspeed.Engine(config, model, device, adapter=adapter)
    loading, loaded, most = most.end(), anonymous_bytes(), _Most()
    logprobs, _ = built.forward(part)
    built.backward((logprobs * part.advantages).sum())
    assert built.step(1e-3).applied
    training = most.end()
    print(
        json.dumps(
            dataclasses.asdict(RankMemory(loading=loading - before, loaded=loaded - before, training=training - before))
        )
    )


if __name__ == "__main__":
    main()
