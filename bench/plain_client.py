"""A plain client in a process of its own, without farmd's code: it waits for one key, then writes.

``python -m bench.plain_client ADDRESS``
A line ``KEY BODY`` on stdin (the body in base64) parks a query on this key; when it wakes, the client sends
the body as a transaction, and reports the moment of the acknowledgement.
"""

from __future__ import annotations

import asyncio
import base64
import sys

import aiohttp

from bench.processes import commands, tell
from farmd.process.start import collect_rarely

WAIT = "60s"


async def main(address: str) -> None:
    """Obey commands until stdin ends."""
    async with aiohttp.ClientSession(f"http://{address}") as session:
        tell("ready")
        async for line in commands():
            key, body = line.split()
            async with session.get(f"/v1/kv/{key}") as answer:
                index = answer.headers["X-Consul-Index"]
                await answer.read()
            tell("parking")
            async with session.get(f"/v1/kv/{key}", params={"index": index, "wait": WAIT}) as answer:
                await answer.json()
            async with session.put("/v1/txn", data=base64.b64decode(body)) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"transaction: found {answer.status} {text[:200]!r}, expected 200")
                tell("written")


if __name__ == "__main__":
    collect_rarely()
    asyncio.run(main(sys.argv[1]))
