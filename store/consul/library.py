"""python-consul2's endpoint code over our own requests, for calls that are rare.

The library builds paths and reads answers; connections, token, limits and errors are ours. Its
constructor is never run: it reads ``CONSUL_*`` from the environment, overrides what it is given and
fails on addresses that Consul's own tools accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consul import base
from multidict import CIMultiDict

from store.consul.errors import Op, not_consul
from store.consul.exchange import SHORT_SECONDS, Exchange, blocking_limit
from store.ports import Lane, Request

Callback = Callable[[base.Response], Any]
Params = Sequence[tuple[str, Any]] | None


class LibraryHTTP(base.HTTPClient):
    """The four verbs of the library's HTTP client, as coroutines over ``Exchange``."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def get(
        self, callback: Callback, path: str, params: Params = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """GET; a blocking query's time limit follows its wait."""
        return await self._call("GET", callback, path, params, b"", headers)

    async def put(
        self,
        callback: Callback,
        path: str,
        params: Params = None,
        data: str | bytes = "",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """PUT."""
        return await self._call("PUT", callback, path, params, data, headers)

    async def delete(
        self,
        callback: Callback,
        path: str,
        params: Params = None,
        data: str | bytes = "",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """DELETE."""
        return await self._call("DELETE", callback, path, params, data, headers)

    async def post(
        self,
        callback: Callback,
        path: str,
        params: Params = None,
        data: str | bytes = "",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """POST."""
        return await self._call("POST", callback, path, params, data, headers)

    async def _call(
        self,
        method: str,
        callback: Callback,
        path: str,
        params: Params,
        data: str | bytes,
        headers: Mapping[str, str] | None,
    ) -> Any:
        pairs = tuple((name, str(value)) for name, value in params or ())
        blocking = method == "GET" and any(name == "index" for name, _ in pairs)
        request = Request(
            method,
            path,
            pairs,
            data.encode() if isinstance(data, str) else data,
            headers or {},
            lane_of(method, path, blocking),
        )
        op = Op.WATCH if blocking else op_of(method, path)
        response = await self._exchange(op, request, limit(pairs) if blocking else SHORT_SECONDS)
        known = CIMultiDict(response.headers)
        known.setdefault("X-Consul-Index", "0")  # the library fails on an answer without it
        text = response.body.decode("utf-8", "replace")
        try:
            return callback(base.Response(response.status, known, text, response.body))
        except (json.JSONDecodeError, LookupError, TypeError, ValueError, base.ConsulException) as error:
            raise not_consul(op, response) from error


class Library(base.Consul):
    """``base.Consul`` with the endpoints that farmd may use, and without its reading of the environment."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.token, self.dc, self.consistency, self.scheme = None, None, "default", "http"
        self.http = self.http_connect()
        self.agent = base.Consul.Agent(self)
        self.catalog = base.Consul.Catalog(self)
        self.health = base.Consul.Health(self)
        self.kv = base.Consul.KV(self)
        self.session = base.Consul.Session(self)
        self.status = base.Consul.Status(self)
        self.txn = base.Consul.Txn(self)

    def http_connect(self, *_args: Any, **_options: Any) -> LibraryHTTP:
        """Ours, whatever address is asked for."""
        return LibraryHTTP(self._exchange)


def limit(params: Sequence[tuple[str, str]]) -> float:
    """Seconds that a blocking query of the library may take; waits are Go durations (``30s``, ``5m``)."""
    text = dict(params).get("wait", "")
    for unit, seconds in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdecimal():
            return blocking_limit(float(number) * seconds)
    return blocking_limit(0.0)


def lane_of(method: str, path: str, blocking: bool) -> Lane:
    """The pool that a call of the library belongs to."""
    if blocking:
        return Lane.WATCH
    if path.startswith("/v1/session/"):
        return Lane.SESSION
    return Lane.READ if method == "GET" else Lane.WRITE


def op_of(method: str, path: str) -> Op:
    """What a call of the library is, for errors and metrics."""
    family = path.split("/")[2]
    if family == "kv":
        return {"GET": Op.LIST, "DELETE": Op.DELETE}.get(method, Op.PUT)
    if family == "txn":
        return Op.TRANSACTION
    if family == "session":
        verb = path.split("/")[3]
        return {
            "create": Op.SESSION_CREATE,
            "renew": Op.SESSION_RENEW,
            "destroy": Op.SESSION_DESTROY,
        }.get(verb, Op.SESSION_INFO)
    return Op.STATUS if family == "status" else Op.AGENT
