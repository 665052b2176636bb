"""Apps of records in Consul, kept by farms on virtual time: what becomes of the world."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from farmd.apps import changes, commands
from farmd.apps.bundle import AppSpec, Bundle, parse
from farmd.apps.facts import Act, Live
from farmd.commands import config_keys, resolving
from farmd.commands.mutation import Call, commit
from farmd.kinds import bundled
from farmd.nodes.commands import label
from farmd.replication.commands import RC, set_replicas
from store import codec, manifests
from store.apps import AppStore, Entry
from store.entry import Stored
from store.errors import Conflict, InputInvalid, StoreUnavailable
from store.failsafe import Failsafe
from store.farms import CLUSTERS
from store.ports import Request
from store.rcs import ReplicationController
from tests.app_fleet import KEYS, MARK, AppFleet, app_fleet, document, pod, rc, spec
from tests.fleet import Inbox
from tests.node_farms import Fall


async def rewrite(call: Call, name: str, **fields: object) -> None:
    """Somebody else writes a controller."""
    records = RC.records(call.client, KEYS)
    stored = await records.find(name)
    await call.client.transaction([records.replace(stored, msgspec.structs.replace(stored.record, **fields))])


async def test_a_bundle_of_two_waves_is_made_and_each_object_bears_its_mark() -> None:
    async with app_fleet("n1", "n2") as fleet:
        node = document("node", "n1", labels={"rack": "r1"})
        await fleet.apply(rc("web", wave=2, replicas=2), rc("db", wave=1), node)
        await fleet.reached(1)
        found = await fleet.records()
        assert {name: each.part_of for name, each in found.items()} == {"web": MARK, "db": MARK}
        stands = (await fleet.records("nodes"))["n1"]
        assert (stands.labels["rack"], stands.parts) == ("r1", {"labels.rack": MARK})
        told = await fleet.told("converged")
        assert (told.phase, told.objects, told.ready) == ("reached", 3, 3)
        assert found["db"].created < found["web"].created


async def test_a_pod_that_changes_while_its_app_looks_at_other_objects_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, well, look = asyncio.Event(), asyncio.Event(), changes.differing

    async def late(part: Any, call: Call, there: Any, *rest: Any, **more: Any) -> Any:
        if there.stored.record.name == "web" and not well.is_set():
            asked.set()
            await well.wait()
        return await look(part, call, there, *rest, **more)

    monkeypatch.setattr(changes, "differing", late)
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("db"), rc("web"))

        async def healthy() -> bool:
            page = await fleet.fleet.client.list(KEYS.tree("reality"))
            return asked.is_set() and sum(b"passing" in raw.decoded() for raw in page.items) == 2

        await fleet.until(healthy)
        await fleet.clock.advance(5.0)  # the farm has heard of it
        well.set()
        await fleet.reached(1, within=30.0)


async def test_a_new_name_is_read_only_after_its_creation_was_refused() -> None:
    async with app_fleet("n1") as fleet:
        names = list[str]()

        async def seen(request: Request) -> None:
            if request.method == "GET" and "/names/" in request.path:
                names.append(request.path.rpartition("/")[2])

        fleet.fleet.farms["f0"].faults.before = seen
        await fleet.apply(rc("db", replicas=0))
        await fleet.reached(1)
        assert names == []
        await fleet.call.client.put(KEYS.name("rcs", "web"), codec.encode("gone"))
        await fleet.apply(rc("db", replicas=0), rc("web", replicas=0))
        await fleet.reached(2)
        assert names == ["web"]
        assert {each.part_of for each in (await fleet.records()).values()} == {MARK}


async def test_a_changed_pod_comes_by_a_rollout_and_the_mark_goes_with_the_name() -> None:
    async with app_fleet("n1", "n2", "n3") as fleet:
        await fleet.apply(rc("web", "--v1", replicas=2))
        await fleet.reached(1)
        before = (await fleet.records())["web"]
        await fleet.apply(rc("web", "--v2", replicas=2))
        await fleet.reached(2, within=400)
        (after,) = (await fleet.records()).values()
        assert (after.name, after.part_of, after.open, after.managed_by) == ("web", MARK, before.open, "")
        assert after.id != before.id
        assert after.manifest != before.manifest
        assert len(await fleet.fleet.audits("rollout.done")) == 1


async def test_a_version_that_its_rollout_reverts_fails_the_revision_and_the_app_goes_back() -> None:
    async with app_fleet("n1", "n2", "n3") as fleet:
        policy = {"progress_deadline": 20, "stages": [1, "100%"]}
        await fleet.apply(
            rc("web", "--v1", replicas=2, rollout=policy), on_failure="rollback", deadline=900.0
        )
        await fleet.reached(1)
        await fleet.apply(rc("web", "--bad", replicas=2, rollout=policy), rc("new"))
        told = await fleet.told("revision 2 failed", within=900)
        assert "rc/web" in told.reason
        found = await fleet.until(lambda: _only(fleet, "web"), 300)
        assert found.part_of == MARK
        state = await fleet.state()
        assert (state.effective, state.reached, state.refused) == (1, 1, 2)


@pytest.mark.parametrize("prune", [False, True])
async def test_an_object_whose_record_does_not_decode_is_neither_gone_nor_repaired(prune: bool) -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"), rc("db"))
        await fleet.reached(1)
        key = KEYS.record("rcs", (await fleet.records())["web"].id)
        whole = await fleet.call.client.read(key)
        assert whole is not None
        await fleet.call.client.put(key, b"{")
        if prune:
            await fleet.apply(rc("db"), prune=True)
        told = await fleet.told("does not decode")
        assert "repaired" not in told.reason
        await fleet.call.client.put(key, whole.value)
        if prune:
            await fleet.until(lambda: _only(fleet, "db"), 300)
        else:
            await fleet.told("converged")
            assert (await fleet.state()).repairs == {}


async def _only(fleet: AppFleet, name: str) -> object:
    found = await fleet.records()
    return found[name] if set(found) == {name} else None


async def test_what_left_the_files_goes_with_prune_and_its_pods_before_it() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), rc("b"), rc("c"))
        await fleet.reached(1)
        await fleet.apply(rc("a"), rc("b"))
        await fleet.reached(2)
        assert set(await fleet.records()) == {"a", "b", "c"}
        assert (await fleet.told("converged")).left == 1
        await fleet.apply(rc("a"), rc("b"), prune=True)
        await fleet.reached(3)
        assert set(await fleet.records()) == {"a", "b"}
        page = await fleet.call.client.list(KEYS.tree("pods"))
        assert len([raw for raw in page.items if "/n1/" in raw.key]) == 2


async def test_drift_of_a_stated_field_is_repaired_and_any_other_field_is_peoples() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=1))
        await fleet.reached(1)
        await rewrite(fleet.call, "web", replicas_desired=0, max_unavailable=7)

        async def repaired() -> bool:
            return (await fleet.records())["web"].replicas_desired == 1

        await fleet.until(repaired)
        assert (await fleet.records())["web"].max_unavailable == 7
        assert len(await fleet.fleet.audits("app.repair")) == 1


@pytest.mark.parametrize("apps", [("one", "two"), ("one", "two", "three", "four")])
async def test_apps_that_swap_objects_in_a_circle_all_get_what_they_want(apps: tuple[str, ...]) -> None:
    async with app_fleet("n1", farms=2) as fleet:
        for app in apps:
            await fleet.apply(rc(f"of-{app}"), app=app)
        for app in apps:
            await fleet.reached(1, app=app)
        before = await fleet.records()
        wishes = dict(zip(apps, (*apps[1:], apps[0]), strict=True))
        for app, other in wishes.items():
            await fleet.apply(rc(f"of-{other}"), app=app, adopt=["*"], prune=True, mass=True)
        for app in apps:
            await fleet.reached(2, app=app)
        found = await fleet.records()
        wanted = {f"of-{other}": f"apps/{app}" for app, other in wishes.items()}
        assert {name: each.part_of for name, each in found.items()} == wanted
        assert {each.id for each in found.values()} == {each.id for each in before.values()}


async def test_a_repair_reads_nothing_before_its_transaction_and_keeps_fields_of_later_versions() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=1))
        await fleet.reached(1)
        (stored,) = (await RC.records(fleet.call.client, KEYS).list()).items
        asked = list[str]()

        async def seen(request: Request) -> None:
            key = request.path.removeprefix("/v1/kv/")
            if request.method == "GET" and key.startswith((stored.key, *_read_by_commands(stored))):
                asked.append(key)

        fleet.fleet.farms["f0"].faults.before = seen
        later = {**msgspec.json.decode(stored.raw), "of_a_later_version": 7, "replicas_desired": 0}
        await fleet.call.client.put(stored.key, msgspec.json.encode(later))
        await fleet.clock.advance(1)
        found = await fleet.call.client.read(stored.key)
        assert found is not None
        assert msgspec.json.decode(found.value) == {**later, "replicas_desired": 1}
        assert asked == []


async def test_after_a_refusal_a_repair_reads_all_at_once_and_writes_nothing_while_another_has_the_lock() -> (
    None
):
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=1))
        await fleet.reached(1)
        (stored,) = (await RC.records(fleet.call.client, KEYS).list()).items
        wanted, asked, sent = {stored.key, *_read_by_commands(stored)} - {KEYS.cluster}, set[str](), 0
        lock = KEYS.mutation_lock("rcs", stored.record.id)

        async def together(request: Request) -> None:
            """Answer none of these keys before all are asked for, and count what is tried."""
            nonlocal sent
            key = request.path.removeprefix("/v1/kv/")
            sent += request.method == "PUT" and lock.encode() in request.body
            if request.method == "GET" and key in wanted:
                asked.add(key)
                for _ in range(1000):
                    if asked == wanted:
                        return
                    await asyncio.sleep(0)
                raise StoreUnavailable(f"{key} waits for {wanted - asked}")

        await fleet.call.client.put(lock, b"user/eve@host/1")
        fleet.fleet.farms["f0"].faults.before = together
        await rewrite(fleet.call, "web", replicas_desired=0)
        await fleet.told("user/eve@host", within=10.0)
        await fleet.clock.advance(60.0)
        assert sent == 1
        await fleet.call.client.delete(lock)
        await fleet.clock.advance(10.0)
        assert (await fleet.records())["web"].replicas_desired == 1


class _Refusing:
    """A cluster that refuses all changes, with the trials."""

    def __init__(self) -> None:
        self.why, self.trials, self.stands = "forbidden", 0, False

    async def read(self, entries: Mapping[str, Entry], steady: bool) -> Mapping[str, Live]:
        """No object, or all of them as the app ``shop`` wants them."""
        found = entries if self.stands else {}
        return {ref: Live(ref=each.ref, owner=MARK, verdict="ready") for ref, each in found.items()}

    async def act(self, acts: Sequence[Act], seq: int) -> Mapping[str, str]:
        self.trials += 1
        return {str(act.ref): self.why for act in acts}

    def follow(self, refs: object) -> None: ...

    def unfollow(self) -> None: ...


async def test_what_the_api_server_refuses_is_tried_ever_more_seldom_whatever_it_says() -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    cluster = _Refusing()
    async with app_fleet(farms=0) as fleet:
        farm = await fleet.farm("f0", sections={"apps": lambda *_: cluster})
        farm.farm.features.add(f"{CLUSTERS}prod")
        await fleet.clock.advance(1.0)
        said = AppSpec(name="shop", namespace="x", deadline=900)
        bundle = parse([(json.dumps(document), "app.json")], said)
        await commit(fleet.call, (await commands.apply(fleet.call, bundle)).mutation)
        await fleet.told("forbidden")
        await fleet.clock.advance(600.0)
        assert 10 <= cluster.trials <= 20
        cluster.why = "another reason"
        before = cluster.trials
        await fleet.told("another reason", within=80.0)
        await fleet.clock.advance(150.0)
        assert before + 2 <= cluster.trials <= before + 5
        await fleet.told("not ready in time: configmap.core/x/settings (another reason)", within=900.0)


async def test_people_are_told_of_an_app_that_an_api_server_refuses_for_ten_minutes() -> None:
    inbox, cluster = Inbox(), _Refusing()
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    async with app_fleet(farms=0) as fleet:
        farm = await fleet.farm("f0", sections={"apps": lambda *_: cluster}, alerts=inbox)
        farm.farm.features.add(f"{CLUSTERS}prod")
        await fleet.clock.advance(1.0)
        bundle = parse(
            [(json.dumps(document), "app.json")], AppSpec(name="shop", namespace="x", deadline=7200)
        )
        await commit(fleet.call, (await commands.apply(fleet.call, bundle)).mutation)
        await fleet.told("forbidden")
        await fleet.clock.advance(580.0)
        assert "app_shop" not in inbox.firing
        await fleet.clock.advance(120.0)
        assert "configmap.core/x/settings: forbidden" in inbox.firing["app_shop"].summary
        cluster.stands = True
        await fleet.reached(1)
        assert "app_shop" in inbox.resolved


SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}


def bundle(*documents: dict[str, Any]) -> Bundle:
    said = AppSpec(name="shop", namespace="x", prune=True)
    return parse([(json.dumps(each), f"{at}.json") for at, each in enumerate(documents)], said)


async def serving(fleet: AppFleet, *names: str) -> None:
    """A farm that serves these clusters."""
    farm = await fleet.farm("f0", sections={"apps": lambda *_: _Refusing()})
    for name in names:
        farm.farm.features.add(f"{CLUSTERS}{name}")
    await fleet.clock.advance(1.0)


async def test_r11_an_app_needs_no_cluster_once_its_objects_there_are_gone_and_again_when_it_goes_back() -> (
    None
):
    async with app_fleet(farms=0) as fleet:
        await serving(fleet, "prod", "test")
        call, web = fleet.call, rc("web", replicas=0)
        await commit(call, (await commands.apply(call, bundle(web, SETTINGS), cluster="prod")).mutation)
        left = await commands.apply(call, bundle(web))
        assert left.app.needs == [f"{CLUSTERS}prod"], "a farm is to take them down first"
        await commit(call, left.mutation)
        await fleet.reached(2)
        without = await commands.apply(call, bundle(web))
        assert (without.app.needs, without.mutation.needed) == ([], True)
        await commit(call, without.mutation)
        await fleet.reached(3)
        with pytest.raises(InputInvalid, match="--cluster: found farms that serve"):
            await commands.rollback(call, "shop", 1)
        back = await commands.rollback(call, "shop", 1, cluster="test")
        assert back.app.needs == [f"{CLUSTERS}test"]


async def test_the_cluster_of_an_app_stays_as_long_as_it_has_objects_there() -> None:
    settings = SETTINGS
    async with app_fleet(farms=0) as fleet:
        await serving(fleet, "prod", "test")
        call, web = fleet.call, rc("web", replicas=0)
        made = await commands.apply(call, bundle(web, settings), cluster="prod")
        await commit(call, made.mutation)
        for documents in ((web, settings), (web,)):
            with pytest.raises(InputInvalid, match="--cluster: found 'test', expected 'prod', where objects"):
                await commands.apply(call, bundle(*documents), cluster="test")
        await commit(call, (await commands.apply(call, bundle(web))).mutation)
        await fleet.reached(2)
        moved = await commands.apply(call, bundle(web, settings), cluster="test")
        assert moved.app.needs == [f"{CLUSTERS}test"]


def _read_by_commands(stored: Stored[ReplicationController]) -> tuple[str, ...]:
    """What commands read beside a controller's record to change it."""
    record = stored.record
    return KEYS.cluster, KEYS.name("rcs", record.name), KEYS.mutation_lock("rcs", record.id)


