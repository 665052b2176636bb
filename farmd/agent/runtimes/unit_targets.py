"""Where a unit may see something else than its node has: nowhere that its shim uses while it is root.

A shim runs inside the unit, sees its mounts and files, and is root until it becomes the workload. So whoever
laid something over its Python, its libraries or the records that it writes would be root.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes.shims import SHIM
from store.manifest_check import seen_at
from store.manifests import Manifest

_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr/bin", "/usr/sbin"),
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/bin", "/usr/local/lib"),
    *("/proc", "/sys", "/dev/null", "/etc/ld.so.cache", "/etc/ld.so.preload"),
)
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def refuse_unsafe(manifest: Manifest, state: Path, *, new_privileges: bool = False) -> None:
    """Refuse a manifest that shows its workload something in a place that a shim uses; ``state`` is one.

    ``new_privileges``: workloads may run set-user-ID programs, which believe what ``/etc`` says.

    Raises:
        StartFailed: naming the field, the path and why it cannot be there.
    """
    own = {os.path.normpath(each.target): each.type != "tmpfs" for each in manifest.mounts}
    used_by_root = (*_SYSTEM, *_python(), str(state), *(["/etc"] if new_privileges else []))
    guarded = [path for each in used_by_root for path in (each, os.path.realpath(each))]
    for field, target in _targets(manifest):
        places = (os.path.normpath(target), os.path.realpath(target))
        used = next((each for each in guarded for place in places if _overlap(each, place)), "")
        above = [str(each) for each in Path(places[0]).parents]
        if used:
            why = f"its shim, or what it may start, uses {used} as root"
        elif inside := next((each for each in above if own.get(each)), ""):
            why = f"the content of {inside}, which workloads can write, could point elsewhere"
        elif loose := next(_loose(places[1]), ""):
            why = f"users other than root may change {loose}, which could then point elsewhere"
        else:
            continue
        raise StartFailed(
            f"{field}: a unit cannot have a mount of its own at {target}, because {why},"
            " and this node's agent.allow does not list 'root'",
            field=field.partition("[")[0],
        )


def _targets(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for at, mount in enumerate(manifest.mounts):
        yield f"mounts[{at}].target", mount.target
    for at, file in enumerate(manifest.files):
        yield f"files[{at}].path", file.path
    for at, secret in enumerate(manifest.secrets):
        yield f"secrets[{at}].path", seen_at(secret)
    for at, artifact in enumerate(manifest.artifacts):
        if artifact.to.startswith("/"):
            yield f"artifacts[{at}].to", artifact.to


def _python() -> Iterator[str]:
    """Where the Python of shims is, with its library and farmd's code."""
    yield from (str(SHIM.parent), os.path.dirname(sys.executable), os.path.dirname(os.__file__))  # noqa: PTH120
    yield from (f"{sys.base_prefix}/bin", f"{sys.base_prefix}/lib")
    if sys.prefix != sys.base_prefix:
        yield sys.prefix


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _loose(target: str) -> Iterator[str]:
    """The folders above a path in which others than root may put something in its place."""
    for folder in Path(target).parents:
        try:
            state = folder.lstat()
        except OSError:
            continue  # systemd makes it
        if state.st_uid != 0 or state.st_mode & _OTHERS:
            yield str(folder)
