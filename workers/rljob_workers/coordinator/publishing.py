"""The weights' conversation: publish, manifest, watch, and pruning what nobody needs any more."""

import logging
from collections.abc import AsyncIterator

from rljob_api import errors, names, types
from rljob_workers.coordinator import core, evaluation, status, versions
from rljob_workers.coordinator import ledger as ledgers

logger = logging.getLogger(__name__)
_WATCH_S = 10.0


class Publishing:
    """Answers the `Weights` service. Bytes travel through the store process, never through here."""

    def __init__(self, parts: core.Core) -> None:
        """Keep the shared parts."""
        self._core = parts

    async def publish(
        self, *, token: str, proposal: types.WeightVersion, layout: types.Layout | None
    ) -> tuple[versions.Answer, int]:
        """Register a version whose artifact is stored; return the answer and the head."""
        now = self._core.clock.now()
        stored = self._core.artifacts.num_bytes(proposal.artifacts[0].artifact_id) if proposal.artifacts else None

        def register(ledger: ledgers.Ledger) -> tuple[versions.Answer, int]:
            due = evaluation.is_due(
                self._core.config.evaluation,
                after_step=ledger.head().step,
                step=proposal.step,
                last_step=ledger.last_step(),
                is_first=proposal.version == self._core.config.first_version,
            )
            answer = ledger.publish(
                token=token, proposal=proposal, layout=layout, num_bytes=stored, evaluate=due, now=now
            )
            return answer, ledger.head().version

        self._core.pods.seen(token, now=now)
        answer, head = await self._core.ledger.run(register)
        logger.info(
            "version %d of step %d: %s %s", proposal.version, proposal.step, answer.outcome, answer.detail,
            extra={"event": "publish", "version": proposal.version, "step": proposal.step},
        )  # fmt: skip
        return answer, head

    async def plan(self, *, token: str, want: int, with_layout: bool) -> types.VersionPlan:
        """Return what to fetch for a version. Raises FencedError without a session, WeightsError for a version without
        bytes.
        """

        def look(ledger: ledgers.Ledger) -> tuple[types.WeightVersion, types.Layout | None]:
            ledger.check_session(token, names.Role.ROLLOUT)
            manifest = ledger.manifest(want)
            return manifest, ledger.layout(manifest.layout_id) if with_layout else None

        manifest, layout = await self._core.ledger.run(look)
        for artifact in manifest.artifacts:
            if self._core.artifacts.num_bytes(artifact.artifact_id) is None:
                raise errors.WeightsError(f"artifact {artifact.artifact_id} of version {want} is not stored")
        source = types.WeightSource(address=self._core.config.store_address, kind="store")
        return types.VersionPlan(chain=(manifest,), sources=(source,), layout=layout)

    async def watch(self) -> AsyncIterator[versions.Known]:
        """Yield the head now and on every change."""
        known: versions.Known | None = None
        while True:
            mark = self._core.changes.heads.mark
            head = await self._core.ledger.run(lambda ledger: ledger.head())
            if known is None or head.version != known.version:
                known = head
                yield head
            await self._core.changes.heads.wait(mark, _WATCH_S)

    async def prune(self) -> None:
        """Remove artifacts that nobody needs: mark RETIRED first, so that no plan names what is about to go."""
        needed = self._needed()
        retired, kept = await self._core.ledger.run(lambda ledger: self._retire(ledger, needed))
        for version in retired:
            if version.artifact not in kept:
                self._core.artifacts.remove(version.artifact)
                logger.info(
                    "version %d was retired", version.version, extra={"event": "retire", "version": version.version}
                )

    def _needed(self) -> set[int]:
        """Served, or ordered to be served, by a rollout heard of lately; one that was silent asks for a new plan."""
        now, silent_s = self._core.clock.now(), status.silent_s(self._core.config)
        rollouts = self._core.pods.all(names.Role.ROLLOUT)
        return {pod.serving_version for pod in rollouts if now - pod.last_seen <= silent_s + self._core.config.lease_s}

    def _retire(self, ledger: ledgers.Ledger, needed: set[int]) -> tuple[list[versions.Known], set[str]]:
        everything = ledger.stored_versions()
        needed = needed | ledger.pinned_versions()
        retired = versions.to_retire(everything, keep=self._core.config.keep_versions, needed=needed)
        if retired:
            ledger.retire([version.version for version in retired])
        gone = {version.version for version in retired}
        kept = {v.artifact for v in everything if v.version not in gone}
        return retired, kept