async def test_a_field_that_somebody_else_writes_again_and_again_is_left_and_people_are_told() -> None:
    inbox = Inbox()
    async with app_fleet("n1", alerts=inbox) as fleet:
        await fleet.apply(rc("web", replicas=1))
        await fleet.reached(1)
        for _ in range(4):
            await rewrite(fleet.call, "web", replicas_desired=0)
            await fleet.clock.advance(5)
        assert (await fleet.records())["web"].replicas_desired == 0
        assert "replicas was repaired 3 times" in (await fleet.told("repaired 3 times")).reason
        assert "app_contended_shop" in inbox.firing
        await rewrite(fleet.call, "web", replicas_desired=1)
        await fleet.told("converged")
        assert "app_contended_shop" in inbox.resolved


SAID = r"is managed by app shop \(revision 1, applied by user/ada@host at \d{4}-\S+Z\)"


async def test_r14_people_edit_what_a_file_leaves_open_and_disable_and_restart_everything() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=1))
        await fleet.reached(1)
        call = fleet.call
        with pytest.raises(Conflict, match="replicas of rc/web " + SAID):
            await set_replicas(call, "web", 3)
        with pytest.raises(Conflict, match="rc/web is part of app"):
            await RC.delete(call, "web", cascade=True)
        with pytest.raises(Conflict, match="pod of rc/web " + SAID):
            await RC.update(call, spec("web", "--v9"), now=False)
        await commit(call, await RC.restart(call, "web"))
        await commit(call, await RC.disable(call, "web"))
        await fleet.clock.advance(20)
        found = (await fleet.records())["web"]
        assert (found.disabled, found.restart) == (True, 1)
        await commit(call, await RC.enable(call, "web"))
        await commit(call, await RC.update(call, spec("web", labels={"a": "b"}), now=False))
        await fleet.clock.advance(20)
        assert (await fleet.records())["web"].labels == {"a": "b"}


