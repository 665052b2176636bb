"""One request for the page or its API: who asks, whether that one may, and its errors as a page or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import structlog
from aiohttp import web

from farmd.web import html
from farmd.web.access import SignInNeeded
from farmd.web.lists import ItemList
from farmd.web.site import Site
from farmd.web.tokens import Person
from store.errors import AccessDenied, Ambiguous, Conflict, InputInvalid, Locked, NotFound, StoreError

log = structlog.get_logger()

API = "/v1/"
FORM = "application/x-www-form-urlencoded"
STATUSES: dict[type[StoreError], int] = {
    InputInvalid: 400,
    Ambiguous: 400,
    AccessDenied: 403,
    NotFound: 404,
    Locked: 409,
    Conflict: 409,
}


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, and who asks; None: somebody without a token, who may read."""

    site: Site
    request: web.Request
    person: Person | None

    @property
    def acts(self) -> bool:
        """Whether that one may act."""
        return self.person is not None and self.person.role == "operator"

    def page(self, template: str, *, status: int = 200, title: str, **values: Any) -> web.Response:
        """A page that sets its address, and who looks at it."""
        known = {"path": "", "live": "", "at": "", "visit": self, "site": self.site, "title": title}
        return html.rendered(template, known | values, status)

    async def drawn(self, template: str, *, title: str, **values: Any) -> web.Response:
        """A page that may be long. A thread makes it, one page at a time: the farm's loop has other work."""
        async with self.site.drawing:
            return await asyncio.to_thread(self.page, template, title=title, **values)

    async def form(self) -> dict[str, str]:
        """The fields of a form that was sent.

        Raises:
            HTTPBadRequest: the body is no form.
        """
        if self.request.content_type != FORM:
            raise web.HTTPUnsupportedMediaType(text=f"body: expected a form ({FORM})")
        try:
            return {name: str(value) for name, value in (await self.request.post()).items()}
        except (LookupError, ValueError) as error:  # an unknown charset, other bytes
            raise web.HTTPBadRequest(text="body: expected a form") from error

    def form_key(self) -> str:
        """What a form on this page must bring back."""
        return self.site.access.form_key(self.request)


Handler = Callable[[Visit], Awaitable[web.StreamResponse]]


def list_of(visit: Visit) -> ItemList:
    """The list that an address names.

    Raises:
        HTTPNotFound: there is none.
    """
    found = visit.site.lists.get(visit.request.match_info["list"])
    if found is None:
        raise web.HTTPNotFound(text=f"{visit.request.path} does not exist")
    return found


async def answered(
    site: Site, request: web.Request, handler: Callable[[], Handler], *, free: bool
) -> web.StreamResponse:
    """Let a handler answer; ``free``: also to whom may read nothing."""
    person: Person | None = None
    try:
        if not free:
            person = reader(site, request)
        made: web.StreamResponse = await handler()(Visit(site, request, person))
    except SignInNeeded:
        return _sign_in(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return refusal(Visit(site, request, person), error.status, error.text or error.reason)
    except TimeoutError:
        return refusal(Visit(site, request, person), 503, "Consul does not answer this farm")
    except StoreError as error:
        status = next((code for kind, code in STATUSES.items() if isinstance(error, kind)), 503)
        return refusal(Visit(site, request, person), status, error.message, error.fields.get("hint", ""))
    except Exception:  # the HTTP boundary
        log.exception("web.request_failed", method=request.method, path=request.path)
        return refusal(Visit(site, request, person), 500, "internal error: see the farm's log")
    return made


def reader(site: Site, request: web.Request) -> Person | None:
    """Who asks; None: somebody without a token, who may read.

    Raises:
        SignInNeeded: reading needs a token.
        HTTPUnauthorized: the token fits nobody.
    """
    person = site.access.person(request)
    site.access.reader(request, person)
    return person


def refusal(visit: Visit, status: int, message: str, hint: str = "") -> web.Response:
    """An error as people or programs read it."""
    reads = "text/html" in visit.request.headers.get("Accept", "")
    if reads and not visit.request.path.startswith(API):
        return visit.page("error.html", status=status, title=_title(status), message=message, hint=hint)
    body: dict[str, Any] = {"code": _title(status).lower().replace(" ", "_"), "message": message}
    return html.as_json({"error": body | ({"hint": hint} if hint else {})}, status=status)


def _sign_in(request: web.Request) -> web.Response:
    if request.path.startswith(API) or request.path == "/events":
        body = {"error": {"code": "unauthorized", "message": "reading needs a token: Authorization: Bearer"}}
        answer = html.as_json(body, status=401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    headers = {**html.HEADERS, "Location": f"/signin?{urlencode({'next': request.path_qs})}"}
    return web.Response(status=303, headers=headers)


def _title(status: int) -> str:
    return HTTPStatus(status).phrase
