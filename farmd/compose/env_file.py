"""Files of variables, such as ``.env``: one ``NAME=value`` a line, in the forms that dotenv knows."""

from __future__ import annotations

from io import StringIO

from dotenv.parser import parse_stream

from store.errors import InputInvalid
from store.mistakes import shown


def pairs(text: str, source: str) -> dict[str, str | None]:
    """The variables of a file; a name without ``=`` has None.

    Raises:
        InputInvalid: naming the line that cannot be read.
    """
    found: dict[str, str | None] = {}
    for each in parse_stream(StringIO(text)):
        if each.error:
            written = each.original.string
            line = each.original.line + len(written) - len(written.lstrip("\n"))
            raise InputInvalid(f"{source}: line {line}: found {shown(written.strip())}, expected NAME=value")
        if each.key is not None:
            found[each.key] = each.value
    return found
