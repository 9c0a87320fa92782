"""The mean of the weights after several steps, which ends a run nearer to where its updates were heading than the last
of them. Pure.

Updates of a constant rate circle around what they approach; their mean lies closer to it. Sources: Polyak and Juditsky
(1992); Izmailov et al., stochastic weight averaging (arXiv:1803.05407); Kaddour, latest weight averaging
(arXiv:2209.14981).
"""

import dataclasses
import pathlib
from collections.abc import Iterable

import torch


@dataclasses.dataclass(slots=True)
class RunningMean:
    """The mean of tensors by name over `count` additions; fp32, where the tensors are."""

    count: int = 0
    means: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def add(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Count the tensors as they are now, each of the same shape each time."""
        self.count += 1
        for name, tensor in tensors:
            if name not in self.means:
                self.means[name] = tensor.detach().clone()
                continue
            # One that was read from a file is on the CPU.
            self.means[name] = self.means[name].to(tensor.device)
            self.means[name].lerp_(tensor.detach(), 1.0 / self.count)

    def save(self, path: pathlib.Path) -> None:
        """Write a file if there is anything to keep."""
        if self.count:
            torch.save({"count": self.count, "means": self.means}, path)

    @classmethod
    def load(cls, path: pathlib.Path) -> "RunningMean":
        """Return what `save` wrote, an empty mean where it wrote nothing. Tensors are on the CPU."""
        if not path.exists():
            return cls()
        saved = torch.load(path, map_location="cpu", weights_only=True)
        return cls(count=saved["count"], means=saved["means"])
