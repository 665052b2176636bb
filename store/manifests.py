"""Pod manifests: what to run, immutable and content-addressed (R24).

A manifest is stored once under the SHA-256 of its canonical JSON; every record refers to it by that
digest and equality of digests is the only equality of manifests. Key order and comments of the file
that a person wrote do not matter.
"""

from __future__ import annotations

import hashlib
import math
import signal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from store import codec, operations
from store.errors import InputInvalid, NotFound, RecordInvalid
from store.keys import Keys, valid_name, valid_segment
from store.operations import Operation

if TYPE_CHECKING:
    from store.consul.client import ConsulClient

MAX_MANIFEST_BYTES = 256 * 1024
MAX_SECONDS = 1e9
DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100

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
    ``priority``: where preemption is on, room is made for higher ones by lower ones (0 to 100).
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
    priority: int = DEFAULT_PRIORITY


def canonical(manifest: Manifest) -> bytes:
    """The bytes that are stored and digested."""
    return codec.encode(manifest)


def digest(body: bytes) -> str:
    """Hex SHA-256 of a manifest's canonical bytes."""
    return hashlib.sha256(body).hexdigest()


def parse(data: Any, source: str) -> Manifest:
    """A manifest from what a person wrote (parsed YAML).

    Raises:
        InputInvalid: an unknown key, a wrong type, or a value that cannot work, by field.
    """
    manifest = codec.parse_input(Manifest, data, source)
    check(manifest, source)
    return manifest


def check(manifest: Manifest, source: str, within: str = "") -> None:
    """Check what types cannot say; ``within`` is put before field names, such as ``pod.``.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """

    def refuse(field: str, found: object, expected: str) -> None:
        raise InputInvalid(
            f"{source}: {within}{field}: found {found!r}, expected {expected}", field=within + field
        )

    _check_size(manifest, f"{source}: {within.rstrip('.') or 'manifest'}")
    valid_segment(manifest.id, f"{source}: {within}id")
    if not manifest.command or not manifest.command[0]:
        refuse("command", manifest.command, "at least the program to run")
    for text in (*manifest.command, *manifest.args, *manifest.env, *manifest.env.values()):
        if "\0" in text:
            refuse("command, args or env", text, "no NUL character")
    for name in manifest.env:
        if not name or "=" in name:
            refuse("env", name, "a variable name without '='")
    for name, port in manifest.ports.items():
        valid_name(name, f"{source}: {within}ports")
        if not 0 <= port.port <= 65535:
            refuse(f"ports.{name}.port", port.port, "0 (dynamic) to 65535")
    if manifest.working_directory and (
        not manifest.working_directory.startswith("/") or ".." in manifest.working_directory.split("/")
    ):
        refuse("working_directory", manifest.working_directory, "an absolute path without '..'")
    for name, amount in manifest.resources.items():
        if not 0 <= amount < math.inf:
            refuse(f"resources.{name}", amount, "zero or more, and finite")
    if not 0 <= manifest.priority <= MAX_PRIORITY:
        refuse("priority", manifest.priority, f"0 to {MAX_PRIORITY}")
    for name, limit in manifest.ulimits.items():
        if not -1 <= limit < 2**63:
            refuse(f"ulimits.{name}", limit, "-1 (unlimited) to 2^63 - 1")
    times = {
        "restart.initial": manifest.restart.initial,
        "restart.maximum": manifest.restart.maximum,
        "restart.reset": manifest.restart.reset,
        "stop.grace": manifest.stop.grace,
        "stop_after": manifest.stop_after,
    }
    for name, seconds in times.items():
        if not 0 <= seconds <= MAX_SECONDS:
            refuse(name, seconds, f"0 to {MAX_SECONDS:g} seconds")
    if manifest.stop.signal.removeprefix("SIG") not in {s.name.removeprefix("SIG") for s in signal.Signals}:
        refuse("stop.signal", manifest.stop.signal, "the name of a signal, such as TERM or INT")
    if not 1024 <= manifest.logs.max_bytes < 2**50 or not 0 <= manifest.logs.keep <= 1000:
        refuse("logs", manifest.logs.max_bytes, "max_bytes of 1024 to 2^50 and keep of 0 to 1000")
    if manifest.health is not None:
        _check_health(manifest.health, manifest, refuse)


def _check_size(manifest: Manifest, where: str) -> None:
    try:
        size = len(canonical(manifest))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InputInvalid(
            f"{where}: found a value that JSON cannot hold ({error})", field="manifest"
        ) from error
    if size > MAX_MANIFEST_BYTES:
        raise InputInvalid(
            f"{where}: found {size} bytes, expected at most {MAX_MANIFEST_BYTES}", field="manifest"
        )


def _check_health(health: HealthCheck, manifest: Manifest, refuse: Any) -> None:
    if health.type == "command" and not health.command:
        refuse("health.command", health.command, "the program to run")
    if health.type != "command" and health.port not in manifest.ports:
        refuse(
            "health.port",
            health.port,
            f"one of the pod's ports ({', '.join(manifest.ports) or 'it has none'})",
        )
    if health.type == "http" and (
        not health.path.startswith("/") or any(c in health.path for c in " \r\n\0")
    ):
        refuse("health.path", health.path, "a path that starts with '/' and has no white space")
    for name, seconds in (("interval", health.interval), ("timeout", health.timeout)):
        if not 0 < seconds <= MAX_SECONDS:
            refuse(f"health.{name}", seconds, f"more than 0 and at most {MAX_SECONDS:g} seconds")
    if not 0 <= health.start_period <= MAX_SECONDS:
        refuse("health.start_period", health.start_period, f"0 to {MAX_SECONDS:g} seconds")
    if health.passes < 1 or health.failures < 1:
        refuse("health.passes", health.passes, "passes and failures of 1 or more")


def ensure(keys: Keys, body: bytes) -> Operation:
    """Set a manifest's body again, in the transaction that makes a record refer to it (R24).

    Flags 0 defeat a condemnation: they move the index that the collector's ``delete-cas`` names.
    """
    return operations.put(keys.manifest(digest(body)), body, flags=0)


async def read_body(client: ConsulClient, keys: Keys, sha: str) -> bytes:
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


async def read(client: ConsulClient, keys: Keys, sha: str) -> Manifest:
    """A manifest by its digest.

    Raises:
        NotFound: no such manifest.
        RecordInvalid: the stored bytes have another digest or do not decode.
    """
    return codec.decode(Manifest, await read_body(client, keys, sha), keys.manifest(sha))
