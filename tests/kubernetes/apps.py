"""Apps of one namespace of a real API server, and the farms that keep them."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from farmd import overview
from farmd.apps import commands
from farmd.apps.bundle import AppSpec, parse
from farmd.apps.scene import AppState, standing
from farmd.commands.mutation import Call, commit
from farmd.kubernetes.apps import writes
from farmd.kubernetes.contact import KubernetesSettings
from farmd.kubernetes.transport import KubernetesTransport
from farmd.runtime.clock import SystemClock, SystemIds, system_rng
from tests.fleet import Cluster, client_of, eventually, start_farm
from tests.kubernetes_server import ApiServer


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

    def allow(self, app: str, namespace: str = "", role: str = "cluster-admin") -> None:
        """Let an app do in a namespace what a role of the cluster says: everything, in that of the test."""
        group = "rbac.authorization.k8s.io"
        reference = {"kind": "ClusterRole", "name": role, "apiGroup": group}
        subject = {"kind": "User", "name": f"farmd:app:{app}", "apiGroup": group}
        body = {"metadata": {"name": app}, "subjects": [subject], "roleRef": reference}
        self.api.ask("POST", f"/apis/{group}/v1/namespaces/{namespace or self.namespace}/rolebindings", body)

    def disallow(self, app: str) -> None:
        """Take back what ``allow`` gave in the namespace of the test."""
        group = "rbac.authorization.k8s.io"
        self.api.ask("DELETE", f"/apis/{group}/v1/namespaces/{self.namespace}/rolebindings/{app}")

    async def farm(self, name: str, change: Callable[[KubernetesTransport], None] = lambda _: None) -> Any:
        """One more farm, whose transport is changed before it begins."""
        transport = await self._stack.enter_async_context(self._connect(self.api))
        change(transport)
        settings = KubernetesSettings(transport, name=self.namespace, namespaces=(self.namespace,))
        opened = writes.opened(settings, SystemClock(), system_rng())
        sections = {"kubernetes": settings, "apps": await self._stack.enter_async_context(opened)}
        client = client_of(self._consul)
        self._stack.push_async_callback(client.close)
        kinds = ("apps", "kubejobs")
        farm = await start_farm(client, name, keys=self.cluster.keys, kinds=kinds, sections=sections)
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
        return await self.apply_files(app, *files, adopt=adopt, **said)

    async def apply_files(
        self, app: str, *files: tuple[str, str], adopt: tuple[str, ...] = (), **said: Any
    ) -> int:
        bundle = parse(files, AppSpec(name=app, namespace=self.namespace, **said))
        found = await commands.apply(self.call, bundle, adopt=adopt, mass=True)
        await commit(self.call, found.mutation)
        return found.app.revision

    async def until(self, app: str, what: str, check: Callable[[AppState], bool]) -> AppState:
        last = [await standing(self.call, app)]

        async def seen() -> bool:
            last[0] = await standing(self.call, app)
            return check(last[0])

        await eventually(seen, what=f"app {app}: {what}")
        return last[0]

    async def reached(self, app: str, revision: int) -> AppState:
        return await self.until(
            app,
            f"revision {revision}",
            lambda now: now.state.reached == revision and now.state.swept >= revision,
        )

    async def blocked(self, app: str, text: str) -> AppState:
        return await self.until(app, text, lambda now: now.status is not None and text in now.status.reason)

    def config(self, name: str) -> Any:
        """A config map as the server has it; None: there is none."""
        return self.there(f"configmaps/{name}")

    def there(self, path: str, group: str = "/api/v1") -> Any:
        """What the server has at a path in the namespace; None: nothing."""
        try:
            return self.api.ask("GET", f"{group}/namespaces/{self.namespace}/{path}")
        except urllib.error.HTTPError as error:
            error.close()
            return None

    def patch(self, name: str, body: Any) -> None:
        self.api.patch(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}", body)
