"""The artifacts of a manifest: content that the agent fetches before a start, known by its SHA-256.

A server can withhold the content, but cannot change it: the checksum is part of the manifest, so signatures
cover it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

MAX_ARTIFACTS, MAX_SOURCE = 16, 2048
Runtime = Literal["process", "container", "systemd"]

_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PRINTABLE = re.compile(r"[!-~]+")
_SCHEMES = "https://, http://, file:/// or registry://NAME/"


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Content that the workload finds under the path ``to``, and cannot change.

    ``to`` is relative to the instance's own directory; in a container it is absolute. ``unpack`` makes a
    folder of an archive. ``mode`` is that of a file that is not unpacked.
    """

    source: str
    sha256: str
    unpack: Literal["", "tar", "tar.gz", "tar.zst", "zip"] = ""
    to: str
    mode: int = 0o444

    @property
    def digest(self) -> str:
        """The checksum alone."""
        return self.sha256.removeprefix("sha256:")

    @property
    def told(self) -> str:
        """What it is, for people."""
        how = f"unpacked as {self.unpack}" if self.unpack else f"mode {self.mode:o}"
        return f"{without_query(self.source)}, sha256 {self.digest[:12]}, {how}"

    @property
    def executable(self) -> bool:
        """Whether its mode lets somebody execute it."""
        return bool(self.mode & 0o111)


def parts(source: str) -> SplitResult:
    """A source's scheme, host and path.

    Raises:
        ValueError: it has none.
    """
    found = urlsplit(source)
    _ = found.port
    return found


def path_of(source: str) -> str:
    """The path of a file of the node; empty for another source."""
    return source.removeprefix("file://") if source.startswith("file:///") else ""


def registry_of(source: str) -> str:
    """The name of the registry that a source names; empty: it names none."""
    return source.removeprefix("registry://").partition("/")[0] if source.startswith("registry://") else ""


def is_local(source: str) -> bool:
    """Whether the host of a source is the node itself or a link-local address, by its text alone."""
    if not source.startswith(("http://", "https://")):
        return False
    try:
        host = parts(source).hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_link_local or address.is_unspecified


def mistakes(artifacts: Sequence[Artifact], runtime: Runtime) -> Iterator[tuple[str, object, str]]:
    """What cannot work of a manifest's artifacts: (field, found, expected)."""
    if len(artifacts) > MAX_ARTIFACTS:
        yield "artifacts", len(artifacts), f"at most {MAX_ARTIFACTS}"
    for at, each in enumerate(artifacts):
        field = f"artifacts[{at}]"
        if expected := source_mistake(each.source):
            yield f"{field}.source", without_query(each.source), expected
        if not _DIGEST.fullmatch(each.sha256):
            yield f"{field}.sha256", each.sha256, "the SHA-256 of the content, 64 hex digits in small letters"
        if expected := _target(each.to, runtime):
            yield f"{field}.to", each.to, expected
        if not 0 <= each.mode <= 0o777 or not each.mode & 0o004:
            yield (
                f"{field}.mode",
                oct(each.mode),
                "a mode up to 0o777 that lets everybody read, such as 0o555: the agent owns the file",
            )
        for other in artifacts[:at]:
            if overlap(each.to, other.to):
                yield f"{field}.to", each.to, f"a path of its own: {other.to!r} is there already"


def without_query(source: str) -> str:
    """A source for people: its query, and a user and password in it, may be secrets."""
    scheme, mark, rest = source.partition("://")
    place, _, path = rest.partition("/")
    place = place.rpartition("@")[2]
    path = path.partition("?")[0].partition("#")[0]
    return f"{scheme}{mark}{place}{'/' if '/' in rest else ''}{path}"


def overlap(one: str, other: str) -> bool:
    """Whether two paths are equal, or one is inside the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def source_mistake(source: str) -> str:
    """What a source should be; empty: it is that."""
    if len(source) > MAX_SOURCE or not _PRINTABLE.fullmatch(source) or "\\" in source:
        return f"at most {MAX_SOURCE} printable ASCII characters, without spaces"
    try:
        found = parts(source)
    except ValueError:
        return _SCHEMES
    if found.username is not None or found.password is not None:
        return "no user and no password: they stand in the node's agent.artifact_auth"
    if found.fragment:
        return "no fragment (#)"
    if found.scheme in ("http", "https") and source.startswith(f"{found.scheme}://"):
        return "" if found.hostname else "a host"
    path, plain = found.path, _is_plain(found.path.removeprefix("/"))
    if source.startswith("file:///"):
        return "" if plain and not found.query else "an absolute path without '..', '%' and '?'"
    if source.startswith("registry://"):
        if not _REGISTRY.fullmatch(found.netloc):
            return "registry://NAME/PATH with the name of one of the nodes' agent.artifact_registries"
        return "" if path and plain and not found.query else "a path without '..', '%' and '?'"
    return _SCHEMES


def _is_plain(path: str) -> bool:
    return "%" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _target(path: str, runtime: Runtime) -> str:
    """Where it should be; empty: it is there."""
    inside = path.removeprefix("/")
    good = not any(part in ("", ".", "..") or len(part.encode()) > 255 for part in inside.split("/"))
    if not good or ":" in path or len(path) > 1024:
        return "a path without '.', '..', ':' and empty parts"
    if runtime == "container" and inside == path:
        return "an absolute path in the container"
    if runtime == "process" and inside != path:
        return "a path relative to the instance's directory"
    return ""
