"""Names of services that nobody named: the last part of the image's name and four random characters."""

from __future__ import annotations

from store import images
from store.ports import Rng

_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_ROOM = 63 - 5


def generate_service_name(image: str, rng: Rng) -> str:
    """A name such as ``nginx-x7q2``; characters that no name can have become dashes (uncloud fails there).

    Raises:
        InputInvalid: no reference of an image.
    """
    last = images.parse(image).path.rpartition("/")[2]
    plain = "".join(character if character in _CHARACTERS else "-" for character in last)
    end = "".join(_CHARACTERS[int(rng.uniform(0, len(_CHARACTERS))) % len(_CHARACTERS)] for _ in range(4))
    return f"{plain[:_ROOM].strip('-')}-{end}"
