"""Rollouts over nodes in virtual time: one version in the end, whichever farm falls at which transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from farmd.commands.mutation import Call, commit
from farmd.daemonset.commands import DAEMON_SET, FILE
from farmd.rollout import commands
from store import codec
from store.daemonsets import DaemonSet
from store.entry import Entry
from store.errors import Conflict, InputInvalid
from store.keys import is_sentinel
from store.manifests import Port
from store.pods import Pod
from store.rcs import NUMBERED
from store.reality import Health, Intent, Reality
from store.rollouts import NODES, NODES_BESIDE, NODES_SUPERSEDED, Ended
from tests.effort import first
from tests.fleet import Inbox
from tests.node_farms import FATES, GRACE, KEYS, Fall, Fleet, fleet_of

NODE_NAMES = ("n1", "n2", "n3", "n4")
KINDS = ("rcs", "daemonsets", "rollouts")
POLICY = {"stages": [2, "100%"], "progress_deadline": "5m", "health_deadline": "10s"}
BESIDE = POLICY | {"strategy": "availability"}


class Logs:
    """A daemon set on four nodes whose agents obey; pods whose command is ``bad`` fail their check."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clock = fleet, fleet.clock
        self.call = Call(fleet.client, KEYS, fleet.clock, fleet.ids, "user/ada@host")
        self.policy: dict[str, Any] = POLICY
        self.bad: set[str] = set()
        self.gone: set[str] = set()
        self._seen: dict[str, int] = {}

    def spec(self, word: str) -> Any:
        pod = {"id": "logs", "command": [word]}
        document = {
            "name": "logs",
            "min_healthy_time": 0,
            "min_health": 2,
            "rollout": self.policy,
            "pod": pod,
        }
        return FILE.parse(document, "logs.yaml")

    async def create(self) -> None:
        await commit(self.call, await DAEMON_SET.create(self.call, self.spec("first")))
        await self.until(lambda: self.has(4))

    async def update(self, word: str, **asked: bool) -> None:
        await commit(self.call, await DAEMON_SET.update(self.call, self.spec(word), now=False, **asked))

    async def superseded(self) -> None:
        """Begin a rollout to a version that fails, and wait until a node has it."""
        await self.update("second")
        coming = (await self.record()).coming
        self.bad = {coming}

        async def begun() -> bool:
            return coming in await self.versions()

        await self.until(begun)

    async def record(self) -> DaemonSet:
        return (await DAEMON_SET.records(self.fleet.client, KEYS).find("logs")).record

    async def versions(self) -> list[str]:
        daemonset = await self.record()
        page = await self.fleet.client.list(KEYS.pods(daemonset.id))
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        return [codec.decode(Pod, entry.value, entry.key).manifest for entry in entries]

    async def has(self, count: int) -> bool:
        page = await self.fleet.client.list(KEYS.tree("reality"))
        return len(await self.versions()) == count == sum(not is_sentinel(raw.key) for raw in page.items)

    async def serving(self) -> dict[str, set[str]]:
        """By node, the manifests of its pods that are wanted and healthy."""
        intents, found = await self._tree("intent", Intent), dict[str, set[str]]()
        for key, (_, seen) in (await self._tree("reality", Reality)).items():
            place = KEYS.reality_parts(key)
            intent = intents.get(KEYS.intent(*place))
            if (
                intent is not None
                and seen.health.state == "passing"
                and seen.intent == intent[0].modify_index
            ):
                found.setdefault(place[0], set()).add(seen.manifest)
        return found

    async def _tree(self, family: str, kind: Any) -> dict[str, tuple[Entry, Any]]:
        page = await self.fleet.client.list(KEYS.tree(family))
        entries = [Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)]
        return {entry.key: (entry, codec.decode(kind, entry.value, entry.key)) for entry in entries}

    async def over(self) -> list[Ended]:
        return await commands.history(self.call, "logs")

    async def obey(self) -> None:
        """Do what intents say, until cancelled."""
        while True:
            await self.clock.sleep(1.0)
            page = await self.fleet.client.list(KEYS.tree("intent"))
            for entry in (Entry.of(raw) for raw in page.items if not is_sentinel(raw.key)):
                node, _ = KEYS.intent_parts(entry.key)
                if node in self.gone or self._seen.get(entry.key) == entry.modify_index:
                    continue
                self._seen[entry.key] = entry.modify_index
                intent = codec.decode(Intent, entry.value, entry.key)
                health = Health("critical" if intent.manifest in self.bad else "passing", self.clock.now())
                reality = Reality(
                    manifest=intent.manifest,
                    owner=intent.owner,
                    started=self.clock.now(),
                    intent=entry.modify_index,
                    health=health,
                )
                await self.fleet.put(KEYS.reality(*KEYS.intent_parts(entry.key)), reality)

    async def until(self, done: Callable[[], Awaitable[Any]], within: float = 600.0) -> Any:
        for _ in range(int(within)):
            if found := await done():
                return found
            await self.clock.advance(1.0)
        raise AssertionError(f"not within {within:g} s: {await self.record()}")


