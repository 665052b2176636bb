"""Opens the sealed secrets of manifests with the node's age identities, and gives them to pods (R40).

A value exists in memory, in the environment of its workload and in files on tmpfs, and nowhere else: not on
a disk, in a message, a log or a report. Each start has a folder of files of its own. A folder goes with its
start; what an agent that died left is removed by the next one. pyrage is imported only where there are
identities.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from farmd.agent.errors import StartFailed
from farmd.agent.users import Account
from store import variables
from store.credentials import CredentialFiles, guarded, invalid
from store.errors import CredentialInvalid
from store.features import IDENTITY, SECRETS
from store.manifest_check import seen_at
from store.manifests import Manifest
from store.secrets import MAX_BYTES, Sealed

if TYPE_CHECKING:
    from pyrage import x25519

log = structlog.get_logger()

_PR_SET_DUMPABLE = 4
MOST_REMEMBERED = 10_000
_IN_MEMORY = {"tmpfs", "ramfs"}
_MISSING = "secrets need pyrage, farmd's extra [secrets] (docs/operations.md#install)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretConfig:
    """The files with the node's identities, and the folder on tmpfs for the files of pods; empty: a default.

    ``state_dir`` tells this agent's files there from another's.
    """

    identities: tuple[str, ...] = ()
    folder: str = ""
    state_dir: Path = Path()


@dataclass(frozen=True, slots=True)
class Opened:
    """The values that one start gets: its variables, and its files by their names. They have no repr."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    folder: Path = Path()

    @property
    def values(self) -> list[bytes]:
        """All values."""
        return [*(each.encode() for each in self.variables.values()), *self.files.values()]

    def own(self, manifest: Manifest) -> dict[str, str]:
        """The variable by which a process finds its files."""
        return {variables.SECRETS: str(self.folder)} if self.files and manifest.runtime == "process" else {}

    def lay_out(self, manifest: Manifest, user: Account | None) -> list[tuple[str, str]]:
        """Write the files of a start on tmpfs: where each is, and where a unit or a container sees it.

        ``user``: the user of the workload; None: any user, in a container.

        Raises:
            StartFailed: a file cannot be written.
        """
        if not self.files:
            return []
        binds = []
        try:
            # Only root and the agent reach the files of a container, whose user is not one of the node's.
            _make(self.folder.parent, 0o711)
            _make(self.folder, 0o700 if user is None else 0o711)
            for each in manifest.secrets:
                if each.secret:
                    uid, gid = _owner(each.uid, each.gid, manifest, user)
                    _write(self.folder / each.name, self.files[each.name], uid, gid, each.mode)
                    binds.append((str(self.folder / each.name), seen_at(each)))
        except OSError as error:
            why = error.strerror or error
            raise StartFailed(f"secrets: {self.folder}: {why}", field="secrets") from error
        return binds


def _owner(uid: int, gid: int, manifest: Manifest, user: Account | None) -> tuple[int, int]:
    """Whose file it is: the pod's user's, unless the manifest of a container says so."""
    if user is not None:
        return user.uid, user.gid
    name, _, group = manifest.user.partition(":")
    if uid or gid or not name.isdecimal():
        return uid, gid
    return int(name), int(group) if group.isdecimal() else 0


def _write(path: Path, content: bytes, uid: int, gid: int, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
        if (uid, gid) != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), uid, gid)
        os.fchmod(file.fileno(), mode)


NOTHING = Opened()


class Secrets:
    """The identities of one node, and the files of its pods."""

    def __init__(self, config: SecretConfig) -> None:
        self._config = config
        mark = hashlib.sha256(os.fsencode(config.state_dir)).hexdigest()[:16]
        self._root = Path(config.folder or _default()) / mark
        self._files = [
            CredentialFiles([path], lambda path=path: _identities(path), keeps=False)  # type: ignore[misc]
            for path in config.identities
        ]
        self._reading = Lock()
        self._held_then: tuple[str, ...] = ()
        self._judged: dict[bytes, str] = {}

    def features(self) -> list[str]:
        """What the node's presence says of them (R11): recipients, never identities."""
        return [SECRETS, *(f"{IDENTITY}{each}" for each in sorted(self._held()[0]))]

    def _held(self) -> tuple[dict[str, x25519.Identity], str]:
        """The identities by their recipients, and why a file has none."""
        found: dict[str, x25519.Identity] = {}
        trouble = ""
        with self._reading:  # starts ask in threads
            for read in self._files:
                try:
                    found |= read()
                except CredentialInvalid as error:
                    trouble = error.message
        return found, trouble

    def preflight(self, manifest: Manifest) -> None:
        """Refuse secrets that this node cannot open, before a running workload is stopped for them.

        Raises:
            StartFailed: naming the secret and its group, never a value; or there is no tmpfs for its files.
        """
        if not manifest.sealed:
            return
        # It is asked at each answer of the store, and opening stops this process: once per identities.
        bodies = [each.body for each in manifest.sealed.values()]
        what = (manifest.id, *bodies, *manifest.secret_env.items(), *(each.name for each in manifest.secrets))
        key = hashlib.sha256(repr(what).encode()).digest()
        found, trouble = self._held()
        held = (*sorted(found), trouble)
        if held != self._held_then or len(self._judged) > MOST_REMEMBERED:
            self._held_then, self._judged = held, {}
        if refused := self._judged.get(key, ""):
            raise StartFailed(refused, field="secrets")
        if key in self._judged:
            return
        try:
            self.open(manifest, "any", "any")
        except StartFailed as error:
            if error.fields.get("field") == "secrets":
                self._judged[key] = error.message
            raise
        self._judged[key] = ""

    def open(self, manifest: Manifest, instance: str, start: str) -> Opened:
        """The secrets of one start.

        Raises:
            StartFailed: as ``preflight``.
        """
        if not manifest.sealed:
            return NOTHING
        held, trouble = self._held()
        values = {name: _open(name, each, held, trouble) for name, each in manifest.sealed.items()}
        files = {each.name: values[each.secret] for each in manifest.secrets if each.secret}
        texts = {
            name: _text(values[named], named, name) for name, named in sorted(manifest.secret_env.items())
        }
        if files:
            self._prepare_root()
        return Opened(texts, files, self._root / instance / start)

    def _prepare_root(self) -> None:
        """Make the agent's folder on tmpfs; nobody else may have made or be able to change it.

        Raises:
            StartFailed: it is another user's, or on a disk.
        """
        top = self._root.parent
        try:
            for folder in (top, self._root):
                _make(folder, 0o711)
                found = folder.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                    raise _refused(
                        f"{folder}: found a folder that others may change, expected the agent's own"
                    )
        except OSError as error:
            raise _refused(f"{top}: {error.strerror}") from error
        if (kind := _file_system(self._root)) not in _IN_MEMORY:
            raise _refused(f"{top}: found the file system {kind}, expected tmpfs: secrets are on no disk")

    def close(self, instance: str, start: str) -> None:
        """Remove the files of a start that is over."""
        _remove(self._root / instance / start)
        self._prune(self._root / instance)

    def keep_only(self, starts: Mapping[str, str]) -> None:
        """Remove the files of all starts but these, by instance."""
        for folder in _entries(self._root):
            for start in _entries(folder):
                if starts.get(folder.name) != start.name:
                    _remove(start)
            self._prune(folder)

    def leave(self) -> None:
        """Remove the agent's own folder, if no pod has a file in it."""
        self._prune(self._root)

    def _prune(self, folder: Path) -> None:
        with suppress(OSError):  # it is not empty, or gone
            folder.rmdir()


