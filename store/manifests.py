"""Pod manifests: what to run, immutable and content-addressed (R24).

A manifest is stored once under the SHA-256 of its canonical JSON. Every record refers to it by that
digest. The order of keys, the comments and the format of a person's file do not matter, nor whether it names
defaults. Earlier versions stored some defaults, so equal manifests may have several digests: whoever compares
a file with what runs compares what both say (``kept``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from store import codec, config, operations
from store.artifacts import Artifact
from store.containers import Container, File, Limits, Mount, Secret, Volume
from store.errors import NotFound, RecordInvalid
from store.keys import Keys
from store.operations import Operation
from store.ports import KeyReader
from store.quantities import Amount, Seconds, Whole
from store.secrets import Sealed

MAX_MANIFEST_BYTES = 256 * 1024

MAIN = "main"
"""What the workload itself is called among the processes of its pod."""

Operator = Literal["=", "!=", "in", "not-in", "exists", "not-exists", "<", "<=", ">", ">=", "version"]


class Port(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named port: ``port`` 0 lets the agent pick one from its range and keep it.

    A pod with a fixed port reserves it on its node (R17), under ``protocol``. ``container`` is the port on
    which a container listens, if that is another one. ``host_ip`` is the node's address at which the engine
    publishes a container's fixed port; empty: all of them.
    """

    port: int = 0
    container: int = 0
    protocol: Literal["tcp", "udp"] = "tcp"
    host_ip: str = ""


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the agent checks that a pod works. Times are in seconds.

    ``http`` gets ``path`` from the named ``port`` and expects a 2xx, ``tcp`` connects to the port,
    ``command`` runs a program that must exit with 0. ``passes`` good results in a row make a pod
    healthy, ``failures`` bad ones unhealthy; bad results within ``start_period`` do not count. A pod that
    stays unhealthy for ``restart_after`` seconds is restarted in place (0: never).
    """

    type: Literal["http", "tcp", "command"]
    port: str = ""
    path: str = "/"
    command: list[str] = []
    interval: Seconds = 2.0
    timeout: Seconds = 1.0
    passes: int = 1
    failures: int = 3
    start_period: Seconds = 0.0
    restart_after: Seconds = 0.0


class Restart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds before a restart, doubled from ``initial`` to ``maximum``; a run of ``reset`` s starts anew.

    ``policy`` says which ends are followed by a start: all, those with another exit code than 0, or none.
    """

    initial: Seconds = 1.0
    maximum: Seconds = 60.0
    reset: Seconds = 60.0
    policy: Literal["always", "on-failure", "never"] = "always"


class Stop(msgspec.Struct, frozen=True, omit_defaults=True):
    """Graceful stop: ``signal`` to the whole process group, SIGKILL after ``grace`` seconds.

    Before the signal the pod leaves: it is no longer an endpoint, ``command`` runs beside it for at most
    ``command_timeout`` seconds, and at least ``delay`` seconds pass (R39).
    """

    signal: str = "TERM"
    grace: Seconds = 10.0
    delay: Seconds = 0.0
    command: list[str] = []
    command_timeout: Seconds = 10.0

    @property
    def leaves(self) -> bool:
        """Whether there is anything to do before the signal."""
        return self.delay > 0 or bool(self.command)

    @property
    def longest(self) -> float:
        """Seconds from the decision to SIGKILL at the most, but for the time until the store knows."""
        leave = max(self.delay, self.command_timeout if self.command else 0.0)
        return leave + self.grace


