"""How lines reach a destination: journald's native protocol, and syslog (RFC 5424) by UDP, TCP and TLS.

A sender blocks for a few seconds at the most; it is called by a thread of its own. What a workload wrote is
only ever a value: in journald's protocol its length comes first, in a stream of syslog, too (RFC 6587).
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from farmd.agent.forwarding.stream import Origin
from farmd.agent.logs import LogLine
from store import credentials
from store.errors import CredentialInvalid
from store.log_destinations import Destination
from store.manifests import MAIN

JOURNAL = "/run/systemd/journal/socket"
SEND_SECONDS, CONNECT_SECONDS = 5.0, 5.0
SEND_BYTES = 128 * 1024
INFO = 6
USER_INFO = 8 + INFO
"""The priority of all output: facility ``user``, severity ``informational``."""
ENTERPRISE = "farmd@32473"
_TOO_LARGE = {errno.EMSGSIZE, errno.ENOBUFS}


class Sender(Protocol):
    """One destination; lines longer than ``longest`` bytes are cut before they come."""

    longest: int

    def send(self, origin: Origin, lines: Sequence[LogLine]) -> int:
        """Send lines; how many of the first ones were sent, at least one. After an error, the same call with
        the same lines goes on where it was.

        Raises:
            OSError: none was.
        """
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...


def of(destination: Destination, authorities: str, *, listed: bool = False) -> Sender:
    """The sender of a destination; ``authorities``: a file of those that TLS trusts, empty: the system's.
    ``listed``: the node's administrator chose it, so it may be any address.
    """
    if destination.kind == "journald":
        return Journal()
    if destination.kind == "udp":
        return Datagrams(destination, listed=listed)
    return Connection(destination, authorities, listed=listed)


def _resolved(destination: Destination, kind: socket.SocketKind, *, listed: bool) -> list[tuple[Any, ...]]:
    """The addresses of a destination, without those that would answer with a machine's own secrets.

    Raises:
        OSError: there is none.
    """
    found = socket.getaddrinfo(destination.host, destination.port, type=kind)
    refused = [] if listed else [credentials.refusal(str(each[4][0])) for each in found]
    if any(refused):
        why = next(filter(None, refused))
        raise PermissionError(errno.EACCES, f"{why}: agent.log_hosts of this node does not list it")
    return found


class _EachLine(ABC):
    """A destination that takes each line as a message of its own."""

    _socket: socket.socket | None = None

    def send(self, origin: Origin, lines: Sequence[LogLine]) -> int:
        """Send each line as a message."""
        for at, entry in enumerate(self._messages(origin, lines)):
            try:
                if self._socket is None:
                    self._socket = self._connected()
                self._send(self._socket, entry)
            except OSError:
                self.close()
                if at == 0:
                    raise
                return at
        return len(lines)

    @abstractmethod
    def _messages(self, origin: Origin, lines: Sequence[LogLine]) -> Iterator[bytes]:
        """The messages, one for each line."""

    @abstractmethod
    def _connected(self) -> socket.socket:
        """A socket for them."""

    def _send(self, to: socket.socket, entry: bytes) -> None:
        to.send(entry)

    def close(self) -> None:
        """Drop the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Journal(_EachLine):
    """journald on this machine."""

    longest = 256 * 1024

    def __init__(self, path: str = JOURNAL) -> None:
        self._path = path

    def _messages(self, origin: Origin, lines: Sequence[LogLine]) -> Iterator[bytes]:
        fields = _fields(origin)
        return (b"".join((fields, *_of_line(line))) for line in lines)

    def _connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.settimeout(SEND_SECONDS)
            made.connect(self._path)
        except OSError:
            made.close()
            raise
        return made

    def _send(self, to: socket.socket, entry: bytes) -> None:
        try:
            to.send(entry)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            _send_sealed(to, entry)


