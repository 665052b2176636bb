"""Which compose files a person means, and the variables for them: as compose finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farmd.compose.env_file import pairs
from store.errors import InputInvalid

NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")


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


def found(given: Sequence[str], env: Mapping[str, str], folder: Path) -> list[str]:
    """The compose files: those that are given, those of ``COMPOSE_FILE``, or those of the folder.

    Raises:
        InputInvalid: none is given, and the folder has none.
    """
    if given:
        return list(given)
    if named := env.get("COMPOSE_FILE", ""):
        return named.split(env.get("COMPOSE_PATH_SEPARATOR", ":"))
    for name in NAMES:
        if (folder / name).is_file():
            stem, _, ending = name.rpartition(".")
            others = [folder / f"{stem}.override.{each}" for each in ("yaml", "yml")]
            over = [str(each) for each in others if each.is_file()][:1]
            return [str(folder / f"{stem}.{ending}"), *over]
    raise InputInvalid(f"found no {NAMES[0]} in {folder}, expected one there or -f FILE", field="file")


def variables(env: Mapping[str, str], folder: Path, text: Callable[[str], str]) -> dict[str, str]:
    """The caller's variables over those of ``.env`` in the folder."""
    path = folder / ".env"
    if env.get("COMPOSE_DISABLE_ENV_FILE", "").lower() in ("1", "true") or not path.is_file():
        return dict(env)
    found = pairs(text(str(path)), str(path))
    return {key: value or "" for key, value in found.items()} | dict(env)
