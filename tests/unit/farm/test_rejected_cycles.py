"""A worker whose plans are refused again and again says so; one refusal is nothing to tell."""

from __future__ import annotations

import msgspec
from structlog.testing import capture_logs

from store import operations
from store.manifests import Manifest, canonical, digest
from store.ports import Request
from store.rcs import ReplicationController
from tests.node_farms import KEYS, fleet_of
from tests.toys import is_transaction

RC = "00aa00aa00aa00aa"
BODY = canonical(Manifest(id="web", command=["x"]))
RECORD = ReplicationController(id=RC, name="web", manifest=digest(BODY), replicas_desired=1, pod_id="web")


async def levels(refusals: int) -> list[str]:
    """Of what level the entries are that tell of so many refusals of a controller's first placement."""
    async with fleet_of("n1") as fleet:
        await fleet.client.transaction([operations.put(KEYS.manifest(digest(BODY)), BODY)])
        farm, left = await fleet.start("a", kinds=("rcs",)), refusals

        async def edited_before(request: Request) -> None:
            nonlocal left
            if left and is_transaction(request) and b"/pods/" in request.body:
                left -= 1
                await fleet.put(
                    KEYS.record("rcs", RC), msgspec.structs.replace(RECORD, labels={"edit": str(left)})
                )

        farm.faults.before = edited_before
        with capture_logs() as told:
            await fleet.put(KEYS.record("rcs", RC), RECORD)
            await fleet.clock.advance(120.0)
        assert left == 0
        return [entry["log_level"] for entry in told if entry["event"] == "cycle.rejected"]


async def test_one_refusal_is_no_warning() -> None:
    assert await levels(1) == ["debug"]


async def test_the_fourth_refusal_in_a_row_is_a_warning_and_so_is_each_after_it() -> None:
    assert await levels(6) == ["debug"] * 3 + ["warning"] * 3
