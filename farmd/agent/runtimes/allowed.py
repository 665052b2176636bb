"""What the node allows to workloads with a view of their own on it: ``agent.allow``."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

import msgspec

from farmd.agent.errors import StartFailed
from store import features
from store.manifests import Manifest


def as_features(allow: Sequence[str]) -> list[str]:
    """What the node's presence says of it (R11)."""
    return [f"allow.{each}" for each in allow]


def identity(path: str) -> tuple[int, int]:
    """The device and the number of what a path leads to that was judged a moment ago, and so has no links.

    Raises:
        StartFailed: it has one now. OSError: it does not exist.
    """
    at = _opened(path)
    try:
        found = os.fstat(at)
        return found.st_dev, found.st_ino
    finally:
        os.close(at)


def make_folders(path: str) -> None:
    """Make the missing folders of a path that was judged a moment ago, and so has no links.

    Raises:
        StartFailed: it has one now, or cannot be made.
    """
    try:
        os.close(_opened(path, make=True))
    except OSError as error:
        why = error.strerror or error
        raise StartFailed(f"mounts: {path} cannot be made: {why}", field="mounts") from error


def _opened(path: str, *, make: bool = False) -> int:
    """A descriptor of a path that was reached by no link; the caller closes it."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, path.split("/")):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise StartFailed(f"mounts: {path} became a link meanwhile", field="mounts")
    except BaseException:
        os.close(at)
        raise
    return at


def refuse_others(manifest: Manifest, allow: Sequence[str], *, kept: bool = False) -> None:
    """Refuse what ``allow`` does not list; a link is judged by where it leads.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    resolved(manifest, allow, kept=kept)


def resolved(manifest: Manifest, allow: Sequence[str], *, kept: bool = False) -> Manifest:
    """The manifest with binds of what their paths lead to now, which is what was judged.

    A workload may put a link in place of a folder that it can write to, so this is asked right before each
    start, and no path that is not resolved is passed on. ``kept`` is that of ``Launch``.

    Raises:
        StartFailed: naming what this node does not allow.
    """
    mounts = [
        msgspec.structs.replace(mount, source=os.path.realpath(mount.source))
        if mount.type == "bind"
        else mount
        for mount in manifest.mounts
    ]
    real = msgspec.structs.replace(manifest, mounts=mounts)
    needs = [
        need for need in (*features.needed(manifest), *features.needed(real)) if need.startswith("allow.")
    ]
    lacking = [each.removeprefix("allow.") for each in features.lacking(needs, as_features(allow))]
    # As whom it runs is the users' matter.
    ignored = features.YOUNGER if kept else {features.ROOT}
    if what := ", ".join(each for each in dict.fromkeys(lacking) if each not in ignored):
        raise StartFailed(f"agent.allow: this node does not allow {what}", field="agent.allow")
    return real
