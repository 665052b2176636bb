"""Writes a manifest's files and copies of the node's secrets, for the container to see read-only.

They lie in a folder named after their content, so that the running container keeps its own while the next
one is prepared. Only root can reach the folder; a file itself has the owner and mode that the manifest says.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from farmd.agent.errors import StartFailed
from farmd.agent.removal import Trash
from farmd.agent.runtimes import runtime
from farmd.agent.runtimes.container_config import Bind
from store.manifest_check import seen_at
from store.manifests import Manifest

MAX_SECRET_BYTES = 1024 * 1024

_Wanted = tuple[str, bytes, int, int, int]
"""(path in the container, content, uid, gid, mode)."""


def lay_out(folder: Path, manifest: Manifest, secrets_dir: Path) -> list[Bind]:
    """Write what is missing; what the container must see where.

    Raises:
        StartFailed: a secret is not on this node, files cannot be written, or a path of a bind has a link.
    """
    for mount in manifest.mounts:
        if mount.type == "bind" and mount.create:
            runtime.make_folders(mount.source)
    wanted: list[_Wanted] = [
        (file.path, file.body, file.uid, file.gid, file.mode) for file in manifest.files if not file.template
    ]
    for secret in manifest.secrets:
        if secret.secret:
            continue  # it is on no disk
        content = _secret(secrets_dir, secret.name)
        wanted.append((seen_at(secret), content, secret.uid, secret.gid, secret.mode))
    if not wanted:
        return []
    here = folder / hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]
    for at, (_, content, uid, gid, mode) in enumerate(wanted):
        _write(here / str(at), content, uid, gid, mode)
    return [(str(here / str(at)), path) for at, (path, *_) in enumerate(wanted)]


def keep_only(folder: Path, binds: list[Bind], trash: Trash) -> None:
    """Remove the files of earlier starts."""
    kept = {Path(here).parent for here, _ in binds}
    if folder.exists():
        for each in folder.iterdir():
            if each not in kept:
                trash.throw(each)


def _secret(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartFailed(f"secrets: {name}: {reason} in {folder} of this node", field="secrets") from error
    if len(content) > MAX_SECRET_BYTES:
        raise StartFailed(f"secrets: {name}: found more than {MAX_SECRET_BYTES} bytes", field="secrets")
    return content


def _write(path: Path, content: bytes, uid: int, gid: int, mode: int) -> None:
    if path.exists():
        return
    try:
        path.parent.parent.mkdir(exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        fresh = path.with_name(path.name + ".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            if (uid, gid) != (os.geteuid(), os.getegid()):
                _give(file.fileno(), uid, gid)
            os.fchmod(file.fileno(), mode)
        fresh.rename(path)
    except OSError as error:
        raise StartFailed(f"files: {path}: {error.strerror or error}", field="files") from error


def _give(file: int, uid: int, gid: int) -> None:
    try:
        os.fchown(file, uid, gid)
    except PermissionError as error:
        own = f"{os.geteuid()}:{os.getegid()}"
        expected = f"uid and gid of the agent's user, {own}, because the agent does not run as root"
        raise StartFailed(f"files: found owner {uid}:{gid}, expected {expected}", field="files") from error
