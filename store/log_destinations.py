"""Where the output of pods goes besides its files: ``logs.to`` of manifests, and ``agent.log_to``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

EXPECTED = (
    "file, journald, syslog://HOST:PORT (TCP), syslog+udp://HOST:PORT or syslog+tls://HOST:PORT; "
    "an IPv6 address in brackets"
)
MOST = 4
_SYSLOG = re.compile(
    r"syslog(?:\+(udp|tcp|tls))?://(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([1-9][0-9]{0,4})"
)


class Destination(NamedTuple):
    """One destination; ``host`` and ``port`` are those of a syslog server."""

    kind: Literal["file", "journald", "udp", "tcp", "tls"]
    host: str = ""
    port: int = 0


def parsed(text: str) -> Destination:
    """The destination of a text.

    Raises:
        ValueError: it is none.
    """
    if text == "file":
        return Destination("file")
    if text == "journald":
        return Destination("journald")
    found = _SYSLOG.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"found {text!r}, expected {EXPECTED}")
    kind: Literal["udp", "tls", "tcp"] = "udp" if found[1] == "udp" else "tls" if found[1] == "tls" else "tcp"
    return Destination(kind, found[2].strip("[]"), int(found[3]))


def valid(text: str) -> bool:
    """Whether a text is a destination."""
    try:
        parsed(text)
    except ValueError:
        return False
    return True


def mistakes(texts: Sequence[str]) -> Iterator[tuple[object, str]]:
    """What was found and what was expected, for each mistake in a list of destinations."""
    if len(texts) > MOST:
        yield len(texts), f"at most {MOST} destinations"
    yield from ((text, EXPECTED) for text in texts if not valid(text))
    if len(set(texts)) < len(texts):
        yield list(texts), "each destination once"


def elsewhere(texts: Sequence[str]) -> list[str]:
    """The destinations besides the files, which every pod has."""
    return [text for text in texts if text != "file"]