async def test_r14_a_forced_edit_holds_until_the_worker_looks_again() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web", replicas=1))
        await fleet.reached(1)
        forced = replace(fleet.call, force=True, reason="an incident")
        await commit(forced, await set_replicas(forced, "web", 0))

        async def repaired() -> bool:
            return (await fleet.records())["web"].replicas_desired == 1

        await fleet.until(repaired)


async def test_an_equal_controller_of_nobodys_is_adopted_and_another_one_only_by_name() -> None:
    async with app_fleet("n1") as fleet:
        for each in (spec("equal"), spec("other", replicas=0)):
            await commit(fleet.call, await RC.create(fleet.call, each))
        before = await fleet.records()
        await fleet.apply(rc("equal"), rc("other", replicas=1, wave=1))
        told = await fleet.told("exists and differs")
        assert told.waiting[0].ref == "rc/other"
        found = await fleet.records()
        assert (found["equal"].part_of, found["other"].part_of) == (MARK, "")
        assert found["other"].replicas_desired == 0
        await fleet.apply(rc("equal"), rc("other", replicas=1, wave=1), adopt=["rc/other"])
        await fleet.reached(2)
        found = await fleet.records()
        assert (found["other"].part_of, found["other"].replicas_desired) == (MARK, 1)
        assert {each.id for each in found.values()} == {each.id for each in before.values()}


