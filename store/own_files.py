"""Files that grant rights: read only where nobody but root and this process's user can change them.

Each folder and link on the way counts: with write access to one of them, another file could take its place.
A folder with the sticky bit, such as ``/tmp``, is as good as one that others cannot write, because there
nobody replaces what belongs to somebody else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePath

from store.credentials import LIMIT_BYTES, invalid, regular, unreadable

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


def own_content(field: str, path: str) -> bytes:
    """The content of a file, without white space around it; it may be empty.

    Raises:
        CredentialInvalid: the file cannot be read or is too large, or others may change or replace it.
    """
    try:
        resolved = _resolved(field, path)
    except (OSError, ValueError) as error:
        raise unreadable(field, path, error) from error
    with regular(field, path, resolved, os.O_NOFOLLOW) as (file, state):
        _require_own(field, path, state)
        if stat.S_IMODE(state.st_mode) & _OTHERS:
            mode = stat.S_IMODE(state.st_mode)
            raise invalid(field, f"mode {mode:04o} of {path!r}", "a file that only its owner may write")
        found = file.read(LIMIT_BYTES + 1).strip()
    if len(found) > LIMIT_BYTES:
        raise invalid(field, f"more than {LIMIT_BYTES} bytes in {path!r}", "a credential")
    return found


def _resolved(field: str, path: str) -> Path:
    """The path without links, of which each folder on the way was looked at."""
    left, at, links = list(Path(path).absolute().parts[1:]), Path("/"), 0
    while left:
        _require_own_folder(field, at)
        part = left.pop(0)
        if part == "..":
            at = at.parent
            continue
        state = (at / part).lstat()
        if not stat.S_ISLNK(state.st_mode):
            at /= part
            if left and not stat.S_ISDIR(state.st_mode):
                raise invalid(field, f"{str(at)!r}, which is not a folder", "a readable file")
            continue
        _require_own(field, str(at / part), state)
        links += 1
        if links > _MOST_LINKS:
            raise invalid(field, f"more than {_MOST_LINKS} links in {path!r}", "a readable file")
        target = PurePath((at / part).readlink())
        if target.is_absolute():
            at = Path("/")
        left = [*(target.parts[1:] if target.is_absolute() else target.parts), *left]
    return at


def _require_own_folder(field: str, folder: Path) -> None:
    state = folder.stat(follow_symlinks=False)
    _require_own(field, str(folder), state)
    if state.st_mode & _OTHERS and not state.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(state.st_mode)
        raise invalid(
            field, f"mode {mode:04o} of the folder {str(folder)!r}", "a folder that others cannot write"
        )


def _require_own(field: str, path: str, state: os.stat_result) -> None:
    if state.st_uid not in (0, os.geteuid()):
        raise invalid(
            field, f"owner {state.st_uid} of {path!r}", f"root or the user {os.geteuid()} of this process"
        )
