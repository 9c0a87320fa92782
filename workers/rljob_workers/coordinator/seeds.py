"""Derived randomness: every seed and permutation key is a hash of what it belongs to, so that nothing needs
restoring.
"""

import hashlib

_MASK = (1 << 63) - 1


def derive(*parts: str | int) -> int:
    """Return 63 bits that depend on `parts`, their order and where one ends and the next begins."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return int.from_bytes(digest.digest(), "little") & _MASK