async def test_a_controller_moves_from_app_to_app_with_its_pods() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"), rc("x"), rc("y"))
        await fleet.reached(1)
        before = (await fleet.records())["web"]
        await fleet.apply(rc("web"), app="next", adopt=["*"])
        await fleet.told("belongs to app shop", app="next")
        await fleet.apply(rc("x"), rc("y"), prune=True)
        await fleet.reached(1, app="next")
        await fleet.reached(2)
        after = (await fleet.records())["web"]
        assert (after.id, after.part_of) == (before.id, "apps/next")
        assert len(await fleet.fleet.audits("rc.delete")) == 0


async def test_r31_of_two_apps_that_make_one_object_in_one_instant_one_is_refused() -> None:
    async with app_fleet("n1", farms=2) as fleet:
        both = await asyncio.gather(*(fleet.apply(rc("web"), app=app) for app in ("one", "two")))
        assert both == [1, 1]

        async def settled() -> dict[str, str]:
            told = {app: (await fleet.status(app)).reason for app in ("one", "two")}
            reached = [app for app in told if (await fleet.state(app)).reached]
            return told if reached and any(told.values()) else {}

        told = await fleet.until(settled, what="one app to reach its revision and the other to be refused")
        owner = (await fleet.records())["web"].part_of
        (refused,) = {"apps/one", "apps/two"} - {owner}
        assert f"rc/web: belongs to app {owner.removeprefix('apps/')}" in told[refused.removeprefix("apps/")]


