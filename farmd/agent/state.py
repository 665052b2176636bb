"""The agent's state directory: its identity, its pods, and the lock that keeps a second agent out.

Every file is replaced atomically, so that a crash leaves the old or the new content. Content that must
survive a power failure is synced. No file is needed to keep a workload running; the files are needed to
find the workload again. Content that cannot be written waits in memory (``files``).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path

import msgspec
import structlog

from farmd.agent import shim
from farmd.agent.disk import SILENT, Disk, DiskSilent
from farmd.agent.errors import NotRemoved, StateInvalid, StateLocked, StateUnsaved
from farmd.agent.files import Files, refusal, require_room
from farmd.agent.lease import now
from farmd.agent.log_files import trouble
from farmd.agent.model import Identity, Record, SavedHealth
from farmd.agent.removal import Trash
from store import codec
from store.errors import InputInvalid, RecordInvalid
from store.keys import valid_instance

# The lock on the agent's state directory, which keeps a second agent out, and those of shims (R26).

log = structlog.get_logger()


def take(root: Path) -> int:
    """Lock a directory, even a read-only one; returns the descriptor that holds the lock.

    Raises:
        StateLocked: another agent holds the lock.
        OSError: there is no lock file, and none can be created.
    """
    path = root / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise StateLocked(
            f"state_dir: {root} is in use by another agent (pid {holder}); stop it, or give this"
            " one a directory of its own",
            path=str(root),
            pid=holder,
        ) from error
    try:
        os.ftruncate(lock, os.pwrite(lock, f"{os.getpid()}\n".encode(), 0))
    except OSError as error:
        # The process id is for people only; the lock does not depend on it.
        log.warning("state.lock_unsigned", path=str(path), error=trouble(error))
    return lock


def in_place(root: Path, lock: int) -> bool:
    """Whether a descriptor's lock file is still the one in the directory."""
    try:
        found = (root / "lock").stat()
    except OSError:
        return False
    mine = os.fstat(lock)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def held(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


PROBE_SECONDS = 5.0
MOST_LEFT = 10
"""Of what cannot be removed so much is told to people elsewhere; the log has all."""


class AgentIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of this directory's agent: its node, the cluster of its workloads, its session (R21)."""

    node: str
    cluster: str = ""
    session: str = ""


class StateDirectory:
    """Paths and files of one agent. ``instances/<instance>`` belongs to one instance alone.

    Directories on one disk may share its ``disk``, whose thread serves them in turn.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.instances = root / "instances"
        self.manifests = root / "manifests"
        self.trash = Trash(root / "trash")
        self._trashed: dict[str, str] = {}
        self._in_place: dict[str, str] = {}
        self.disk = disk or Disk()
        self._probed = -math.inf
        self._files = Files(root, self._make_folder, self.disk)
        self._lock = -1

    @contextlib.contextmanager
    def locked(self, node: str) -> Iterator[AgentIdentity]:
        """Lock the directory for this process; yields the agent's identity.

        Raises:
            StateLocked: another agent holds the lock.
            StateInvalid: the directory belongs to another node, or cannot be used.
        """
        try:
            self._make_folder(self.root)
            self._lock = take(self.root)
        except OSError as error:
            raise _invalid(self.root, error) from error
        try:
            yield self._identity(node)
        finally:
            os.close(self._lock)

    def tried(self, node: str) -> None:
        """Try what ``locked`` does, leave nothing behind, and disturb no agent that holds the lock.

        Raises:
            StateInvalid: as ``locked``.
        """
        folder = next(each for each in (self.root, *self.root.parents) if each.exists())
        try:
            with tempfile.TemporaryDirectory(prefix=".tried-", dir=folder) as made:
                (Path(made) / "file").write_bytes(b"tried")
        except OSError as error:
            raise _invalid(folder, error) from error
        self._identity(node)

    def _make_folder(self, folder: Path) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.instances.mkdir(exist_ok=True, mode=0o711)
        self.manifests.mkdir(exist_ok=True, mode=0o700)
        if folder.parent == self.instances:
            self.create(folder.name)

    def _identity(self, node: str) -> AgentIdentity:
        path = self.root / "agent.json"
        try:
            data = path.read_bytes()
            found = codec.decode(AgentIdentity, data, str(path))
        except FileNotFoundError:
            return AgentIdentity(node)
        except OSError as error:
            raise _invalid(path, error) from error
        except RecordInvalid as error:
            raise StateInvalid(f"state_dir: {error.message}", path=str(path)) from error
        if found.node != node:
            raise StateInvalid(
                f"node: found {node!r}, expected {found.node!r}: {self.root} belongs to that node",
                path=str(path),
            )
        self._files.hold(path, data)
        return found

    def save_identity(self, identity: AgentIdentity) -> None:
        """Remember the cluster and the session."""
        self._files.put(self.root / "agent.json", codec.encode(identity), sync=True)

    def saved_contact(self) -> float | None:
        """Wall-clock time of the last saved contact with the store; None: nothing that can be read."""
        try:
            return float((self.root / "contact").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def save_contact(self, at: float) -> None:
        """Save the time of a contact with the store; ``stop_after`` counts on across restarts."""
        self._files.put(self.root / "contact", repr(at).encode(), sync=False)

    # -- trouble with the disk -----------------------------------------------------------------
    def restore(self) -> None:
        """Write the files that could not be written before, and those that somebody removed.

        Raises:
            StateLocked: the directory was removed, and another agent has created it again.
        """
        try:
            lost = not self.disk.call(lambda: in_place(self.root, self._lock))
        except DiskSilent:
            return
        if lost:
            try:
                mine = self.disk.call(self._made_anew)
            except OSError as error:
                log.warning("state.lock_lost", path=str(self.root), error=trouble(error))
                return
            os.close(self._lock)
            self._lock = mine
            log.warning("state.made_anew", path=str(self.root))
        self._files.restore(all_files=lost)

    def _made_anew(self) -> int:
        self._make_folder(self.root)
        return take(self.root)

    @property
    def unsaved(self) -> bool:
        """Whether any file could not be written."""
        return bool(self._files.unsaved)

    def unsaved_instances(self) -> dict[str, str]:
        """Instances with files that are not saved, with the reasons."""
        return {
            path.parent.name: why
            for path, why in self._files.unsaved.items()
            if path.parent.parent == self.instances
        }

    def require_room(self) -> None:
        """Refuse a start on a disk that is almost full.

        Raises:
            StateUnsaved: too little is free for a process to be recorded.
        """
        try:
            self.disk.call(lambda: require_room(self.root))
        except DiskSilent as error:
            raise refusal(self.root, trouble(error)) from error

    def require_answer(self) -> None:
        """Begin nothing that needs the disk while that is silent.

        Raises:
            DiskSilent: it is.
        """
        if self.disk.silent:
            raise DiskSilent

    @property
    def closed(self) -> str:
        """Why no pod can start now, for people and farms; empty if one can, as far as the disk goes."""
        if self.disk.silent:
            return SILENT
        for path, why in self._files.unsaved.items():
            if path.parent == self.root:
                return refusal(self.root, why).message
        try:
            self.require_room()
        except StateUnsaved as error:
            return error.message
        self._probe()
        return ""

    def _probe(self) -> None:
        """Ask the disk for a change now and then, so that a silent one is noticed in a quiet agent."""
        if now() - self._probed >= PROBE_SECONDS:
            self._probed = now()
            self.disk.begin(lambda: os.utime(self.root))

    # -- instances -----------------------------------------------------------------------------
    def directory(self, instance: str) -> Path:
        """An instance's own directory."""
        return self.instances / instance

    def has(self, instance: str) -> bool:
        """Whether an instance has a directory, as far as the disk tells."""
        try:
            return self.disk.call(self.directory(instance).exists)
        except DiskSilent:
            return False

    def logs(self, instance: str) -> Path:
        """Where an instance's logs are."""
        return self.directory(instance) / "logs"

    def work(self, instance: str) -> Path:
        """The working directory of a workload whose manifest names none."""
        return self.directory(instance) / "work"

    def starts(self, instance: str) -> Path:
        """Where the files are that its starts exchange with the agent."""
        return self.directory(instance) / "starts"

    def rendered(self, instance: str) -> Path:
        """Where the rendered files of its starts are."""
        return self.directory(instance) / "rendered"

    def known(self) -> list[str]:
        """Every instance that has a directory.

        Raises:
            StateInvalid: the directories cannot be read, so no pod may start beside unknown processes.
        """
        names = []
        try:
            paths = sorted(self.instances.iterdir())
        except OSError as error:
            raise _invalid(self.instances, error) from error
        for path in paths:
            try:
                names.append(valid_instance(path.name))
            except InputInvalid:
                log.warning("state.stray_file", path=str(path))
        return names

    def create(self, instance: str) -> None:
        """Create an instance's directories; workloads of other users may traverse but not read them."""

        def work() -> None:
            self.directory(instance).mkdir(exist_ok=True, mode=0o711)
            self.logs(instance).mkdir(exist_ok=True, mode=0o700)
            self.work(instance).mkdir(exist_ok=True, mode=0o700)

        self.disk.call(work)
        self._in_place.pop(str(self.directory(instance)), None)  # it is to be there again

    def forget(self, instance: str) -> None:
        """Stop writing an instance's files; called before its directory is removed."""
        self._files.drop(self.directory(instance))

    def remove(self, instance: str) -> None:
        """Throw an instance's directory away, whatever its workload made of it.

        Raises:
            NotRemoved: it stays where it is.
        """
        directory = self.directory(instance)
        if why := self.disk.call(lambda: self.trash.throw(directory)):
            self._in_place[str(directory)] = why
            raise NotRemoved(f"{directory} cannot be removed: {why}", path=str(directory))
        self._in_place.pop(str(directory), None)

    @property
    def left(self) -> dict[str, str]:
        """What cannot be removed, by its path, with the reasons; of very much the first of it."""
        found = sorted({**self._trashed, **self._in_place}.items())[:MOST_LEFT]
        return {path.encode("utf-8", "backslashreplace").decode(): why for path, why in found}

    def empty_trash(self) -> None:
        """Remove what was thrown away; it may take long. What stays is logged once."""
        try:
            left = self.trash.empty()
        except OSError as error:
            left = {"": trouble(error)}
        if left is None:
            return
        stays = {str(self.root / "trash" / name): why for name, why in left.items()}
        for path in stays.keys() - self._trashed.keys():
            log.warning("state.not_removed", path=path, error=stays[path])
        self._trashed = stays
        for path in [*self._in_place]:
            if not os.path.lexists(path):  # a person removed it
                self._in_place.pop(path, None)

    def save(self, record: Record) -> None:
        """Write an instance's record, as soon as that is possible."""
        self._files.put(self._record(record.instance), codec.encode(record), sync=True)

    def save_first(self, record: Record) -> None:
        """Write an instance's record before the action that it describes.

        Raises:
            StateUnsaved: the record or the agent's identity cannot be written.
        """
        self._files.require(self.root / "agent.json")
        self._files.write(self._record(record.instance), codec.encode(record), sync=True)

    def load(self, instance: str) -> Record | None:
        """An instance's record; None if it is missing or does not decode (which is logged)."""
        return self._read(self._record(instance), Record, hold=True)

    def _record(self, instance: str) -> Path:
        return self.directory(instance) / "instance.json"

    def saved_images(self) -> bytes | None:
        """What was saved of the images that the agent pulled; None: nothing that can be read."""
        try:
            return (self.root / "images.json").read_bytes()
        except OSError:
            return None

    def save_images(self, data: bytes) -> None:
        """Save which images the agent pulled."""
        self._files.put(self.root / "images.json", data, sync=False)

    def saved_revocations(self) -> bytes | None:
        """What was saved of the revocations that the agent heard of; None: nothing that can be read."""
        try:
            return (self.root / "revoked.json").read_bytes()
        except OSError:
            return None

    def save_revocations(self, data: bytes) -> None:
        """Save the revocations, as soon as that is possible."""
        self._files.put(self.root / "revoked.json", data, sync=True)

    def manifest(self, sha: str) -> bytes:
        """The copy of a manifest, or of a document of peers.

        Raises:
            OSError: there is none that can be read.
        """
        return self.disk.call((self.manifests / sha).read_bytes)

    def has_manifest(self, sha: str) -> bool:
        """Whether there is a copy of it, as far as the disk tells."""
        try:
            return self.disk.call((self.manifests / sha).exists)
        except DiskSilent:
            return True

    def save_manifest(self, sha: str, body: bytes) -> None:
        """Write a copy of a manifest.

        Raises:
            StateUnsaved: it cannot be written.
        """
        self._files.write(self.manifests / sha, body, sync=True)

    def keep_manifests(self, wanted: Set[str]) -> None:
        """Remove all copies of manifests except these."""

        def removed() -> list[Path]:
            found = [path for path in self.manifests.iterdir() if path.name not in wanted]
            for path in found:
                path.unlink(missing_ok=True)
            return found

        try:
            self._files.drop(*self.disk.call(removed))
        except OSError as error:
            log.warning("state.not_removed", path=str(self.manifests), error=trouble(error))

    def save_health(self, instance: str, saved: SavedHealth) -> None:
        """Write an instance's last published health, as soon as that is possible."""
        self._files.put(self.directory(instance) / "health.json", codec.encode(saved), sync=False)

    def load_health(self, instance: str) -> SavedHealth | None:
        """An instance's last published health."""
        return self._read(self.directory(instance) / "health.json", SavedHealth, hold=True)

    def identity(self, instance: str) -> Identity | None:
        """The process that the instance's shim recorded last; None where the record is lost."""
        try:
            return self._read(self.directory(instance) / shim.IDENTITY, Identity)
        except DiskSilent:
            raise
        except OSError as error:
            # The kernel's table of processes still tells of a workload that lives (``strays``).
            log.warning("state.record_invalid", instance=instance, error=trouble(error))
            return None

    def hold_identity(self, identity: Identity) -> None:
        """Keep the record of a live process on disk: without it no agent could find the process again."""
        self._files.hold(self.directory(identity.instance) / shim.IDENTITY, codec.encode(identity))

    def release_identity(self, instance: str) -> None:
        """Stop keeping the record of a process that ended; the next shim writes its own."""
        self._files.drop(self.directory(instance) / shim.IDENTITY)

    def shim_holds(self, instance: str) -> bool:
        """Whether a shim holds the instance: from before the workload's start until after its end."""
        return self.disk.call(lambda: held(self.directory(instance) / shim.LOCK))

    def _read(self, path: Path, kind: type[codec.T], *, hold: bool = False) -> codec.T | None:
        try:
            data = self.disk.call(path.read_bytes)
            found = codec.decode(kind, data, str(path))
        except FileNotFoundError:
            return None
        except RecordInvalid as error:
            log.warning("state.record_invalid", instance=path.parent.name, error=error.message)
            return None
        if hold:
            self._files.hold(path, data)
        return found


def _invalid(path: Path, error: OSError) -> StateInvalid:
    return StateInvalid(
        f"state_dir: {path}: {error.strerror}, expected a directory that the agent can use", path=str(path)
    )