@asynccontextmanager
async def logs(policy: dict[str, Any] = POLICY, **settings: Any) -> AsyncIterator[Logs]:
    async with fleet_of(*NODE_NAMES) as fleet:
        made = Logs(fleet)
        made.policy = policy
        obeying = asyncio.create_task(made.obey())
        await fleet.start("f0", kinds=KINDS, **settings)
        try:
            await made.create()
            yield made
        finally:
            obeying.cancel()
            with suppress(asyncio.CancelledError):
                await obeying


async def falls(
    kind: str, fate: str, k: int, *, bad: bool, fixed: bool = False, policy: dict[str, Any] = POLICY
) -> bool:
    """Whether a rollout has a k-th transaction of that kind; it ends with one version.

    ``fixed``: a person put another version in place of one that is on a node already.
    """
    async with logs(policy) as made:
        old = (await made.record()).manifest
        if fixed:
            await made.superseded()
        fall = Fall(made.fleet.farms["f0"], fate, k, kind)
        await made.update("third", supersede=fixed)
        made.bad |= {(await made.record()).coming} if bad else set()

        async def done() -> bool:
            return fall.reached.is_set() or bool(await made.over())

        await made.until(done)
        if not fall.reached.is_set():
            return False
        if fate.startswith("killed"):
            await made.fleet.crash("f0")
        await made.fleet.start("f1", kinds=KINDS)
        await made.clock.advance(60)
        fall.released.set()
        await made.until(made.over)
        (ended,) = await made.over()
        daemonset = await made.record()
        assert ended.outcome == ("reverted" if bad else "done")
        needs = [NUMBERED] if policy is BESIDE else []
        assert (daemonset.coming, daemonset.managed_by, daemonset.needs) == ("", "", needs)
        assert daemonset.superseded == []
        assert daemonset.manifest == (old if bad else ended.to_manifest)

        async def one_a_node() -> bool:
            return await made.versions() == [daemonset.manifest] * len(NODE_NAMES)

        await made.until(one_a_node, within=60.0)
        return True


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("fate", first(1, FATES))
@pytest.mark.parametrize("kind", ["rollouts", "daemonsets"])
async def test_r14_one_pod_a_node_is_left_of_pairs_whichever_farm_falls_at_which_transaction(
    kind: str, fate: str, bad: bool
) -> None:
    k = 1
    while await falls(kind, fate, k, bad=bad, policy=BESIDE):
        k += 1
    assert k > 2


@pytest.mark.parametrize("bad", [False, True])
async def test_pods_that_start_beside_others_leave_no_node_without_one_that_serves(bad: bool) -> None:
    async with logs(BESIDE) as made:
        old, seen = (await made.record()).manifest, set[int]()
        assert all(found == {old} for found in (await made.serving()).values())
        await made.update("second")
        record = await made.record()
        assert {NODES_BESIDE, NUMBERED} <= set(record.needs)
        made.bad = {record.coming} if bad else set()
        for _ in range(200):
            await made.clock.advance(0.5)
            serving = await made.serving()
            assert serving.keys() == set(NODE_NAMES)
            seen.add(sum(record.coming in found for found in serving.values()))
            if await made.over() and len(await made.versions()) == len(NODE_NAMES):
                break
        (ended,) = await made.over()
        stays = old if bad else ended.to_manifest
        assert set(await made.versions()) == {stays}
        assert ended.outcome == ("reverted" if bad else "done")
        assert bad or {2, 4} <= seen
        assert (await made.record()).coming_beside is False