async def test_two_farms_and_the_second_takes_over_in_the_middle() -> None:
    async with app_fleet("n1", farms=2, ttl=10.0) as fleet:
        await fleet.apply(*(rc(f"r{number}", wave=number % 3) for number in range(9)))
        await fleet.clock.advance(1)
        await fleet.fleet.crash("f0")
        await fleet.reached(1, within=300)
        assert len(await fleet.records()) == 9


async def test_an_app_that_is_deleted_takes_everything_with_it() -> None:
    async with app_fleet("n1") as fleet:
        node = document("node", "n1", labels={"rack": "r1"})
        await fleet.apply(rc("a"), document("daemonset", "logs", pod=pod("logs"), min_healthy_time=0), node)
        await fleet.reached(1)
        await fleet.say(deleting="objects")
        await fleet.gone()
        assert (await fleet.records(), await fleet.records("daemonsets")) == ({}, {})
        stands = (await fleet.records("nodes"))["n1"]
        assert (stands.labels, stands.parts) == ({}, {})
        for tree in ("trackers/", "work/apps/", "status/apps/", "apps/s"):
            assert (await fleet.call.client.list(KEYS.prefix + tree)).items == []
        assert len(await fleet.fleet.audits("app.delete")) == 1


async def test_an_app_that_ends_may_leave_its_objects_to_people() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), document("node", "n1", labels={"rack": "r1"}))
        await fleet.reached(1)
        await fleet.say(deleting="keep")
        await fleet.gone()
        found = (await fleet.records())["a"]
        assert (found.part_of, found.open) == ("", [])
        assert (await fleet.records("nodes"))["n1"].labels == {"rack": "r1"}


async def test_a_job_runs_once_and_what_waits_for_it_begins_then() -> None:
    async with app_fleet("n1") as fleet:
        load = document("job", "load", types=[{"name": "main", "pod": pod("load")}])
        await fleet.fleet.arrive("n1", features=["jobs.1"])
        await fleet.apply(load, rc("web", after=["job/load"]))
        await fleet.clock.advance(10)
        assert set(await fleet.records()) == set()
        (job,) = (await fleet.records("jobs")).values()
        assert job.part_of == MARK
        await fleet.call.client.put(KEYS.record("runs", job.id), b'{"outcome":"succeeded"}')
        await fleet.reached(1, within=600)
        assert set(await fleet.records()) == {"web"}


async def test_a_job_that_differs_is_deleted_and_made_anew() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(document("job", "load", types=[{"name": "main", "pod": pod("load")}]), repair=True)

        async def made() -> object:
            return (await fleet.records("jobs")).get("load")

        first = await fleet.until(made)
        await fleet.apply(
            document("job", "load", backoff_limit=1, types=[{"name": "main", "pod": pod("load")}])
        )

        async def anew() -> bool:
            found = (await fleet.records("jobs")).get("load")
            return found is not None and found.id != first.id

        await fleet.until(anew)
        assert (await fleet.records("jobs"))["load"].backoff_limit == 1


