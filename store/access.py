"""One-time keys for the HTTP of a node's agent: write access to a key in Consul permits one request.

A key is random, and the store holds only its hash, below its purpose and its node. The record names the one
request that the key is for, and who made it and why.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping

import msgspec

from store.times import Time

FAMILY = "access"
LOGS, EXEC, USAGE = "logs", "exec", "usage"
"""The purposes: reading pods and their output; commands, files and connections in a pod; what pods use, for
farms' pages."""
HEADER = "Farmd-Key"
REFUSED = "Farmd-Refused"
"""The reason for a client that asked for a WebSocket: such clients do not read the body of a refusal."""
ENDS = "ends"
"""No purpose: where agents note what became of keys of the purpose ``exec``."""
LIFE_SECONDS = 30.0
_KEY = re.compile(r"[A-Za-z0-9_-]{43}")


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The only request that a key is for; ``query`` are its parameters, sorted."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()


class Exec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a key of the purpose ``exec`` permits in a pod: one command, or connections to one port.

    ``term`` is the caller's terminal, for the variable ``TERM``. ``port`` is one of the pod's own, 0 for a
    command. ``action`` is that of the audit record. ``process`` is a sidecar, empty for the main process.
    """

    command: tuple[str, ...] = ()
    tty: bool = False
    term: str = ""
    port: int = 0
    action: str = ""
    process: str = ""


class OneTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The stored record of a key. Times are seconds since the epoch, by the clock of the process that made
    it.
    """

    cluster: str
    instance: str
    request: Asked
    issued: Time
    expires: Time
    by: str = ""
    reason: str = ""
    exec: Exec | None = None


class AccessRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What became of a key of the purpose ``exec``, as the node's agent states it (R42).

    ``ended`` is 0 while the command runs. ``how`` has the exit code, the amounts and an error.
    """

    instance: str
    exec: Exec
    by: str = ""
    reason: str = ""
    ended: Time = 0.0
    how: dict[str, int | str] = {}


def told(wanted: Exec) -> dict[str, int | str | bool]:
    """What a key permits, for the audit log."""
    what: dict[str, int | str | bool] = {"port": wanted.port} if wanted.port else {}
    what |= {"command": shlex.join(wanted.command)} if wanted.command else {}
    return what | ({"process": wanted.process} if wanted.process else {})


def asked(method: str, path: str, query: Mapping[str, str] | Iterable[tuple[str, str]]) -> Asked:
    """A request as a record names it."""
    pairs = query.items() if isinstance(query, Mapping) else query
    return Asked(method, path, tuple(sorted(pairs)))


def made() -> str:
    """A new key."""
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def possible(key: str) -> bool:
    """Whether a text can be a key."""
    return _KEY.fullmatch(key) is not None


def ident(key: str) -> str:
    """What the store knows a key by."""
    return hashlib.sha256(key.encode()).hexdigest()
