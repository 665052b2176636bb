"""HTML: templates with every value escaped, links, the headers of every answer, and the page's own files."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from aiohttp import web

from farmd import kinds
from farmd.kinds import KINDS
from store.version import VERSION

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without any, a browser would send no Origin with a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def rendered(template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
    """A page from a template."""
    text = _environment().get_template(template).render(version=VERSION, **values)
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def as_json(body: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    """An answer for programs."""
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers={**HEADERS, **headers},
    )


def static(name: str) -> web.Response:
    """A file of the page; its address has its digest, so that browsers may keep it.

    Raises:
        HTTPNotFound: there is no such file.
    """
    if name not in _names():
        raise web.HTTPNotFound(text=f"/static/{name} does not exist")
    headers = {**HEADERS, "Cache-Control": "public, max-age=86400"}
    return web.Response(body=_file(name), content_type=TYPES[name.rpartition(".")[2]], headers=headers)


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(each.name for each in files("farmd.web").joinpath("static").iterdir())


@functools.cache
def _file(name: str) -> bytes:
    return files("farmd.web").joinpath("static", name).read_bytes()


@functools.cache
def address_of(name: str) -> str:
    """The address of a file, which is another one when the file is another one."""
    return f"/static/{name}?v={hashlib.sha256(_file(name)).hexdigest()[:12]}"


@functools.cache
def _environment() -> jinja2.Environment:
    def read(name: str) -> str:
        return files("farmd.web").joinpath("templates", name).read_text()

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["file"] = address_of
    return made


# Where the page shows what a text names: a node, a pod, an item such as ``rc/web``.


def of_item(text: str) -> str:
    """The address of an item as people write it; one without a noun is of the main kind. Empty: none."""
    noun, slash, name = text.rpartition("/")
    family = kinds.family_of(noun) if slash else next(each.family for each in KINDS.values() if each.main)
    if not name or name == "-" or any(part in name for part in " :("):
        return ""
    if family in KINDS:
        return kinds.path(family, quote(name))
    return f"/{family}/{quote(name)}" if family == "services" else ""


def of_pod(node: str, instance: str) -> str:
    """The address of a pod."""
    return f"/nodes/{quote(node)}/pods/{quote(instance)}"


def of_cell(title: str, text: str, row: Any) -> str:
    """The address of what a cell of a table names; empty: it names nothing that has a page."""
    match title:
        case "NODE" if text and text != "-":
            return f"/nodes/{quote(text)}"
        case "INSTANCE" if getattr(row, "node", ""):
            return of_pod(row.node, text)
        case "OWNER" | "ITEM" | "REF":
            return of_item(text)
    return ""