async def test_a_paused_app_is_left_as_it_is_until_it_is_resumed() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), paused=True)
        await fleet.told("paused")
        assert await fleet.records() == {}
        await fleet.say(paused=False)
        await fleet.reached(1)


async def test_r10_a_tracker_that_was_altered_by_hand_blocks_its_app_alone() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.call.client.put(
            KEYS.tracker("bad", 1), b'{"revision":1,"digest":"x","count":1,"packed":"AAAA"}'
        )
        await fleet.call.client.put(KEYS.record("apps", "bad"), b'{"revision":1}')
        await fleet.apply(rc("a"))
        await fleet.reached(1)
        told = await fleet.told("record_invalid", app="bad")
        assert "trackers/bad/00000001: packed" in told.reason
        await fleet.apply(rc("b"), app="other")
        await fleet.reached(1, app="other")


async def test_a_former_revision_that_was_deleted_by_hand_counts_as_empty() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), rc("b"))
        await fleet.reached(1)
        await fleet.apply(rc("a"), rc("c", "--bad"), deadline=900.0)
        await fleet.told("rc/c: 0 of 1 available")
        await fleet.call.client.delete(KEYS.tracker("shop", 1))
        await fleet.apply(rc("a"), prune=True, mass=True)
        await fleet.reached(3)
        assert set(await fleet.records()) == {"a"}


async def test_revisions_beyond_the_history_are_deleted_and_the_reached_one_is_kept() -> None:
    async with app_fleet("n1") as fleet:
        for number in range(1, 6):
            await fleet.apply(rc("a", labels={"n": str(number)}), history=2)
            await fleet.reached(number)
        store = AppStore(fleet.call.client, KEYS)
        assert list(await store.revisions("shop")) == [4, 5]


async def test_what_people_took_away_of_earlier_revisions_is_neither_missed_nor_made_anew() -> None:
    """KubeVela's keepLegacyResource: six revisions, each with another name of the object."""
    async with app_fleet("n1") as fleet:
        for number in range(1, 7):
            await fleet.apply(rc(f"r{number}", replicas=0))
            await fleet.reached(number)
        made = await fleet.records()
        assert set(made) == {f"r{number}" for number in range(1, 7)}
        store, client = AppStore(fleet.call.client, KEYS), fleet.call.client
        assert list(await store.revisions("shop")) == [1, 2, 3, 4, 5, 6]
        await client.delete(KEYS.tracker("shop", 1))
        for name in ("r2", "r3", "r4"):
            await client.delete(KEYS.record("rcs", made[name].id))
            await client.delete(KEYS.name("rcs", name))
        await fleet.apply(rc("r7", replicas=0))
        await fleet.reached(7)
        await fleet.clock.advance(30)
        assert set(await fleet.records()) == {"r1", "r5", "r6", "r7"}
        told = await fleet.status()
        assert (told.state, told.effective, told.left) == ("converged", 7, 3)
        await fleet.say(deleting="objects")
        await fleet.gone()
        assert (await fleet.records(), list(await store.revisions("shop"))) == ({}, [])


async def test_r18_a_freeze_holds_removals_until_a_person_speaks_anew() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), rc("b"), rc("c"))
        await fleet.reached(1)
        await fleet.apply(rc("a"), rc("b"), prune=True, paused=True)
        frozen = Failsafe(evidence="a test doubts", since=fleet.clock.now(), by="f9")
        await fleet.call.client.put(KEYS.failsafe("apps"), codec.encode(frozen))
        await fleet.clock.advance(1)
        assert set(await fleet.records()) == {"a", "b", "c"}
        await fleet.say(paused=False)  # later than the freeze: a person's word
        await fleet.reached(2)
        assert set(await fleet.records()) == {"a", "b"}


async def test_a_wave_that_never_gets_ready_fails_after_its_deadline_and_people_are_told() -> None:
    inbox = Inbox()
    async with app_fleet("n1", alerts=inbox) as fleet:
        await fleet.apply(rc("web", "--bad"), rc("next", wave=1), deadline=30.0)
        told = await fleet.told("revision 1 failed", within=120)
        assert "rc/web (0 of 1 available)" in told.reason
        assert set(await fleet.records()) == {"web"}
        assert "app_shop" in inbox.firing
        await fleet.apply(rc("web"), rc("next", wave=1))
        await fleet.reached(2, within=400)
        await fleet.told("converged")
        assert "app_shop" in inbox.resolved


