"""Watches this node's intents, proves and resolves each answer, and then obeys it (R16, R20).

An answer counts only if the node's sentinel in it has our cluster's id. Before the agent stops an instance
that is missing in an answer, or obeys a lower ModifyIndex than before, a consistent read must say the same;
a lower index then means that the store was restored from a snapshot, and ``doubt`` is called. An unusable
record or manifest affects only its own instance, and is tried again from time to time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import msgspec
import structlog

from farmd.agent.contact import Contact
from farmd.agent.environment import preflight
from farmd.agent.errors import ManifestUnusable, StartFailed
from farmd.agent.link import Link
from farmd.agent.manifests import Manifests
from farmd.agent.model import AgentConfig, Wanted
from farmd.agent.pods import Pods
from farmd.observe.progress import Progress
from farmd.runtime.wake import wait
from store import codec
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import InputInvalid, RecordInvalid, StoreError
from store.intent import Intent
from store.keys import Keys, valid_instance
from store.ports import Clock, Recorder, Rng
from store.watch import follow

log = structlog.get_logger()

RETRY_SECONDS = 1.0


def proven(page: Page[RawEntry], sentinel: str, cluster: str) -> bool:
    """Whether an answer has our cluster's sentinel: only then is a missing intent a removed one."""
    for raw in page.items:
        if raw.key == sentinel:
            try:
                return bool(cluster) and msgspec.json.decode(raw.decoded(), type=str) == cluster
            except msgspec.DecodeError:
                return False
    return False


class Intents:
    """Follows ``intent/<node>/`` and passes proven answers to the pods."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        client: ConsulClient,
        keys: Keys,
        link: Link,
        manifests: Manifests,
        pods: Pods,
        contact: Contact,
        clock: Clock,
        rng: Rng,
        recorder: Recorder,
        progress: Progress,
        wake: Callable[[], None],
        doubt: Callable[[], None],
    ) -> None:
        self._config = config
        self._client = client
        self._prefix = keys.intents(config.node)
        self._sentinel = keys.sentinel(self._prefix)
        self._link = link
        self._manifests = manifests
        self._pods = pods
        self._contact = contact
        self._clock = clock
        self._rng = rng
        self._recorder = recorder
        self._progress = progress
        self._wake = wake
        self._doubt = doubt
        self._page: Page[RawEntry] | None = None
        self._fresh = asyncio.Event()
        self._unusable = False
        self._unproven = False

    async def run(self) -> None:
        """Follow and obey for ever; starts once this agent holds the node's presence."""
        await self._link.present.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._apply())

    async def _follow(self) -> None:
        with self._progress.loop("intent", self._config.watch_wait * 2 + 60) as loop:
            pages = follow(
                self._query,
                name="intent",
                clock=self._clock,
                rng=self._rng,
                wait=self._config.watch_wait,
                on_error=lambda _: loop.beat(),
                on_answer=loop.beat,
            )
            async for page in pages:
                self._page = page
                self._fresh.set()

    async def _query(self, index: int, seconds: float) -> Page[RawEntry]:
        if not index:
            self._doubt()
            return await self._client.list(self._prefix, mode="consistent")
        return await self._client.list(self._prefix, index=index, wait=seconds)

    async def _apply(self) -> None:
        while True:
            again = self._config.retry_unusable if self._unusable else math.inf
            await wait(self._fresh, self._clock, again)
            self._fresh.clear()
            if self._page is None:
                continue
            try:
                await self._obey(self._page)
            except StoreError as error:
                log.warning("intent.not_read", code=error.code, error=error.message)
                await self._clock.sleep(RETRY_SECONDS * self._rng.uniform(0.5, 1.5))
                self._fresh.set()

    async def _obey(self, page: Page[RawEntry]) -> None:
        wanted = await self._resolve(page)
        if wanted is not None and (self._pods.missing_from(wanted) or self._pods.older_than_known(wanted)):
            # Never stop a pod or go back to an older intent because of a read that may be stale.
            page = await self._client.list(self._prefix, mode="consistent")
            wanted = await self._resolve(page)
            if wanted is not None:
                self._page = page
        if wanted is None:
            return
        if older := self._pods.older_than_known(wanted):
            log.warning("intents.restored", node=self._config.node, instances=older)
            self._doubt()
        self._contact.made()
        invalid = sum(1 for intent in wanted.values() if not intent.sha)
        self._recorder.set("farmd_invalid_records", invalid, family="intent")
        self._pods.obey(wanted)
        self._unusable = any(pod.problem for pod in self._pods)
        self._wake()

    async def _resolve(self, page: Page[RawEntry]) -> dict[str, Wanted] | None:
        """The intents of an answer; None if the answer proves nothing."""
        if not proven(page, self._sentinel, self._link.identity.cluster):
            if not self._unproven:
                log.warning("intent.unproven", node=self._config.node, keys=len(page.items))
            self._unproven = True
            return None
        self._unproven = False
        found = [await self._read(raw) for raw in page.items if raw.key != self._sentinel]
        return {intent.instance: intent for intent in found if intent is not None}

    async def _read(self, raw: RawEntry) -> Wanted | None:
        instance = raw.key[len(self._prefix) :]
        try:
            valid_instance(instance)
        except InputInvalid as error:
            log.warning("intent.name_invalid", key=raw.key, error=error.message)
            return None
        try:
            intent = codec.decode(Intent, raw.decoded(), raw.key)
        except (RecordInvalid, ValueError) as error:
            return Wanted(instance, raw.modify_index, problem=str(error))
        sha, owner = intent.manifest, intent.owner
        try:
            manifest = await self._manifests.get(sha)
            preflight(manifest)
        except (ManifestUnusable, StartFailed) as error:
            return Wanted(instance, raw.modify_index, sha, owner, problem=error.message)
        return Wanted(instance, raw.modify_index, sha, owner, manifest, restart=intent.restart)
