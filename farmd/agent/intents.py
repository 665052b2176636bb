"""Watches this node's intents, proves and resolves each answer, and then obeys it (R16, R20).

An answer counts only if the node's sentinel in it has our cluster's id. Before the agent stops an instance
that is missing in an answer, or obeys a lower ModifyIndex than before, a consistent read must say the same;
a lower index then means that the store was restored from a snapshot, and ``doubt`` is called. An unusable
record or manifest affects only its own instance, and is tried again from time to time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog

from farmd.agent import reality
from farmd.agent.errors import ManifestUnusable, StartFailed
from farmd.agent.link import Link
from farmd.agent.manifests import Manifests
from farmd.agent.model import AgentConfig, Record, WantedPod
from farmd.agent.pods import Pods
from farmd.observe.progress import Progress
from farmd.runtime.tasks import until_one_fails
from farmd.runtime.wake import wait
from store import codec, variables
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import InputInvalid, RecordInvalid, StoreError
from store.keys import Keys, valid_instance
from store.manifests import Manifest
from store.ports import Clock, Recorder, Rng
from store.reality import Intent
from store.signatures import UNSIGNED
from store.watch import follow

if TYPE_CHECKING:
    from farmd.agent.admission import Admission

log = structlog.get_logger()

RETRY_SECONDS = 1.0
MOST_INTENTS = 5000
"""So many pods one node has at most. A farm's token can write any number of intents, and each one costs this
agent a manifest and Consul a reality.
"""


def proven(page: Page[RawEntry], sentinel: str, cluster: str) -> bool:
    """Whether an answer has our cluster's sentinel: only then is a missing intent a removed one."""
    for raw in page.items:
        if raw.key == sentinel:
            try:
                return bool(cluster) and msgspec.json.decode(raw.decoded(), type=str) == cluster
            except msgspec.DecodeError:
                return False
    return False


class Preflight(Protocol):
    """Refuses a manifest that cannot run on this node, as ``Runtimes`` does."""

    def __call__(self, manifest: Manifest, *, kept: bool = False) -> None: ...


