"""Which compose files a person means, and the variables for them: as compose finds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farmd.compose.interpolation import read_into, warnings
from farmd.compose.load import MAX_COPY_BYTES
from store.errors import InputInvalid

MAX_COPIES = 200
NAMES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
OVERRIDES = tuple(
    f"{stem}.override.{ending}" for stem in ("compose", "docker-compose") for ending in ("yml", "yaml")
)


@dataclass(frozen=True, slots=True)
class Disk:
    """The files of this machine; ``text`` reads one."""

    text: Callable[[str], str]

    def read(self, path: str) -> str:
        """A file's text.

        Raises:
            InputInvalid: it cannot be read.
        """
        return self.text(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return Path(path).is_file()

    def copy(self, path: str) -> bytes:
        """As ``Files``."""
        try:
            with Path(path).open("rb") as file:
                return file.read(MAX_COPY_BYTES + 1)
        except IsADirectoryError as error:
            expected = "a file; farmctl deploy --with-files copies folders that are mounted"
            raise InputInvalid(f"{path}: found a folder, expected {expected}") from error
        except OSError as error:
            raise InputInvalid(f"{path}: cannot be read: {error.strerror}") from error

    def below(self, path: str) -> list[str]:
        """As ``Files``."""
        top = Path(path)
        if top.is_file():
            return [""]
        if not top.is_dir():
            raise InputInvalid(f"{path}: found nothing, expected a file or a folder")
        found = []
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted([*names, *(each for each in folders if Path(folder, each).is_symlink())]):
                each = Path(folder, name)
                if each.is_symlink() or not each.is_file():
                    raise InputInvalid(f"{each}: found a link or device, expected files and folders alone")
                found.append(str(each.relative_to(top)))
                if len(found) > MAX_COPIES:
                    raise InputInvalid(f"{path}: found more than {MAX_COPIES} files, expected fewer")
        return found


def found(given: Sequence[str], env: Mapping[str, str], folder: Path) -> list[str]:
    """The compose files: those that are given, those of ``COMPOSE_FILE``, or those of the folder or the
    nearest above it.

    Raises:
        InputInvalid: none is given, and there are none.
    """
    if given:
        return list(given)
    known = variables(env, folder, lambda path: Path(path).read_text("utf-8", "replace"))
    if named := known.get("COMPOSE_FILE", ""):
        return named.split(known.get("COMPOSE_PATH_SEPARATOR", ":"))
    for place in (folder, *folder.resolve().parents):
        if files := _first(place, NAMES):
            return [*files, *_first(place, OVERRIDES)]
    where = folder.resolve()
    raise InputInvalid(f"found no {NAMES[0]} in {where} or above, expected one or -f FILE", field="file")


def _first(folder: Path, names: Sequence[str]) -> list[str]:
    return [str(folder / name) for name in names if (folder / name).is_file()][:1]


def variables(
    env: Mapping[str, str],
    folder: Path,
    text: Callable[[str], str],
    warn: Callable[[Sequence[str]], None] = lambda _: None,
) -> dict[str, str]:
    """The caller's variables over those of ``.env`` in the folder; ``warn`` of those that have no value."""
    path = folder / ".env"
    if env.get("COMPOSE_DISABLE_ENV_FILE", "").lower() in ("1", "true") or not path.is_file():
        return dict(env)
    found: dict[str, str] = {}
    warn(warnings(read_into(found, text(str(path)), str(path), env)))
    return found | dict(env)
