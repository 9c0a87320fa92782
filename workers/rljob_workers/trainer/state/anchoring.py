"""Which versions are sent whole, so that a receiver which has nothing gets to the newest one in few bytes."""

from rljob_api import enums, types
from rljob_api.manifest.trainer import WeightSyncSpec
from rljob_workers.weights import delta


class Anchors:
    """Counts what was published since the last whole version. Used by the publisher's thread alone."""

    def __init__(self, spec: WeightSyncSpec) -> None:
        self._spec = spec
        # Before the first one there is nothing to count from.
        self._since: int | None = None
        self._bytes_since = 0

    @property
    def sends_changes(self) -> bool:
        """Return whether changes are sent at all; a whole version has them too, for rollouts that keep up."""
        return self._spec.delta

    def why_whole(self, compared: delta.Difference | None, *, image_bytes: int) -> str:
        """Return why the next version is sent whole, empty if its changes are enough. `compared`: with the last one."""
        if not self._spec.delta:
            return "weightSync.delta is false"
        if compared is None or self._since is None:
            return "the first since the trainer started"
        if compared.data is None:
            return compared.reason
        if self._since + 1 >= self._spec.anchor_every:
            return f"weightSync.anchorEvery is {self._spec.anchor_every}"
        if self._bytes_since + len(compared.data) > delta.MOST_BYTES * image_bytes:
            return "the changes since the last whole version are more than half of it"
        return ""

    def published(self, version: types.WeightVersion) -> None:
        """Count a version that was taken."""
        if version.kind is enums.VersionKind.ANCHOR:
            self.supplied()
            return
        self._since = (self._since or 0) + 1
        self._bytes_since += sum(artifact.num_bytes for artifact in version.artifacts)

    def supplied(self) -> None:
        """The newest version is there whole."""
        self._since, self._bytes_since = 0, 0
