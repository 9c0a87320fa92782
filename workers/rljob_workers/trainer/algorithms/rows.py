"""Sums over the sampled tokens of a row. A row is whole in its micro-batch, so no other data is needed."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Which row each sampled token belongs to: index [N], tokens [rows] = sum(m) of each row."""

    index: torch.Tensor
    tokens: torch.Tensor

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values [N] per row -> [rows]."""
        return values.new_zeros(len(self.tokens)).index_add_(0, self.index, values)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Average values [N] per row -> [rows]."""
        return self.total(values) / self.tokens

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Largest of values [N] per row -> [rows]."""
        lowest = values.new_full((len(self.tokens),), float("-inf"))
        return lowest.scatter_reduce(0, self.index, values, reduce="amax")
