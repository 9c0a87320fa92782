"""The weights' conversation: publish, manifest, and pruning what no one needs any more."""

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Sequence

from rljob_api import enums, errors, types
from rljob_workers.coordinator import context
from rljob_workers.coordinator.ledger import database, evaluations, groups, sessions, versions
from rljob_workers.coordinator.policy import version_plan, version_rules
from rljob_workers.coordinator.reporting import evaluation, status
from rljob_workers.weights import pieces

logger = logging.getLogger(__name__)
# Sources that a receiver may say of at once that they failed it: as many as it is named.
_MOST_FAILED = 16


class Publishing:
    """Answers the `Weights` service. Bytes travel through the store process, never through here."""

    def __init__(self, parts: context.CoordinatorContext) -> None:
        self._context = parts
        # Of artifacts that are stored, as far as someone asked for them.
        self._num_pieces: dict[str, int] = {}
        # By state hash, of versions that are no anchors and not RETIRED. Not in the ledger, where a large model's run
        # would leave gigabytes of them; so after a restart there are none until the next version.
        self._images: dict[str, types.Artifact] = {}
        # Where the trainer announces broadcasts; after a restart nowhere, until the next version.
        self._broadcasts = ""
        # All rollouts may say of one artifact that it is damaged, and it may be sent again meanwhile.
        self._checking = asyncio.Lock()

    async def publish(
        self, *, token: str, proposal: types.WeightVersion, layout: types.Layout | None, broadcasts: str = ""
    ) -> tuple[version_rules.Answer, int]:
        """Register a version whose artifacts are stored; return the answer and the head.

        broadcasts: where the trainer announces them, for the plans of rollouts.
        """
        now = self._context.clock.now()
        if (image := _image_of(proposal)) is not None:
            proposal = dataclasses.replace(proposal, image=None)
        below = await self._context.ledger.run(versions.lineage, proposal.base)
        stored = await self._stored([*(artifact.artifact_id for artifact in proposal.artifacts), *_artifact_ids(below)])

        def register(ledger: database.Ledger) -> tuple[version_rules.Answer, int]:
            # Before the version is registered: the head is still the one before it.
            due = evaluation.is_due(
                self._context.config.spec.evaluation,
                after_step=versions.head(ledger).step,
                step=proposal.step,
                last_step=groups.last_step(ledger),
                is_first=proposal.version == self._context.config.first_version,
                sft_steps=ledger.sft_steps,
            )
            answer = versions.publish(
                ledger, token=token, proposal=proposal, layout=layout, stored=stored, evaluate=due, now=now
            )
            if answer.outcome in (version_rules.Outcome.ACCEPTED, version_rules.Outcome.REPEATED):
                # Here and not after it: rollouts hear of the version when this call has ended.
                self._broadcasts = broadcasts
                if image is not None:
                    self._images[image.artifact_id] = image
            return answer, versions.head(ledger).version

        self._context.pods.record_contact(token, now=now)
        answer, head = await self._context.ledger.run(register)
        logger.info(
            "version %d of step %d: %s %s", proposal.version, proposal.step, answer.outcome, answer.detail,
            extra={"event": "publish", "version": proposal.version, "step": proposal.step},
        )  # fmt: skip
        return answer, head

    async def plan(
        self,
        *,
        token: str,
        want: int,
        have: int,
        with_layout: bool,
        damaged: Sequence[str] = (),
        only_stored: bool = False,
    ) -> types.VersionPlan:
        """Return the shortest way to a version from `have`, which is NO_VERSION for nothing.

        damaged: artifacts that arrived with other bytes than their names say; they are hashed here and, if they are
        damaged, go. only_stored: where it takes a whole image, one of the store and not that of another rollout. Raises
        FencedError without a session, WeightsError for a version that nothing leads to.
        """

        def look(ledger: database.Ledger) -> tuple[types.WeightVersion, list[version_rules.Registered], int]:
            sessions.check_session(ledger, token, enums.Role.ROLLOUT)
            return versions.manifest(ledger, want), versions.lineage(ledger, want), versions.head(ledger).version

        newest, lineage, head = await self._context.ledger.run(look)
        await self._drop_damaged(set(damaged) & set(_artifact_ids(lineage)))
        stored = await self._stored(_artifact_ids(lineage))
        there = {artifact_id for artifact_id, num_bytes in stored.items() if num_bytes is not None}
        hops = version_plan.shortest(lineage, have=have, stored=there)
        if hops is None and want == head:
            # The store has it no longer.
            self._context.lost_version = head
            self._context.changes.batches.notify()
        image = self._images.get(newest.state_hash)
        takes_whole = hops is None or hops[0].artifact.encoding is enums.Encoding.WHOLE
        if image is not None and takes_whole and not only_stored:
            now = self._context.clock.monotonic()
            if self._context.tracker.has_source(token, image.artifact_id, now=now):
                hops = (version_plan.Hop(version=want, artifact=image),)
        if hops is None:
            raise errors.WeightsError(f"nothing that is stored leads to version {want}")

        def collect(ledger: database.Ledger) -> tuple[tuple[types.WeightVersion, ...], types.Layout | None]:
            chain = [_narrowed(versions.manifest(ledger, hop.version), hop.artifact) for hop in hops]
            # A receiver verifies where it ends: with the digests of all on the way, of a large mixture of experts, a
            # long chain would be more than a message may be.
            passed = [dataclasses.replace(manifest, digests={}) for manifest in chain[:-1]]
            return (*passed, *chain[-1:]), versions.find_layout(ledger, newest.layout_id) if with_layout else None

        chain, layout = await self._context.ledger.run(collect)
        for manifest in (*chain, newest):
            self._note_pieces(manifest)
        sources = [types.WeightSource(address=self._context.config.store_address, kind=enums.SourceKind.STORE)]
        if self._broadcasts:
            sources.append(types.WeightSource(address=self._broadcasts, kind=enums.SourceKind.TRAINER))
        whole = next((part for part in newest.artifacts if part.encoding is enums.Encoding.WHOLE), image)
        return types.VersionPlan(chain=chain, sources=tuple(sources), layout=layout, image=whole)

    async def sources(self, *, token: str, artifact_id: str, have: bytes, failed: Sequence[str]) -> types.PieceSources:
        """Note which pieces a rollout has of an artifact and return where it may fetch the others.

        Raises FencedError without a session, WeightsError for an artifact of no version, WireError for other pieces
        than it has.
        """
        if self._context.pods.record_contact(token, now=self._context.clock.now()) is None:
            await self._context.ledger.run(sessions.check_session, token, enums.Role.ROLLOUT)
        if artifact_id not in self._num_pieces:
            for manifest in await self._context.ledger.run(versions.manifests_with, artifact_id):
                self._note_pieces(manifest)
        image = self._images.get(artifact_id)
        num_pieces = self._num_pieces.get(artifact_id) if image is None else pieces.count(image)
        if num_pieces is None:
            raise errors.WeightsError(f"artifact {artifact_id} is of no version that is stored; ask for a new plan")
        return self._context.tracker.ask(
            token,
            artifact_id=artifact_id,
            num_pieces=num_pieces,
            have=pieces.from_wire(have, num_pieces),
            failed=failed[:_MOST_FAILED],
            is_stored=image is None,
            now=self._context.clock.monotonic(),
        )

    def _note_pieces(self, manifest: types.WeightVersion) -> None:
        stored = (artifact for artifact in manifest.artifacts if artifact.encoding is not enums.Encoding.IMAGE)
        self._num_pieces |= {artifact.artifact_id: pieces.count(artifact) for artifact in stored}

    async def _stored(self, artifact_ids: Iterable[str]) -> dict[str, int | None]:
        """Return the stored bytes of artifacts, None for what is not there."""
        names = set(artifact_ids)
        # On a thread: a shared folder may be slow.
        return await asyncio.to_thread(lambda: {name: self._context.artifacts.num_bytes(name) for name in names})

    async def _drop_damaged(self, artifact_ids: Iterable[str]) -> None:
        for artifact_id in artifact_ids:
            async with self._checking:
                is_there = self._context.artifacts.num_bytes(artifact_id) is not None
                if not is_there or await asyncio.to_thread(self._context.artifacts.matches, artifact_id):
                    continue
                logger.error("artifact %s is damaged and was removed", artifact_id)

    async def prune(self) -> None:
        """Remove artifacts that no one needs: mark RETIRED first, so that no plan names what is about to go."""
        needed = self._needed()
        retired, remaining = await self._context.ledger.run(self._retire, needed)
        retained, hashes = set(_artifact_ids(remaining)), {version.state_hash for version in remaining}
        for version in retired:
            # A step that changed nothing has the state hash of the one before.
            if version.state_hash not in hashes:
                self._images.pop(version.state_hash, None)
            for artifact_id in version.artifact_ids - retained:
                self._context.artifacts.remove(artifact_id)
                self._num_pieces.pop(artifact_id, None)
            logger.info(
                "version %d was retired", version.version, extra={"event": "retire", "version": version.version}
            )

    def _needed(self) -> set[int]:
        """Served, or ordered to be served, by a rollout heard of lately; one that was silent asks for a new plan."""
        now, silent_s = self._context.clock.now(), status.silent_s(self._context.config)
        rollouts = self._context.pods.all(enums.Role.ROLLOUT)
        return {
            pod.serving_version for pod in rollouts if now - pod.last_seen <= silent_s + self._context.config.lease_s
        }

    def _retire(
        self, ledger: database.Ledger, needed: set[int]
    ) -> tuple[list[version_rules.Registered], list[version_rules.Registered]]:
        """Return the versions that are RETIRED now, and those that are not."""
        everything = versions.stored_versions(ledger)
        needed = needed | evaluations.pinned_versions(ledger)
        retired = version_rules.to_retire(everything, keep=self._context.config.keep_versions, needed=needed)
        if retired:
            versions.retire(ledger, [version.version for version in retired])
        gone = {version.version for version in retired}
        return retired, [version for version in everything if version.version not in gone]


def _narrowed(manifest: types.WeightVersion, artifact: types.Artifact) -> types.WeightVersion:
    """Return a manifest with one artifact, as it was published: what the ledger lists has no pieces."""
    published = (part for part in manifest.artifacts if part.artifact_id == artifact.artifact_id)
    return dataclasses.replace(manifest, artifacts=(next(published, artifact),))


def _image_of(proposal: types.WeightVersion) -> types.Artifact | None:
    """Return the image of a version that is no anchor. Raises WireError for one that is named like another's."""
    image = proposal.image
    if image is not None and (image.encoding is not enums.Encoding.IMAGE or image.artifact_id != proposal.state_hash):
        raise errors.WireError(
            f"the image of version {proposal.version} is {image.artifact_id} ({image.encoding}), not its state hash"
            f" {proposal.state_hash}"
        )
    return image


def _artifact_ids(registered: Iterable[version_rules.Registered]) -> list[str]:
    return [artifact_id for version in registered for artifact_id in version.artifact_ids]
