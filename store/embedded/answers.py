"""The answers of the server: Consul's headers, statuses and texts, and blocking queries.

A handler returns a ``Response``, or a ``Query``, which is read again until its index has passed the
caller's. Both faces send the responses unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from store.ports import Response

# The watches of blocking queries: a query registers here for keys or prefixes and is woken once.
#
# A wake-up carries no data; the query reads again and compares the index. The cost of a change grows with
# the number of distinct lengths of watched prefixes, not with the number of queries. The query that waits
# longest is woken first, so that a test in virtual time is the same in every run.

Wake = Callable[[], None]


class TableWatches:
    """One registry for each table."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Wake, None]] = {}
        self._prefixes: dict[str, dict[Wake, None]] = {}
        self._lengths: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of registered watches."""
        return sum(map(len, self._exact.values())) + sum(map(len, self._prefixes.values()))

    def key(self, key: str, wake: Wake) -> Wake:
        """Call ``wake`` when this key changes; returns the cancellation."""
        self._exact.setdefault(key, {})[wake] = None
        return lambda: self._forget(self._exact, key, wake)

    def prefix(self, prefix: str, wake: Wake) -> Wake:
        """Call ``wake`` when any key under a prefix changes; returns the cancellation."""
        if prefix not in self._prefixes:
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        self._prefixes.setdefault(prefix, {})[wake] = None
        return lambda: self._forget_prefix(prefix, wake)

    def changed(self, keys: Iterable[str]) -> None:
        """Wake all watches of these keys, each once."""
        woken: dict[Wake, None] = {}
        for key in keys:
            woken |= self._exact.get(key, {})
            for length in self._lengths:
                if length <= len(key):
                    woken |= self._prefixes.get(key[:length], {})
        for wake in woken:
            wake()

    def _forget_prefix(self, prefix: str, wake: Wake) -> None:
        self._forget(self._prefixes, prefix, wake)
        if prefix not in self._prefixes:
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]

    @staticmethod
    def _forget(registry: dict[str, dict[Wake, None]], key: str, wake: Wake) -> None:
        waiting = registry[key]
        del waiting[wake]
        if not waiting:
            del registry[key]


_JSON = {"content-type": "application/json", "vary": "Accept-Encoding"}
_TEXT = {"content-type": "text/plain; charset=utf-8", "vary": "Accept-Encoding"}
_encoder = msgspec.json.Encoder()


class HttpError(Exception):
    """An error that is answered with a status and one line of text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

    def response(self) -> Response:
        """The error as an answer."""
        return text(self.text, self.status)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query: its index, and a function that builds the response."""

    index: int
    render: Callable[[], Response]


@dataclass(frozen=True, slots=True)
class Query:
    """A read that can block.

    Attributes:
        read: reads the present state.
        watch: registers a wake-up for when the result may have changed; returns its cancellation.
    """

    read: Callable[[], QueryResult]
    watch: Callable[[Wake], Wake]


def json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, compact."""
    return Response(status, {**_JSON, **(headers or {})}, _encoder.encode(value))


def text(line: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """One line of text."""
    return Response(status, {**_TEXT, **(headers or {})}, line.encode())


def nothing(status: int, headers: Mapping[str, str] | None = None) -> Response:
    """An answer without a body."""
    return Response(status, {"vary": "Accept-Encoding", **(headers or {})}, b"")


def pretty(response: Response) -> Response:
    """The same JSON, indented as ``?pretty`` asks."""
    if response.headers.get("content-type") != "application/json":
        return response
    body = msgspec.json.format(response.body, indent=4) + b"\n"
    return Response(response.status, response.headers, body)


def meta(index: int | None = None) -> dict[str, str]:
    """Headers of every read: this server is always the leader, so its data are never stale."""
    headers = {"x-consul-knownleader": "true", "x-consul-lastcontact": "0"}
    if index is not None:
        headers["x-consul-index"] = str(index)
    return headers
