"""Fakes of a rollout's neighbours: coordinator, verifiers, weights, tokenizer. `events` lists what they were asked."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from rljob_api import enums, errors, types
from rljob_testing import makers
from rljob_workers.rollout import generation
from rljob_workers.rollout.gateway import tools as reading
from rljob_workers.rollout.sync import staging


def read_marked(text: str, *, tools: str) -> reading.Read:
    """Read `{"name": ..., "arguments": ...}` behind each `<tool_call>`, up to `</tool_call>`."""
    json.loads(tools)
    content, *blocks = text.split("<tool_call>")
    made = [json.loads(block.removesuffix("</tool_call>")) for block in blocks]
    return reading.Read(
        content=content.rstrip(), calls=[(one["name"], json.dumps(one["arguments"]), "") for one in made]
    )


class FakeTokens:
    """Characters as ids: chr(id). Id 2 is EOS. `shows_tools`: whether its chat template declares tools."""

    eos_ids = (2,)

    def __init__(self, *, shows_tools: bool = True) -> None:
        self.shows_tools = shows_tools

    def prompt_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
        prompt = record.columns.get("prompt")
        if not isinstance(prompt, str):
            raise errors.DataError(f"record {record.prompt_id} has no 'prompt'")
        return tuple(map(ord, prompt))

    def feedback_ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, f"[{text}]"))

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[int, ...]:
        declared = f"T{len(tools)};" if tools and self.shows_tools else ""
        return tuple(map(ord, declared + "".join(f"{str(m['role'])[0]}:{m['content']};" for m in messages) + "a:"))

    def continuation_ids(
        self,
        before: Sequence[Mapping[str, object]],
        after: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> tuple[int, ...]:
        assert not tools or self.shows_tools, "a template that shows no tools is refused before it goes on"
        return tuple(map(ord, ";")) + self.chat_ids(after[len(before) :])

    def lone_message_ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, f"\n<{text}>"))

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, f"^{text}"))

    def encode_more(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def plain(self, text: str) -> str:
        return text.replace("<eos>", "<\\eos>")

    def tool_notation(self, name: str, *, field: str) -> reading.Notation | None:  # as a tokenizer is asked
        return None if name == "none" else reading.Notation(parser=read_marked, marks=reading.MARKS["hermes"])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token != 2)

    def decode_exact(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class FakeStager:
    """Versions that exist by being asked for; `faults` raise on the n-th call."""

    def __init__(self, events: list[str], *, steps: dict[int, int] | None = None) -> None:
        tensor = types.TensorSpec(name="w", dtype="bfloat16", shape=(2,), offset=0, length=4)
        self.layout = types.Layout(layout_id="layout", tensors=(tensor,), image_bytes=64)
        self.initial = self.manifest(0, 0)
        self.faults: list[errors.RLJobError | None] = []
        self._events, self.steps = events, steps or {}

    def manifest(self, version: int, step: int) -> types.WeightVersion:
        return types.WeightVersion(
            job="job",
            version=types.VersionId(version),
            step=step,
            attempt=1,
            parent=version - 1,
            created_at=0.0,
            layout_id="layout",
            digests={},
            state_hash=f"hash-{version}",
            changed_ratio=0.25 if version else 1.0,
        )

    def stage(self, version: types.VersionId) -> staging.Staged:
        self._events.append(f"stage {version}")
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        manifest = self.manifest(version, self.steps.get(version, version))
        return staging.Staged(manifest=manifest, fetch_s=0.5, verify_s=0.25, num_bytes=64)


async def at_once(work: Callable[[], staging.Staged]) -> staging.Staged:
    """Stands for asyncio.to_thread: a fake clock cannot wait for a thread."""
    return work()


class FakeGrading:
    """Gives what `verdicts` says per call, or right for everything. `gate` holds answers back."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.answer: Callable[[types.VerifyItem], types.Verdict] = lambda item: makers.make_verdict(1.0)
        self.fault: errors.RLJobError | None = None
        self.items: list[types.VerifyItem] = []
        self.gate: Callable[[], Awaitable[None]] | None = None

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        self._events.append(f"verify {len(items)}")
        self.items.extend(items)
        if self.gate is not None:
            await self.gate()
        if self.fault is not None:
            raise self.fault
        return [self.answer(item) for item in items]


