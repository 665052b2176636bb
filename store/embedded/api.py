"""From a request to an answer: routes, methods and errors of paths; both faces share it.

No I/O: handlers change only the state. An answer may be a ``Query``, for which ``server.py`` waits.
"""

from __future__ import annotations

import html
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from store.embedded import answers, calls, catalog_api, kv_api, session_api, transaction_api
from store.embedded.answers import HttpError, Query
from store.embedded.calls import DATACENTER, Call, Policy
from store.ports import Request, Response

# The endpoints about the server itself: leader, version and health.


def leader(call: Call) -> Response:
    """``/v1/status/leader``: this server."""
    return answers.json(call.identity.address)


def peers(call: Call) -> Response:
    """``/v1/status/peers``: this server."""
    return answers.json([call.identity.address])


def servers(call: Call) -> Response:
    """``/v1/operator/autopilot/health``: this server is alone, and healthy as long as it answers."""
    server = {
        "ID": call.identity.node_id,
        "Name": call.identity.node,
        "Address": call.identity.address,
        "SerfStatus": "alive",
        "Version": call.identity.version,
        "Leader": True,
        "LastContact": "0s",
        "Healthy": True,
        "Voter": True,
    }
    return answers.json({"Healthy": True, "FailureTolerance": 0, "Servers": [server]})


def this(call: Call) -> Response:
    """``/v1/agent/self``: the fields that clients read, such as the imitated version."""
    call.options()
    host, _, port = call.identity.address.rpartition(":")
    config = {
        "Datacenter": DATACENTER,
        "NodeName": call.identity.node,
        "NodeID": call.identity.node_id,
        "Revision": "",
        "Server": True,
        "Version": call.identity.version,
    }
    member = {"Name": call.identity.node, "Addr": host, "Port": int(port), "Status": 1, "Tags": {}}
    return answers.json({"Config": config, "Member": member, "Meta": {"embedded": "true"}})


def datacenters(_: Call) -> Response:
    """``/v1/catalog/datacenters``."""
    return answers.json([DATACENTER])


def acl(_: Call) -> Response:
    """``/v1/acl/…``: this server has no ACLs, and says so as Consul does where they are off."""
    return answers.text("ACL support disabled", 401)


Handler = Callable[[Call], Response | Query]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A path; one that ends in a slash includes all paths under it."""

    path: str
    methods: tuple[str, ...]
    handler: Handler


ROUTES = (
    ApiRoute("/v1/kv/", kv_api.METHODS, kv_api.handle),
    ApiRoute("/v1/txn", transaction_api.METHODS, transaction_api.handle),
    ApiRoute("/v1/acl/", ("GET", "PUT", "DELETE"), acl),
    ApiRoute("/v1/session/create", ("PUT",), session_api.create),
    ApiRoute("/v1/session/renew/", ("PUT",), session_api.renew),
    ApiRoute("/v1/session/destroy/", ("PUT",), session_api.destroy),
    ApiRoute("/v1/session/info/", ("GET",), session_api.info),
    ApiRoute("/v1/session/node/", ("GET",), session_api.of_node),
    ApiRoute("/v1/session/list", ("GET",), session_api.every),
    ApiRoute("/v1/status/leader", ("GET",), leader),
    ApiRoute("/v1/status/peers", ("GET",), peers),
    ApiRoute("/v1/operator/autopilot/health", ("GET",), servers),
    ApiRoute("/v1/agent/self", ("GET",), this),
    ApiRoute("/v1/catalog/datacenters", ("GET",), datacenters),
    ApiRoute("/v1/catalog/nodes", ("GET",), catalog_api.nodes),
    ApiRoute("/v1/catalog/node/", ("GET",), catalog_api.node),
    ApiRoute("/v1/catalog/services", ("GET",), catalog_api.services),
    ApiRoute("/v1/catalog/service/", ("GET",), catalog_api.service),
    ApiRoute("/v1/health/service/", ("GET",), catalog_api.health),
    ApiRoute("/v1/health/node/", ("GET",), catalog_api.checks_on),
    ApiRoute("/v1/health/state/", ("GET",), catalog_api.checks_in),
)
_EXACT = {route.path: route for route in ROUTES if not route.path.endswith("/")}
_TREES = tuple(route for route in ROUTES if route.path.endswith("/"))


def find(request: Request) -> tuple[ApiRoute, str] | Response:
    """The route of a request and the rest of the path; without a route, the answer."""
    path = request.path
    if not path.isprintable():
        return Response(400, {}, b"")
    clean = _clean(path)
    if clean != path:
        return _moved(request, clean)
    if path == "/":
        return answers.text("Consul Agent", 200)
    route = _EXACT.get(path) or next((each for each in _TREES if path.startswith(each.path)), None)
    if route is None:
        if any(each.path == f"{path}/" for each in _TREES):
            return _moved(request, f"{path}/")
        return answers.nothing(404)
    allow = {"allow": ",".join(("OPTIONS", *route.methods))}
    if request.method == "OPTIONS":
        return answers.nothing(200, allow)
    if request.method not in route.methods:
        return answers.text(f"method {request.method} not allowed", 405, allow)
    return route, path.removeprefix(route.path)


def answer(route: ApiRoute, call: Call) -> Response | Query:
    """The handler's answer; its errors become answers."""
    try:
        return route.handler(call)
    except HttpError as error:
        return error.response()


def policy(request: Request, policies: dict[str, Policy] | None) -> Policy:
    """The access rights of the request's token.

    Raises:
        HttpError: 403, the token is not known.
    """
    if policies is None:
        return calls.EVERYTHING
    token = dict(request.params).get("token") or _header(request, "x-consul-token")
    if not token:
        token = _header(request, "authorization").removeprefix("Bearer ")
    if not token:
        return policies.get("", calls.ANONYMOUS)
    if token not in policies:
        raise HttpError(403, calls.NOT_FOUND)
    return policies[token]


def _header(request: Request, name: str) -> str:
    return next((value for key, value in request.headers.items() if key.lower() == name), "")


def _clean(path: str) -> str:
    """The path as Go cleans it: no double slashes, no dot segments; a trailing slash stays."""
    clean = posixpath.normpath(path)
    clean = f"/{clean.lstrip('/')}"
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean


def _moved(request: Request, path: str) -> Response:
    """The redirect to the clean path; so only transactions can write keys with an unclean path."""
    location = quote(path, safe="/:~.-_+&=$,@!*'()")
    if request.params:
        location += f"?{urlencode(request.params)}"
    if request.method != "GET":
        return Response(301, {"location": location}, b"")
    body = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return Response(301, {"location": location, "content-type": "text/html; charset=utf-8"}, body.encode())
