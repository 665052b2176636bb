"""How a person's own login sees the objects of an app that lie in Kubernetes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farmd.cli.cluster import Place, connected
from farmd.cli.invocation import Invocation
from store.registration import cluster_id

if TYPE_CHECKING:
    from farmd.dispatch.ports import Outside
    from farmd.dispatch.standing import Standing
    from farmd.kubernetes.apps.discovery import Discovery
    from farmd.kubernetes.transport import KubernetesTransport

# A dry run of a person's takes no longer than a request may.
SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Login:
    """A person's login to a cluster, what it serves, and the id of farmd's own, which marks bear."""

    invocation: Invocation
    transport: KubernetesTransport
    discovery: Discovery
    own: str

    def objects(self, app: str) -> Outside:
        """The objects of an app."""
        from farmd.kubernetes.apps.api import Api
        from farmd.kubernetes.apps.applicator import Applicator

        api = Api(self.transport, self.discovery, app, lambda: SECONDS, impersonate=False)
        return Applicator(api, app, self.own, self.invocation.call.clock)

    async def scopes(self, kinds: Collection[tuple[str, str]]) -> dict[tuple[str, str], bool]:
        """Of these kinds, as (apiVersion, kind), that the server has: whether their objects have a namespace;
        by (group, kind).
        """
        found = {(api, kind): await self.discovery.find(api, kind) for api, kind in sorted(kinds)}
        return {(each.group, each.kind): each.namespaced for each in found.values() if each is not None}


@asynccontextmanager
async def login(invocation: Invocation, place: Place) -> AsyncIterator[Login]:
    """A login to the cluster that a person means.

    Raises:
        InputInvalid: no kubeconfig, or one that is not usable. StoreError: the API server does not answer.
    """
    from farmd.kubernetes.apps.discovery import Discovery

    own = await cluster_id(invocation.client, invocation.keys)
    async with connected(place) as cluster:
        yield Login(invocation, cluster.transport, Discovery(cluster.transport), own)


@asynccontextmanager
async def looking(invocation: Invocation, now: Standing) -> AsyncIterator[Outside | None]:
    """An app's objects in Kubernetes; None: it has none, or no kubeconfig says where they are.

    Raises:
        InputInvalid, StoreError: as ``login``.
    """
    place = Place()
    if not (now.outside and place.configured(os.environ)):
        yield None
        return
    async with login(invocation, place) as found:
        yield found.objects(now.name)
