"""The person who acts on the page or by its API, and the fields of the request; signing in and out."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from farmd.commands.mutation import Mutation
from farmd.web import html
from farmd.web.access import same_origin
from farmd.web.tokens import Person
from farmd.web.visit import Visit
from store.errors import InputInvalid
from store.times import plain

LONGEST_REASON = 500


async def sent(visit: Visit) -> tuple[Person, dict[str, Any]]:
    """Who acts by a program, and the fields of what it sent.

    Raises:
        HTTPUnauthorized, HTTPForbidden: no bearer token, or that of a viewer. InputInvalid: no JSON object.
    """
    if visit.site.access.bearer(visit.request) is None:  # a cookie may come from elsewhere
        raise web.HTTPUnauthorized(text="actions need a token: Authorization: Bearer")
    person = operator(visit)
    body = await visit.request.read()
    try:
        said = msgspec.json.decode(body) if body else {}
    except msgspec.DecodeError as error:
        raise InputInvalid("body: found no JSON, expected an object", field="body") from error
    if not isinstance(said, dict):
        raise InputInvalid("body: found no object, expected an object", field="body")
    return person, said


def text_of(said: dict[str, Any], name: str) -> str:
    """A text that a program may send.

    Raises:
        InputInvalid: it is something else.
    """
    found = said.get(name, "")
    if not isinstance(found, str):
        raise InputInvalid(f"{name}: expected a text", field=name)
    return found


def change_of(mutation: Mutation) -> dict[str, Any]:
    """A change, for programs."""
    change: dict[str, Any] = {
        name: getattr(mutation.change, name) for name in ("kind", "id", "name", "action")
    }
    change |= {"before": plain(mutation.change.before), "after": plain(mutation.change.after)}
    return {"apiVersion": "farmd/v1", "kind": "Change", **change, "changed": mutation.needed}


def operator(visit: Visit) -> Person:
    """Who acts.

    Raises:
        HTTPUnauthorized, HTTPForbidden: nobody is signed in, or a viewer.
    """
    if visit.person is None:
        raise web.HTTPUnauthorized(text="actions need a token: sign in first")
    if not visit.acts:
        raise web.HTTPForbidden(
            text=f"{visit.person.name} is a {visit.person.role}, actions need an operator"
        )
    return visit.person


def reason_of(text: str) -> str:
    """A reason for the audit, in one line.

    Raises:
        InputInvalid: it is too long.
    """
    reason = " ".join(text.split())
    if len(reason) > LONGEST_REASON:
        expected = f"at most {LONGEST_REASON}"
        raise InputInvalid(f"reason: found {len(reason)} characters, expected {expected}", field="reason")
    return reason


# Signing in with a token and out again, and the files of the page, which everybody may have.


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