class FakeWork:
    """A coordinator that leases what is in `queue` and orders what is in `orders`, else nothing new."""

    def __init__(self, events: list[str], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._events, self._sleep = events, sleep
        self.queue: list[types.GroupLease] = []
        self.orders: list[types.HeartbeatReply] = []
        self.faults: dict[str, list[errors.RLJobError | None]] = {}
        self.head = types.VersionId(0)
        self.head_step = 0
        self.wait_reason = "no_prompts"
        self.submitted: list[types.PromptGroup] = []
        self.released: list[str] = []
        self.beats: list[dict[str, object]] = []
        self.capacities: list[int] = []
        self.sessions = 0
        # What is announced, in order.
        self.announcements: asyncio.Queue[types.Announcement] = asyncio.Queue()
        self.aheads: list[bool] = []

    def _fault(self, name: str) -> None:
        faults = self.faults.get(name, [])
        if faults and (fault := faults.pop(0)) is not None:
            raise fault

    async def register(self, *, pod: str, boot_id: str, initial_state_hash: str) -> types.Session:
        self._events.append(f"register {pod} {boot_id} {initial_state_hash}")
        self._fault("register")
        self.sessions += 1
        token = types.SessionToken(f"session-{self.sessions}")
        return types.Session(token=token, head_version=self.head, head_step=self.head_step, heartbeat_s=1.0)

    async def lease(
        self, *, capacity: int, serving_version: types.VersionId, wait_s: float, ahead: bool = False
    ) -> types.LeaseGrant:
        self._fault("lease")
        self.capacities.append(capacity)
        self.aheads.append(ahead)
        if not self.queue:
            await self._sleep(wait_s)
        taken, self.queue = self.queue[:capacity], self.queue[capacity:]
        for lease in taken:
            self._events.append(f"leased {lease.lease_id}")
        return types.LeaseGrant(leases=taken, wait_reason="" if taken else self.wait_reason)

    async def heartbeat(
        self,
        *,
        lease_ids: Sequence[types.LeaseId],
        serving_version: types.VersionId,
        receiver_state: enums.ReceiverState,
        load: types.RolloutLoad,
        syncs: Sequence[types.WeightSync],
        draining: bool,
        offer: types.WeightOffer = types.NO_OFFER,
    ) -> types.HeartbeatReply:
        self._fault("heartbeat")
        self.beats.append(
            {
                "leases": tuple(lease_ids),
                "version": serving_version,
                "state": receiver_state,
                "load": load,
                "syncs": tuple(syncs),
                "draining": draining,
                "offer": offer,
            }
        )
        if self.orders:
            order = self.orders.pop(0)
            self.head = order.load_version
            return order
        return types.HeartbeatReply(drain=False, cancel=(), load_version=self.head)

    async def watch(self) -> AsyncIterator[types.Announcement]:
        while True:
            self._fault("watch")
            yield await self.announcements.get()

    def announce(self, version: int, *, cancel: Sequence[str] = ()) -> None:
        self.head = types.VersionId(version)
        self.announcements.put_nowait(
            types.Announcement(cancel=[types.LeaseId(lease_id) for lease_id in cancel], load_version=self.head)
        )

    async def submit(self, group: types.PromptGroup) -> types.SubmitReply:
        self._events.append(f"submit {group.group_id}")
        self._fault("submit")
        self.submitted.append(group)
        return types.SubmitReply(outcome=enums.TrajectoryOutcome.ACCEPTED)

    async def release(self, lease_id: types.LeaseId, reason: str) -> bool:
        self._events.append(f"release {lease_id}: {reason}")
        self.released.append(lease_id)
        return True


def make_lease(lease_id: str = "lease", **changes: object) -> types.GroupLease:
    """Return a training lease of two members for a prompt of three tokens."""
    lease = types.GroupLease(
        lease_id=types.LeaseId(lease_id),
        group_id=types.GroupId(f"group-{lease_id}"),
        kind=enums.GroupKind.TRAIN,
        attempt=1,
        deadline_s=60.0,
        prompt=types.PromptRecord(prompt_id="p1", source="train", columns={"prompt": "2+2", "answer": "4"}),
        group_size=2,
        sampling=types.Sampling(max_tokens=4, ignore_eos=True),
        seed=7,
    )
    return dataclasses.replace(lease, **changes)  # type: ignore[arg-type]


def make_request(rid: str = "r", *, max_tokens: int = 4, seed: int = 1) -> generation.GenerationRequest:
    """Return a request for exactly `max_tokens` tokens."""
    sampling = types.Sampling(max_tokens=max_tokens, ignore_eos=True)
    return generation.GenerationRequest(rid=rid, input_ids=(5, 6), sampling=sampling, seed=seed)
