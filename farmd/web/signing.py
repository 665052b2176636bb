"""Signing in with a token and out again, and the files of the page, which everybody may have."""

from __future__ import annotations

from aiohttp import web

from farmd.web import html
from farmd.web.access import same_origin
from farmd.web.visit import Visit


async def static(visit: Visit) -> web.StreamResponse:
    """``GET /static/NAME``."""
    return html.static(visit.request.match_info["name"])


async def form(visit: Visit) -> web.StreamResponse:
    """``GET /signin``."""
    return _form(visit, visit.request.query.get("next", "/"))


async def sign_in(visit: Visit) -> web.StreamResponse:
    """``POST /signin``: a token that fits opens a session."""
    same_origin(visit.request)
    said = await visit.form()
    token, following = said.get("token", "").strip(), said.get("next", "/")
    try:
        line = visit.site.access.verified(token, visit.request)
    except web.HTTPUnauthorized as error:
        return _form(visit, following, error.text or "", status=401)
    answer = _to(following)
    secure = visit.request.headers.get("Origin", "").startswith("https:")  # a proxy may speak TLS
    visit.site.access.open_session(visit.request, answer, line, secure=secure)
    return answer


async def sign_out(visit: Visit) -> web.StreamResponse:
    """``POST /signout``."""
    said = await visit.form()
    visit.site.access.of_form(visit.request, said.get("key", ""))
    answer = _to("/")
    visit.site.access.end_session(visit.request, answer)
    visit.site.wake_streams()
    return answer


def _form(visit: Visit, following: str, wrong: str = "", status: int = 200) -> web.Response:
    return visit.page("signin.html", status=status, title="Sign in", following=following, wrong=wrong)


def _to(path: str) -> web.Response:
    """Go on to a path of this page, and to no other site."""
    inside = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return web.Response(status=303, headers={**html.HEADERS, "Location": path if inside else "/"})
