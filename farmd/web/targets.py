"""``GET /v1/targets/farms|agents|services``: what Prometheus scrapes, by its HTTP service discovery.

What must never break: whatever stops answering stays a target, because Prometheus alerts of targets that do
not answer. So an agent stays one for as long as its node is registered, a farm for an hour after it was seen
last, and doubt answers 503, upon which Prometheus keeps what it had.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from farmd.kinds import title
from farmd.services.board import Board, EndpointsAnswer, NotKnown, TooManyWaiting
from farmd.web.site import Site
from farmd.web.visit import Visit
from store import presence
from store.errors import NotFound
from store.families import NODES, SERVICES

FARM_KEPT_SECONDS = 3600.0
ASKED_AT_ONCE = 50

Group = dict[str, Any]


async def answer(visit: Visit) -> web.StreamResponse:
    """One list of targets, in the format of ``http_sd_configs``."""
    what = visit.request.match_info["what"]
    if what not in _LISTS:
        expected = ", ".join(_LISTS)
        raise web.HTTPNotFound(text=f"targets: found {what[:80]!r}, expected one of {expected}")
    return web.json_response(await _LISTS[what](visit.site))


async def farms(site: Site) -> list[Group]:
    """All farms that are present, and those that were within the last hour."""
    farm, now = site.farm, site.farm.clock.mono()
    _trusted(farm.caches.farms.doubt)
    known = site.farms_seen
    present = {stored.record.id: stored.record.address for stored in farm.caches.farms.entries.values()}
    known.forget(name for name, (_, at) in known.seen.items() if now - at > FARM_KEPT_SECONDS)
    found = known.addresses(present, now)
    return [_process(address, f"farm/{name}", farm=name) for name, (address, _) in sorted(found.items())]


async def agents(site: Site) -> list[Group]:
    """The agents of all registered nodes whose address this farm saw, present or not."""
    farm = site.farm
    _trusted(farm.caches.agents.doubt or farm.caches.nodes.doubt)
    nodes = {farm.keys.last_part(key): stored.record for key, stored in farm.caches.nodes.entries.items()}
    # By its key, because an agent may say that it is another node.
    present = {
        name: presence.at_host(stored.record.address, farm.fleet.addresses.host(name))
        for name, stored in (
            (farm.keys.last_part(key), each) for key, each in farm.caches.agents.entries.items()
        )
    }
    known = site.agents_seen
    known.forget(name for name in known.seen.keys() - present.keys() if name not in nodes)
    found = known.addresses(present, farm.clock.mono())
    labels = {name: _meta("node", record.labels) for name, record in nodes.items()}
    return [
        _process(address, title(NODES.name, name), node=name, **labels.get(name, {}))
        for name, (address, _) in sorted(found.items())
    ]


async def services(site: Site) -> list[Group]:
    """Where the pods of all services with a port serve."""
    listed, board = site.by_family[SERVICES.name], site.board()
    if board is None:
        raise web.HTTPServiceUnavailable(text="this farm has not reached Consul yet")
    with listed.looking():
        await listed.ready()
        names = [line.name for line in listed.lines() if line.row.record.port]
    limit = asyncio.Semaphore(ASKED_AT_ONCE)
    answers = await asyncio.gather(*(_endpoints(board, name, limit) for name in names))
    return [group for found in answers if found is not None for group in _serving(found)]


async def _endpoints(board: Board, name: str, limit: asyncio.Semaphore) -> EndpointsAnswer | None:
    """The endpoints of a service; None: it is gone."""
    try:
        async with limit:
            return await board.answer(name, 0, 0.0)
    except NotFound:
        return None
    except (NotKnown, TooManyWaiting) as error:
        raise web.HTTPServiceUnavailable(text=f"{name}: {error.message}") from error


def _serving(found: EndpointsAnswer) -> Iterable[Group]:
    service = found.service
    labels = {"service": service.name, "__meta_farmd_port": service.port, **_meta("service", service.labels)}
    for each in found.endpoints:
        pod = {"node": each.node, "pod": f"{each.node}/{each.instance}"}
        yield {"targets": [_host_port(each.address, each.port)], "labels": labels | pod}


def _process(address: str, instance: str, **labels: str) -> Group:
    parts = presence.parts(address)
    said = {"instance": instance, "__scheme__": parts.scheme, **labels}
    return {"targets": [parts.netloc], "labels": said}


def _meta(of: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Labels of a record as those that only relabelling sees, as Prometheus writes such names."""
    return {
        f"__meta_farmd_{of}_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": text for name, text in labels.items()
    }


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _trusted(doubt: str | None) -> None:
    if doubt:
        raise web.HTTPServiceUnavailable(text=doubt)


_LISTS: dict[str, Callable[[Site], Awaitable[list[Group]]]] = {
    "farms": farms,
    "agents": agents,
    "services": services,
}
