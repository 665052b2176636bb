"""Apps whose objects lie in a real API server: a farm applies, repairs, collects and hands them over."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farmd.apps import commands
from farmd.apps.revision import wanted
from farmd.apps.scene import standing
from farmd.commands.mutation import Call, commit
from farmd.kubernetes.apps.marks import APPLIED, LABEL
from farmd.kubernetes.errors import UnknownOutcome
from farmd.kubernetes.transport import REQUEST_SECONDS, ApiRequest, KubernetesTransport
from farmd.replication.commands import set_replicas
from store import codec
from store.apps import KIND, AppStore, DispatchState
from store.audit import AuditReader, Filter
from store.farms import PinnedCluster
from store.times import seconds_of
from store.work import Work
from tests.farmctl import Farmctl, Result
from tests.fleet import eventually
from tests.kubernetes.apps import Apps
from tests.ports import free_ports

pytestmark = pytest.mark.xdist_group("kubernetes")
POD = {"id": "web", "command": ["sleep", "9"]}


def config(name: str, wave: int = 0, **data: str) -> dict[str, Any]:
    meta = {"name": name, "annotations": {"farmd.io/wave": str(wave)}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


async def test_an_app_is_applied_in_waves_changed_pruned_rolled_back_and_deleted(apps: Apps) -> None:
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"), config("b", 1, x="1"))
    await apps.reached("shop", 1)
    assert apps.config("a")["data"] == apps.config("b")["data"] == {"x": "1"}
    assert (
        apps.config("a")["metadata"]["creationTimestamp"] <= apps.config("b")["metadata"]["creationTimestamp"]
    )
    await apps.apply("shop", config("a", x="2"), prune=True)
    await apps.reached("shop", 2)
    assert apps.config("a")["data"] == {"x": "2"}
    assert apps.config("b") is None
    await commit(apps.call, (await commands.rollback(apps.call, "shop")).mutation)
    await apps.reached("shop", 3)
    assert apps.config("b")["data"] == {"x": "1"}
    told = await AuditReader(apps.call.client, apps.call.keys).read(Filter(kind=KIND), 50)
    assert {"app.apply", "app.begin", "app.reach", "app.sweep"} <= {each.action for each in told}
    mutation, _ = await commands.delete(apps.call, "shop", keep=False)
    await commit(apps.call, mutation)
    await apps.until("shop", "gone", lambda now: now.stored is None)
    assert apps.config("a") is apps.config("b") is None


async def test_a_quick_edit_and_its_way_back_remove_nothing_that_is_wanted(apps: Apps) -> None:
    """KubeVela's A -> B -> A; then what leaves the files stays, and goes when a person prunes."""
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"), config("b", x="1"))
    await apps.reached("shop", 1)
    before = [apps.config(name)["metadata"]["uid"] for name in "ab"]
    await apps.apply("shop", config("a", x="2"), config("c", 1, x="1"), prune=True)
    await apps.apply("shop", config("a", x="1"), config("b", x="1"), prune=True)
    await apps.reached("shop", 3)
    assert [apps.config(name)["metadata"]["uid"] for name in "ab"] == before
    assert (apps.config("a")["data"], apps.config("c")) == ({"x": "1"}, None)
    await apps.apply("shop", config("a", x="1"), prune=False)
    await apps.reached("shop", 4)
    assert apps.config("b")["metadata"]["labels"] == {LABEL: "shop"}
    assert (await apps.until("shop", "left", lambda now: now.reported)).status.left == 1  # type: ignore[union-attr]
    await apps.apply("shop", config("a", x="1"), prune=True)
    await apps.reached("shop", 5)
    assert apps.config("b") is None


