"""Where fp32 masters of bf16 weights begin: at a place of its own in each weight's rounding interval. Pure.

The files hold bf16 values, so masters that are copied from them stand in the middle of their rounding intervals, all of
them. An update that is smaller than half a step of bf16 then changes no weight of the forward pass and none that is
served, and hundreds of equal ones may be needed before the first change: at a learning rate of 1e-5 three hundredths of
the first update's effect arrive. Masters at uniform places in their intervals round to the same weights, and an update
of a share p of a step moves a share p of the weights by a whole step: its effect is kept in the mean, from the first
one on, with as few changed weights as that allows.

This is dithering with an offset that is drawn once (non-subtractive dither, Lipshitz, Wannamaker and Vanderkooy 1992),
kept in the master instead of being added at each rounding: nothing else knows of it, neither the optimizer, nor
sharding, nor checkpoints, and the forward pass computes with the very weights that are served.
"""

import hashlib

import torch

# bf16 has 8 significant bits and fp32 24: an offset is a multiple of 2^-16 of bf16's step, which fp32 holds exactly.
_PLACES = 1 << 16
_CHUNK = 1 << 22


def key_of(seed: int, name: str) -> int:
    """Return 32 bits for a tensor: hash(seed, name)."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest(), "little")


def spread(masters: torch.Tensor, *, key: int, start: int = 0) -> None:
    """Move masters [n], fp32 with values of bf16, to uniform places that round to the same values; in place.

    start: index in the tensor of the first one, so that a part of a tensor gets what the whole would give it. Zeros,
    subnormal and non-finite values stay: near zero bf16 has no coarse steps.
    """
    for first in range(0, len(masters), _CHUNK):
        part = masters[first : first + _CHUNK]
        part += _offsets(part, _draws(len(part), key=key, start=start + first, device=part.device))


def _offsets(values: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return offsets [n]: draws in (-1/2, 1/2) times the step of bf16 at each value."""
    mantissa, exponent = torch.frexp(values)
    steps = torch.ldexp(torch.ones_like(values), exponent - 8)
    # Towards zero the step below a power of two is half as wide.
    narrow = (mantissa.abs() == 0.5) & (draws.sign() == -values.sign())
    offsets = draws * torch.where(narrow, 0.5 * steps, steps)
    coarse = torch.isfinite(values) & (values.abs() >= torch.finfo(torch.bfloat16).tiny)
    return torch.where(coarse, offsets, torch.zeros_like(values))


def _draws(count: int, *, key: int, start: int, device: torch.device) -> torch.Tensor:
    """Return uniform multiples of 1 / _PLACES in (-1/2, 1/2) [n], a hash of (key, index) each."""
    places = torch.arange(start, start + count, dtype=torch.int64, device=device)
    bits = _mixed(_mixed((places & 0xFFFFFFFF) ^ key) + (places >> 32) & 0xFFFFFFFF) >> 16
    return (bits - _PLACES // 2).clamp(min=1 - _PLACES // 2).float() / _PLACES


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """Return 32 bits that depend on all 32 bits [n]: the mixing step of MurmurHash3 (Appleby)."""
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return bits ^ (bits >> 16)
