"""A typed client of Consul's key-value store, transactions and sessions; ``store`` is built on it.

Frequent calls build requests and decode answers here with msgspec; rare calls go through the
library's endpoint code (``library.py``). Every error is one of ``store.errors``. Nothing is retried
here, because only the caller knows whether a write may be repeated (R12).
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from store import operations
from store.consul import answers
from store.consul.answers import AgentSelf, ServersHealth, SessionInfo
from store.consul.exchange import (
    RENEW_SECONDS,
    SHORT_SECONDS,
    Exchange,
    Op,
    blocking_limit,
    denied_operations,
    failed_operations,
)
from store.entry import Entry, Page, RawEntry
from store.errors import (
    AccessDenied,
    StoreError,
    StoreUnavailable,
    TooLarge,
    TransactionRejected,
    UnexpectedAnswer,
)
from store.operations import Operation
from store.ports import Clock, Lane, Mode, Recorder, Request, Response, Transport

if TYPE_CHECKING:
    from store.consul.acl import Acl
    from store.consul.library import Library

Params = tuple[tuple[str, str], ...]
T = TypeVar("T")


class ConsulClient:
    """One Consul API over a ``Transport``. ``token`` is called for each request."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        recorder: Recorder | None = None,
        token: Callable[[], str] | None = None,
        renew_timeout: float = RENEW_SECONDS,
        session_node: str = "",
    ) -> None:
        self._send = Exchange(transport, clock=clock, recorder=recorder, token=token)
        self._recorder = recorder
        self._library_made: Library | None = None
        self._renew_timeout = renew_timeout
        self._session_node = session_node
        self._parked: set[asyncio.Timeout] = set()
        self.most_operations = operations.MAX_OPERATIONS
        """The most operations that a transaction of routine work may have here (R25)."""

    def date(self) -> float | None:
        """The time by the clock that dates Consul's answers; None: no answer had a date."""
        return self._send.date()

    # -- reads ---------------------------------------------------------------------------------
    async def get(
        self, key: str, *, index: int = 0, wait: float = 0.0, mode: Mode = "default"
    ) -> tuple[int, Entry | None]:
        """One key: (index to continue from, 0 if the server sent none; the entry, None if absent).

        With ``index`` above 0 the server answers at the next change, or after about ``wait`` seconds.
        """
        response = await self._read(Op.GET, key, (), index, wait, mode)
        if response.status == 404:
            return answers.index(Op.GET, response), None
        found = answers.decode(answers.ENTRIES, Op.GET, response)
        if len(found) != 1:
            raise UnexpectedAnswer(f"get: found {len(found)} entries for one key, expected 1")
        return answers.index(Op.GET, response), Entry.of(found[0])

    async def read(self, key: str, *, mode: Mode = "default") -> Entry | None:
        """One key now; None if absent."""
        return (await self.get(key, mode=mode))[1]

    async def list(
        self, prefix: str, *, index: int = 0, wait: float = 0.0, mode: Mode = "default", most: int = 0
    ) -> Page[RawEntry]:
        """All entries under a prefix, values undecoded. Each entry keeps the whole answer in memory, which
        has ``most`` bytes where that is not 0, else ``TooLarge`` is raised.

        If a wait ended without a change (``unchanged``), only the header is read: Consul sends the whole
        tree at the end of every wait, and decoding it was most of the work of an idle farm.
        """
        response = await self._read(Op.LIST, prefix, (("recurse", ""),), index, wait, mode, most)
        at = answers.index(Op.LIST, response)
        if 0 < at == index:
            return Page(at, [], unchanged=True)
        if response.status == 404:
            return Page(at, [])
        return Page(at, answers.decode(answers.ENTRIES, Op.LIST, response))

    async def keys(
        self,
        prefix: str,
        *,
        index: int = 0,
        wait: float = 0.0,
        separator: str = "",
        mode: Mode = "default",
    ) -> Page[str]:
        """All keys under a prefix, up to the first ``separator`` behind it; ``unchanged`` as for ``list``."""
        params: Params = (("keys", ""),)
        if separator:
            params += (("separator", separator),)
        response = await self._read(Op.KEYS, prefix, params, index, wait, mode)
        at = answers.index(Op.KEYS, response)
        if 0 < at == index:
            return Page(at, [], unchanged=True)
        if response.status == 404:
            return Page(at, [])
        return Page(at, answers.decode(answers.KEYS, Op.KEYS, response))

    async def newest(self, prefix: str) -> int:
        """The index of the last change under a prefix, from a consistent read whose keys are not decoded."""
        params: Params = (("keys", ""), ("separator", "/"))
        return answers.index(Op.KEYS, await self._read(Op.KEYS, prefix, params, 0, 0.0, "consistent"))

    # -- writes --------------------------------------------------------------------------------
    async def put(
        self,
        key: str,
        value: bytes,
        *,
        cas: int | None = None,
        acquire: str | None = None,
        release: str | None = None,
        flags: int = 0,
    ) -> bool:
        """Write one key; false means that the condition of the write did not hold.

        Raises:
            SessionGone: ``acquire`` names a session that does not exist.
            OutcomeUnknown: the key may or may not have been written.
        """
        params: Params = ()
        if cas is not None:
            params += (("cas", str(cas)),)
        if acquire is not None:
            params += (("acquire", acquire),)
        if release is not None:
            params += (("release", release),)
        if flags:
            params += (("flags", str(flags)),)
        request = Request("PUT", f"/v1/kv/{key}", params, value, lane=Lane.WRITE)
        response = await self._send(Op.PUT, request, SHORT_SECONDS)
        return answers.decode(answers.BOOLEAN, Op.PUT, response)

    async def delete(self, key: str, *, recurse: bool = False, cas: int | None = None) -> bool:
        """Delete a key or everything under a prefix; false means that the index did not match."""
        params: Params = (("recurse", ""),) if recurse else ()
        if cas is not None:
            params += (("cas", str(cas)),)
        request = Request("DELETE", f"/v1/kv/{key}", params, lane=Lane.WRITE)
        response = await self._send(Op.DELETE, request, SHORT_SECONDS)
        return answers.decode(answers.BOOLEAN, Op.DELETE, response)

    async def transaction(self, items: Sequence[Operation]) -> builtins.list[Entry]:
        """Commit all operations or none; results in Consul's order, without values for writes.

        Raises:
            TransactionRejected: nothing was written; the error lists every failing operation.
            AccessDenied: the token does not allow one of the operations; nothing was written.
            TooLarge: more operations, or a larger body, than the server takes; nothing was written.
            OutcomeUnknown: the transaction was sent, and may or may not have been applied.
            StoreUnavailable: the request never left.
        """
        if not items:
            return []
        if self._recorder is not None:
            self._recorder.observe("farmd_txn_ops", len(items))
        request = Request("PUT", "/v1/txn", (), operations.encode([*items]), lane=Lane.WRITE)
        try:
            return answers.results(await self._send(Op.TRANSACTION, request, SHORT_SECONDS))
        except AccessDenied as error:
            raise denied_operations(error, items) from error
        except TransactionRejected as error:
            raise failed_operations(error, items) from None
        except TooLarge:
            # Servers may be mixed: the one that was asked before is not always the one that answers now.
            if len(items) > operations.MAX_OPERATIONS:
                self.most_operations = operations.MAX_OPERATIONS
            raise

    async def learn_limits(self, key: str) -> None:
        """Ask how many operations a transaction may have, by one that only reads ``key``.

        No right is needed: the limit is looked at before anything else. Without an answer it stays as it is.
        """
        probe = [operations.get(key)] * operations.MORE_OPERATIONS
        with suppress(StoreError):
            try:
                await self.transaction(probe)
            except (AccessDenied, TransactionRejected):
                pass
            self.most_operations = operations.MORE_OPERATIONS

    # -- sessions ------------------------------------------------------------------------------
    async def create_session(self, *, name: str, ttl: float, lock_delay: float = 0.001) -> str:
        """Create a session that depends only on its TTL, not on the node's serf check (R1); in seconds.

        It belongs to ``session_node`` of Consul's catalogue; without one, to the agent that answers.

        Raises:
            InvalidTTL: Consul accepts 10 s to 24 h.
        """
        body = {
            "Name": name,
            "TTL": f"{ttl:g}s",
            "LockDelay": f"{round(lock_delay * 1000)}ms",
            "Behavior": "delete",
            "Checks": [],
            "NodeChecks": [],
            **({"Node": self._session_node} if self._session_node else {}),
        }
        request = Request("PUT", "/v1/session/create", (), msgspec.json.encode(body), lane=Lane.SESSION)
        response = await self._send(Op.SESSION_CREATE, request, SHORT_SECONDS)
        return answers.decode(answers.CREATED, Op.SESSION_CREATE, response).id

    async def renew_session(self, session: str) -> None:
        """Renew the session's TTL. A failed renewal may be repeated.

        Raises:
            SessionGone: the server does not know the session; no proof while it replays its log.
        """
        request = Request("PUT", f"/v1/session/renew/{session}", lane=Lane.SESSION)
        response = await self._send(Op.SESSION_RENEW, request, self._renew_timeout)
        answers.decode(answers.SESSIONS, Op.SESSION_RENEW, response)

    async def destroy_session(self, session: str) -> None:
        """End a session and free its locks (R4); a session that does not exist is no error."""
        request = Request("PUT", f"/v1/session/destroy/{session}", lane=Lane.SESSION)
        response = await self._send(Op.SESSION_DESTROY, request, SHORT_SECONDS)
        answers.decode(answers.BOOLEAN, Op.SESSION_DESTROY, response)

    async def session_info(self, session: str, *, mode: Mode = "default") -> SessionInfo | None:
        """One session; None if it does not exist."""
        _, found = await self._library.session.info(session, consistency=mode)
        if not found:
            return None
        return answers.converted(found, SessionInfo, Op.SESSION_INFO)

    # -- the server ----------------------------------------------------------------------------
    async def leader(self, limit: float = SHORT_SECONDS) -> str:
        """The address of the raft leader, within ``limit`` seconds; empty if there is none."""
        response = await self._send(Op.STATUS, Request("GET", "/v1/status/leader"), limit)
        return answers.decode(answers.TEXT, Op.STATUS, response)

    async def servers(self) -> ServersHealth:
        """The health of the servers, as the leader sees it; without a leader ``NoLeader``.

        Raises:
            AccessDenied: the token lacks ``operator:read``.
        """
        response = await self._send(Op.SERVERS, Request("GET", "/v1/operator/autopilot/health"))
        return answers.decode(answers.SERVERS, Op.SERVERS, response)

    async def datacenters(self) -> builtins.list[str]:
        """The names of all datacenters that this Consul knows, its own among them."""
        request = Request("GET", "/v1/catalog/datacenters")
        return answers.decode(answers.KEYS, Op.CATALOG, await self._send(Op.CATALOG, request))

    async def agent(self) -> AgentSelf:
        """The version, node and limits of the agent that answers."""
        return answers.converted(await self._library.agent.self(), AgentSelf, Op.AGENT)

    async def domain(self) -> str:
        """The domain of Consul's DNS; its default if the agent does not tell, or the token may not ask."""
        try:
            told = (await self.agent()).debug_config.dns_domain
        except AccessDenied:
            told = ""
        return told.strip(".") or "consul"

    @property
    def acl(self) -> Acl:
        """Policies and tokens, for the commands that make them."""
        from store.consul.acl import Acl

        return Acl(self._send)

    async def catalog(
        self,
        path: str,
        decoder: msgspec.json.Decoder[T],
        params: Params = (),
        *,
        index: int = 0,
        wait: float = 0.0,
    ) -> tuple[int, T]:
        """What ``/v1/<path>`` of the catalogue answers, and the index to go on from.

        With ``index`` above 0 it answers at the next change, or after about ``wait`` seconds.

        Raises:
            AccessDenied: the token may not read this; what it may not see of a list is left out instead.
        """
        request = Request("GET", f"/v1/{path}", params, lane=Lane.READ)
        if index > 0:
            params += (("index", str(index)), ("wait", f"{round(wait * 1000)}ms"))
            parked = Request("GET", f"/v1/{path}", params, lane=Lane.WATCH)
            response = await self._park(parked, blocking_limit(wait), Op.CATALOG)
        else:
            response = await self._send(Op.CATALOG, request, SHORT_SECONDS)
        return answers.index(Op.CATALOG, response), answers.decode(decoder, Op.CATALOG, response)

    def drop_parked(self) -> None:
        """End all queries that are parked now: to their callers they fail, as if Consul had hung up."""
        parked, self._parked = self._parked, set()
        for query in parked:
            query.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Drop all connections."""
        await self._send.transport.close()

    @property
    def _library(self) -> Library:
        """The library, imported at its first use: the import takes longer than most commands run."""
        if self._library_made is None:
            from store.consul.library import Library

            self._library_made = Library(self._send)
        return self._library_made

    async def _read(
        self, op: Op, key: str, params: Params, index: int, wait: float, mode: Mode, most: int = 0
    ) -> Response:
        lane, limit, known = Lane.READ, SHORT_SECONDS, ""
        if index > 0:
            known = "" if op is Op.GET else str(index)
            op, lane, limit = Op.WATCH, Lane.WATCH, blocking_limit(wait)
            params += (("index", str(index)),)
            if wait > 0:
                params += (("wait", f"{round(wait * 1000)}ms"),)
        if mode != "default":
            params += ((mode, ""),)
        request = Request("GET", f"/v1/kv/{key}", params, lane=lane, known=known, most=most)
        return await (self._park(request, limit) if op is Op.WATCH else self._send(op, request, limit))

    async def _park(self, request: Request, limit: float, op: Op = Op.WATCH) -> Response:
        """Send a query that waits, unless ``drop_parked`` ends it.

        Raises:
            StoreUnavailable: it was dropped.
        """
        try:
            async with asyncio.timeout(None) as query:
                self._parked.add(query)
                try:
                    return await self._send(op, request, limit)
                finally:
                    self._parked.discard(query)
        except TimeoutError as error:
            raise StoreUnavailable(
                "watch: dropped, because Consul's leader changed, or Consul did not answer"
            ) from error


# Reads keys ahead, for commands that read one key after the other.
#
# What was read ahead is as old as the beginning. That never decides alone: each write names the version
# that it was prepared from.


class ReadAhead(ConsulClient):
    """The same client, which begins to read ``keys`` at once and answers each of them from that, within the
    block of its ``with``. Of ``known`` keys the caller says what is there, so they are not read.

    A key whose read fails raises that error to whoever asks for it.
    """

    def __init__(
        self, client: ConsulClient, keys: Collection[str], known: Mapping[str, Entry | None] | None = None
    ) -> None:
        vars(self).update(vars(client))  # the same connections, token and metrics
        self._behind = client
        self._known = known or {}
        self._begun = {key: asyncio.ensure_future(client.read(key)) for key in keys}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun, self._begun, self._known = self._begun, {}, {}
        for task in begun.values():
            task.cancel()
        await asyncio.gather(*begun.values(), return_exceptions=True)

    async def read(self, key: str, *, mode: Mode = "default") -> Entry | None:
        """One key as it was when the reading began, if it was read ahead; else, and after the block, now."""
        if mode == "default" and key in self._known:
            return self._known[key]
        begun = self._begun.get(key) if mode == "default" else None
        if begun is None:
            return await self._behind.read(key, mode=mode)
        return await asyncio.shield(begun)
