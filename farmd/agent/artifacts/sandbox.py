"""Copies a file of the node and unpacks archives, in a process of its own: ``python -I -S sandbox.py``.

It reads on stdin what to do, and writes to stdout why it could not. A file is read as the user of the pod
that wants it, so that the agent lends nobody its own rights. An archive is unpacked with bounds and, by root,
with the new folder as the root of all paths, so that no name and no link in it can lead elsewhere. What an
archive may not have is refused, not left out.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

CHUNK = 1 << 20
PR_SET_PDEATHSIG = 1
LOOK_BYTES = 8 << 20
MEMORY, CPU_SECONDS = 1 << 30, 900
DEEPEST, LONGEST_LINK = 100, 4096
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unfit(Exception):
    """One clear line on what is wrong."""


class Budget:
    """What may still be written: ``most`` bytes, of which the disk keeps ``reserve`` free."""

    def __init__(self, at: int | str, most: int, reserve: int, setting: str) -> None:
        self._at, self._most, self._reserve, self._setting = at, most, reserve, setting
        self._written, self._look = 0, 0

    def take(self, size: int) -> None:
        """Count bytes before they are written."""
        self._written += size
        if self._written > self._most:
            raise Unfit(f"larger than {self._most} bytes ({self._setting})")
        if self._written >= self._look:
            self._look = self._written + LOOK_BYTES
            found = os.statvfs(self._at)
            free = (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
            if free < self._reserve + min(size, LOOK_BYTES):
                raise Unfit(f"disk full: {self._reserve} bytes stay free")


def end_with(parent: int) -> None:
    """End when the agent ends: the next agent fetches again, and two processes would write at once."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def copy(spec: dict[str, Any]) -> None:
    """Copy a file of the node into a file of the agent, as the user of the pod."""
    into = os.open(spec["part"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if spec["user"] is not None:
        uid, gid, groups = spec["user"]
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        end_with(spec["parent"])
    path = spec["path"]
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unfit(f"{path}: {error.strerror} for the user that the pod runs as") from error
    if not stat.S_ISREG(os.fstat(source).st_mode):
        raise Unfit(f"{path} is not a regular file")
    real = os.readlink(f"/proc/self/fd/{source}")  # noqa: PTH115
    folders = [os.path.realpath(each) for each in spec["folders"]]
    if not any(real == each or real.startswith(each.rstrip("/") + "/") for each in folders):
        raise Unfit(f"{path} leads to {real}, which the node's agent.allow does not list")
    budget = Budget(into, spec["most"], spec["reserve"], "agent.artifact_max")
    while data := os.read(source, CHUNK):
        budget.take(len(data))
        _write(into, data)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Tree:
    """What was unpacked so far, below the current directory."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._entries, self._most = 0, spec["entries"]
        self._budget = Budget(".", spec["most"], spec["reserve"], "agent.artifact_max_unpacked")
        self._kinds: dict[str, str] = {}
        self._links: dict[str, str] = {}

    def folder(self, name: str) -> None:
        """Make a folder, and those above it."""
        if path := self._named(name):
            self._folders(path, name)

    def file(self, name: str, content: BinaryIO, mode: int, at: float) -> None:
        """Write a file."""
        if mode & (stat.S_ISUID | stat.S_ISGID):
            raise Unfit(f"{shown(name)} has the set-user-ID or set-group-ID bit")
        path = self._new(name, "f")
        fd = os.open(path, FRESH, 0o600)
        try:
            while data := content.read(CHUNK):
                self._budget.take(len(data))
                _write(fd, data)
            if 0 <= at < 1 << 33:
                os.utime(fd, (at, at))
            os.fchmod(fd, 0o555 if mode & 0o111 else 0o444)
        finally:
            os.close(fd)

    def hard_link(self, name: str, target: str) -> None:
        """Give a file that was written a second name."""
        known = self._named(target, count=False)
        if self._kinds.get(known) != "f":
            raise Unfit(f"{shown(name)} is a link to {shown(target)}, which is no file in the archive")
        os.link(known, self._new(name, "f"), follow_symlinks=False)

    def link(self, name: str, target: str) -> None:
        """Note a link: it is made once nothing else is, so that nothing is written through it.

        Its leading ``..`` are resolved from a real folder, and after them it may only go down: into files,
        folders, and links of which the same holds. So it stays inside.
        """
        path = self._new(name, "l")
        steps = [each for each in target.split("/") if each not in ("", ".")]
        up = next((at for at, each in enumerate(steps) if each != ".."), len(steps))
        inside = not target.startswith("/") and up <= path.count("/") and ".." not in steps[up:]
        if not target or len(target) > LONGEST_LINK or not inside:
            raise Unfit(f"{shown(name)} is a link to {shown(target)}, which could leave the folder")
        self._links[path] = target

    def finish(self) -> None:
        """Make the links, take the rights to write, and have all of it on the disk."""
        for path, target in self._links.items():
            os.symlink(target, path)  # noqa: PTH211
        for path, kind in self._kinds.items():
            if kind == "d":
                os.chmod(path, 0o555)  # noqa: PTH101
        os.chmod(".", 0o555)  # noqa: PTH101

    def _new(self, name: str, kind: str) -> str:
        path = self._named(name)
        if not path or path in self._kinds:
            raise Unfit(f"{shown(name)} is in the archive more than once")
        above = path.rpartition("/")[0]
        if above:
            self._folders(above, name)
        self._kinds[path] = kind
        return path

    def _folders(self, path: str, name: str) -> None:
        known = self._kinds.get(path)
        if known == "d":
            return
        if known is not None:
            raise Unfit(f"{shown(name)} is below a link or a file of the archive, or in its place")
        above = path.rpartition("/")[0]
        if above:
            self._folders(above, name)
        self._count()
        os.mkdir(path, 0o700)  # noqa: PTH102
        self._kinds[path] = "d"

    def _named(self, name: str, *, count: bool = True) -> str:
        steps = [each for each in name.split("/") if each not in ("", ".")]
        if name.startswith("/") or ".." in steps or "\0" in name:
            raise Unfit(f"{shown(name)} leaves the folder that it is unpacked into")
        if len(steps) > DEEPEST:
            raise Unfit(f"{shown(name)} is more than {DEEPEST} folders deep")
        if count:
            self._count()
        return "/".join(steps)

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._most:
            raise Unfit(f"more than {self._most} files and folders")


def shown(name: str) -> str:
    """A name of the archive, whatever is in it."""
    return ascii(name if len(name) <= 100 else name[:97] + "...")


def unpack(spec: dict[str, Any]) -> None:
    """Unpack an archive into a new folder."""
    # All that it needs is imported before the folder becomes the root.
    import gzip
    import tarfile
    import zipfile
    import zlib

    zstd, broken = _zstd(spec) if spec["kind"] == "tar.zst" else (None, EOFError)
    "".encode("cp437")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(spec["part"], "rb") as archive:  # noqa: PTH123
        sync = _syncing()
        os.chdir(spec["into"])
        try:
            os.chroot(".")
        except PermissionError:
            pass  # only root may; what is refused below would be refused all the same
        tree = Tree(spec)
        try:
            if spec["kind"] == "zip":
                _zip(tree, zipfile.ZipFile(archive))
            else:
                mode = "r:gz" if spec["kind"] == "tar.gz" else "r:"
                source = archive if zstd is None else zstd(archive)
                with tarfile.open(fileobj=source, mode=mode) as tar:  # type: ignore[call-overload]
                    unpack_tar(tree, tar)
        except (
            tarfile.TarError,
            zipfile.BadZipFile,
            zlib.error,
            gzip.BadGzipFile,
            EOFError,
            broken,
        ) as error:
            raise Unfit(f"it is not a good {spec['kind']}: {error}") from error
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise Unfit(f"it cannot be unpacked as {spec['kind']}: {error}") from error
        except MemoryError as error:
            raise Unfit("it takes too much memory to unpack") from error
        tree.finish()
        sync()


def _zstd(spec: dict[str, Any]) -> tuple[Any, type[Exception]]:
    """What reads zstd, and its error: of the standard library, else of a package of the agent's Python."""
    if spec["zstd"] is None:
        raise Unfit("this node has no zstd: its agent needs Python 3.14, or farmd's extra [zstd]")
    if spec["zstd"]:
        sys.path.append(spec["zstd"])
        from backports.zstd import ZstdError, ZstdFile
    else:
        from compression.zstd import ZstdError, ZstdFile  # type: ignore[import-not-found, no-redef]
    return ZstdFile, ZstdError


def unpack_tar(tree: Tree, archive: Any) -> None:
    """Make what an archive has."""
    for each in archive:
        archive.members = []  # else it keeps all of them
        if each.isdir():
            tree.folder(each.name)
        elif each.issym():
            tree.link(each.name, each.linkname)
        elif each.islnk():
            tree.hard_link(each.name, each.linkname)
        elif each.isreg():
            tree.file(each.name, archive.extractfile(each), each.mode, each.mtime)
        else:
            raise Unfit(f"{shown(each.name)} is a device, a pipe or of another kind that is not unpacked")


def _zip(tree: Tree, archive: Any) -> None:
    for each, mode in _entries(archive):
        kind = stat.S_IFMT(mode)
        if each.is_dir():
            tree.folder(each.filename)
        elif kind == stat.S_IFLNK:
            with archive.open(each) as content:
                tree.link(each.filename, content.read(LONGEST_LINK + 1).decode("utf-8", "surrogateescape"))
        elif kind in (0, stat.S_IFREG):
            with archive.open(each) as content:
                tree.file(each.filename, content, mode, -1)
        else:
            raise Unfit(f"{shown(each.filename)} is a device, a pipe or of another kind")


def _entries(archive: Any) -> Iterator[tuple[Any, int]]:
    """The entries with their modes of Unix, 0 where another system made the archive."""
    for each in archive.infolist():
        yield each, each.external_attr >> 16 if each.create_system == 3 else 0


def _syncing() -> Any:
    """What has the current file system written to the disk; the C library is loaded now."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def sync() -> None:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            if libc.syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(fd)

    return sync


def main() -> None:
    """Do what stdin says."""
    spec = marshal.loads(sys.stdin.buffer.read())
    end_with(spec["parent"])
    os.umask(0o077)
    try:
        (unpack if "into" in spec else copy)(spec)
    except Unfit as error:
        why = str(error)
    except OSError as error:
        why = "disk full" if error.errno in (28, 122) else error.strerror or str(error)
    else:
        return
    os.write(1, why.encode("utf-8", "backslashreplace"))
    os._exit(1)


if __name__ == "__main__":
    main()