@pytest.mark.parametrize(("way_back", "ready"), [("stop", "1/2"), ("rollback", "1/1")])
async def test_an_object_on_which_a_revision_failed_is_not_counted_as_ready(
    way_back: str, ready: str
) -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("web"), on_failure=way_back, deadline=30.0)
        await fleet.reached(1)
        await fleet.apply(rc("web"), rc("bad", "--bad"))
        await fleet.told("revision 2 failed", within=300)
        told = await fleet.status()
        assert (f"{told.ready}/{told.objects}", told.state) == (ready, "blocked")


async def test_an_atomic_app_that_does_not_fit_into_one_transaction_writes_nothing() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(*(rc(f"r{number}", replicas=0) for number in range(30)), atomic=True)
        told = await fleet.told("atomic: found")
        assert "expected at most 64" in told.reason
        assert await fleet.records() == {}
        await fleet.apply(*(rc(f"r{number}", replicas=0) for number in range(10)), atomic=True)
        await fleet.reached(2)
        begun = await fleet.fleet.audits("app.begin")
        assert [audit.after.get("create", "").count("rc/") for audit in begun] == [10]


async def test_an_unchanged_app_writes_nothing_and_asks_nothing() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("a"), document("node", "n1", labels={"rack": "r1"}))
        await fleet.reached(1)
        await fleet.told("converged")
        await fleet.clock.advance(30)
        before = (await fleet.call.client.list(KEYS.tree("audit"))).items
        await fleet.apply(rc("a"), document("node", "n1", labels={"rack": "r1"}))
        await fleet.reached(2)
        after = (await fleet.call.client.list(KEYS.tree("audit"))).items
        actions = sorted(msgspec.json.decode(raw.decoded())["action"] for raw in after if raw not in before)
        assert actions == ["app.begin", "app.reach", "app.record"]


SERVICE = {"container": {"image": f"web@sha256:{'1' * 64}"}, "replicas": 1}


async def test_a_service_is_deployed_for_its_app_and_people_do_not_deploy_it_otherwise() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.fleet.arrive("n1", features=["runtime.container"])
        await fleet.apply(document("service", "front", **SERVICE), rc("web", after=["service/front"]))
        await fleet.reached(1, within=600)
        front = (await fleet.records("services"))["front"]
        assert (front.part_of, front.version.replicas) == (MARK, 1)
        deployed = bundled()["service"]()
        scaled = deployed.wish({"name": "front", **SERVICE, "replicas": 2})
        with pytest.raises(Conflict, match="service/front is part of app/shop"):
            await deployed.update(fleet.call, scaled)
        await fleet.apply(document("service", "front", **SERVICE | {"replicas": 2}), rc("web"))
        await fleet.reached(2, within=600)
        assert (await fleet.records("services"))["front"].version.replicas == 2
        await fleet.apply(rc("web"), prune=True)
        await fleet.reached(3, within=600)
        assert await fleet.records("services") == {}


async def test_a_service_that_differs_names_the_field_of_its_file() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.fleet.arrive("n1", features=["runtime.container"])
        await fleet.apply(document("service", "front", **SERVICE))
        await fleet.reached(1, within=600)
        deployed = bundled()["service"]()
        other = {"container": {**SERVICE["container"], "command": ["--other"]}}
        wish = deployed.wish({"name": "front", **SERVICE, **other})
        before, after = await deployed.differs(fleet.call, await deployed.find(fleet.call, "front"), wish)
        assert before.keys() == after.keys() == {"container"}


async def test_two_apps_may_each_say_a_label_of_one_node() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(document("node", "n1", labels={"rack": "r1"}))
        await fleet.apply(document("node", "n1", labels={"zone": "a"}), app="next")
        await fleet.reached(1)
        await fleet.reached(1, app="next")
        node = (await fleet.records("nodes"))["n1"]
        assert node.parts == {"labels.rack": MARK, "labels.zone": "apps/next"}
        with pytest.raises(Conflict, match="labels.rack of node/n1 " + SAID):
            await label(fleet.call, "n1", {"rack": "r2"})
        await fleet.say(deleting="objects")
        await fleet.gone()
        node = (await fleet.records("nodes"))["n1"]
        assert (node.labels, node.parts) == ({"zone": "a"}, {"labels.zone": "apps/next"})


async def test_a_node_that_moves_from_app_to_app_keeps_what_its_heir_states_alone() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(document("node", "n1", labels={"rack": "r1", "zone": "a"}), rc("keep"))
        await fleet.reached(1)
        await fleet.apply(document("node", "n1", labels={"rack": "r2"}), app="next", adopt=["node/n1"])
        await fleet.told("belongs to app shop: waiting until", app="next")
        await fleet.apply(rc("keep"), prune=True, mass=True)
        await fleet.reached(2)
        await fleet.reached(1, app="next")
        (handed,) = [told for told in await fleet.fleet.audits("app.sweep") if "hand" in told.after]
        assert handed.after["hand"] == "node/n1"
        node = (await fleet.records("nodes"))["n1"]
        assert (node.labels, node.parts) == ({"rack": "r2"}, {"labels.rack": "apps/next"})


