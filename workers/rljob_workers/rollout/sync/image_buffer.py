"""The one image of a rollout, in anonymous shared memory: fetched into here, mapped read-only by the engine process.

Anonymous, so that nothing is left behind by a killed process and no file system writes it back. The buffer is reused
for every version: warm pages are copied ten times faster than fresh ones are touched.
"""

import mmap
import os
import struct

from rljob_api import types

PROGRESS = struct.Struct("<Q")


class ImageBuffer:
    """`num_bytes` of shared memory and a note on what they hold; None means dirty."""

    def __init__(self, num_bytes: int) -> None:
        """Reserve the memory; pages appear when they are first written."""
        self._descriptor = os.memfd_create("rljob-image", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, num_bytes)
        self._mapped = mmap.mmap(self._descriptor, num_bytes)
        self._view = memoryview(self._mapped)
        self._clean: types.VersionId | None = None
        # Where the engine process writes how far it has come, so that a slow load is distinguished from a dead one.
        self._progress = os.memfd_create("rljob-progress", os.MFD_CLOEXEC)
        os.ftruncate(self._progress, PROGRESS.size)

    @property
    def progress_path(self) -> str:
        """Return a path that the engine process can open, for a `PROGRESS` at its start."""
        return f"/proc/{os.getpid()}/fd/{self._progress}"

    def loaded_bytes(self) -> int:
        """Return the place in the image of the tensor that the engine last began to load."""
        (offset,) = PROGRESS.unpack(os.pread(self._progress, PROGRESS.size, 0))
        return int(offset)

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
        os.close(self._progress)
