"""A farm in Consul's catalogue under the policies that ship, on a Consul that denies by default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from farmd.commands.mutation import Call, commit
from farmd.runtime.clock import SystemIds
from farmd.services import commands
from store import codec
from store.keys import Keys
from store.registration import register_cluster
from store.services import Catalog
from store.status import ItemStatus, Status
from tests.catalogs import Reader
from tests.fleet import CLOCK, eventually, start_farm
from tests.guarded import OWNER, Guarded, guarded_consul
from tests.services import agent, controller, pod, service

pytestmark = pytest.mark.xdist_group("access")
NODE, SERVICE = 'node_prefix "farmd-" { policy = "write" }', 'service "web" { policy = "write" }'


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("guarded"), key_list_policy=True) as made:
        yield made


async def test_without_the_policy_the_service_is_blocked_with_the_rule_and_with_it_it_is_found(
    guarded: Guarded,
) -> None:
    owner, keys = guarded.client("owner"), Keys()
    await register_cluster(owner, keys, SystemIds())
    call = Call(owner, keys, CLOCK, SystemIds(), "user/ada@desk")
    rc = await controller(call, "web")
    await agent(call, "n1", "http://10.0.0.1:8101")
    await pod(call, rc, "n1", port=20001)
    item = await service(call, "web")
    await commit(call, await commands.publish(call, "web", Catalog()))
    reader = Reader(guarded.server.address, OWNER)
    accessor = guarded.new_token("farm-alone", "farmd-farm")
    update = f"consul acl token update -id {accessor} -policy-name farmd-farm"
    farm = await start_farm(guarded.client("farm-alone"), "one", keys=keys, kinds=("catalog", "rcs"))

    async def blocked() -> str:
        entry = await owner.read(keys.status("catalog", item))
        status = None if entry is None else codec.decode(ItemStatus, entry.value, entry.key)
        return status.reason if status is not None and status.state == "blocked" else ""

    async def lacks(rule: str) -> bool:
        return f"the token lacks {rule}; " in await blocked()

    async def free() -> bool:
        return not await blocked()

    async def converged() -> bool:
        entry = await owner.read(keys.status("catalog", item))
        assert entry is not None
        return codec.decode(Status, entry.value, entry.key).placed == 1

    async def found() -> bool:
        return await reader.passing("web") == [("10.0.0.1", 20001)]

    async def goes_on() -> bool:
        return rc.id in farm.owned

    try:
        reason = await eventually(blocked, what="the service is blocked")
        assert "Permission denied" in reason
        assert f"the token lacks {NODE} and {SERVICE}; acl/farm-catalog.hcl has the rules" in reason
        assert await reader.passing("web") == []
        await eventually(goes_on, what="all else goes on")
        for name, given, lacking in (("node", NODE, SERVICE), ("service", SERVICE, NODE)):
            guarded.shell(f"consul acl policy create -name {name} -rules '{given}'")
            guarded.shell(
                f"consul acl token update -id {accessor} -policy-name farmd-farm -policy-name {name}"
            )
            await eventually(partial(lacks, lacking), what=f"the service is blocked for want of {lacking}")
            assert await goes_on()
        guarded.shell("consul acl policy create -name farmd-catalog -rules @acl/farm-catalog.hcl")
        guarded.shell(f"{update} -policy-name farmd-catalog")
        await eventually(found, what="the pod is in the catalogue")
        await eventually(free, what="the service is blocked no more")
        await eventually(converged, what="the farm counts its entries")
        for role in ("operator", "reader"):
            report = await asyncio.to_thread(guarded.farmctl(role), "doctor", "-o", "json")
            assert report.json["facts"]["entries in consul's catalogue"].startswith("1, "), report
        squatter = {"Node": "theirs", "Address": "10.7.7.7", "Service": {"Service": "web", "Port": 1}}
        await reader.ask("catalog/register", method="PUT", body=squatter)
        report = await asyncio.to_thread(guarded.farmctl("operator"), "doctor", "-o", "json")
        (told,) = [each for each in report.json["items"] if each["code"].startswith("catalog-")]
        assert (told["code"], "'web' on node theirs" in str(told)) == ("catalog-name", True)
    finally:
        await farm.close()
        await farm.client.close()
        await owner.close()