async def test_a_label_that_leaves_a_nodes_file_goes_and_an_ignored_one_stays() -> None:
    async with app_fleet() as fleet:
        await fleet.apply(document("node", "n1", labels={"rack": "r1", "zone": "a"}, capacity={"gpu": 1}))
        await fleet.reached(1)
        left = document("node", "n1", labels={"rack": "r1"}, capacity={"gpu": 1}, ignore=["capacity"])
        await fleet.apply(left)
        await fleet.reached(2)
        node = (await fleet.records("nodes"))["n1"]
        assert (node.labels, node.capacity) == ({"rack": "r1"}, {"gpu": 1})
        assert node.parts == {"labels.rack": MARK, "capacity.gpu": MARK}
        await fleet.apply(document("node", "n1"))
        await fleet.reached(3)
        node = (await fleet.records("nodes"))["n1"]
        assert (node.labels, node.capacity, node.parts) == ({}, {}, {})


async def test_a_node_of_which_an_app_states_nothing_keeps_no_step_from_its_end() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(document("node", "n1", labels={"rack": "r1"}))
        await fleet.reached(1)
        await fleet.apply(document("node", "n1"), app="next")
        await fleet.reached(1, app="next")
        assert (await fleet.records("nodes"))["n1"].parts == {"labels.rack": MARK}


async def test_a1_a_label_that_one_app_says_is_refused_to_another_that_says_the_same() -> None:
    async with app_fleet("n1") as fleet:
        node = document("node", "n1", labels={"rack": "r1"})
        await fleet.apply(node)
        await fleet.reached(1)
        await fleet.apply(node, app="next")
        await fleet.told("node/n1: belongs to app shop", app="next")
        await fleet.clock.advance(30)
        assert (await fleet.records("nodes"))["n1"].parts == {"labels.rack": MARK}


async def test_r12_what_was_planned_before_a_person_spoke_is_refused() -> None:
    async with app_fleet("n1") as fleet:
        farm = fleet.fleet.farms["f0"]
        fall = Fall(farm, "stopped, sent late", 1, "apps")
        await fleet.apply(rc("old"))
        await fleet.until(_is_set(fall))
        await fleet.apply(rc("new"), prune=True)
        fall.released.set()
        await fleet.reached(2)
        assert set(await fleet.records()) == {"new"}
        begun = await fleet.fleet.audits("app.begin")
        assert [audit.after["effective"] for audit in begun] == [2]


def _is_set(fall: Fall) -> Any:
    async def so() -> bool:
        return fall.reached.is_set()

    return so


async def test_a_service_that_was_rolled_back_is_tried_again_with_another_version_alone() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.fleet.arrive("n1", features=["runtime.container"])
        await fleet.apply(document("service", "front", **SERVICE))
        await fleet.reached(1, within=600)
        bad = {"container": {**SERVICE["container"], "command": ["--bad"]}}
        await fleet.apply(document("service", "front", **SERVICE | bad), deadline=900.0)
        await fleet.told("revision 2 failed", within=1800)
        good = {"container": {**SERVICE["container"], "command": ["--good"]}}
        await fleet.apply(document("service", "front", **SERVICE | good))
        await fleet.reached(3, within=900)


async def test_r41_a_part_that_follows_config_keys_gets_their_values_from_a_farm_and_keeps_them() -> None:
    async with app_fleet("n1") as fleet:
        await commit(fleet.call, await config_keys.set_value(fleet.call, "level", "info"))

        async def applied(*args: str) -> int:
            said = rc("web", *args, follow=True, rollout={"stages": ["100%"], "min_healthy_time": 0})
            said["pod"]["env"] = {"LEVEL": {"kv": "level"}}
            text = yaml.safe_dump(said)
            resolve = await resolving.resolver(fleet.call, [(text, "web.yaml")])
            return await fleet.apply(resolve(said, "web.yaml"))

        async def level(wanted: str) -> bool:
            found = (await fleet.records()).get("web")
            if found is None or found.managed_by:
                return False
            manifest = await manifests.read(fleet.call.client, KEYS, found.manifest)
            return (manifest.env, found.part_of) == ({"LEVEL": wanted}, MARK)

        await fleet.reached(await applied())
        await commit(fleet.call, await config_keys.set_value(fleet.call, "level", "debug"))
        await fleet.until(lambda: level("debug"), what="the new value")
        await fleet.clock.advance(120.0)
        assert await level("debug")  # the app's document has the former value
        told = await fleet.told("converged")
        assert (told.phase, told.ready) == ("reached", 1)
        await fleet.reached(await applied("--more"))
        assert await level("debug")
