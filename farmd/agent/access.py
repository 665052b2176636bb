"""Who may ask a node's agent about pods: by a certificate, a token, or a one-time key (R36).

A one-time key is deleted in Consul by its index before a byte is answered, and an unknown outcome refuses. So
one key is one request, whoever else overheard it. Nobody is locked out for the bad keys of another program on
the same machine: the keys of a peer that sent many are looked up together, which costs Consul no more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from farmd.agent.access_records import AccessRecords
from farmd.config.sections import WebSection
from store import access, codec, operations
from store.access import OneTime
from store.consul.client import ConsulClient
from store.entry import Entry
from store.errors import (
    AccessDenied,
    NotFound,
    OutcomeUnknown,
    RecordInvalid,
    StoreError,
    TransactionRejected,
)
from store.keys import Keys
from store.operations import Operation
from store.ports import Clock

log = structlog.get_logger()

GUARDED, USAGE = "/v1/pods", "/v1/usage"
TOLERANCE_SECONDS = 60.0
"""By how much the clocks of this node and of who made a key may differ."""
BURNT_SECONDS, MOST_BURNT = 300.0, 10_000
BAD_SECONDS, MOST_BAD, MOST_PEERS = 60.0, 20, 1000
LIST_SECONDS = 0.2
"""How often the keys of peers that sent many bad ones are looked up."""
NEEDED = (
    "needs a one-time key, which this client does not send: use a farmctl of the agent's version or newer"
)
HELP = (
    "a credential is needed: farmctl pod logs brings a one-time key; others send Authorization: Bearer with a"
    " token of web.tokens"
)


def asks_for_keys(section: WebSection) -> bool:
    """Whether pods and logs need a credential; where ``client_ca`` is set, TLS has asked for one already."""
    return section.read != "open" and not section.client_ca


class Door:
    """Admits requests for pods and their logs; ``bearer`` tells whose token a request has, or refuses it."""

    def __init__(
        self,
        section: WebSection,
        bearer: Callable[[web.Request], object | None],
        keys: OneTimeKeys,
        usage: OneTimeKeys,
    ) -> None:
        self._section = section
        self._bearer = bearer
        self._keys = keys
        self._usage = usage

    @web.middleware
    async def admits(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request for pods that has no credential."""
        of_pods = request.path == GUARDED or request.path.startswith(f"{GUARDED}/")
        if (of_pods or request.path == USAGE) and asks_for_keys(self._section):
            if (key := request.headers.get(access.HEADER)) is not None:
                await (self._keys if of_pods else self._usage).use(key, request)
            elif self._bearer(request) is None:
                raise web.HTTPUnauthorized(reason=NEEDED, text=HELP, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)