def _make(folder: Path, mode: int) -> None:
    """Make a missing folder with this mode, whatever the umask."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(mode)


def _refused(why: str) -> StartFailed:
    return StartFailed(f"agent.secret_folder: {why}", field="agent.secret_folder")


def _open(name: str, sealed: Sealed, held: Mapping[str, x25519.Identity], trouble: str) -> bytes:
    """The value of a secret.

    Raises:
        StartFailed: no identity of this node opens it, or what it holds cannot be.
    """
    where = f"secrets: {name}"
    if not held:
        why = trouble or "agent.secret_identities names no file"
        raise StartFailed(
            f"{where}: this node has no identity of group {sealed.group!r}: {why}", field="secrets"
        )
    import pyrage

    try:
        value: bytes = pyrage.decrypt(base64.b64decode(sealed.body), list(held.values()))
    except pyrage.DecryptError as error:
        damaged = held.keys() & set(sealed.recipients)
        why = "its ciphertext is damaged" if damaged else f"expected one of group {sealed.group!r}"
        text = f"{where}: no identity of this node opens it: {why}"
        raise StartFailed(text, field="secrets") from error
    if not 1 <= len(value) <= MAX_BYTES:
        raise StartFailed(f"{where}: found {len(value)} bytes, expected 1 to {MAX_BYTES}", field="secrets")
    return value


def _text(value: bytes, secret: str, variable: str) -> str:
    """A value as a variable's.

    Raises:
        StartFailed: it is no text.
    """
    try:
        found = value.decode()
    except UnicodeDecodeError:
        found = "\0"  # the error would hold the value
    if "\0" in found:
        raise StartFailed(f"secrets: {secret}: found no text, expected some for {variable}", field="secrets")
    return found


def _identities(path: str) -> dict[str, x25519.Identity]:
    """The identities in a file as ``age-keygen`` writes it, by their recipients.

    Raises:
        CredentialInvalid: it cannot be read, others may read it, or it has no identity.
    """
    setting = "agent.secret_identities"
    try:
        from pyrage import IdentityError, x25519
    except ImportError as error:
        raise CredentialInvalid(f"{setting}: {_MISSING}", field=setting) from error
    expected = "a file that only the agent's user may read (its own, mode 0600)"
    body = guarded(setting, path, 0o077, expected, own=True)
    found = {}
    for line in body.decode("ascii", "replace").splitlines():
        if line.strip() and not line.startswith("#"):
            try:
                identity = x25519.Identity.from_str(line.strip())
            except IdentityError:  # its text may have the line
                raise invalid(
                    setting, f"a line in {path!r} that is no identity", "AGE-SECRET-KEY-1…"
                ) from None
            found[str(identity.to_public())] = identity
    if not found:
        raise invalid(setting, f"no identity in {path!r}", "a file of farmctl secret keygen or age-keygen")
    return found


def _default() -> str:
    if os.geteuid() == 0 and _file_system(Path("/run")) in _IN_MEMORY:
        return "/run/farmd-agent"
    return f"/dev/shm/farmd-agent-{os.geteuid()}"


def _file_system(path: Path) -> str:
    """The type of the file system that a path is on."""
    found = path.stat().st_dev
    device = f"{os.major(found)}:{os.minor(found)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[2] == device:
            return words[words.index("-") + 1]
    return "unknown"


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _remove(folder: Path) -> None:
    """Remove the files of a start; nothing recurses, and what a workload of the agent's user added stays."""
    for remove in (*(path.unlink for path in _entries(folder)), folder.rmdir):
        try:
            remove()
        except FileNotFoundError:
            continue
        except OSError as error:  # the other files go all the same
            log.warning("secrets.not_removed", path=str(folder), error=error.strerror)


def hide_memory() -> None:
    """Keep this process out of core dumps, and from debuggers of its own user."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("secrets.dumpable", error=os.strerror(ctypes.get_errno()))
