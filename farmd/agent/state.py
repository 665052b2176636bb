"""The agent's state directory: who it is, what it runs, and the lock that keeps a second agent out.

Everything here is written whole and put in place at once, so that a crash leaves the old or the new.
What must survive a power failure is synced. Nothing in it is needed to keep a workload running; it is
needed to recognise the workload again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from farmd.agent import shim
from farmd.agent.errors import StateInvalid, StateLocked
from farmd.agent.model import Identity, Record, SavedHealth
from store import codec
from store.errors import InputInvalid, RecordInvalid
from store.keys import valid_instance
from store.reality import Exit

log = structlog.get_logger()

EXIT_LINES_KEPT = 20


class AgentIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who the agent of this directory is: its node, the cluster of its workloads, its session (R21)."""

    node: str
    cluster: str = ""
    session: str = ""


class ExitLine(msgspec.Struct, frozen=True):
    """One line of a shim's record of exits."""

    start: str
    at: float
    code: int


def write_atomically(path: Path, data: bytes, *, sync: bool) -> None:
    """Replace a file by another content, at once; ``sync``: also after a power failure."""
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    fresh.rename(path)
    if sync:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class StateDirectory:
    """Paths and files of one agent. ``instances/<instance>`` belongs to one instance alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.instances = root / "instances"
        self.manifests = root / "manifests"

    @contextlib.contextmanager
    def locked(self, node: str) -> Iterator[AgentIdentity]:
        """Hold the directory for this process; yields who the agent is.

        Raises:
            StateLocked: another agent holds it.
            StateInvalid: it belongs to another node, or cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
            self.instances.mkdir(exist_ok=True, mode=0o711)
            self.manifests.mkdir(exist_ok=True, mode=0o700)
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateInvalid(
                f"state_dir: {self.root}: {error.strerror}, expected a directory that the agent can write",
                path=str(self.root),
            ) from error
        try:
            self._take(lock)
            yield self._identity(node)
        finally:
            os.close(lock)

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StateLocked(
                f"state_dir: {self.root} is in use by another agent (pid {holder}); stop it, or give this"
                " one a directory of its own",
                path=str(self.root),
                pid=holder,
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _identity(self, node: str) -> AgentIdentity:
        path = self.root / "agent.json"
        try:
            found = codec.decode(AgentIdentity, path.read_bytes(), str(path))
        except FileNotFoundError:
            return AgentIdentity(node)
        except RecordInvalid as error:
            raise StateInvalid(f"state_dir: {error.message}", path=str(path)) from error
        if found.node != node:
            raise StateInvalid(
                f"node: found {node!r}, expected {found.node!r}: {self.root} belongs to that node",
                path=str(path),
            )
        return found

    def save_identity(self, identity: AgentIdentity) -> None:
        """Remember the cluster and the session."""
        write_atomically(self.root / "agent.json", codec.encode(identity), sync=True)

    def saved_contact(self) -> float | None:
        """Wall-clock time of the last contact with the store that was written down."""
        try:
            return float((self.root / "contact").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def save_contact(self, at: float) -> None:
        """Remember a contact with the store; ``stop_after`` counts on across restarts."""
        write_atomically(self.root / "contact", repr(at).encode(), sync=False)

    # -- instances -----------------------------------------------------------------------------
    def directory(self, instance: str) -> Path:
        """An instance's own directory."""
        return self.instances / instance

    def logs(self, instance: str) -> Path:
        """Where an instance's logs are."""
        return self.directory(instance) / "logs"

    def work(self, instance: str) -> Path:
        """The working directory of a workload that names none."""
        return self.directory(instance) / "work"

    def known(self) -> list[str]:
        """Every instance that has a directory."""
        names = []
        for path in sorted(self.instances.iterdir()):
            try:
                names.append(valid_instance(path.name))
            except InputInvalid:
                log.warning("state.stray_file", path=str(path))
        return names

    def create(self, instance: str) -> None:
        """Make an instance's directories; workloads of other users pass through, not into them."""
        self.directory(instance).mkdir(exist_ok=True, mode=0o711)
        self.logs(instance).mkdir(exist_ok=True, mode=0o700)
        self.work(instance).mkdir(exist_ok=True, mode=0o700)

    def remove(self, instance: str) -> None:
        """Remove an instance's directory with all that is in it."""
        shutil.rmtree(self.directory(instance), ignore_errors=True)

    def save(self, record: Record) -> None:
        """Write an instance's record."""
        self.create(record.instance)
        path = self.directory(record.instance) / "instance.json"
        write_atomically(path, codec.encode(record), sync=True)

    def load(self, instance: str) -> Record | None:
        """An instance's record; None if it is missing or does not decode (said in the log)."""
        return self._read(instance, "instance.json", Record)

    def save_health(self, instance: str, saved: SavedHealth) -> None:
        """Write what was last published of an instance's health."""
        path = self.directory(instance) / "health.json"
        write_atomically(path, codec.encode(saved), sync=False)

    def load_health(self, instance: str) -> SavedHealth | None:
        """What was last published of an instance's health."""
        return self._read(instance, "health.json", SavedHealth)

    def identity(self, instance: str) -> Identity | None:
        """The process that the instance's shim recorded last."""
        return self._read(instance, shim.IDENTITY, Identity)

    def shim_holds(self, instance: str) -> bool:
        """Whether a shim holds the instance: it does from before the workload until after its end."""
        try:
            lock = os.open(self.directory(instance) / shim.LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def exits(self, instance: str) -> dict[str, Exit]:
        """Recorded ends by the id of their start; a line cut by a crash is left out."""
        found = {}
        for line in self._exit_lines(instance):
            try:
                end = codec.decode(ExitLine, line, shim.EXITS)
            except RecordInvalid:
                continue
            found[end.start] = Exit(end.at, end.code)
        return found

    def trim_exits(self, instance: str) -> None:
        """Keep the last few ends; called while no shim runs."""
        lines = self._exit_lines(instance)
        if len(lines) > EXIT_LINES_KEPT * 2:
            kept = b"\n".join(lines[-EXIT_LINES_KEPT:]) + b"\n"
            write_atomically(self.directory(instance) / shim.EXITS, kept, sync=True)

    def _exit_lines(self, instance: str) -> list[bytes]:
        try:
            return (self.directory(instance) / shim.EXITS).read_bytes().splitlines()
        except FileNotFoundError:
            return []

    def _read(self, instance: str, name: str, kind: type[codec.T]) -> codec.T | None:
        path = self.directory(instance) / name
        try:
            return codec.decode(kind, path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except RecordInvalid as error:
            log.warning("state.record_invalid", instance=instance, error=error.message)
            return None