async def test_an_object_that_moves_to_another_namespace_is_made_there_before_the_old_one_goes(
    apps: Apps,
) -> None:
    there = apps.api.namespace(f"{apps.namespace}-next")
    apps.allow("shop", there)
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    moved = config("a", x="1")
    moved["metadata"]["namespace"] = there
    await apps.apply("shop", moved, prune=True)
    await apps.reached("shop", 2)
    assert apps.config("a") is None
    found = apps.api.ask("GET", f"/api/v1/namespaces/{there}/configmaps/a")
    assert (found["data"], found["metadata"]["labels"]) == ({"x": "1"}, {LABEL: "shop"})
    told = await AuditReader(apps.call.client, apps.call.keys).read(Filter(kind=KIND), 50)
    done = [
        (each.action, each.after.get("effective"))
        for each in sorted(told, key=lambda each: each.at)
        if {"create", "remove"} & each.after.keys()
    ]
    assert done == [("app.begin", 1), ("app.begin", 2), ("app.sweep", None)]


async def test_a_volume_claim_that_its_first_pod_binds_does_not_hold_up_the_wave_of_that_pod(
    apps: Apps,
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    await apps.farm("first")
    await apps.apply("shop", claim, config("after", 1))
    await apps.reached("shop", 1)
    assert apps.config("after") is not None


async def test_a_stated_field_that_somebody_changes_is_repaired_without_any_word(apps: Apps) -> None:
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    apps.patch("a", {"data": {"x": "other", "y": "mine"}})

    async def repaired() -> bool:
        return bool(apps.config("a")["data"] == {"x": "1", "y": "mine"})

    await eventually(repaired, what="the repair")


async def test_repairs_of_a_record_and_of_an_object_count_once_each_of_them_is_done(apps: Apps) -> None:
    group = "rbac.authorization.k8s.io"
    reader = {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]}
    role = f"/apis/{group}/v1/clusterroles"
    name = f"reads-{apps.namespace}"
    apps.api.ask("POST", role, {"metadata": {"name": name}, **reader})
    document = {"apiVersion": "farmd/v1", "kind": "rc", "name": "web", "replicas": 0, "pod": POD}
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"), document)
    await apps.reached("shop", 1)
    await commit(apps.call, await commands.pause(apps.call, "shop"))
    await apps.until("shop", "paused", lambda now: now.state.paused)
    apps.disallow("shop")
    apps.allow("shop", role=name)
    apps.api.ask("DELETE", f"/api/v1/namespaces/{apps.namespace}/configmaps/a")
    await commit(apps.call, await set_replicas(replace(apps.call, part_of="apps/shop"), "web", 2))
    await commit(apps.call, await commands.resume(apps.call, "shop"))
    now = await apps.blocked("shop", 'cannot patch resource "configmaps"')
    assert list(now.state.repairs) == ["rc/web replicas"]
    apps.disallow("shop")
    apps.allow("shop")
    now = await apps.until("shop", "both are repaired", lambda now: len(now.state.repairs) == 2)
    assert {ref.rpartition("/")[2]: len(at) for ref, at in now.state.repairs.items()} == {
        "web replicas": 1,
        "a object": 1,
    }
    assert apps.config("a")["data"] == {"x": "1"}


async def test_an_object_that_belongs_to_another_app_is_refused_and_handed_over_without_a_gap(
    apps: Apps,
) -> None:
    apps.allow("other")
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"), config("b", x="1"))
    await apps.reached("shop", 1)
    uid = apps.config("a")["metadata"]["uid"]
    configs = f"/api/v1/namespaces/{apps.namespace}/configmaps"
    apps.api.ask("POST", configs, {"metadata": {"name": "c"}, "data": {"x": "people's"}})
    await apps.apply("other", config("c", x="1"))
    await apps.blocked("other", f"configmap.core/{apps.namespace}/c: exists and differs: data.x; --adopt")
    ref = f"configmap.core/{apps.namespace}/a"
    await apps.apply("other", config("a", x="1"))
    await apps.blocked("other", "belongs to app shop")
    await apps.apply("other", config("a", x="1"), adopt=(ref,))
    await apps.until("other", "waits", lambda now: now.state.waits == [ref])
    await apps.apply("shop", config("b", x="1"), prune=True)
    await apps.reached("other", 3)
    found = apps.config("a")["metadata"]
    assert (found["uid"], found["annotations"][APPLIED].split("/")[1]) == (uid, "other")


