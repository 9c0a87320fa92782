"""The one image of a rollout, in anonymous shared memory: fetched into here, mapped read-only by the engine process.

Anonymous, so that nothing is left behind by a killed process and no file system writes it back. The buffer is reused
for every version: warm pages are copied ten times faster than fresh ones are touched.
"""

import mmap
import os

from rljob_api import types


class ImageBuffer:
    """`num_bytes` of shared memory and a note on what they hold; None means dirty."""

    def __init__(self, num_bytes: int) -> None:
        """Reserve the memory; pages appear when they are first written."""
        self._descriptor = os.memfd_create("rljob-image", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, num_bytes)
        self._mapped = mmap.mmap(self._descriptor, num_bytes)
        self._view = memoryview(self._mapped)
        self._clean: types.VersionId | None = None

    @property
    def path(self) -> str:
        """Return a path that a process of the same user on this machine can open."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def view(self) -> memoryview:
        """Return the bytes, writable."""
        return self._view

    @property
    def clean(self) -> types.VersionId | None:
        """Return the version that the buffer holds, or None while it is being written."""
        return self._clean

    def mark_dirty(self) -> None:
        """Say that the bytes are about to change."""
        self._clean = None

    def mark_clean(self, version: types.VersionId) -> None:
        """Say that the bytes were verified to be `version`."""
        self._clean = version

    def close(self) -> None:
        """Free the memory, as soon as the engine has let go too."""
        self._view.release()
        self._mapped.close()
        os.close(self._descriptor)