class Init(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command that must succeed before the workload begins (R43). It runs as the workload would, for at
    most ``timeout`` seconds, and after a failure so many ``retries`` more times.
    """

    command: list[str]
    timeout: Seconds = 300.0
    retries: int = 0


class AfterStop(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command that runs once after the workload ended, for at most ``timeout`` seconds (R43)."""

    command: list[str]
    timeout: Seconds = 10.0


class Sidecar(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program beside the workload, known by its ``name`` in the pod (R43)."""

    name: str
    command: list[str]


class Logs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Log files of one instance: at most ``max_bytes`` each, and ``keep`` old ones.

    ``to``: where the output goes besides; empty: where the node's agent sends it (``agent.log_to``).
    """

    max_bytes: Whole = 10 * 1024 * 1024
    keep: int = 3
    to: list[str] = []


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition on a node label; ``version`` takes ranges such as ``>=5.10, <7``."""

    label: str
    operator: Operator = "="
    values: list[str] = []


class Affinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preference for nodes whose label satisfies the condition, with a weight of -100 to 100."""

    label: str
    operator: Operator = "="
    values: list[str] = []
    weight: int = 50


class AntiAffinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Avoid pods whose labels match ``selector``.

    Avoided are all nodes with the same value of the node label ``topology``; empty: only the same node.
    """

    selector: str
    topology: str = ""
    hard: bool = True
    weight: int = 50


class PodAffinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stay with the pods whose labels match ``selector``: on their nodes, or on nodes with the same value of
    the node label ``topology``.

    Pods on lost and draining nodes do not count. Where no pod matches any node will do, so the pods of a
    group move together: the first one chooses, the others follow.
    """

    selector: str
    topology: str = ""


class Spread(msgspec.Struct, frozen=True, omit_defaults=True):
    """Spread the pods of one owner evenly over the values of a node label."""

    label: str
    hard: bool = False
    max_skew: int = 1
    weight: int = 50


class Toleration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Accept nodes with a taint; an empty ``value`` or ``effect`` accepts any."""

    key: str
    value: str = ""
    effect: str = ""


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Conditions and preferences for a pod's node, in addition to its owner's node selector."""

    constraints: list[Constraint] = []
    affinity: list[Affinity] = []
    anti_affinity: list[AntiAffinity] = []
    pod_affinity: list[PodAffinity] = []
    spread: list[Spread] = []
    tolerations: list[Toleration] = []


class Reference(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the value of a field came from when a person wrote the manifest: a config key and its version.

    ``field`` is ``env.<NAME>`` or ``files[<n>]``. ``below`` is the folder that a file named in ``env_from``;
    it is empty where the file named the key.
    """

    field: str
    kv: str
    version: int
    below: str = ""

    @property
    def told(self) -> str:
        """For people: ``config/shop/db_url version 812``."""
        return f"{config.told(self.kv)} version {self.version}"


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One pod. ``id`` names the application, ``resources`` are amounts such as ``cpu: 0.5``.

    An empty ``user`` or ``working_directory`` means the agent's own user or the instance's directory. The
    keys of ``ulimits`` are the names of ``setrlimit`` without ``RLIMIT_``. ``stop_after`` (s, 0 = never):
    how long the node may be out of contact until the pod has ended (R27). ``system`` pods are drained last.
    What ``store.containers`` declares needs the runtime ``container``; its ``user`` may be any of the image.
    The runtime ``systemd`` has of that what is no part of ``container``. ``sealed`` are secrets as
    ciphertext, by ``<path>@<version>``, and ``secret_env`` are the variables that get one.
    """

    id: str
    runtime: Literal["process", "container", "systemd"] = "process"
    command: list[str] = []
    args: list[str] = []
    env: dict[str, str] = {}
    working_directory: str = ""
    user: str = ""
    ulimits: dict[str, Whole] = {}
    ports: dict[str, Port] = {}
    health: HealthCheck | None = None
    restart: Restart = Restart()
    stop: Stop = Stop()
    logs: Logs = Logs()
    stop_after: Seconds = 0.0
    resources: dict[str, Amount] = {}
    placement: Placement = Placement()
    system: bool = False
    container: Container | None = None
    mounts: list[Mount] = []
    volumes: dict[str, Volume] = {}
    files: list[File] = []
    secrets: list[Secret] = []
    limits: Limits = Limits()
    artifacts: list[Artifact] = []
    sources: list[Reference] = []
    secret_env: dict[str, str] = {}
    sealed: dict[str, Sealed] = {}
    init: list[Init] = []
    after_stop: list[AfterStop] = []
    sidecars: list[Sidecar] = []

    @property
    def lingers(self) -> float:
        """Seconds for which what follows the workload's end may take at most."""
        return sum(each.timeout for each in self.after_stop) + (self.stop.grace if self.sidecars else 0.0)

    @property
    def staged(self) -> bool:
        """Whether a start has more than its workload (R43)."""
        return bool(self.init or self.after_stop or self.sidecars)


PORT_RESOURCE = "port/"


def asked(manifest: Manifest) -> dict[str, float]:
    """The resources that a pod requests, without amounts of 0.

    A fixed port is one, too: ``port/<number>/<protocol>``, of which every node has 1.
    """
    fixed = {f"{PORT_RESOURCE}{each.port}/{each.protocol}" for each in manifest.ports.values() if each.port}
    return {name: amount for name, amount in manifest.resources.items() if amount > 0} | dict.fromkeys(
        sorted(fixed), 1.0
    )


def canonical(manifest: Manifest) -> bytes:
    """The canonical JSON of a manifest, which is stored and digested."""
    return codec.encode(manifest)


def digest(body: bytes) -> str:
    """Hex SHA-256 of a manifest's canonical bytes."""
    return hashlib.sha256(body).hexdigest()


async def kept(client: KeyReader, keys: Keys, manifest: Manifest, standing: Iterable[str]) -> bytes:
    """The bytes of a manifest: those of a ``standing`` digest that say the same, else its canonical ones.

    So an owner that an earlier version wrote keeps its digest, its signatures and its pods.
    """
    body = canonical(manifest)
    known = dict.fromkeys(sha for sha in standing if sha)
    if digest(body) in known:
        return body
    for sha in known:
        try:
            found = await read_body(client, keys, sha)
            if _said(codec.decode(Manifest, found, keys.manifest(sha))) == _said(manifest):
                return found
        except (NotFound, RecordInvalid):
            continue  # it says nothing that could be the same
    return body


def _said(manifest: Manifest) -> Manifest:
    """A manifest without the versions of config keys: an equal value under a newer one is no new manifest."""
    sources = [msgspec.structs.replace(each, version=0) for each in manifest.sources]
    return msgspec.structs.replace(manifest, sources=sources)


def ensure(keys: Keys, body: bytes) -> Operation:
    """Write a manifest's body again, in the transaction that makes a record refer to it (R24).

    Flags 0 cancel a condemnation: the write changes the index that the collector's ``delete-cas`` names.
    """
    return operations.put(keys.manifest(digest(body)), body, flags=0)


async def read_body(client: KeyReader, keys: Keys, sha: str) -> bytes:
    """The canonical bytes of a manifest, checked against the digest.

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
