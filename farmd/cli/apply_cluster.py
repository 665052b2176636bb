"""How a person's own login sees the objects of an app that lie in Kubernetes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farmd.cli.cluster import Place, connected
from farmd.cli.invocation import Invocation
from store import codec
from store.errors import InputInvalid
from store.farms import CLUSTERS, PinnedCluster, of_clusters
from store.registration import cluster_id

if TYPE_CHECKING:
    from farmd.apps.protocols import Outside
    from farmd.apps.scene import AppState
    from farmd.kubernetes.apps.api import Discovery
    from farmd.kubernetes.transport import KubernetesTransport

# A dry run of a person's takes no longer than a request may.
SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ClusterLogin:
    """A person's login to a cluster, what it serves, and the id of farmd's own, which marks bear."""

    invocation: Invocation
    transport: KubernetesTransport
    discovery: Discovery
    own: str

    def objects(self, app: str) -> Outside:
        """The objects of an app."""
        from farmd.kubernetes.apps.api import Api
        from farmd.kubernetes.apps.writes import Applicator

        api = Api(self.transport, self.discovery, app, lambda: SECONDS, impersonate=False)
        return Applicator(api, app, self.own, self.invocation.call.clock)

    async def scopes(self, kinds: Collection[tuple[str, str]]) -> dict[tuple[str, str], bool]:
        """Whether the objects of each kind have a namespace, by (group, kind).

        ``kinds`` are pairs of apiVersion and kind; those that the server lacks are left out.
        """
        found = {(api, kind): await self.discovery.find(api, kind) for api, kind in sorted(kinds)}
        return {(each.group, each.kind): each.namespaced for each in found.values() if each is not None}

    async def other(self, needs: Sequence[str]) -> str:
        """Why this is another cluster than the one that an app needs; empty: it is that one, or unknown."""
        from farmd.kubernetes.contact import uid_of

        for name in (need.removeprefix(CLUSTERS) for need in of_clusters(needs)):
            entry = await self.invocation.client.read(self.invocation.keys.other_cluster(name))
            pinned = codec.decode(PinnedCluster, entry.value, entry.key).uid if entry is not None else ""
            found = await uid_of(self.transport, SECONDS) if pinned else ""
            if found not in ("", pinned):
                expected = f"the one with the uid {pinned}, which farms know as {name}"
                return f"kubeconfig: found the cluster with the uid {found}, expected {expected}"
        return ""

    async def check(self, needs: Sequence[str]) -> None:
        """Refuse to speak of another cluster than the one that an app needs.

        Raises:
            InputInvalid: it is another one.
        """
        if why := await self.other(needs):
            hint = "KUBECONFIG, --kubeconfig or --context selects the cluster"
            raise InputInvalid(why, field="kubeconfig", hint=hint)


@asynccontextmanager
async def login(invocation: Invocation, place: Place) -> AsyncIterator[ClusterLogin]:
    """A login to the cluster that a person means.

    Raises:
        InputInvalid: no kubeconfig, or one that is not usable. StoreError: the API server does not answer.
    """
    from farmd.kubernetes.apps.api import Discovery

    own = await cluster_id(invocation.client, invocation.keys)
    async with connected(place) as cluster:
        yield ClusterLogin(invocation, cluster.transport, Discovery(cluster.transport), own)


@asynccontextmanager
async def looking(
    invocation: Invocation, now: AppState, *, only: bool = False, needs: Sequence[str] = ()
) -> AsyncIterator[Outside | None]:
    """An app's objects in Kubernetes; None: it has none, or there is no kubeconfig. If the login is to
    another cluster and the command ``only`` looks, it is reported and no object is shown. ``needs``: what
    the app is about to need, where that is said.

    Raises:
        InputInvalid, StoreError: as ``login``. InputInvalid: it is a login to another cluster.
    """
    place, needs = Place(), needs or (now.stored.record.needs if now.stored is not None else ())
    if not (of_clusters(needs) and place.configured(os.environ)):
        yield None
        return
    async with login(invocation, place) as found:
        if only and (why := await found.other(needs)):
            invocation.say(why)
            yield None
            return
        await found.check(needs)
        yield found.objects(now.name)
