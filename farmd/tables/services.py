"""The tables of services and of endpoints, and the facts of one service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farmd.kinds import title
from farmd.services.commands import ServiceRow
from farmd.services.endpoints import Endpoint
from farmd.tables.model import Column, Table, ago, pairs
from store.catalog import dns_name
from store.images import parse
from store.services import NOUN, Service, Version
from store.status import Status
from store.times import plain, rfc3339


def table(rows: Sequence[ServiceRow], broken: Sequence[str], now: float) -> Table:
    """One line for each service; ``now`` in seconds since the epoch."""
    columns = (
        Column("NAME", lambda row: row.record.name),
        Column("ID", lambda row: row.record.id, wide=True),
        Column("PROJECT", lambda row: row.record.project or "-"),
        Column("MODE", lambda row: row.record.mode or "-"),
        Column("HEALTHY", lambda row: f"{row.healthy}/{row.desired}"),
        Column("REVISION", lambda row: str(row.record.revision or "-")),
        Column("DEPLOYMENT", lambda row: row.deployment or "-"),
        Column("PORT", lambda row: row.record.port),
        Column("IMAGE", lambda row: image(row.record.version), wide=True),
        Column("ACTIVE", active),
        Column("AGE", lambda row: ago(now, row.record.created), wide=True),
    )
    return Table(
        kind="Service",
        rows=rows,
        columns=columns,
        name=lambda row: f"{NOUN}/{row.record.name}",
        plain=plain_row,
        broken=broken,
        empty="no services",
    )


def endpoints(rows: Sequence[Endpoint], empty: str, *, owners: bool = False) -> Table:
    """One line for each endpoint of a service; ``owners``: a table that is not wide has their owners, too."""
    return Table(
        kind="Endpoint",
        rows=rows,
        columns=(
            Column("ENDPOINT", where),
            Column("POD", lambda row: f"{row.node}/{row.instance}"),
            Column("OWNER", lambda row: row.owner, wide=not owners),
        ),
        name=where,
        plain=plain,
        empty=empty,
    )


def where(endpoint: Endpoint) -> str:
    """Address and port, as programs take them."""
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"{host}:{endpoint.port}"


def facts(
    row: ServiceRow, now: float, published: Status | None = None, domain: str = ""
) -> list[tuple[str, str]]:
    """The lines of ``describe`` for a service, without its endpoints; ``published`` is the status of its
    entries in Consul's catalogue, ``domain`` that of Consul's DNS where it was read.
    """
    record = row.record
    return [
        ("Name", record.name),
        ("Id", record.id),
        *(_deployed(row) if record.mode else ()),
        ("Port", record.port),
        ("Active", active(row)),
        *_catalog(record, published),
        *([("DNS", dns_name(record.name, record.catalog, domain))] if record.catalog and domain else []),
        ("Labels", pairs(record.labels)),
        ("Age", f"{ago(now, record.created)}, created {rfc3339(record.created)}"),
    ]


def _catalog(service: Service, status: Status | None) -> list[tuple[str, str]]:
    """Its settings in Consul's catalogue and the state of its entries; nothing if it has none."""
    if (asked := service.catalog) is None:
        return [("Catalog", "off, also where farms register every service")] * service.catalog_off
    tags = f", tags {', '.join(asked.tags)}" if asked.tags else ""
    if status is None:
        told = "no farm has looked at it yet"
    elif status.state == "blocked":
        told = f"blocked: {status.reason}"
    else:
        told = f"{status.healthy} of {status.desired} pass"
    return [("Catalog", f"{asked.name or service.name} in Consul{tags}; {told}")]


def _deployed(row: ServiceRow) -> list[tuple[str, str]]:
    """What a deployment made of it."""
    record, version = row.record, row.record.version
    status = f"{row.deployment}; farmctl deployment status {row.deployment}"
    return [
        ("Project", record.project or "none"),
        ("Mode", f"{record.mode}, {row.healthy} of {row.desired} healthy"),
        ("Revision", str(record.revision) if version is not None else "none yet"),
        ("Image", image(version)),
        ("Deployment", status if row.deployment else "none"),
    ]


def image(version: Version | None) -> str:
    """The image of a version, without the parts that are usual."""
    return parse(version.image).short if version is not None and version.image else "-"


def active(row: ServiceRow) -> str:
    """The owners whose pods serve, as people write them."""
    return ", ".join([*row.serving, *(f"{_titled(ref)} (gone)" for ref in row.gone)]) or "-"


def _titled(ref: str) -> str:
    family, _, ident = ref.partition("/")
    return title(family, ident)


def plain_row(row: ServiceRow) -> dict[str, Any]:
    """For JSON: the record's own fields, and what is known besides."""
    told = {name: getattr(row, name) for name in ("serving", "gone", "desired", "healthy")}
    found: dict[str, Any] = {**plain(row.record), **told, "deploying": row.deployment}
    return found
