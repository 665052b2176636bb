"""The parts of an archive for diagnosing a cluster elsewhere, without its secrets.

What must never break: no manifest, no environment and no token is in any part. Records whose content people
choose freely are left out, and of Consul's own answers only single fields are taken. A part that cannot be
read is named, with the reason, and the others are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from farmd.commands.mutation import Call
from farmd.doctor.examine import examine
from farmd.doctor.survey import Survey, survey
from store import presence
from store.audit import AuditReader, Filter
from store.errors import StoreError
from store.farms import Member
from store.keys import is_sentinel
from store.times import plain, rfc3339
from store.version import VERSION

TREES = ("farms", "agents", "locks", "status", "failsafe")
"""Families that hold no more than what farms and agents say of themselves and of their work."""
AUDIT_SECONDS, AUDIT_RECORDS = 3600.0, 5_000
MOST_FARMS = 20
MOST_BYTES = 8 * 1024 * 1024
PART_SECONDS = 20.0
ROUTES = ("metrics", "health", "ready", "v1/status")

Fetch = Callable[[str, int], Awaitable[bytes]]
"""The answer of an address, of which no more than so many bytes are read.

Raises:
    OSError, TimeoutError: there is none.
"""


@dataclass(slots=True)
class BundleParts:
    """The parts that were read, by file name, and why others were not."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


async def gathered(call: Call, fetch: Fetch, config: Callable[[], str]) -> BundleParts:
    """All parts. ``config`` is the configuration of this machine, without secrets.

    Raises:
        StoreError: Consul cannot be reached at all.
    """
    seen, parts = await survey(call.client, call.keys, call.clock), BundleParts()
    for name in TREES:
        parts.files[f"{name}.json"] = _json(_tree(seen, name))
    for name, read in _asked(call, config, parts).items():
        await _add(parts, name, read)
    farms = sorted((each for _, each in seen.decoded("farms", Member)), key=lambda each: each.id)
    for farm in farms[MOST_FARMS:]:
        parts.missing[f"farms/{farm.id}"] = f"only {MOST_FARMS} farms are asked"
    await asyncio.gather(
        *(
            _add(parts, f"farms/{farm.id}/{route}", _of_farm(fetch, farm, route))
            for farm in farms[:MOST_FARMS]
            for route in ROUTES
        )
    )
    about = {"version": VERSION, "at": rfc3339(call.clock.now()), "by": call.actor, "missing": parts.missing}
    parts.files["about.json"] = _json(about)
    return parts


def _asked(
    call: Call, config: Callable[[], str], parts: BundleParts
) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
    """What is asked for one after the other, by the names of the files."""

    async def doctor() -> bytes:
        report = await examine(call.client, call.keys, call.clock)
        return _json({"facts": report.facts, "items": [each.document() for each in report.findings]})

    async def audit() -> bytes:
        wanted = Filter(since=call.clock.now() - AUDIT_SECONDS)
        found = await AuditReader(call.client, call.keys).read(wanted, AUDIT_RECORDS + 1)
        if len(found) > AUDIT_RECORDS:
            parts.missing["audit.jsonl"] = f"only the newest {AUDIT_RECORDS} records of the last hour"
        return b"".join(msgspec.json.encode(plain(record)) + b"\n" for record in found[:AUDIT_RECORDS])

    async def consul() -> bytes:
        leader, own = await call.client.leader(), await call.client.agent()
        limits = msgspec.to_builtins(own.debug_config)
        return _json({"leader": leader, "version": own.config.version, "limits": limits})

    async def here() -> bytes:
        return config().encode()

    return {"doctor.json": doctor, "audit.jsonl": audit, "consul.json": consul, "farmd.toml": here}


def _of_farm(fetch: Fetch, farm: Member, route: str) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        if not farm.address:
            raise OSError("the farm serves no HTTP")
        return await fetch(f"{presence.url(farm.address)}/{route}", MOST_BYTES)

    return read


async def _add(parts: BundleParts, name: str, read: Callable[[], Awaitable[bytes]]) -> None:
    """Add a part, or the reason why it is missing."""
    try:
        async with asyncio.timeout(PART_SECONDS):
            found = await read()
    except (StoreError, OSError, ValueError) as error:  # TimeoutError is an OSError
        parts.missing[name] = str(error) or type(error).__name__
        return
    parts.files[name] = found[:MOST_BYTES]
    if len(found) > MOST_BYTES:
        parts.missing[name] = f"only the first {MOST_BYTES} of {len(found)} bytes"


def _tree(seen: Survey, family: str) -> dict[str, Any]:
    """The records of a family by key, as they stand; also those that do not decode, as text."""
    return {
        seen.short(key): {
            "value": _value(entry.value),
            "index": entry.modify_index,
            "session": bool(entry.session),
        }
        for key, entry in sorted(seen.trees[family].items())
        if not is_sentinel(key)
    }


def _value(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw.decode("utf-8", "replace")


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