async def test_r16_consul_restored_to_yesterday_blocks_the_app_and_removes_nothing(apps: Apps) -> None:
    farm = await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    yesterday = await apps.call.client.read(apps.call.keys.work(KIND, "shop"))
    assert yesterday is not None
    await apps.apply("shop", config("a", x="2"))
    await apps.reached("shop", 2)
    await farm.close()
    state = codec.decode(Work, yesterday.value, yesterday.key)
    assert isinstance(state.dispatch, DispatchState)
    await apps.call.client.put(yesterday.key, yesterday.value)
    await apps.apply("shop", config("c", x="1"), prune=True)
    state_before = apps.config("a")
    await apps.call.client.put(yesterday.key, codec.encode(Work(dispatch=DispatchState(seq=0))))
    await apps.farm("second")
    await apps.blocked("shop", "bears the mark 2, but the highest mark in Consul is")
    assert apps.config("a") == state_before
    await commit(apps.call, await commands.resume(_because(apps.call), "shop"))
    await apps.reached("shop", 3)
    assert apps.config("a") is None
    assert apps.config("c")["data"] == {"x": "1"}


async def _kept(apps: Apps) -> dict[str, bytes]:
    """All that Consul knows of the app, as a snapshot has it."""
    client, keys = apps.call.client, apps.call.keys
    trees = (
        keys.record(KIND, "shop"),
        keys.trackers("shop"),
        keys.work(KIND, "shop"),
        keys.status(KIND, "shop"),
    )
    found = [await client.read(key) for tree in trees for key in (await client.keys(tree)).items]
    return {entry.key: entry.value for entry in found if entry is not None}


async def _restored(apps: Apps, kept: dict[str, bytes]) -> None:
    for key in (await _kept(apps)).keys() - kept.keys():
        await apps.call.client.delete(key)
    for key, value in kept.items():
        await apps.call.client.put(key, value)


async def test_r16_consul_restored_to_the_middle_of_a_wave_keeps_what_a_lost_revision_made(
    apps: Apps,
) -> None:
    farm = await apps.farm("first")
    spec = {"containers": [{"name": "c", "image": "x"}]}
    pod = config("p", 1) | {"kind": "Pod", "spec": spec}
    del pod["data"]
    await apps.apply("shop", config("a", x="1"), pod)
    await apps.until("shop", "its second wave", lambda now: now.state.wave == 1)
    middle = await _kept(apps)
    await apps.apply("shop", config("a", x="2"), config("lost", x="1"))
    await apps.reached("shop", 2)
    await farm.close()
    await _restored(apps, middle)
    await apps.farm("second")
    await apps.blocked("shop", "bears the mark 2, but the highest mark in Consul is 1")
    assert apps.config("a")["data"] == {"x": "2"}
    made = seconds_of(apps.config("lost")["metadata"]["creationTimestamp"])

    async def older() -> bool:  # the server tells whole seconds
        return apps.call.clock.now() > made + 3.0

    await eventually(older, what="an object that was made before the farm goes on")
    await commit(apps.call, await commands.resume(_because(apps.call), "shop"))

    async def there() -> bool:
        return apps.there("pods/p") is not None

    await eventually(there, what="the pod of the second wave")
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    apps.api.patch(f"/api/v1/namespaces/{apps.namespace}/pods/p/status", ready)
    await apps.reached("shop", 1)
    await apps.until(
        "shop", "converged", lambda now: now.status is not None and now.status.phase == "reached"
    )
    assert apps.config("a")["data"] == {"x": "1"}
    assert apps.config("lost")["data"] == {"x": "1"}


