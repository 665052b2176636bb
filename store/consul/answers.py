"""The types of Consul's answers and their decoding, in one msgspec pass each.

An answer that does not decode did not come from Consul; after a write the outcome is then unknown.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from store.consul.exchange import Op, not_consul
from store.entry import Entry, RawEntry
from store.errors import UnexpectedAnswer
from store.ports import Response

T = TypeVar("T")


class SessionInfo(msgspec.Struct, rename="pascal", frozen=True):
    """One session; ``lock_delay`` in nanoseconds, ``ttl`` as Go writes it (``10s``)."""

    id: str = msgspec.field(name="ID")
    name: str = ""
    node: str = ""
    ttl: str = msgspec.field(name="TTL", default="")
    behavior: str = ""
    lock_delay: int = 0
    create_index: int = 0
    modify_index: int = 0
    node_checks: list[str] | None = None


class SessionCreated(msgspec.Struct):
    """Answer of ``/v1/session/create``."""

    id: str = msgspec.field(name="ID")


class AgentConfig(msgspec.Struct, rename="pascal"):
    """The fields of an agent's configuration that farmd reads."""

    node_name: str
    version: str
    node_id: str = msgspec.field(name="NodeID", default="")


class AgentLimits(msgspec.Struct, frozen=True):
    """The agent's configured limits (bytes, and connections); 0 where the agent does not tell.

    ``raft_heartbeat``: how long a server waits for its leader before it may stand for election, as Go writes
    it (``5s``). ``data_directory`` is a path on the agent's machine. ``dns_domain`` ends in a dot. All of
    them are empty where they are not told.
    """

    http_max_conns_per_client: int = msgspec.field(name="HTTPMaxConnsPerClient", default=0)
    kv_max_value_size: int = msgspec.field(name="KVMaxValueSize", default=0)
    txn_max_req_len: int = msgspec.field(name="TxnMaxReqLen", default=0)
    raft_heartbeat: str = msgspec.field(name="ConsulRaftHeartbeatTimeout", default="")
    data_directory: str = msgspec.field(name="DataDir", default="")
    dns_domain: str = msgspec.field(name="DNSDomain", default="")


class AgentSelf(msgspec.Struct, rename="pascal"):
    """Answer of ``/v1/agent/self``."""

    config: AgentConfig
    debug_config: AgentLimits = AgentLimits()


class Server(msgspec.Struct, rename="pascal", frozen=True):
    """One of Consul's servers, as the leader sees it.

    ``serf_status`` is ``alive`` where the others reach it. ``healthy``: it also hears the leader in time and
    is not far behind. ``voter``: it counts for a majority; one that came back does not for some seconds.
    """

    name: str
    address: str
    serf_status: str
    healthy: bool
    voter: bool = True


class ServersHealth(msgspec.Struct, rename="pascal", frozen=True):
    """Answer of ``/v1/operator/autopilot/health``; a leader that was just elected tells no server yet.

    ``failure_tolerance``: how many more servers may be lost before nothing can be written.
    """

    failure_tolerance: int = 0
    servers: list[Server] | None = None


class _Result(msgspec.Struct):
    entry: RawEntry | None = msgspec.field(name="KV", default=None)


class _Results(msgspec.Struct):
    results: list[_Result] | None = msgspec.field(name="Results")


ENTRIES = msgspec.json.Decoder(list[RawEntry])
KEYS = msgspec.json.Decoder(list[str])
BOOLEAN = msgspec.json.Decoder(bool)
TEXT = msgspec.json.Decoder(str)
SESSIONS = msgspec.json.Decoder(list[SessionInfo])
SERVERS = msgspec.json.Decoder(ServersHealth)
CREATED = msgspec.json.Decoder(SessionCreated)
_RESULTS = msgspec.json.Decoder(_Results)


def decode(decoder: msgspec.json.Decoder[T], op: Op, response: Response) -> T:
    """The body as the decoder's type.

    Raises:
        UnexpectedAnswer: the body has another type, or is cut; ``OutcomeUnknown`` after a write.
    """
    try:
        return decoder.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise not_consul(op, response) from error


def results(response: Response) -> list[Entry]:
    """The results of a committed transaction, in order; writes have no values, deletes no result."""
    found = decode(_RESULTS, Op.TRANSACTION, response).results or []
    return [Entry.of(result.entry) for result in found if result.entry is not None]


def converted(found: Any, kind: type[T], op: Op) -> T:
    """A result of the library as a typed value.

    Raises:
        UnexpectedAnswer: the result has another shape.
    """
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise UnexpectedAnswer(f"{op}: {error}") from error


def index(op: Op, response: Response) -> int:
    """``X-Consul-Index``; 0 when absent.

    Raises:
        UnexpectedAnswer: the header is no number.
    """
    text = response.headers.get("x-consul-index", "0")
    if not text.isdecimal():
        raise UnexpectedAnswer(f"{op}: found X-Consul-Index {text[:20]!r}, expected a number")
    return int(text)
