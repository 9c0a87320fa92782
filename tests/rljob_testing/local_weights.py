"""A weight store and registry in this process, by the registry's own rules, for publishers and receivers."""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence

import blake3

from rljob_api import enums, errors, types
from rljob_workers.coordinator.policy import version_plan, version_rules
from rljob_workers.weights import initial, pieces, shelf


def initial_version(folder: pathlib.Path, job: str, dtype: str) -> tuple[types.Layout, types.WeightVersion, bytearray]:
    """Return layout, manifest and image of version 0: the weights as the model files give them, in `dtype`."""
    first = initial.of_model_files(folder, dtype)
    return first.layout, first.manifest(job), first.image()


class LocalWeights:
    """Both a transport of publishers and one of receivers. `attempt` is the trainer's that may publish."""

    def __init__(self, *, initial_state_hash: str) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.versions: dict[int, types.WeightVersion] = {}
        self.retired: set[int] = set()
        self.attempt = 1
        # What a receiver asked for and nothing that is stored leads to.
        self.lost = types.NO_VERSION
        self.pulled: list[types.Artifact] = []
        # Images that no one stores and other rollouts hold, by state hash.
        self.on_rollouts: dict[str, bytes] = {}
        # What a receiver holds for others of what it pulled here.
        self.shelf = shelf.Shelf()
        self._initial_state_hash = initial_state_hash

    @property
    def head(self) -> types.VersionId:
        return types.VersionId(max(self.versions, default=0))

    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        artifact = pieces.describe(data, encoding, piece_bytes=256)
        self.artifacts[artifact.artifact_id] = bytes(data)
        return artifact

    def release(self) -> None:
        """Nothing reads what was uploaded."""

    def publish(self, version: types.WeightVersion, layout: types.Layout | None) -> types.VersionId:
        registered = self._registered(version.version) if version.version in self.versions else None
        base = None if version.base == types.NO_VERSION else self._registered(version.base)
        answer = version_rules.judge(
            version,
            registered=registered,
            base=base,
            head=self.head,
            committed=version.step,
            attempt=self.attempt,
            stored={name: len(data) for name, data in self.artifacts.items()},
            base_can_be_had=version.base == 0 or self._way(version.base, have=types.NO_VERSION) is not None,
        )
        if answer.outcome is version_rules.Outcome.CONFLICT:
            raise errors.ConflictError(answer.detail)
        if answer.outcome is version_rules.Outcome.MISSING:
            raise errors.WeightsError(answer.detail)
        if answer.outcome is version_rules.Outcome.REPEATED:
            known = self.versions[version.version]
            version = dataclasses.replace(
                known, kind=version.kind, artifacts=tuple({*known.artifacts, *version.artifacts})
            )
        self.versions[version.version] = version
        return self.head

    def plan(
        self,
        *,
        want: types.VersionId,
        have: int,
        with_layout: bool,
        damaged: Sequence[str] = (),
        only_stored: bool = False,
    ) -> types.VersionPlan:
        for name in damaged:
            if name in self.artifacts and blake3.blake3(self.artifacts[name]).hexdigest() != name:
                del self.artifacts[name]
        hops, held = self._way(want, have=have), self.versions[want].image
        takes_whole = hops is None or hops[0].artifact.encoding is enums.Encoding.WHOLE
        if held is not None and held.artifact_id in self.on_rollouts and takes_whole and not only_stored:
            hops = (version_plan.Hop(version=want, artifact=held),)
        if hops is None:
            self.lost = want
            raise errors.WeightsError(f"nothing that is stored leads to version {want}")
        chain = tuple(dataclasses.replace(self.versions[hop.version], artifacts=(hop.artifact,)) for hop in hops)
        return types.VersionPlan(chain=chain, sources=(), image=self.artifact(want, enums.Encoding.WHOLE) or held)

    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        if artifact.encoding is enums.Encoding.IMAGE:
            into[:] = self.on_rollouts[artifact.artifact_id]
            self.pulled.append(artifact)
            return
        if artifact.artifact_id not in self.artifacts:
            raise errors.WeightsError(f"artifact {artifact.artifact_id} is not stored")
        into[: artifact.num_bytes] = self.artifacts[artifact.artifact_id]
        if blake3.blake3(into[: artifact.num_bytes]).hexdigest() != artifact.artifact_id:
            raise errors.DigestError(f"artifact {artifact.artifact_id} does not match its digest")
        self.pulled.append(artifact)
        holding = self.shelf.hold(artifact, into, is_kept=artifact.encoding is enums.Encoding.DELTA)
        self.shelf.add(holding, pieces.full(pieces.count(artifact)))

    def held(self) -> Sequence[str]:
        return self.shelf.whole()

    def artifact(self, version: int, encoding: enums.Encoding) -> types.Artifact | None:
        artifacts = self.versions[version].artifacts
        return next((artifact for artifact in artifacts if artifact.encoding is encoding), None)

    def damage(self, artifact_id: str, *, place: int) -> None:
        """Flip a bit of what is stored."""
        data = bytearray(self.artifacts[artifact_id])
        data[place % len(data)] ^= 0x10
        self.artifacts[artifact_id] = bytes(data)

    def prune(self, needed: Collection[int], *, keep: int = 3) -> None:
        everything = [self._registered(version) for version in sorted(self.versions.keys() - self.retired)]
        gone = version_rules.to_retire(everything, keep=keep, needed=needed)
        self.retired |= {version.version for version in gone}
        kept = {name for v in everything if v.version not in self.retired for name in v.artifact_ids}
        self.artifacts = {name: data for name, data in self.artifacts.items() if name in kept}

    def _way(self, want: int, *, have: int) -> tuple[version_plan.Hop, ...] | None:
        lineage, version = [], want
        while version in self.versions and version not in self.retired:
            lineage.append(self._registered(version))
            version = self.versions[version].base
        if version == 0:
            lineage.append(self._registered(0))
        return version_plan.shortest(lineage, have=have, stored=self.artifacts)

    def _registered(self, version: int) -> version_rules.Registered:
        if version == 0:
            return version_rules.Registered(
                version=0, step=0, attempt=0, state=enums.VersionState.PUBLISHED, superseded=False,
                state_hash=self._initial_state_hash,
            )  # fmt: skip
        manifest = self.versions[version]
        return version_rules.Registered(
            version=version,
            step=manifest.step,
            attempt=manifest.attempt,
            state=enums.VersionState.RETIRED if version in self.retired else enums.VersionState.PUBLISHED,
            superseded=False,
            state_hash=manifest.state_hash,
            whole=self.artifact(version, enums.Encoding.WHOLE),
            changes=self.artifact(version, enums.Encoding.DELTA),
            base=manifest.base,
        )