async def test_a_pod_with_a_fixed_port_cannot_start_beside_another() -> None:
    async with logs(BESIDE) as made:
        spec = made.spec("second")
        ports = {"http": Port(port=8080)}
        fixed = msgspec.structs.replace(spec, pod=msgspec.structs.replace(spec.pod, ports=ports))
        with pytest.raises(InputInvalid, match=r"pod\.ports\.http\.port: found 8080 with"):
            await DAEMON_SET.update(made.call, fixed, now=False)


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("fate", first(1, FATES))
@pytest.mark.parametrize("kind", ["rollouts", "daemonsets"])
async def test_r14_one_version_is_left_whichever_farm_falls_at_which_transaction(
    kind: str, fate: str, bad: bool
) -> None:
    k = 1
    while await falls(kind, fate, k, bad=bad):
        k += 1
    assert k > 2


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("fate", first(1, FATES))
async def test_r14_a_fix_in_place_of_a_bad_version_comes_or_goes_whichever_farm_falls(
    fate: str, bad: bool
) -> None:
    k = 1
    while await falls("rollouts", fate, k, bad=bad, fixed=True):
        k += 1
    assert k > 2


async def test_a_version_is_not_superseded_unasked_and_that_of_before_leads_back() -> None:
    async with logs() as made:
        await made.update("second")
        coming = (await made.record()).coming
        with pytest.raises(Conflict, match="daemon set 'logs' has a rollout already"):
            await made.update("third")
        await made.update("second", supersede=True)
        assert (await made.record()).coming == coming
        await commit(made.call, await commands.pause(made.call, "logs"))
        await made.update("third", supersede=True)
        record = await made.record()
        assert (record.coming_held, record.superseded, NODES_SUPERSEDED in record.needs) == (
            True,
            [coming],
            True,
        )
        await commit(made.call, await commands.resume(made.call, "logs"))
        await made.until(made.over)
        (ended,) = await made.over()
        assert (ended.outcome, ended.to_manifest) == ("done", record.coming)


async def test_a_version_that_fails_is_alerted_of_until_another_one_is_rolled_out() -> None:
    inbox = Inbox()
    async with logs(alerts=inbox) as made:
        await made.update("second")
        record = await made.record()
        assert NODES in record.needs
        made.bad = {record.coming}
        await made.until(made.over)
        await made.clock.advance(120)
        assert "rollout_logs" in inbox.firing
        made.bad = set()
        await made.update("third")

        async def twice() -> bool:
            return len(await made.over()) == 2

        await made.until(twice)
        await made.clock.advance(5)
        assert "rollout_logs" not in inbox.firing


async def test_a_rollout_that_is_over_is_gone_back_on_to_the_version_before() -> None:
    async with logs() as made:
        old = (await made.record()).manifest
        await made.update("second")
        await made.until(made.over)
        await commit(made.call, await commands.revert(made.call, "logs"))

        async def twice() -> bool:
            return len(await made.over()) == 2

        await made.until(twice)
        assert set(await made.versions()) == {old}


@pytest.mark.parametrize("lost", [False, True])
async def test_a_node_that_is_away_holds_nothing_up_and_gets_the_version_when_it_returns(lost: bool) -> None:
    async with logs() as made:
        old = (await made.record()).manifest
        made.gone = {"n2"}
        await made.fleet.leave("n2")
        await made.clock.advance(3 * GRACE if lost else 1.0)
        await made.update("second")
        await made.until(made.over)
        (ended,) = await made.over()
        assert ended.outcome == "done"
        assert ended.reason == "3 pods of the new version are available; 1 absent node not waited for"
        assert (await made.versions()).count(old) == 1
        made.gone = set()
        await made.fleet.arrive("n2")

        async def all_new() -> bool:
            return set(await made.versions()) == {ended.to_manifest}

        await made.until(all_new)
