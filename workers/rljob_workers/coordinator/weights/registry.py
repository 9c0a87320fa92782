"""The weights' conversation: publish, manifest, watch, and pruning what no one needs any more."""

import logging
from collections.abc import AsyncIterator

from rljob_api import enums, errors, types
from rljob_workers.coordinator import context
from rljob_workers.coordinator.ledger import database, evaluations, groups, sessions, versions
from rljob_workers.coordinator.policy import version_rules
from rljob_workers.coordinator.reporting import evaluation, status

logger = logging.getLogger(__name__)
_WATCH_S = 10.0


class Publishing:
    """Answers the `Weights` service. Bytes travel through the store process, never through here."""

    def __init__(self, parts: context.CoordinatorContext) -> None:
        self._context = parts

    async def publish(
        self, *, token: str, proposal: types.WeightVersion, layout: types.Layout | None
    ) -> tuple[version_rules.Answer, int]:
        """Register a version whose artifact is stored; return the answer and the head."""
        now = self._context.clock.now()
        stored = self._context.artifacts.num_bytes(proposal.artifacts[0].artifact_id) if proposal.artifacts else None

        def register(ledger: database.Ledger) -> tuple[version_rules.Answer, int]:
            # Before the version is registered: the head is still the one before it.
            due = evaluation.is_due(
                self._context.config.spec.evaluation,
                after_step=versions.head(ledger).step,
                step=proposal.step,
                last_step=groups.last_step(ledger),
                is_first=proposal.version == self._context.config.first_version,
            )
            answer = versions.publish(
                ledger, token=token, proposal=proposal, layout=layout, num_bytes=stored, evaluate=due, now=now
            )
            return answer, versions.head(ledger).version

        self._context.pods.record_contact(token, now=now)
        answer, head = await self._context.ledger.run(register)
        logger.info(
            "version %d of step %d: %s %s", proposal.version, proposal.step, answer.outcome, answer.detail,
            extra={"event": "publish", "version": proposal.version, "step": proposal.step},
        )  # fmt: skip
        return answer, head

    async def plan(self, *, token: str, want: int, with_layout: bool) -> types.VersionPlan:
        """Return what to fetch for a version. Raises FencedError without a session, WeightsError for a version without
        bytes.
        """

        def look(ledger: database.Ledger) -> tuple[types.WeightVersion, types.Layout | None]:
            sessions.check_session(ledger, token, enums.Role.ROLLOUT)
            manifest = versions.manifest(ledger, want)
            return manifest, versions.find_layout(ledger, manifest.layout_id) if with_layout else None

        manifest, layout = await self._context.ledger.run(look)
        for artifact in manifest.artifacts:
            if self._context.artifacts.num_bytes(artifact.artifact_id) is None:
                raise errors.WeightsError(f"artifact {artifact.artifact_id} of version {want} is not stored")
        source = types.WeightSource(address=self._context.config.store_address, kind="store")
        return types.VersionPlan(chain=(manifest,), sources=(source,), layout=layout)

    async def watch(self) -> AsyncIterator[version_rules.Registered]:
        """Yield the head now and on every change."""
        last_seen: version_rules.Registered | None = None
        while True:
            mark = self._context.changes.heads.mark
            head = await self._context.ledger.run(versions.head)
            if last_seen is None or head.version != last_seen.version:
                last_seen = head
                yield head
            await self._context.changes.heads.wait(mark, _WATCH_S)

    async def prune(self) -> None:
        """Remove artifacts that no one needs: mark RETIRED first, so that no plan names what is about to go."""
        needed = self._needed()
        retired, retained = await self._context.ledger.run(self._retire, needed)
        for version in retired:
            if version.artifact not in retained:
                self._context.artifacts.remove(version.artifact)
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

    def _retire(self, ledger: database.Ledger, needed: set[int]) -> tuple[list[version_rules.Registered], set[str]]:
        everything = versions.stored_versions(ledger)
        needed = needed | evaluations.pinned_versions(ledger)
        retired = version_rules.to_retire(everything, keep=self._context.config.keep_versions, needed=needed)
        if retired:
            versions.retire(ledger, [version.version for version in retired])
        gone = {version.version for version in retired}
        retained = {v.artifact for v in everything if v.version not in gone}
        return retired, retained
