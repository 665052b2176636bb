"""How the server says things: Consul's headers, statuses and texts, and answers that can wait.

A handler gives a ``Response`` at once, or a ``Query``: something that can be read again and again
until its index has passed the caller's. Both faces send what they get from here unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from store.embedded.watches import Wake
from store.ports import Response

_JSON = {"content-type": "application/json", "vary": "Accept-Encoding"}
_TEXT = {"content-type": "text/plain; charset=utf-8", "vary": "Accept-Encoding"}
_encoder = msgspec.json.Encoder()


class Complaint(Exception):
    """A request that is answered with a status and one line of text."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}

    def response(self) -> Response:
        """The answer."""
        return text(self.text, self.status, self.headers)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a query found: the index of it, and how to write it down."""

    index: int
    render: Callable[[], Response]


@dataclass(frozen=True, slots=True)
class Query:
    """A question that can wait.

    Attributes:
        read: answers it as things are now.
        watch: arranges for a wake-up when the answer may have changed; returns what cancels that.
    """

    read: Callable[[], Reading]
    watch: Callable[[Wake], Wake]


def json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, compact."""
    return Response(status, {**_JSON, **(headers or {})}, _encoder.encode(value))


def text(line: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """One line of text."""
    return Response(status, {**_TEXT, **(headers or {})}, line.encode())


def nothing(status: int, headers: Mapping[str, str] | None = None) -> Response:
    """No body."""
    return Response(status, {"vary": "Accept-Encoding", **(headers or {})}, b"")


def pretty(response: Response) -> Response:
    """The same JSON, indented as ``?pretty`` asks."""
    if response.headers.get("content-type") != "application/json":
        return response
    body = msgspec.json.format(response.body, indent=4) + b"\n"
    return Response(response.status, response.headers, body)


def meta(index: int | None = None) -> dict[str, str]:
    """Headers of every read: this server always leads and is never behind."""
    headers = {"x-consul-knownleader": "true", "x-consul-lastcontact": "0"}
    if index is not None:
        headers["x-consul-index"] = str(index)
    return headers
