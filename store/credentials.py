"""Credentials in files: read again when a file changes, so that they rotate without a restart.

A bad file ends no process: its last good content stays in use, unless that could let a revoked credential in.
Without good content each use raises ``CredentialInvalid`` until the file is good. The content of a file must
never be in a message, log or repr.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from store.errors import CredentialInvalid

if TYPE_CHECKING:
    import ssl

# Addresses that would give secrets away: as they are told to people, and those that nothing here asks.
#
# Nothing asks on behalf of a record what gives a machine's own secrets away.

# Of clouds whose metadata do not answer at a link-local address.
_METADATA = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
# The prefix of RFC 6052, by which a gateway reaches IPv4 addresses.
_NAT64 = IPv6Network("64:ff9b::/96")
HIDDEN = "[hidden]"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def told(address: str) -> str:
    """An address for people, valid or not: without user, password and query, which may be secret.

    Everything before an ``@`` is hidden, because a password may contain any character.
    """
    found = _SCHEME.match(address)
    scheme = found[0] if found else ""
    if scheme == "unix://":
        return address
    place, question, query = address.removeprefix(scheme).partition("?")
    if "@" in query:
        return scheme + HIDDEN
    _, user, host = place.rpartition("@")
    return scheme + (HIDDEN + user if user else "") + host + (question + HIDDEN if question else "")


def refusal(text: str) -> str:
    """Why no request may go to an IP address; empty if one may, or if it is a name.

    An IPv6 address that embeds an IPv4 address is judged as the IPv4 address.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        address = _embedded(address) or address
    if address in _METADATA:
        return f"{text} is an address of cloud metadata"
    if address.is_link_local or address.is_multicast:
        return f"{text} is a {'link-local' if address.is_link_local else 'multicast'} address"
    return ""


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address in a mapped, 6to4, NAT64 or compatible one."""
    if address in _NAT64 or (address.packed[:12] == bytes(12) and int(address) > 1):
        return IPv4Address(address.packed[12:])
    return address.ipv4_mapped or address.sixtofour


T = TypeVar("T")

LIMIT_BYTES = 1 << 20
_TOKEN = re.compile(rb"[!-~]+")


class CredentialFiles(Generic[T]):
    """Callable that returns the result of ``load``, which runs again when a file of ``paths`` changed.

    ``keeps``: the last good result stays in use while a file is bad.
    """

    def __init__(self, paths: Sequence[str], load: Callable[[], T], *, keeps: bool = True) -> None:
        self._paths = [Path(path) for path in paths if path]
        self._load = load
        self._keeps = keeps
        self._marks: list[object] | None = None
        self._good: T | None = None
        self._trouble: CredentialInvalid | None = None

    def __call__(self) -> T:
        """The last good result.

        Raises:
            CredentialInvalid: there is none.
        """
        marks = [_mark(path) for path in self._paths]
        if marks != self._marks:
            self._marks = marks
            self._read()
        if self._good is None:
            assert self._trouble is not None
            raise CredentialInvalid(self._trouble.message, **self._trouble.fields)
        return self._good

    def _read(self) -> None:
        try:
            self._good = self._load()
        except CredentialInvalid as error:
            if not self._keeps:
                self._good = None
            if self._trouble is None or error.message != self._trouble.message:
                held = "waiting" if self._good is None else "the last good one stays in use"
                _log().warning("credential.invalid", error=error.message, until_mended=held)
            self._trouble = error
        else:
            if self._trouble is not None:
                _log().info("credential.good_again", field=self._trouble.fields["field"])
            self._trouble = None


def _log() -> Any:
    import structlog  # most commands log nothing, and start without it

    return structlog.get_logger()


def invalid(field: str, found: str, expected: str) -> CredentialInvalid:
    """The error of one credential; ``found`` must not contain the content."""
    return CredentialInvalid(f"{field}: found {found}, expected {expected}", field=field)


def unreadable(field: str, path: str, error: OSError | ValueError) -> CredentialInvalid:
    """The error of a file that cannot be read, with the system's reason."""
    reason = getattr(error, "strerror", None) or str(error)
    return invalid(field, f"{path!r} ({reason})", "a readable file")


