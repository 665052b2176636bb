"""Sessions of browsers: a random id in a cookie, and in this process alone whose it is.

So a session ends with the process, with its time, when somebody signs out, also for a copy of the cookie, and
at once when its token's line leaves the file.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from farmd.web.tokens import Person, TokenLine, Tokens
from store.ports import Clock

SECONDS = 12 * 3600
MOST_EACH = 20
"""A person's sessions; one more ends the oldest."""


class _Session(NamedTuple):
    line: TokenLine
    until: float


class Sessions:
    """The open ones, by a hash of their id, so that no comparison tells how near a guess was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[bytes, _Session] = {}

    def opened(self, line: TokenLine) -> str:
        """The id of a new session of a token's line."""
        now = self._clock.now()
        self._open = {key: each for key, each in self._open.items() if each.until > now}
        same = [key for key, each in self._open.items() if each.line.person.name == line.person.name]
        for key in same[: max(0, len(same) + 1 - MOST_EACH)]:
            del self._open[key]
        made = os.urandom(32).hex()
        self._open[_key(made)] = _Session(line, now + SECONDS)
        return made

    def person(self, ident: str, tokens: Tokens) -> Person | None:
        """Whose session it is, if its token's line stands as it stood; None: nobody's."""
        found = self._open.get(_key(ident))
        if found is None or found.until <= self._clock.now():
            return None
        return found.line.person if tokens.get(found.line.person.name) == found.line else None

    def end(self, ident: str) -> None:
        """End a session; one that is not open is ended."""
        self._open.pop(_key(ident), None)


def _key(ident: str) -> bytes:
    return hashlib.sha256(ident.encode(errors="replace")).digest()
