"""What `rljob plan` says of supervised steps: how many, of how many examples, and how large. Nothing is tokenized."""

import pathlib
import types

from rljob_api.manifest.job import JobSpec
from rljob_api.resolve import with_absolute_paths


def lines(spec: JobSpec, folder: pathlib.Path) -> list[str]:
    """Return a sentence per source of examples and one of the steps; none without spec.sft. A source that is not a file
    of this machine, or that cannot be read for want of packages, is not counted.
    """
    if spec.sft is None:
        return []
    sentences, count, is_counted = [], 0.0, True
    for source in with_absolute_paths(spec, str(folder)).data.example_sources:
        reader = _reader()
        if source.path is None or not pathlib.Path(source.path).exists() or reader is None:
            sentences.append(f"{source.name}: not read here")
            is_counted = False
            continue
        loaded, problems = reader.inspect_source(source)
        count += len(loaded.records) * source.weight
        unusable = f", {len(problems)} that cannot be used" if problems else ""
        sentences.append(f"{source.name}: {len(loaded.records)} examples{unusable}")
    per_step = spec.sft.examples_per_step
    longest = per_step * spec.longest_row
    size = f"{per_step} examples a step, at most {longest:,} tokens"
    if is_counted or spec.sft.steps:
        steps = spec.sft.num_steps(round(count))
        epochs = f", {steps * per_step / count:.2g} epochs" if count else ""
        sentences.append(f"{steps} of {spec.max_steps} steps{epochs}; {size}")
    else:
        sentences.append(f"{spec.sft.epochs} epochs; {size}")
    return sentences


def _reader() -> types.ModuleType | None:
    """Return what reads sources; None where its packages are not installed, as with the command line alone."""
    try:
        from rljob_workers.data import records
    except ModuleNotFoundError:
        return None
    return records
