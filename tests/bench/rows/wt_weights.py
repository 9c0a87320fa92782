"""WT: what a weight version costs on the wire and in time, against other codings of the same real versions.

The versions are those of the addition example, which is run for a few steps and keeps them (`wt-versions` in the output
folder, used again if it is there). Every pair of neighbours is coded by both sides one after the other, in this
process; seconds are CPU seconds, which other work on the machine leaves alone. docs/design/weights.md#s-12
"""

import itertools
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy
import safetensors.numpy
import zstandard
from tests.bench import runner

from rljob_api import process_config, types
from rljob_workers.local import prepare
from rljob_workers.models import builtin
from rljob_workers.weights import delta, image

EXAMPLE = pathlib.Path(__file__).parents[3] / "crds/examples/addition-cpu.yaml"
MODEL = process_config.ModelFiles(name="builtin:smollm2-135m-instruct", cache_dir=str(prepare.cache_dir()))
STEPS = {"smoke": 4, "full": 12}
ROUNDS = {"smoke": 2, "full": 3}


class Coding:
    """A way to code the changes between two images: `encode(old, new)`, then `apply(image, coded)` in place."""

    def __init__(self, layout: types.Layout) -> None:
        self.layout = layout

    def encode(self, old: memoryview, new: memoryview) -> list[bytes]:
        raise NotImplementedError

    def apply(self, target: memoryview, coded: Sequence[bytes]) -> None:
        raise NotImplementedError


class Ours(Coding):
    def encode(self, old: memoryview, new: memoryview) -> list[bytes]:
        data = delta.encode(self.layout, old, new).data
        assert data is not None, "a step of the example changes few weights"
        return [data]

    def apply(self, target: memoryview, coded: Sequence[bytes]) -> None:
        delta.apply(self.layout, target, memoryview(coded[0]))


class XorZstd(Coding):
    """Exclusive or of the bits of each tensor, zstd level 1."""

    def encode(self, old: memoryview, new: memoryview) -> list[bytes]:
        compressor = zstandard.ZstdCompressor(level=1)
        return [compressor.compress(memoryview(a ^ b)) for a, b in zip(self._words(old), self._words(new), strict=True)]

    def apply(self, target: memoryview, coded: Sequence[bytes]) -> None:
        decompressor = zstandard.ZstdDecompressor()
        for words, frame in zip(self._words(target), coded, strict=True):
            words ^= numpy.frombuffer(decompressor.decompress(frame), dtype=numpy.uint64)

    def _words(self, data: memoryview) -> "Iterator[numpy.ndarray[tuple[int], numpy.dtype[numpy.uint64]]]":
        for index, spec in enumerate(self.layout.tensors):
            following = self.layout.tensors[index + 1 :][:1]
            end = following[0].offset if following else self.layout.image_bytes
            yield numpy.frombuffer(data[spec.offset : end], dtype=numpy.uint64)


def measure(size: str, out: pathlib.Path) -> list[runner.Measured]:
    folder = out / "wt-versions"
    images = sorted(folder.glob("*.image"))
    if len(images) < 3:
        images = train(folder, steps=STEPS[size])
    layout = image.layout_from_safetensors(builtin.ensure_model(MODEL), "bfloat16")
    ours, peer = Ours(layout), XorZstd(layout)
    sizes: dict[str, list[runner.Pair]] = {"WT-dense": [], "WT-5": [], "WT-6": []}
    seconds: list[runner.Pair] = []
    shares = []
    for old_path, new_path in itertools.pairwise(images):
        old, new = bytearray(old_path.read_bytes()), bytearray(new_path.read_bytes())
        num_bytes = len(ours.encode(memoryview(old), memoryview(new))[0])
        flat, bound, changed = other_sizes(layout, old, new)
        shares.append(changed / image.num_elements(layout))
        for row, other in (("WT-dense", layout.image_bytes), ("WT-5", flat), ("WT-6", bound)):
            sizes[row].append(runner.Pair(ours=num_bytes, peer=other))
        if not seconds:
            # Half a second, once for a process: what is compiled at its first use.
            cpu_seconds(ours, old, new)
        seconds += [both(old, new, ours, peer) for _ in range(ROUNDS[size])]
    titles = {
        "WT-dense": "bytes of a version ÷ bytes of its image",
        "WT-5": "bytes of a version ÷ positions as int32 and values as bfloat16, in safetensors",
        "WT-6": "bytes of a version ÷ entropy of its positions, by tensor, and of its changes",
    }
    params: dict[str, object] = {
        "versions": len(images),
        "image_bytes": layout.image_bytes,
        "changed_percent": [round(100 * share, 2) for share in shares],
    }
    return [
        *(
            runner.Measured(row=row, title=titles[row], unit="bytes", pairs=pairs, params=params)
            for row, pairs in sizes.items()
        ),
        runner.Measured(
            row="WT-7",
            title="coding and applying a version ÷ the same by exclusive or and zstd-1",
            unit="CPU s",
            pairs=seconds,
            params=params,
            agreement="both give the newer image, bit for bit",
        ),
    ]