async def test_r16_consul_restored_to_before_an_app_blocks_the_one_that_is_applied_again(apps: Apps) -> None:
    farm = await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    await farm.close()
    await _restored(apps, {})
    await apps.farm("second")
    await apps.apply("shop", config("a", x="2"), prune=True)
    await apps.blocked("shop", "bears the mark 1, but the highest mark in Consul is 0")
    assert apps.config("a")["data"] == {"x": "1"}
    await commit(apps.call, await commands.resume(_because(apps.call), "shop"))
    await apps.reached("shop", 1)
    assert apps.config("a")["data"] == {"x": "2"}


def _because(call: Call) -> Call:
    return replace(call, reason="restored on purpose")


async def test_what_the_apps_user_may_not_touch_is_blocked_with_the_servers_reason(apps: Apps) -> None:
    await apps.farm("first")
    await apps.apply("stranger", config("a", x="1"))
    await apps.blocked("stranger", 'User "farmd:app:stranger" cannot get resource "configmaps"')
    assert apps.config("a") is None


async def test_an_app_goes_on_once_its_user_may_do_what_was_refused(apps: Apps) -> None:
    await apps.farm("first")
    await apps.apply("stranger", config("a", x="1"))
    await apps.blocked("stranger", 'cannot get resource "configmaps"')
    apps.allow("stranger")
    await apps.reached("stranger", 1)
    assert apps.config("a")["data"] == {"x": "1"}


@pytest.mark.parametrize("keep", [True, False])
async def test_what_an_apps_user_may_not_read_any_more_is_not_taken_for_gone(apps: Apps, keep: bool) -> None:
    farm = await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    await farm.close()
    apps.disallow("shop")
    mutation, _ = await commands.delete(apps.call, "shop", keep=keep)
    await commit(apps.call, mutation)
    await apps.farm("second")
    await apps.blocked("shop", 'User "farmd:app:shop" cannot get resource "configmaps"')
    assert apps.config("a")["metadata"]["labels"] == {LABEL: "shop"}
    apps.allow("shop")
    await apps.until("shop", "gone", lambda now: now.stored is None)
    found = apps.config("a")
    assert found is None or (keep and LABEL not in found["metadata"].get("labels", {}))


async def test_what_an_app_never_made_does_not_keep_it_from_its_end(apps: Apps) -> None:
    await apps.farm("first")
    body = {"metadata": {"name": "a", "labels": {LABEL: "other"}}}
    apps.api.ask("POST", f"/api/v1/namespaces/{apps.namespace}/configmaps", body)
    await apps.apply("stranger", config("a", x="1"))
    await apps.blocked("stranger", 'cannot get resource "configmaps"')
    mutation, _ = await commands.delete(apps.call, "stranger", keep=False)
    await commit(apps.call, mutation)
    await apps.until("stranger", "gone", lambda now: now.stored is None)
    assert apps.config("a")["metadata"]["labels"] == {LABEL: "other"}