@dataclass(eq=False)
class Intents:
    """Follows ``intent/<node>/`` and passes proven answers to the pods."""

    config: AgentConfig
    client: ConsulClient
    keys: Keys
    link: Link
    manifests: Manifests
    pods: Pods
    clock: Clock
    rng: Rng
    recorder: Recorder
    progress: Progress
    wake: Callable[[], None]
    doubt: Callable[[], None]
    preflight: Preflight
    admission: Admission | None = None
    _page: Page[RawEntry] | None = field(default=None, init=False)
    _asking: float = field(default=0.0, init=False)
    _asked: float = field(default=0.0, init=False)
    """When the answer in ``_page`` was asked for: what it says held then or later."""
    _unusable: bool = field(default=False, init=False)
    _unproven: bool = field(default=False, init=False)
    _found: int = field(default=0, init=False)
    """How many intents the last answer had."""
    _unsigned: set[tuple[str, int]] = field(default_factory=set, init=False)
    obeyed: bool = field(default=False, init=False)
    """Whether any answer was: until then nothing is known of pods whose records are lost."""

    def __post_init__(self) -> None:
        self._prefix = self.keys.intents(self.config.node)
        self._sentinel = self.keys.sentinel(self._prefix)
        self._fresh = asyncio.Event()

    @property
    def closed(self) -> str:
        """Why no pod starts here, for people and farms; empty if pods do."""
        if self._unproven:
            return f"its intents are not proven (R20): farmctl node register {self.config.node}"
        if self._found > MOST_INTENTS:
            return f"it has {self._found} intents, expected at most {MOST_INTENTS}: farmctl doctor"
        return ""

    def judge_again(self) -> None:
        """Judge the last answer once more, because what people revoked has changed, or ask for another one,
        because a lease was over."""
        self._fresh.set()

    async def look(self) -> None:
        """Learn whether the intents are proven, before farms hear of this node and place pods on it."""
        self._proves(await self.client.list(self._sentinel, mode="consistent"))

    async def run(self) -> None:
        """Follow and obey for ever; starts once this agent holds the node's presence."""
        await self.link.present.wait()
        await until_one_fails([self._follow(), self._apply()])

    async def _follow(self) -> None:
        with self.progress.loop("intent", self.config.watch_wait * 2 + 60) as loop:
            pages = follow(
                self._query,
                name="intent",
                clock=self.clock,
                rng=self.rng,
                wait=self.config.watch_wait,
                on_error=lambda _: loop.beat(),
                on_answer=loop.beat,
                proven=lambda page: proven(page, self._sentinel, self.link.identity.cluster),
            )
            async for page in pages:
                self._page, self._asked = page, self._asking
                self._fresh.set()

    async def _query(self, index: int, seconds: float) -> Page[RawEntry]:
        self._asking = self.clock.mono()
        if not index:
            self.doubt()
            return await self.client.list(self._prefix, mode="consistent")
        return await self.client.list(self._prefix, index=index, wait=seconds)

    async def _apply(self) -> None:
        while True:
            again = self.config.retry_unusable if self._unusable else math.inf
            if self.pods.unconfirmed(self._asked):
                again = min(again, RETRY_SECONDS)
            await wait(self._fresh, self.clock, again)
            self._fresh.clear()
            if self._page is None:
                continue
            try:
                await self._obey(self._page)
            except StoreError as error:
                log.warning("intent.not_read", code=error.code, error=error.message)
                await self.clock.sleep(RETRY_SECONDS * self.rng.uniform(0.5, 1.5))
                self._fresh.set()

    async def _obey(self, page: Page[RawEntry]) -> None:
        given, wanted = page, await self._resolve(page)
        if wanted is not None and self._must_read_again(wanted):
            asked = self.clock.mono()
            page = await self.client.list(self._prefix, mode="consistent")
            wanted = await self._resolve(page)
            if wanted is not None and self._page is given:  # else a newer answer came meanwhile, and is next
                self._page, self._asked = page, asked
        if wanted is None:
            return
        if older := self.pods.older_than_known(wanted):
            log.warning("intents.restored", node=self.config.node, instances=older)
            self.doubt()
        invalid = sum(1 for intent in wanted.values() if not intent.sha)
        self.recorder.set("farmd_invalid_records", invalid, family="intent")
        if not self.obeyed:
            wanted = await self._with_ends(wanted)
        self.pods.obey(wanted)
        self.pods.confirm(self._asked)
        self.obeyed = True
        self._unusable = any(pod.problem or pod.warning or pod.awaits_start for pod in self.pods)
        self._tell_unsigned(wanted.values())
        self.wake()

    def _must_read_again(self, wanted: Mapping[str, WantedPod]) -> bool:
        """Whether an answer may be too old: never stop a pod, go back to an older intent, or start a pod
        whose lease was over since, because of a read that may be stale."""
        if self.pods.missing_from(wanted) or self.pods.older_than_known(wanted):
            return True
        return self.pods.unconfirmed(self._asked) and not self.link.lacks()

    async def _with_ends(self, wanted: dict[str, WantedPod]) -> dict[str, WantedPod]:
        """The intents, with the stored realities if this agent lacks the record of a pod: it may be lost."""
        if all(self.pods.get(name) is not None for name in wanted):
            return wanted
        told = await reality.read(self.client, self.keys, self.config.node)
        return {name: replace(intent, told=told.get(name, (None, 0))[0]) for name, intent in wanted.items()}

    def _proves(self, page: Page[RawEntry]) -> bool:
        known, self._unproven = self._unproven, not proven(page, self._sentinel, self.link.identity.cluster)
        if known != self._unproven:
            self.doubt()  # farms place no pod here, or do so again
        if self._unproven and not known:
            log.warning("intent.unproven", node=self.config.node, keys=len(page.items))
        return not self._unproven

    async def _resolve(self, page: Page[RawEntry]) -> dict[str, WantedPod] | None:
        """The intents of an answer; None if the answer proves nothing."""
        if not self._proves(page):
            return None
        found = [await self._read(raw) for raw in self._bounded(page)]
        return {intent.instance: intent for intent in found if intent is not None}

    def _bounded(self, page: Page[RawEntry]) -> list[RawEntry]:
        """The intents of an answer: those of this agent's pods, and others as long as there is room."""
        found = [raw for raw in page.items if raw.key != self._sentinel]
        before, self._found = self._found, len(found)
        if (before > MOST_INTENTS) != (len(found) > MOST_INTENTS):
            log.warning("intents.count", node=self.config.node, found=len(found), most=MOST_INTENTS)
            self.doubt()
        if len(found) <= MOST_INTENTS:
            return found
        known, others = list[RawEntry](), list[RawEntry]()
        for raw in found:
            (others if self.pods.get(raw.key[len(self._prefix) :]) is None else known).append(raw)
        return [*known, *others[: max(0, MOST_INTENTS - len(known))]]

    async def _read(self, raw: RawEntry) -> WantedPod | None:
        instance = raw.key[len(self._prefix) :]
        try:
            valid_instance(instance)
        except InputInvalid as error:
            log.warning("intent.name_invalid", key=raw.key, error=error.message)
            return None
        try:
            intent = codec.decode(Intent, raw.decoded(), raw.key)
        except (RecordInvalid, ValueError) as error:
            return WantedPod(instance, raw.modify_index, problem=str(error))
        sha, owner = intent.manifest, intent.owner
        try:
            manifest = await self.manifests.get(sha)
            await self.manifests.fetch_peers(intent.peers)
            pod = self.pods.get(instance)
            self.preflight(manifest, kept=pod is not None and pod.record.keeps(sha))
        except (ManifestUnusable, StartFailed) as error:
            return WantedPod(instance, raw.modify_index, sha, owner, problem=error.message)
        if problem := variables.refused(intent.vars):
            return WantedPod(instance, raw.modify_index, sha, owner, problem=problem)
        wanted = WantedPod(
            instance,
            raw.modify_index,
            sha,
            owner,
            manifest,
            restart=intent.restart,
            vars=intent.vars,
            hold=intent.hold,
            peers=intent.peers,
        )
        return wanted if self.admission is None else await self._admitted(wanted, manifest)

    async def _admitted(self, wanted: WantedPod, manifest: Manifest) -> WantedPod:
        """The intent with the verdict on its signatures; what this owner's pod started goes on (R32)."""
        from farmd.signing.trust import Allowed

        assert self.admission is not None
        pod = self.pods.get(wanted.instance)
        record = pod.record if pod is not None else Record(instance=wanted.instance)
        again = record.wanted and record.has_started(wanted.sha)
        # A node that warns goes on looking at what nobody signed, so that it says so until somebody does.
        settled = self.admission.config.policy == "enforce" or record.start_by > 0
        started = again and settled and record.owner == wanted.owner
        if started and not record.revoked and not await self.admission.revokes(wanted.sha, wanted.owner):
            return replace(wanted, start_by=record.start_by)
        decision = await self.admission.decide(
            wanted.sha, wanted.owner, wanted.instance, manifest, again=again
        )
        if isinstance(decision, Allowed):
            return replace(wanted, start_by=decision.until)
        reason = f"{UNSIGNED}{decision.reason}"
        if self.admission.config.policy == "warn":
            return replace(wanted, unsigned=reason)
        return replace(wanted, manifest=None, problem=reason, unsigned=reason, revoked=started)

    def _tell_unsigned(self, wanted: Iterable[WantedPod]) -> None:
        """Count the pods that nobody signed, and name each of them once in the log."""
        found = [intent for intent in wanted if intent.unsigned]
        for intent in found:
            if (intent.instance, intent.index) not in self._unsigned:
                log.warning("pod.unsigned", instance=intent.instance, reason=intent.unsigned)
        self._unsigned = {(intent.instance, intent.index) for intent in found}
        warned = sum(1 for intent in found if intent.manifest is not None)
        self.recorder.set("farmd_unsigned_pods", warned, result="warned")
        self.recorder.set("farmd_unsigned_pods", len(found) - warned, result="refused")
