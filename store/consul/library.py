"""python-consul2's endpoint code over ``Exchange``, for rare reads.

The library builds paths and reads answers; ``Exchange`` has the connections, token, limits and errors.
The library's constructor is never run: it reads ``CONSUL_*`` from the environment, overrides its
arguments and fails on addresses that Consul's own tools accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consul import base
from multidict import CIMultiDict

from store.consul.exchange import RENEW_SECONDS, SHORT_SECONDS, Exchange, Op, not_consul
from store.ports import Lane, Request

_OPS = {"session": Op.SESSION_INFO, "agent": Op.AGENT}


class LibraryHTTP:
    """The library's HTTP client as a coroutine over ``Exchange``; farmd needs only GET."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def get(
        self,
        callback: Callable[[base.Response], Any],
        path: str,
        params: Sequence[tuple[str, Any]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a GET and return what ``callback`` makes of the answer.

        Raises:
            StoreError: as ``Exchange``; ``UnexpectedAnswer`` also if ``callback`` fails.
        """
        pairs = tuple((name, str(value)) for name, value in params or ())
        op = _OPS[path.split("/")[2]]
        # Who asks for a session waits with its renewal, so this takes no longer than a renewal may.
        lane, limit = (Lane.SESSION, RENEW_SECONDS) if op is Op.SESSION_INFO else (Lane.READ, SHORT_SECONDS)
        request = Request("GET", path, pairs, headers=headers or {}, lane=lane)
        response = await self._exchange(op, request, limit)
        known = CIMultiDict(response.headers)
        known.setdefault("X-Consul-Index", "0")  # the library fails on an answer without it
        text = response.body.decode("utf-8", "replace")
        try:
            return callback(base.Response(response.status, known, text, response.body))
        except (json.JSONDecodeError, LookupError, TypeError, ValueError, base.ConsulException) as error:
            raise not_consul(op, response) from error


class Library(base.Consul):
    """``base.Consul`` with the endpoints that farmd uses; it does not read the environment."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.token, self.dc, self.consistency, self.scheme = None, None, "default", "http"
        self.http = self.http_connect()
        self.agent = base.Consul.Agent(self)
        self.session = base.Consul.Session(self)

    def http_connect(self, *_args: Any, **_options: Any) -> LibraryHTTP:
        """The client over ``Exchange``; the arguments of the library are ignored."""
        return LibraryHTTP(self._exchange)
