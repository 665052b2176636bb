"""What people revoked, as this node knows it: followed in the store, and kept on disk (R32).

The node never forgets a revocation by itself, so whoever deletes one from the store revives no signature on a
node that heard of it. A signature that begins later counts again. Many may write these records, so there is a
bound to what a node reads and keeps: beyond it the node keeps what it knows, and permits no first start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

import msgspec
import structlog

from farmd.agent.state import StateDirectory
from farmd.observe.progress import Progress
from store import codec, revocations
from store.consul.client import ConsulClient
from store.entry import Page, RawEntry
from store.errors import RecordInvalid, StoreError, TooLarge
from store.keys import Keys
from store.ports import Clock, Mode, Rng
from store.revocations import MOST, NOTHING, Revocation, Revoked
from store.signatures import MOST_BYTES
from store.watch import WAIT_SECONDS, follow

log = structlog.get_logger()

EXCESS = (
    "signatures/revoked/: found {} revocations that this node knows, expected at most "
    f"{MOST}: delete those that you did not make, and revoked.json in agent.state_dir"
)


class Revocations:
    """Follows ``signatures/revoked/``; ``news`` is called with the digests that were not listed before."""

    def __init__(
        self,
        *,
        client: ConsulClient,
        keys: Keys,
        state: StateDirectory,
        clock: Clock,
        rng: Rng,
        progress: Progress,
        wait: float = WAIT_SECONDS,
    ) -> None:
        self._client, self._keys, self._state = client, keys, state
        self._clock, self._rng, self._progress, self._wait = clock, rng, progress, wait
        self._kept: dict[tuple[str, str], Revocation] | None = None
        self._told = NOTHING
        self._excess = ""
        self.heard = asyncio.Event()
        self.news: Callable[[Set[str]], None] = lambda _: None

    async def run(self) -> None:
        """Follow for ever."""
        with self._progress.loop("watch", self._wait * 2 + 60) as loop:

            def failed(error: StoreError) -> None:
                loop.beat()
                self._exceeds(error)

            pages = follow(
                self._query,
                name="revocations",
                clock=self._clock,
                rng=self._rng,
                wait=self._wait,
                on_error=failed,
                on_answer=loop.beat,
            )
            async for page in pages:
                known, told = self._learnt(revocations.of_page(self._keys, page.items)), self._told
                self._told = known
                if new := {sha for sha, owner in known.before if not _same(known, told, sha, owner)}:
                    log.info("revocations.heard", manifests=sorted(sha[:12] for sha in new))
                    self.news(new)
                self.heard.set()

    async def _query(self, index: int, seconds: float) -> Page[RawEntry]:
        mode: Mode = "default" if index else "consistent"
        return await self._client.list(
            self._keys.revocations, index=index, wait=seconds, mode=mode, most=MOST_BYTES
        )

    async def read(self) -> Revoked:
        """All that is revoked, by a consistent read and by what this node heard before.

        Raises:
            StoreError: the store did not answer. TooLarge: there are more than this node reads or keeps.
        """
        known = self._learnt(await revocations.stored(self._client, self._keys))
        if self._excess:
            raise TooLarge(self._excess)
        return known

    def _exceeds(self, error: StoreError) -> None:
        """Say once that there are more revocations than this node reads or keeps."""
        if isinstance(error, TooLarge) and error.message != self._excess:
            self._excess = error.message
            log.error("revocations.too_many", error=error.message)

    @property
    def known(self) -> Revoked:
        """What this node heard of."""
        return revocations.revoked(self._load().values())

    def _load(self) -> dict[tuple[str, str], Revocation]:
        if self._kept is None:
            self._kept = {}
            if (data := self._state.saved_revocations()) is not None:
                try:
                    found = codec.decode(list[Revocation], data, "revoked.json")
                except RecordInvalid as error:
                    log.warning("state.record_invalid", instance="", error=error.message)
                else:
                    self._kept = {_place(each): each for each in found}
        return self._kept

    def _learnt(self, found: list[Revocation]) -> Revoked:
        """Keep what is new among some revocations, and forget those that revoke nothing any more."""
        kept, now = self._load(), self._clock.now()
        merged = dict(kept)
        for each in map(_bare, found):
            known = kept.get(_place(each))
            if known is None or known.statement.ends < each.statement.ends:
                merged[_place(each)] = each
        merged = {place: each for place, each in merged.items() if not each.over(now)}
        if len(merged) > MOST:
            self._exceeds(TooLarge(EXCESS.format(len(merged))))
            return revocations.revoked(kept.values())
        self._excess = ""
        if merged != kept:
            self._kept = merged
            self._state.save_revocations(codec.encode(list(merged.values())))
        return revocations.revoked(merged.values())


def _bare(revocation: Revocation) -> Revocation:
    """A revocation without what is for people alone."""
    said = msgspec.structs.replace(revocation.statement, cluster="")
    return Revocation(statement=said)


def _place(revocation: Revocation) -> tuple[str, str]:
    return revocation.statement.digest, revocation.statement.owner


def _same(one: Revoked, other: Revoked, digest: str, owner: str) -> bool:
    return one.before[digest, owner] == other.before.get((digest, owner))