def authorities(field: str, path: str) -> ssl.SSLContext:
    """The authorities that servers are checked against: those of a file, or the machine's if it is empty.

    Raises:
        CredentialInvalid: the file cannot be used.
    """
    import ssl

    try:
        return ssl.create_default_context(cafile=path or None)
    except ssl.SSLError as error:
        raise invalid(field, f"no certificates in {path!r}", "a file of authorities (PEM)") from error
    except (OSError, ValueError) as error:
        raise unreadable(field, path, error) from error


def content(field: str, path: str, *, may_be_empty: bool = False) -> bytes:
    """The content of a file, without white space around it.

    Raises:
        CredentialInvalid: the file cannot be read, is empty or too large.
    """
    return _read(field, path, may_be_empty=may_be_empty)[0]


@contextmanager
def regular(
    field: str, path: str, opened: str | Path, flags: int = 0
) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A regular file, open for reading, and the state of that very file.

    ``opened``: the path without links, if that was resolved; ``flags``: further ones of ``open``.

    Raises:
        CredentialInvalid: it cannot be opened or read, or is no regular file.
    """
    try:
        # The opening of a pipe would wait for a writer.
        handle = os.open(opened, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
        try:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise invalid(field, f"{path!r}, which is no file", "a readable file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                yield file, state
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        raise unreadable(field, path, error) from error


def _read(field: str, path: str, *, may_be_empty: bool) -> tuple[bytes, os.stat_result]:
    """The content of a file, and the state of that very file."""
    with regular(field, path, path) as (file, state):
        found = file.read(LIMIT_BYTES + 1).strip()
    if not (found or may_be_empty) or len(found) > LIMIT_BYTES:
        much = "nothing" if not found else f"more than {LIMIT_BYTES} bytes"
        raise invalid(field, f"{much} in {path!r}", "a credential")
    return found, state


def guarded(
    field: str, path: str, forbidden: int, expected: str, *, may_be_empty: bool = False, own: bool = False
) -> bytes:
    """The content of a file without the ``forbidden`` permissions; ``expected`` says which it may have.

    ``own``: it must also belong to root or to this process's user, since its owner can always read it.

    Raises:
        CredentialInvalid: as ``content``, or the file has one of them, or another owner.
    """
    found, state = _read(field, path, may_be_empty=may_be_empty)
    mode = stat.S_IMODE(state.st_mode)
    if mode & forbidden:
        raise invalid(field, f"mode {mode:04o} of {path!r}", expected)
    if own and state.st_uid not in (0, os.geteuid()):
        raise invalid(field, f"owner {state.st_uid} of {path!r}", expected)
    return found


def variable(field: str, name: str, environ: Mapping[str, str]) -> bytes:
    """The content of a variable of the environment.

    Raises:
        CredentialInvalid: it is not set, or empty.
    """
    found = environ.get(name, "").strip()
    if not found:
        raise invalid(field, f"nothing in the variable {name}", "a credential")
    return found.encode()


def token(field: str, path: str) -> str:
    """The token in a file.

    Raises:
        CredentialInvalid: the file cannot be read, or its content is not one token.
    """
    found = content(field, path)
    if not is_token(found):
        lines = len(found.splitlines())
        what = f"{lines} lines" if lines > 1 else "characters that a token cannot contain"
        raise invalid(field, f"{what} in {path!r}", "a token alone on one line")
    return found.decode("ascii")


def reread(field: str, path: str) -> CredentialFiles[str] | None:
    """The token in a file, read again when the file changes; None: no file is named."""
    return CredentialFiles([path], lambda: token(field, path)) if path else None


def is_token(text: bytes) -> bool:
    """Whether a text can be a token in a request's header."""
    return _TOKEN.fullmatch(text) is not None


def _mark(path: Path) -> object:
    """A value that changes when the file changes, also when its rights change or it is deleted."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        return str(error)
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
