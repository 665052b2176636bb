"""The views of the page."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec
from aiohttp import web

from farmd.tables.model import clean, colour_of
from farmd.web import html, paging
from farmd.web.site import Site


async def listed(site: Site, request: web.Request) -> web.StreamResponse:
    """``/controllers`` and the other lists: searched, sorted, one page."""
    found = site.lists.get(request.match_info["list"])
    if found is None:
        raise web.HTTPNotFound(text=f"{request.path} does not exist")
    asked = paging.query(request.query)
    with found.looking():
        await found.ready()
        version = found.bell.version
        shown = paging.selected(found.lines(), asked, found.table([]).columns)
        table = found.table([line.row for line in shown.lines])
    columns = [column for column in table.columns if not column.wide]
    rows = [
        (
            line,
            [(c.title, text, colour_of(c.title, text)) for c in columns for text in [clean(c.text(row))]],
        )
        for line, row in zip(shown.lines, table.rows, strict=True)
    ]
    return html.page(
        "list.html",
        site=site,
        list=found,
        title=found.many.capitalize(),
        path=found.path,
        asked=asked,
        shown=shown,
        table=table,
        columns=columns,
        rows=rows,
        live=f"/{found.path}",
        at=version,
        address=_address,
    )


def _address(asked: paging.Query, **changed: str) -> str:
    """The same list, asked for otherwise."""
    now = msgspec.structs.replace(asked, **changed)
    said = {"q": now.text, "state": now.state, "sort": now.sort, "cursor": now.cursor}
    said["limit"] = "" if now.limit == paging.PAGE else str(now.limit)
    return "?" + urlencode({name: value for name, value in said.items() if value})