class OneTimeKeys:
    """The keys that people and farms write below this node."""

    def __init__(
        self,
        client: ConsulClient,
        keys: Keys,
        node: str,
        cluster: Callable[[], str],
        clock: Clock,
        refused: Callable[[str, str], None],
        purpose: str = access.LOGS,
        records: AccessRecords | None = None,
    ) -> None:
        self._purpose = purpose
        self._records = records
        self._client = client
        self._keys = keys
        self._node = node
        self._cluster = cluster
        self._clock = clock
        self._tell_refused = refused
        self._burnt: OrderedDict[str, float] = OrderedDict()
        self._bad: OrderedDict[str, list[float]] = OrderedDict()
        self._swept = clock.mono()
        self._listing: asyncio.Task[frozenset[str]] | None = None

    async def use(self, key: str, request: web.Request) -> OneTime:
        """Use a key up for a request that it was made for; what the store held of it.

        Raises:
            HTTPForbidden: it is not for that, or was used. HTTPServiceUnavailable: Consul cannot tell.
        """
        peer = request.remote or ""
        try:
            if self._guesses(peer):
                await self._require_listed(key)
            record = await self._burn(key, request)
        except web.HTTPForbidden as error:
            self._tell_refused(peer, error.text or "")
            self._note_bad(peer)
            raise
        except StoreError as error:
            text = f"the key cannot be looked up: {error.message}"
            other = "; a token of web.tokens needs no Consul" if self._purpose == access.LOGS else ""
            raise web.HTTPServiceUnavailable(text=text + other) from error
        log.info(
            "access.granted", by=record.by, reason=record.reason, instance=record.instance, path=request.path
        )
        await self._sweep()
        return record

    async def _require_listed(self, key: str) -> None:
        """Refuse a key that nobody wrote, by a look-up that it shares with all others that come meanwhile."""
        if not access.possible(key):
            raise _refused("the key is unknown")
        if (listing := self._listing) is None:
            listing = self._listing = asyncio.create_task(self._listed())
            listing.add_done_callback(lambda task: task.cancelled() or task.exception())
        if self._place(key) not in await asyncio.shield(listing):
            raise _refused("the key is unknown or was already used")

    async def _listed(self) -> frozenset[str]:
        """The keys of now; whoever asks once the read has begun waits for a later one."""
        await self._clock.sleep(LIST_SECONDS)
        self._listing = None
        page = await self._client.keys(self._keys.accesses(self._purpose, self._node), mode="consistent")
        return frozenset(page.items)

    def _place(self, key: str) -> str:
        return self._keys.access(self._purpose, self._node, access.ident(key))

    async def _burn(self, key: str, request: web.Request) -> OneTime:
        if not access.possible(key):
            raise _refused("the key is unknown")
        ident = access.ident(key)
        self._forget_burnt()
        self._require_new(ident)
        if len(self._burnt) >= MOST_BURNT:
            raise web.HTTPServiceUnavailable(text="too many keys were used within five minutes")
        entry = await self._client.read(self._place(key), mode="consistent")
        if entry is None:
            raise _refused("the key is unknown or was already used")
        record = self._judged(entry, request)
        self._require_new(ident)  # others came with it while it was read
        self._burnt[ident] = self._clock.mono()
        # The check comes first, because the deletion of a missing key would succeed.
        burning = [
            operations.check_index(entry.key, entry.modify_index),
            operations.delete_cas(entry.key, entry.modify_index),
        ]
        try:
            await self._commit(burning, ident, record)
        except (TransactionRejected, NotFound) as error:
            raise _refused("the key was used") from error
        except OutcomeUnknown as error:
            raise _refused("Consul did not confirm that the key is unused: try again") from error
        return record

    def _require_new(self, ident: str) -> None:
        """Refuse a key that was used. Its holder may write it again while its command runs: the note of that
        would end.
        """
        if ident in self._burnt or (self._records is not None and self._records.noted(ident)):
            raise _refused("the key was used")

    async def _commit(self, burning: list[Operation], ident: str, record: OneTime) -> None:
        if self._records is not None:
            try:
                await self._client.transaction([*burning, self._records.begin(ident, record)])
            except AccessDenied:
                self._records.denied(ident)
            except BaseException:
                self._records.end(ident, {"error": "Consul did not confirm that the key is unused"})
                raise
            else:
                return
        await self._client.transaction(burning)

    def _judged(self, entry: Entry, request: web.Request) -> OneTime:
        try:
            record = codec.decode(OneTime, entry.value, entry.key)
        except RecordInvalid as error:
            raise _refused(error.message) from error
        if record.cluster != self._cluster():
            raise _refused("the key is of another cluster")
        wanted = access.asked(request.method, request.path, request.query.items())
        if record.request != wanted or request.match_info.get("instance", "") != record.instance:
            raise _refused("the key is for another request")
        now = self._clock.now()
        if late := max(0.0, now - record.expires - TOLERANCE_SECONDS):
            raise _refused(f"the key ended {late + TOLERANCE_SECONDS:.0f} s ago by this node's clock")
        if early := max(0.0, record.issued - now - TOLERANCE_SECONDS):
            raise _refused(f"the key begins in {early + TOLERANCE_SECONDS:.0f} s by this node's clock")
        return record

    # -- what is remembered ---------------------------------------------------------------------
    def _forget_burnt(self) -> None:
        end = self._clock.mono() - BURNT_SECONDS
        while self._burnt and next(iter(self._burnt.values())) < end:
            self._burnt.popitem(last=False)

    def _guesses(self, peer: str) -> bool:
        """Whether a peer sent too many bad keys within the last minute."""
        end = self._clock.mono() - BAD_SECONDS
        return len([at for at in self._bad.get(peer, ()) if at > end]) >= MOST_BAD

    def _note_bad(self, peer: str) -> None:
        self._bad[peer] = [*self._bad.pop(peer, []), self._clock.mono()][-MOST_BAD:]
        while len(self._bad) > MOST_PEERS:
            self._bad.popitem(last=False)

    async def _sweep(self) -> None:
        """Delete keys that nobody used in time; a node without requests for logs has none."""
        if self._clock.mono() < self._swept + BAD_SECONDS:
            return
        self._swept = self._clock.mono()
        try:
            page = await self._client.list(self._keys.accesses(self._purpose, self._node))
            for raw in page.items:
                if self._ended(raw.key, raw.decoded()):
                    await self._client.transaction([operations.delete_cas(raw.key, raw.modify_index)])
        except (StoreError, ValueError) as error:
            log.info("access.not_swept", error=str(error))

    def _ended(self, key: str, value: bytes) -> bool:
        try:
            record = codec.decode(OneTime, value, key)
        except RecordInvalid:
            return True
        return record.expires + BURNT_SECONDS < self._clock.now()


def _refused(why: str) -> web.HTTPForbidden:
    return web.HTTPForbidden(text=f"{access.HEADER}: {why}")
