"""A store with a house-keeper's tools and a claim of its own, to run chores round by round."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from farmd.config.sections import HousekeepingSection
from farmd.farm.writer import Writer
from farmd.housekeeping.chores import AuditPruning, LeavingsCollection, ManifestCollection
from farmd.housekeeping.kind import Housekeeper, Housekeeping
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from store import codec, manifests, operations
from store.audit import Audit
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.entry import Entry
from store.families import well_formed
from store.keys import Keys
from store.locks import Claim, Holder, Locker
from store.manifests import Manifest
from store.pods import Pod, PodKey
from store.ports import Clock, Ids
from store.registration import read_schema, register_cluster
from store.sessions import Session
from tests.contexts import context_on
from tests.recorders import CountingRecorder
from tests.toys import Faulty
from tests.virtual import SeededIds, VirtualClock, embedded_server

HOUR = 3600.0


def manifest(number: int = 1) -> tuple[str, bytes]:
    """(digest, body) of a manifest that differs from others by its number."""
    body = manifests.canonical(Manifest(id="hello", command=["sleep", str(number)]))
    return manifests.digest(body), body


@dataclass
class House:
    """The store and what a chore is built with; ``faulty`` sits below the chore's own client."""

    client: ConsulClient
    keys: Keys
    clock: Any
    ids: Ids
    context: Context
    claim: Claim
    session: Session
    faulty: Faulty | None
    recorder: CountingRecorder
    settings: HousekeepingSection

    @property
    def writer(self) -> Writer:
        return Writer(self.claim, self.session, self.context.client)

    def keeper(self, kind: Housekeeping | None = None) -> Housekeeper:
        """The worker of the chore ``manifests``."""
        return (kind or Housekeeping(self.context)).worker(self.claim, self.session, Wake())

    def collection(self) -> ManifestCollection:
        return ManifestCollection(self.context, self.settings, self.writer, {})

    def leavings(self) -> LeavingsCollection:
        return LeavingsCollection(self.context, self.settings, self.writer, {})

    def pruning(self) -> AuditPruning:
        return AuditPruning(self.context, self.settings, self.writer, {})

    async def store_manifest(self, number: int = 1) -> str:
        sha, body = manifest(number)
        await self.client.transaction([manifests.ensure(self.keys, body)])
        return sha

    async def manifest_entry(self, sha: str) -> Entry | None:
        return await self.client.read(self.keys.manifest(sha))

    async def change_pods(
        self, owner: str, *, placed: Sequence[str] = (), removed: Sequence[str] = (), at: float | None = None
    ) -> None:
        """Change pods as a worker does: with the audit record in the same transaction."""
        record = Audit(
            at=self.clock.now() if at is None else at,
            actor="farm/a",
            action="pods.place",
            kind="rcs",
            id=owner,
            placed=list(placed),
            removed=list(removed),
        )
        writes = [self._pod(owner, place) for place in placed]
        writes += [operations.delete(self.keys.pod(owner, *place.split("/"))) for place in removed]
        await self.client.transaction([*writes, self.context.audit.operation(record)])

    def _pod(self, owner: str, place: str) -> operations.Operation:
        return operations.put(self.keys.pod(owner, *place.split("/")), codec.encode(Pod("0" * 64)))

    async def pass_time(self, seconds: float) -> None:
        """Virtual time in small steps, so that whoever needs many requests gets to the end of them."""
        for _ in range(round(seconds / 60)):
            await self.clock.advance(60)

    async def pods(self) -> frozenset[PodKey]:
        """The pods tree as it is."""
        page = await self.client.keys(self.keys.tree("pods"), mode="consistent")
        return frozenset(
            PodKey(*self.keys.pod_parts(key)) for key in page.items if well_formed(self.keys, "pods", key)
        )

    async def audit_keys(self) -> list[str]:
        """What lies under ``audit/``, without the prefix."""
        prefix = self.keys.tree("audit")
        return [key[len(prefix) :] for key in (await self.client.keys(prefix)).items]


async def house_on(
    client: ConsulClient,
    below: ConsulClient,
    keys: Keys,
    clock: Clock,
    ids: Ids,
    faulty: Faulty | None = None,
    **settings: Any,
) -> House:
    """Register a cluster, take a claim and build the tools; ``below`` is the chore's own client."""
    cluster = await register_cluster(client, keys, ids)
    recorder = CountingRecorder()
    chosen = HousekeepingSection(**settings)
    context = context_on(below, keys, cluster, clock, ids, recorder, sections={"housekeeping": chosen})
    session = await Session.open(client, clock, name="house-keeper", ttl=86400)
    schema = await read_schema(client, keys)
    holder = Holder("farm", "one", ids.new())
    (claim,), _ = await Locker(client, keys, "housekeeping").take(
        ["manifests"], session.id, holder, schema.modify_index
    )
    return House(client, keys, clock, ids, context, claim, session, faulty, recorder, chosen)


@asynccontextmanager
async def house(**settings: Any) -> AsyncIterator[House]:
    """A house on an embedded server of its own, on virtual time."""
    clock = VirtualClock()
    server = embedded_server(clock)
    client = ConsulClient(InProcessTransport(server), clock=clock)
    faulty = Faulty(InProcessTransport(server))
    below = ConsulClient(faulty, clock=clock)
    try:
        yield await house_on(client, below, Keys(), clock, SeededIds(), faulty, **settings)
    finally:
        await client.close()
        await below.close()
