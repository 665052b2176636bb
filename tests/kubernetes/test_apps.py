"""Apps whose objects lie in a real API server: a farm applies, repairs, collects and hands them over."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farmd import overview
from farmd.commands.mutation import Call, commit
from farmd.dispatch import commands, words
from farmd.dispatch.bundle import AppSpec, parse
from farmd.dispatch.standing import Standing, standing
from farmd.kubernetes.apps import elsewhere
from farmd.kubernetes.apps.marks import APPLIED
from farmd.kubernetes.errors import UnknownOutcome
from farmd.kubernetes.settings import KubernetesSettings
from farmd.kubernetes.transport import REQUEST_SECONDS, KubernetesTransport, Request
from farmd.runtime.clock import SystemClock, SystemIds, system_rng
from store import codec
from store.apps import KIND, DispatchState
from store.audit import AuditReader, Filter
from store.work import Work
from tests.farmctl import Farmctl, Result
from tests.fleet import Cluster, client_of, cluster_on, eventually, start_farm
from tests.kubernetes_server import ApiServer

pytestmark = pytest.mark.xdist_group("kubernetes")


class Apps:
    """Apps of one namespace, and the farms that keep them."""

    def __init__(self, api: ApiServer, namespace: str, cluster: Cluster, consul: str, connect: Any) -> None:
        self.api, self.namespace, self.cluster = api, namespace, cluster
        self._consul, self._connect = consul, connect
        self._stack = AsyncExitStack()
        clock = SystemClock()
        self.call = Call(cluster.client, cluster.keys, clock, SystemIds(), "user/ada@desk")

    @property
    def consul(self) -> str:
        return self._consul

    def allow(self, app: str) -> None:
        """Let an app do everything in the namespace."""
        group = "rbac.authorization.k8s.io"
        reference = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": group}
        subject = {"kind": "User", "name": f"farmd:app:{app}", "apiGroup": group}
        body = {"metadata": {"name": app}, "subjects": [subject], "roleRef": reference}
        self.api.ask("POST", f"/apis/{group}/v1/namespaces/{self.namespace}/rolebindings", body)

    async def farm(self, name: str, change: Callable[[KubernetesTransport], None] = lambda _: None) -> Any:
        """One more farm, whose transport is changed before it begins."""
        transport = await self._stack.enter_async_context(self._connect(self.api))
        change(transport)
        settings = KubernetesSettings(transport, name=self.namespace, namespaces=(self.namespace,))
        opened = elsewhere.opened(settings, SystemClock(), system_rng())
        outside = {"kubernetes": settings, "apps": await self._stack.enter_async_context(opened)}
        client = client_of(self._consul)
        self._stack.push_async_callback(client.close)
        kinds = ("apps", "kubejobs")
        farm = await start_farm(client, name, keys=self.cluster.keys, kinds=kinds, outside=outside)
        self._stack.push_async_callback(farm.close)

        async def serves() -> bool:
            found = await overview.farms(self.call.client, self.call.keys)
            return any(f"kubernetes.{self.namespace}" in each.features for each in found)

        await eventually(serves, what="the feature of a farm that reaches its cluster")
        return farm

    async def close(self) -> None:
        await self._stack.aclose()

    async def apply(
        self, app: str, *documents: dict[str, Any], adopt: tuple[str, ...] = (), **said: Any
    ) -> int:
        files = [(json.dumps(each), f"{number}.json") for number, each in enumerate(documents)]
        bundle = parse(files, AppSpec(name=app, namespace=self.namespace, **said))
        found = await commands.apply(self.call, bundle, adopt=adopt, mass=True)
        await commit(self.call, found.mutation)
        return found.app.revision

    async def until(self, app: str, what: str, check: Callable[[Standing], bool]) -> Standing:
        last = [await standing(self.call, app)]

        async def seen() -> bool:
            last[0] = await standing(self.call, app)
            return check(last[0])

        await eventually(seen, what=f"app {app}: {what}")
        return last[0]

    async def reached(self, app: str, revision: int) -> Standing:
        return await self.until(
            app,
            f"revision {revision}",
            lambda now: now.state.reached == revision and now.state.swept >= revision,
        )

    async def blocked(self, app: str, text: str) -> Standing:
        return await self.until(app, text, lambda now: now.status is not None and text in now.status.reason)

    def config(self, name: str) -> Any:
        """A config map as the server has it; None: there is none."""
        try:
            return self.api.ask("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except urllib.error.HTTPError as error:
            error.close()
            return None

    def patch(self, name: str, body: Any) -> None:
        self.api.patch(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}", body)


def config(name: str, wave: int = 0, **data: str) -> dict[str, Any]:
    meta = {"name": name, "annotations": {"farmd.io/wave": str(wave)}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


@pytest.fixture
async def apps(api, namespace, connect, consul_dev) -> AsyncIterator[Apps]:
    async with cluster_on(consul_dev) as cluster:
        found = Apps(api, namespace, cluster, consul_dev, connect)
        found.allow("shop")
        try:
            yield found
        finally:
            await found.close()


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
    mutation, _ = await words.delete(apps.call, "shop", keep=False)
    await commit(apps.call, mutation)
    await apps.until("shop", "gone", lambda now: now.stored is None)
    assert apps.config("a") is apps.config("b") is None


async def test_a_stated_field_that_somebody_changes_is_repaired_without_any_word(apps: Apps) -> None:
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"))
    await apps.reached("shop", 1)
    apps.patch("a", {"data": {"x": "other", "y": "mine"}})

    async def repaired() -> bool:
        return bool(apps.config("a")["data"] == {"x": "1", "y": "mine"})

    await eventually(repaired, what="the repair")


async def test_an_object_that_belongs_to_another_app_is_refused_and_handed_over_without_a_gap(
    apps: Apps,
) -> None:
    apps.allow("other")
    await apps.farm("first")
    await apps.apply("shop", config("a", x="1"), config("b", x="1"))
    await apps.reached("shop", 1)
    uid = apps.config("a")["metadata"]["uid"]
    ref = f"configmap.core/{apps.namespace}/a"
    await apps.apply("other", config("a", x="1"))
    await apps.blocked("other", "belongs to app shop")
    await apps.apply("other", config("a", x="1"), adopt=(ref,))
    await apps.until("other", "waits", lambda now: now.state.waits == [ref])
    await apps.apply("shop", config("b", x="1"), prune=True)
    await apps.reached("other", 2)
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
    await apps.blocked("shop", "bears the mark 2, and Consul knows none above")
    assert apps.config("a") == state_before
    await commit(apps.call, await words.resume(_because(apps.call), "shop"))
    await apps.reached("shop", 3)
    assert apps.config("a") is None
    assert apps.config("c")["data"] == {"x": "1"}


def _because(call: Call) -> Call:
    return replace(call, reason="restored on purpose")


async def test_what_the_apps_user_may_not_touch_is_blocked_with_the_servers_reason(apps: Apps) -> None:
    await apps.farm("first")
    await apps.apply("stranger", config("a", x="1"))
    await apps.blocked("stranger", 'User "farmd:app:stranger" cannot get resource "configmaps"')
    assert apps.config("a") is None


async def test_farmctl_previews_with_a_persons_own_login_and_waits_for_the_farm(
    apps: Apps, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(apps.api.kubeconfig())
    person = Farmctl(apps.consul, apps.cluster.keys.prefix, variables={"KUBECONFIG": str(kubeconfig)})
    bundle = tmp_path / "shop.yaml"
    bundle.write_text(json.dumps(config("a", x="1")))
    apply = ("apply", "-f", str(bundle), "--app", "shop", "-n", apps.namespace, "-y", "--timeout", "60")

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
    assert (due.code, "data.x" in due.out) == (3, True)
    told = (await run("app", "describe", "shop")).out
    assert told.splitlines()[-1].split()[:2] == [f"configmap.core/{apps.namespace}/a", "ready"]
    wrong = {**config("b"), "data": {"not a key": "1"}}
    bundle.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [config("a", x="2"), wrong]}))
    refused = await run(*apply)
    assert refused.code == 5
    assert f'configmap.core/{apps.namespace}/b: ConfigMap "b" is invalid: data[not a key]' in refused.err
    bundle.write_text(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}))
    secret = await run(*apply)
    assert secret.code == 2
    assert "kind: found a Secret, expected none, or allow_secrets: true" in secret.err


class Cut:
    """Loses one write of an app: before it is sent, or its answer."""

    def __init__(self) -> None:
        self.left, self.sent, self.fate = 0, 0, ""

    def arm(self, number: int, fate: str) -> None:
        """From now on lose the write of that number, from 1; it counts those that were sent."""
        self.left, self.sent, self.fate = number, 0, fate

    def __call__(self, transport: KubernetesTransport) -> None:
        send = transport.send

        async def cut(request: Request, timeout: float = REQUEST_SECONDS) -> bytes:
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