def with_login(apps: Apps, folder: Path) -> Farmctl:
    """A person whose kubeconfig lies in a folder."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(apps.api.kubeconfig())
    return Farmctl(apps.consul, apps.cluster.keys.prefix, variables={"KUBECONFIG": str(kubeconfig)})


async def test_farmctl_previews_with_a_persons_own_login_and_waits_for_the_farm(
    apps: Apps, tmp_path: Path
) -> None:
    person = with_login(apps, tmp_path)
    bundle = tmp_path / "shop.yaml"
    bundle.write_text(json.dumps(config("a", x="1")))
    apply = ("apply", "-f", str(bundle), "--app", "shop", "-n", apps.namespace, "-y", "--timeout", "150")

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(person, *words)

    unserved = await run(*apply)
    assert unserved.code == 5
    assert f"configmap.core/{apps.namespace}/a: no farm serves a Kubernetes cluster" in unserved.err
    await apps.farm("first")
    done = await run(*apply)
    assert done.code == 0, done
    assert f"1  + configmap.core/{apps.namespace}/a  (server dry run: ok)" in done.err
    assert apps.config("a")["data"] == {"x": "1"}
    assert (await run(*apply)).out == "app/shop unchanged\n"
    apps.patch("a", {"data": {"y": "theirs"}})
    assert (await run("diff", *apply[1:7])).code == 0
    bundle.write_text(json.dumps(config("a", x="2")))
    due = await run("diff", *apply[1:7])
    assert (due.code, 'data.x: "1" -> "2"' in due.out) == (3, True)
    told = (await run("app", "describe", "shop")).out
    assert told.splitlines()[-1].split()[:2] == [f"configmap.core/{apps.namespace}/a", "ready"]
    wrong = {**config("b"), "data": {"not a key": "1"}}
    bundle.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [config("a", x="2"), wrong]}))
    refused = await run(*apply)
    assert refused.code == 5
    assert f'configmap.core/{apps.namespace}/b: ConfigMap "b" is invalid: data[not a key]' in refused.err
    bundle.write_text(json.dumps({**config("a"), "data": {"not a key": "1"}}))
    refused = await run(*apply)
    assert refused.code == 5
    assert f'configmap.core/{apps.namespace}/a: ConfigMap "a" is invalid: data[not a key]' in refused.err
    assert list(await AppStore(apps.call.client, apps.call.keys).revisions("shop")) == [1]
    bundle.write_text(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}))
    secret = await run(*apply)
    assert secret.code == 2
    assert "kind: found a Secret, expected none, or allow_secrets: true" in secret.err


async def test_farmctl_counts_and_shows_what_goes_in_kubernetes_where_the_files_hold_none_of_it(
    apps: Apps, tmp_path: Path
) -> None:
    kubeconfig, bundle = tmp_path / "kubeconfig", tmp_path / "shop.yaml"
    kubeconfig.write_text(apps.api.kubeconfig())
    person = Farmctl(apps.consul, apps.cluster.keys.prefix, variables={"KUBECONFIG": str(kubeconfig)})
    web = {"apiVersion": "farmd/v1", "kind": "rc", "name": "web", "replicas": 0, "pod": POD}
    await apps.farm("first")
    await apps.apply("shop", web, config("a", x="1"), config("b", x="1"))
    await apps.reached("shop", 1)
    bundle.write_text(json.dumps(web))
    words = ("-f", str(bundle), "--app", "shop", "--prune")
    refused = await asyncio.to_thread(person, "apply", *words, "-y", "--no-wait")
    going = f"configmap.core/{apps.namespace}/a, configmap.core/{apps.namespace}/b"
    assert (refused.code, f"would remove 2 objects of 3: {going}" in refused.err) == (2, True)
    assert list(await AppStore(apps.call.client, apps.call.keys).revisions("shop")) == [1]
    shown = await asyncio.to_thread(person, "diff", *words, "--mass-removal")
    assert f"- configmap.core/{apps.namespace}/b  no longer in the files" in shown.out
    nowhere = Farmctl(apps.consul, apps.cluster.keys.prefix, variables={"HOME": str(tmp_path)})
    unseen = await asyncio.to_thread(nowhere, "diff", *words, "--mass-removal")
    assert (unseen.code, "no Kubernetes cluster is configured" in unseen.err) == (2, True)


async def test_farmctl_shows_what_a_rollback_makes_in_a_cluster_that_the_app_needs_no_more(
    apps: Apps, tmp_path: Path
) -> None:
    person = with_login(apps, tmp_path)
    web = {"apiVersion": "farmd/v1", "kind": "rc", "name": "web", "replicas": 0, "pod": POD}
    await apps.farm("first")
    await apps.apply("shop", web, config("a", x="1"))
    await apps.reached("shop", 1)
    for number in (2, 3):
        await apps.apply("shop", web, prune=True)
        await apps.reached("shop", number)
    assert (apps.config("a"), wanted(await standing(apps.call, "shop")).needs) == (None, [])
    back = ("app", "rollback", "shop", "--to", "1")
    shown = await asyncio.to_thread(person, *back, "--dry-run")
    assert f"+ configmap.core/{apps.namespace}/a  (server dry run: ok)" in shown.out
    done = await asyncio.to_thread(person, *back, "-y", "--timeout", "150")
    assert done.code == 0, done
    assert apps.config("a")["data"] == {"x": "1"}


async def test_farmctl_describes_an_app_while_its_cluster_is_away(apps: Apps, tmp_path: Path) -> None:
    person = with_login(apps, tmp_path)
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    away = apps.api.kubeconfig().replace(apps.api.url, f"https://127.0.0.1:{free_ports(1)[0]}")
    (tmp_path / "kubeconfig").write_text(away)
    shown = await asyncio.to_thread(person, "app", "describe", "shop")
    assert (shown.code, "Kubernetes does not answer" in shown.err) == (0, True), shown
    assert shown.out.splitlines()[-1].split() == [f"configmap.core/{apps.namespace}/a", "unknown", "0"]


async def test_farmctl_shows_nothing_of_another_cluster_than_the_farms(apps: Apps, tmp_path: Path) -> None:
    kubeconfig, bundle = tmp_path / "kubeconfig", tmp_path / "shop.yaml"
    kubeconfig.write_text(apps.api.kubeconfig())
    person = Farmctl(apps.consul, apps.cluster.keys.prefix, variables={"KUBECONFIG": str(kubeconfig)})
    farm = await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    await farm.close()
    key = apps.call.keys.other_cluster(apps.namespace)
    await apps.call.client.put(key, codec.encode(PinnedCluster(uid="other")))
    bundle.write_text(json.dumps(config("b", x="2")))
    told = f"expected the one with the uid other, which farms know as {apps.namespace}"
    files = ("-f", str(bundle), "--app", "shop", "-n", apps.namespace)
    for line in (
        ("apply", *files, "-y", "--no-wait"),
        ("app", "rollback", "shop", "-y"),
        ("app", "delete", "shop", "-y"),
    ):
        refused = await asyncio.to_thread(person, *line)
        assert (refused.code, told in refused.err) == (2, True), refused
    shown = await asyncio.to_thread(person, "app", "describe", "shop")
    assert (shown.code, told in shown.err) == (0, True)
    assert shown.out.splitlines()[-1].split() == [f"configmap.core/{apps.namespace}/a", "unknown", "0"]


class Cut:
    """Loses one write of an app: before it is sent, or its answer."""

    def __init__(self) -> None:
        self.left, self.sent, self.fate = 0, 0, ""

    def arm(self, number: int, fate: str) -> None:
        """From now on lose the write of that number, from 1; it counts those that were sent."""
        self.left, self.sent, self.fate = number, 0, fate

    def __call__(self, transport: KubernetesTransport) -> None:
        send = transport.send

        async def cut(request: ApiRequest, timeout: float = REQUEST_SECONDS) -> bytes:
            if not request.user or not request.write or ("dryRun", "All") in request.params:
                return await send(request, timeout)
            self.sent += 1
            if self.sent != self.left:
                return await send(request, timeout)
            if self.fate == "answer":
                await send(request, timeout)
            raise UnknownOutcome(f"{request}: no answer")

        transport.send = cut  # type: ignore[method-assign]


async def test_r12_an_app_comes_to_the_same_end_whichever_of_its_writes_is_lost(apps: Apps) -> None:
    cut, writes = Cut(), 4
    await apps.farm("first", cut)
    for number in range(1, writes + 1):
        for fate in ("request", "answer"):
            app = f"shop-{fate}-{number}"
            apps.allow(app)
            cut.arm(number, fate)
            a, b = f"a-{app}", f"b-{app}"
            await apps.apply(app, config(a, x="1"), config(b, 1, x="1"))
            await apps.reached(app, 1)
            await apps.apply(app, config(a, x="2"), prune=True)
            await apps.reached(app, 2)
            assert cut.sent >= writes
            found = apps.config(a)
            assert found["data"] == {"x": "2"}
            assert found["metadata"]["annotations"][APPLIED].split("/")[1:] == [app, "2"]
            assert apps.config(b) is None