def both(old: bytearray, new: bytearray, ours: Coding, peer: Coding) -> runner.Pair:
    sides: list[tuple[str, Callable[[], float]]] = [
        ("ours", lambda: cpu_seconds(ours, old, new)),
        ("peer", lambda: cpu_seconds(peer, old, new)),
    ]
    random.shuffle(sides)
    taken = {name: side() for name, side in sides}
    return runner.Pair(ours=taken["ours"], peer=taken["peer"], first=sides[0][0])


def cpu_seconds(coding: Coding, old: bytearray, new: bytearray) -> float:
    target = bytearray(old)
    began = time.process_time()
    coding.apply(memoryview(target), coding.encode(memoryview(old), memoryview(new)))
    taken = time.process_time() - began
    assert target == new, "a coding is without loss"
    return taken


def other_sizes(layout: types.Layout, old: bytearray, new: bytearray) -> tuple[int, float, int]:
    """Return bytes of positions and values as they are, the entropy bound in bytes, and how many elements changed."""
    flat, bits, changes = {}, 0.0, []
    for spec in layout.tensors:
        before, after = (numpy.frombuffer(data, numpy.uint16, spec.length // 2, spec.offset) for data in (old, new))
        places = numpy.flatnonzero(before != after)
        flat[f"{spec.name}.positions"], flat[f"{spec.name}.values"] = places.astype(numpy.int32), after[places]
        bits += len(before) * entropy(numpy.array([len(places), len(before) - len(places)]))
        changes.append((after[places] - before[places]).view(numpy.int16))
    units = numpy.concatenate(changes)
    _, counts = numpy.unique(units, return_counts=True)
    bits += len(units) * entropy(counts)
    return len(safetensors.numpy.save(flat)), bits / 8, len(units)


def entropy(counts: "numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]") -> float:
    """Return bits for each event."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * numpy.log2(shares)).sum())


def train(folder: pathlib.Path, *, steps: int) -> list[pathlib.Path]:
    """Run the example and link every image that its store gets into `folder`, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    run_dir = folder / "run"
    changes = {"maxSteps": steps, "weightSync.delta": "false", "evaluation.beforeTraining": "false"}
    command = [sys.executable, "-m", "rljob_workers.cli", "run", str(EXAMPLE), "--run-dir", str(run_dir)]
    command += [part for path, value in changes.items() for part in ("--set", f"spec.{path}={value}")]
    ended, kept = threading.Event(), list[str]()

    def keep() -> None:
        while not ended.wait(0.2):
            for path in sorted(run_dir.glob("state/weights/*"), key=lambda path: path.stat().st_mtime):
                if path.suffix != ".part" and path.name not in kept:
                    kept.append(path.name)
                    (folder / f"{len(kept):03d}.image").hardlink_to(path)

    watcher = threading.Thread(target=keep)
    watcher.start()
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    finally:
        ended.set()
        watcher.join()
    return sorted(folder.glob("*.image"))
