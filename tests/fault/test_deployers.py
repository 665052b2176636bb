"""People who deploy at the same moment, and one who is killed in the middle: all services or none."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from store import codec
from store.deployments import Deployment
from store.services import Service
from tests.farmctl import PATIENCE, Farmctl, Result
from tests.fleet import Cluster, cluster_on, eventually, start_farm
from tests.proxy import Proxy
from tests.proxy_holds import Hold

MANY = 200
KINDS = ("rcs", "daemonsets", "deployments")


def services(count: int, replicas: int = 1) -> str:
    return "---\n".join(
        f"kind: service\nname: s{number}\nreplicas: {replicas}\ncontainer: {{image: 'x@sha256:{'3' * 64}'}}\n"
        for number in range(count)
    )


class Person:
    """Somebody with a file, whose farmctl reaches Consul through a proxy."""

    def __init__(self, proxy: Proxy, cluster: Cluster, file: Path, text: str) -> None:
        self.farmctl = Farmctl(proxy.address, cluster.keys.prefix)
        file.write_text(text)
        self.words = ("deploy", "-f", str(file), "-y", "--no-wait")

    async def deploy(self) -> Result:
        return await asyncio.to_thread(self.farmctl, *self.words)


async def deployments(cluster: Cluster) -> list[Deployment]:
    found = await cluster.entries(cluster.keys.tree("deployments"))
    return [codec.decode(Deployment, entry.value, key) for key, entry in found.items()]


async def held(cluster: Cluster) -> set[str]:
    """The deployments that hold a service, of those that exist."""
    live = {each.id for each in await deployments(cluster)}
    found = await cluster.entries(cluster.keys.tree("services"))
    return {codec.decode(Service, entry.value, key).deployment for key, entry in found.items()} & live


@pytest.mark.parametrize("count", [3, MANY], ids=["one transaction", "batches"])
async def test_of_two_who_deploy_at_once_one_wins_and_the_other_is_told_the_holder(
    count: int, consul_dev: str, tmp_path: Path
) -> None:
    async with cluster_on(consul_dev) as cluster, Proxy(consul_dev) as slow:
        await cluster.add_nodes({"m1": {}}, "runtime.container")
        late = Person(slow, cluster, tmp_path / "late.yaml", services(count))
        hold = slow.hold_transaction(1 if count == 3 else 2)
        waiting = asyncio.create_task(late.deploy())
        await asyncio.wait_for(hold.reached.wait(), PATIENCE)
        async with Proxy(consul_dev) as quick:
            first = await Person(quick, cluster, tmp_path / "first.yaml", services(count)).deploy()
        assert first.code == 0, first
        hold.release()
        second = await waiting
        assert (second.code, "is changed by deployment" in second.err) == (5, True), second
        (won,) = await deployments(cluster)
        assert not won.draft
        assert len(won.goals) == count
        assert await held(cluster) == {won.id}
        records = await cluster.entries(cluster.keys.tree("services"))
        assert len(records) == count


async def test_a_submit_that_is_killed_leaves_a_draft_which_holds_nothing_for_good(
    consul_dev: str, tmp_path: Path
) -> None:
    async with cluster_on(consul_dev) as cluster, Proxy(consul_dev) as proxy:
        await cluster.add_nodes({"m1": {}}, "runtime.container")
        person = Person(proxy, cluster, tmp_path / "many.yaml", services(MANY))
        hold: Hold = proxy.hold_transaction(3)
        with person.farmctl.start(*person.words) as process:
            await asyncio.wait_for(hold.reached.wait(), PATIENCE)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        hold.drop()
        (draft,) = await deployments(cluster)
        assert draft.draft
        assert len(await cluster.entries(cluster.keys.tree("services"))) < MANY
        refused = await person.deploy()
        assert (refused.code, "it is submitted right now; try again" in refused.err) == (5, True), refused
        farm = await start_farm(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS)

        async def over() -> bool:
            return not await deployments(cluster)

        await eventually(over, what="the end of the draft")
        await farm.close()
        again = await person.deploy()
        assert again.code == 0, again
        (second,) = await deployments(cluster)
        assert await held(cluster) == {second.id}
        audits = [each.action for each in await cluster.audits()]
        assert audits.count("deployment.abandoned") == 1


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("k", [1, 3])
async def test_an_interrupt_in_the_middle_of_a_submit_joins_nothing(
    consul_dev: str, tmp_path: Path, k: int, arrives: bool
) -> None:
    """What arrives after the command ended is a draft at most, which a farm ends."""
    async with cluster_on(consul_dev) as cluster, Proxy(consul_dev) as proxy:
        await cluster.add_nodes({"m1": {}}, "runtime.container")
        person = Person(proxy, cluster, tmp_path / "many.yaml", services(MANY))
        hold: Hold = proxy.hold_transaction(k)
        with person.farmctl.start(*person.words) as process:
            await asyncio.wait_for(hold.reached.wait(), PATIENCE)
            process.send_signal(signal.SIGINT)
            if not arrives:
                hold.drop()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 130
        if arrives:
            hold.release()
        again = await person.deploy()
        assert again.code == 0, again
        (second,) = (each for each in await deployments(cluster) if not each.draft)
        assert await held(cluster) == {second.id}


async def test_a_take_over_that_is_killed_before_its_last_word_takes_nothing(
    consul_dev: str, tmp_path: Path
) -> None:
    async with cluster_on(consul_dev) as cluster, Proxy(consul_dev) as proxy:
        await cluster.add_nodes({"m1": {}}, "runtime.container")
        person = Person(proxy, cluster, tmp_path / "many.yaml", services(MANY - 40))
        assert (await person.deploy()).code == 0
        (first,) = await deployments(cluster)
        await asyncio.to_thread(person.farmctl.ok, "deployment", "pause", first.name)
        proxy.reset()
        other = Person(proxy, cluster, tmp_path / "more.yaml", services(MANY, replicas=2))
        hold: Hold = proxy.hold_transaction(3)
        with other.farmctl.start(*other.words) as process:
            await asyncio.wait_for(hold.reached.wait(), PATIENCE)
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        hold.drop()
        left = {each.id: each for each in await deployments(cluster)}
        assert {goal.superseded for goal in left.pop(first.id).goals} == {""}
        assert [each.draft for each in left.values()] == [True]