def _send_sealed(to: socket.socket, entry: bytes) -> None:
    """Pass an entry that is too large for a datagram as a file in memory that nobody can change."""
    fd = os.memfd_create("farmd-log", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb", buffering=0) as file:
        rest = memoryview(entry)
        while rest:
            rest = rest[file.write(rest) :]
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        to.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def _fields(origin: Origin) -> bytes:
    fields = {
        "PRIORITY": str(INFO),
        "SYSLOG_IDENTIFIER": origin.owner,
        "FARMD_POD": origin.instance,
        "FARMD_OWNER": origin.owner,
        "FARMD_OWNER_ID": origin.owner_id,
        "FARMD_NODE": origin.node,
        "FARMD_PROCESS": "" if origin.process == MAIN else origin.process,
    }
    return b"".join(_field(key, value.encode()) for key, value in fields.items() if value)


def _of_line(line: LogLine) -> Iterator[bytes]:
    if line.at:
        yield _field("FARMD_TIME", _time(line.at).encode())
    if line.start:
        yield _field("FARMD_START", line.start.encode())
    yield _field("MESSAGE", line.text.removesuffix(b"\n").removesuffix(b"\r"))


def _field(name: str, value: bytes) -> bytes:
    """A field with its length before it, so that nothing in the value can begin another field."""
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def message(origin: Origin, line: LogLine) -> bytes:
    """A line as a message of RFC 5424, without control characters that could end or forge another one."""
    known = {"pod": origin.instance, "owner": origin.owner, "node": origin.node}
    known |= {} if origin.process == MAIN else {"process": origin.process}
    data = " ".join(f'{key}="{_value(value)}"' for key, value in known.items())
    head = " ".join(
        (
            f"<{USER_INFO}>1",
            _time(line.at) if line.at else "-",
            _header(origin.node, 255),
            _header(origin.owner, 48),
            _header(origin.instance, 128),
            "-",
            f"[{ENTERPRISE} {data}]",
        )
    )
    text = line.text.removesuffix(b"\n").removesuffix(b"\r")
    return head.encode() + b" " + text.translate(_CONTROLS)


_CONTROLS = bytes(0x20 if (each < 0x20 and each != 0x09) or each == 0x7F else each for each in range(256))


def _header(value: str, most: int) -> str:
    return re.sub(r"[^!-~]", "_", value)[:most] or "-"


def _value(value: str) -> str:
    return re.sub(r'(["\\\]])', r"\\\1", value)


class Datagrams(_EachLine):
    """A syslog server by UDP: nothing tells whether it reads them."""

    longest = 1024

    def __init__(self, destination: Destination, *, listed: bool = False) -> None:
        self._to, self._listed = destination, listed

    def _messages(self, origin: Origin, lines: Sequence[LogLine]) -> Iterator[bytes]:
        return (message(origin, line) for line in lines)

    def _connected(self) -> socket.socket:
        return _connected(_resolved(self._to, socket.SOCK_DGRAM, listed=self._listed)[:1], SEND_SECONDS)


def _connected(addresses: Sequence[tuple[Any, ...]], seconds: float) -> socket.socket:
    """A socket to the first of some addresses that answers; one of UDP hears that nobody listens there.

    Raises:
        OSError: the last one did not answer.
    """
    failed: OSError = OSError(errno.EHOSTUNREACH, "it has no address")
    for family, kind, protocol, _, address in addresses:
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(seconds)
            made.connect(address)
        except OSError as error:
            made.close()
            failed = error
        else:
            return made
    raise failed


def _trusted(authorities: str) -> ssl.SSLContext:
    """The certificate authorities that servers are checked against.

    Raises:
        OSError: the file cannot be used.
    """
    try:
        return credentials.authorities("agent.log_ca", authorities)
    except CredentialInvalid as error:
        raise OSError(error.message) from error


class Connection:
    """A syslog server by TCP, with TLS or without."""

    longest = 8 * 1024

    def __init__(self, destination: Destination, authorities: str = "", *, listed: bool = False) -> None:
        self._to, self._listed = destination, listed
        self._authorities = authorities
        self._socket: socket.socket | None = None
        self._rest: memoryview | None = None
        """What is not sent of the lines of the last call, which a slow server has begun to read."""

    def send(self, origin: Origin, lines: Sequence[LogLine]) -> int:
        """Send lines, each with its length; a connection that ended is made anew."""
        if self._socket is not None and self._ended(self._socket):
            self.close()
        if self._socket is None:
            self._socket = self._connect()
        if self._rest is None:
            framed = (message(origin, line) for line in lines)
            self._rest = memoryview(b"".join(b"%d %b" % (len(each), each) for each in framed))
        try:
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, "it does not read") from None
        except OSError:
            self.close()
            raise
        self._rest = None
        return len(lines)

    def _connect(self) -> socket.socket:
        addresses = _resolved(self._to, socket.SOCK_STREAM, listed=self._listed)
        made = _connected(addresses, CONNECT_SECONDS)
        try:
            if self._to.kind == "tls":
                context = _trusted(self._authorities)
                made = context.wrap_socket(made, server_hostname=self._to.host)
            # What the kernel took is lost with the connection.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            made.settimeout(SEND_SECONDS)
        except BaseException:
            made.close()
            raise
        return made

    def _ended(self, found: socket.socket) -> bool:
        """Whether the server has closed the connection; what it says is of no interest."""
        found.settimeout(0)
        try:
            return found.recv(4096) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            with suppress(OSError):
                found.settimeout(SEND_SECONDS)

    def close(self) -> None:
        """Drop the connection, and what was to be sent by it."""
        self._rest = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
