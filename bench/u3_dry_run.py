"""U3: how long a person waits for ``farmctl apply --dry-run`` of 500 new controllers, as a whole process.

The bare client reads twice for each object, 16 at a time, in this process, without a start.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from bench.a1_apply import reads
from bench.apps import controller
from bench.rig import median, report, rig
from bench.u1_commands import took
from farmd.dev.plan import environment

OBJECTS, ROUNDS, RATIO = 500, 9, 1.5


async def run() -> bool:
    """Measure, print, and tell whether the target is met."""
    ours, bare = list[tuple[float, float]](), list[float]()
    async with rig() as (server, client):
        variables = environment(dict(os.environ)) | {"CONSUL_HTTP_ADDR": server.address}
        with tempfile.TemporaryDirectory(prefix="farmd-bench-") as folder:
            documents = "---\n".join(json.dumps(controller(f"c{each:03}")) + "\n" for each in range(OBJECTS))
            (path := Path(folder) / "app.yaml").write_text(documents)
            command = ["-m", "farmd.cli", "apply", "-f", str(path), "--app", "shop", "--dry-run"]
            await asyncio.to_thread(took, command, variables)
            for number in range(ROUNDS):
                bare.append(await reads(client, number, OBJECTS))
                ours.append(await asyncio.to_thread(took, command, variables))
    value, baseline = median([each for each, _ in ours]), median(bare)
    return report(
        f"U3 farmctl apply --dry-run of {OBJECTS} new controllers, seconds", value, baseline,
        f"<= {RATIO:g} x its reads by a bare client", value <= RATIO * baseline,
        least=round(min(each for each, _ in ours), 3),
        cpu_seconds=round(median([cpu for _, cpu in ours]), 3),
    )  # fmt: skip
