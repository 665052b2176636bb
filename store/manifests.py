"""Pod manifests: what to run, immutable and content-addressed (R24).

A manifest is stored once under the SHA-256 of its canonical JSON; every record refers to it by that
digest and equality of digests is the only equality of manifests. Key order and comments of the file
that a person wrote do not matter.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from store import codec, operations
from store.errors import NotFound, RecordInvalid
from store.keys import Keys
from store.operations import Operation
from store.ports import KeyReader

MAX_MANIFEST_BYTES = 256 * 1024

Operator = Literal["=", "!=", "in", "not-in", "exists", "not-exists", "<", "<=", ">", ">=", "version"]


class Port(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named port: ``port`` 0 lets the agent pick one from its range and keep it."""

    port: int = 0


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the agent tells that a pod works. Times are seconds.

    ``http`` asks ``path`` on the named ``port`` for a 2xx, ``tcp`` connects to it, ``command`` runs
    and must exit 0. ``passes`` good answers in a row make a pod healthy, ``failures`` bad ones
    unhealthy; during ``start_period`` after a start bad answers do not count.
    """

    type: Literal["http", "tcp", "command"]
    port: str = ""
    path: str = "/"
    command: list[str] = []
    interval: float = 2.0
    timeout: float = 1.0
    passes: int = 1
    failures: int = 3
    start_period: float = 0.0


class Restart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds between restarts: doubles from ``initial`` to ``maximum``, forgotten after ``reset``."""

    initial: float = 1.0
    maximum: float = 60.0
    reset: float = 60.0


class Stop(msgspec.Struct, frozen=True, omit_defaults=True):
    """Graceful stop: ``signal`` to the whole group, SIGKILL after ``grace`` seconds."""

    signal: str = "TERM"
    grace: float = 10.0


class Logs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Log files of one instance: each at most ``max_bytes``, ``keep`` old ones beside the current."""

    max_bytes: int = 10 * 1024 * 1024
    keep: int = 3


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node label that must fit; ``version`` takes ranges such as ``>=5.10, <7``."""

    label: str
    operator: Operator = "="
    values: list[str] = []


class Affinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preference for nodes whose label fits, with a weight of -100 to 100."""

    label: str
    operator: Operator = "="
    values: list[str] = []
    weight: int = 50


class AntiAffinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keep away from pods whose labels match ``selector``.

    "Away" is within one value of ``topology``, a node label; empty means the node itself.
    """

    selector: str
    topology: str = ""
    hard: bool = True
    weight: int = 50


class Spread(msgspec.Struct, frozen=True, omit_defaults=True):
    """Spread the pods of one owner evenly over the values of a node label."""

    label: str
    hard: bool = False
    max_skew: int = 1
    weight: int = 50


class Toleration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Accept nodes with a taint; an empty ``value`` or ``effect`` fits any."""

    key: str
    value: str = ""
    effect: str = ""


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a pod may and would rather stand, beyond its owner's node selector."""

    constraints: list[Constraint] = []
    affinity: list[Affinity] = []
    anti_affinity: list[AntiAffinity] = []
    spread: list[Spread] = []
    tolerations: list[Toleration] = []


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One pod. ``id`` names the application, ``resources`` are amounts such as ``cpu: 0.5``.

    ``user`` and ``working_directory`` empty mean the agent's own user and the instance's directory;
    ``ulimits`` are the names of ``setrlimit`` without ``RLIMIT_``. ``stop_after`` (seconds, 0 = never):
    how long the agent may be out of contact before it stops the pod (R27). ``system`` pods are drained last.
    """

    id: str
    runtime: Literal["process"] = "process"
    command: list[str]
    args: list[str] = []
    env: dict[str, str] = {}
    working_directory: str = ""
    user: str = ""
    ulimits: dict[str, int] = {}
    ports: dict[str, Port] = {}
    health: HealthCheck | None = None
    restart: Restart = Restart()
    stop: Stop = Stop()
    logs: Logs = Logs()
    stop_after: float = 0.0
    resources: dict[str, float] = {}
    placement: Placement = Placement()
    system: bool = False


def asked(manifest: Manifest) -> dict[str, float]:
    """What room a pod really asks for: none of something is nothing."""
    return {name: amount for name, amount in manifest.resources.items() if amount > 0}


def canonical(manifest: Manifest) -> bytes:
    """The bytes that are stored and digested."""
    return codec.encode(manifest)


def digest(body: bytes) -> str:
    """Hex SHA-256 of a manifest's canonical bytes."""
    return hashlib.sha256(body).hexdigest()


def ensure(keys: Keys, body: bytes) -> Operation:
    """Set a manifest's body again, in the transaction that makes a record refer to it (R24).

    Flags 0 defeat a condemnation: they move the index that the collector's ``delete-cas`` names.
    """
    return operations.put(keys.manifest(digest(body)), body, flags=0)


async def read_body(client: KeyReader, keys: Keys, sha: str) -> bytes:
    """The canonical bytes of a manifest, proven to be the ones that the digest names.

    Raises:
        NotFound: no such manifest.
        RecordInvalid: the stored bytes have another digest.
    """
    key = keys.manifest(sha)
    entry = await client.read(key)
    if entry is None:
        raise NotFound(f"manifest {sha[:12]} does not exist", kind="manifests", id=sha)
    found = digest(entry.value)
    if found != sha:
        raise RecordInvalid(f"{key}: body: found digest {found}, expected {sha}", key=key)
    return entry.value


async def read(client: KeyReader, keys: Keys, sha: str) -> Manifest:
    """A manifest by its digest.

    Raises:
        NotFound: no such manifest.
        RecordInvalid: the stored bytes have another digest or do not decode.
    """
    return codec.decode(Manifest, await read_body(client, keys, sha), keys.manifest(sha))
