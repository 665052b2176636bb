"""A controller on a real Consul, its rollouts, and what must hold of them in the end: for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.commands.mutation import Call, Guard, Mutation, commit
from farmd.rollout import creation
from farmd.runtime.clock import SystemIds
from store import codec, manifests, operations
from store.audit import Audit
from store.checkpoint import replay
from store.manifests import Manifest, Port
from store.named import NamedRecords, decode_named
from store.policies import Policy, Stage
from store.rcs import ReplicationController
from store.rollouts import KIND, Ended, History, RolloutStatus
from tests.fleet import CLOCK, Cluster, eventually

PORTS = {"http": Port()}
FIRST = Manifest(id="web", command=["first"], ports=PORTS)
SECOND = Manifest(id="web", command=["second"], ports=PORTS)
KINDS = ("rcs", "rollouts")
QUICK = Policy(stages=["100%"], progress_deadline=600.0, min_healthy_time=0.0)
IMPATIENT = msgspec.structs.replace(QUICK, progress_deadline=1.0, health_deadline=0.0)
"""For versions that fail: on a busy machine a good one may take longer, too."""
STAGED = msgspec.structs.replace(QUICK, stages=[Stage(to=1), Stage(to="100%", approve=True)])
PATIENT = msgspec.structs.replace(QUICK, stages=[1, "100%"])


def digest(manifest: Manifest) -> str:
    return manifests.digest(manifests.canonical(manifest))


class Rolling:
    """A controller with pods, its rollouts, and somebody who gives the word."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.call = Call(cluster.client, cluster.keys, CLOCK, SystemIds(), "user/ada@test")
        self.rc: ReplicationController | None = None

    async def begin(self, replicas: int, policy: Policy = QUICK, **fields: Any) -> str:
        """A controller with its pods, and a rollout to the second manifest; the rollout's id."""
        await self.prepare(replicas, **fields)
        return await self.update(SECOND, policy)

    async def prepare(self, replicas: int, **fields: Any) -> None:
        """A controller of the first manifest with its pods, and one node more."""
        names = {f"n{number}": {} for number in range(replicas + 1)}
        await self.cluster.add_nodes(names)
        self.rc = await self.cluster.create_rc(
            "web", replicas, manifest=FIRST, min_healthy_time=0.0, **fields
        )
        await self.placed(replicas)

    async def update(self, manifest: Manifest, policy: Policy = QUICK, **fields: Any) -> str:
        mutation = await self.beginning(manifest, policy, **fields)
        await commit(self.call, mutation)
        return mutation.change.id

    async def beginning(self, manifest: Manifest, policy: Policy = QUICK, **fields: Any) -> Mutation:
        """What begins a rollout, not written yet."""
        records = NamedRecords(self.call.client, self.call.keys, "rcs", ReplicationController, "rc")
        stored, _ = await records.named("web")
        assert stored is not None
        body = manifests.canonical(manifest)
        wanted = msgspec.structs.replace(stored.record, manifest=manifests.digest(body))
        held = Guard((operations.check_not_exists(self.call.keys.mutation_lock("rcs", stored.record.id)),))
        ensured = (manifests.ensure(self.call.keys, body),)
        chosen = {"policy": policy, "pod": manifest, **fields}
        return await creation.begin(self.call, stored, wanted, held, ensured, **chosen)

    async def say(self, mutation: Mutation) -> None:
        await commit(self.call, mutation)

    async def placed(self, count: int) -> None:
        assert self.rc is not None
        rc = self.rc

        async def enough() -> bool:
            return len(await self.cluster.pods(rc.id)) == count

        await eventually(enough, what=f"{count} pods")

    async def ended(self, ident: str) -> Ended:
        async def over() -> Ended | None:
            history = await History(self.call.client, self.call.keys).read("web")
            return next((each.record for each in history.items if each.record.id == ident), None)

        return await eventually(over, what="the end of the rollout")  # type: ignore[no-any-return]

    async def status(self, ident: str, said: str) -> RolloutStatus:
        """Its status, once it speaks of that."""

        async def says() -> RolloutStatus | None:
            entry = await self.call.client.read(self.call.keys.status(KIND, ident))
            found = None if entry is None else codec.decode(RolloutStatus, entry.value, entry.key)
            return found if found is not None and said in f"{found.phase} {found.reason}" else None

        return await eventually(says, what=f"a status of {said!r}")  # type: ignore[no-any-return]

    async def controllers(self) -> dict[str, ReplicationController]:
        found = await self.cluster.entries(self.call.keys.tree("rcs"))
        stored = [decode_named(ReplicationController, self.call.keys, entry) for entry in found.values()]
        return {each.record.name: each.record for each in stored}

    async def whole(self, manifest: Manifest, replicas: int) -> None:
        """One controller is left, unmanaged, with exactly its pods on that manifest; the audit adds up."""
        sha = digest(manifest)

        async def so() -> bool:
            (rc,) = (await self.controllers()).values()
            pods = await self.cluster.pods(rc.id)
            return len(pods) == rc.replicas_desired == replicas

        await eventually(so, what="as many pods as the count says")
        (rc,) = (await self.controllers()).values()
        assert (rc.name, rc.manifest, rc.managed_by, rc.taken) == ("web", sha, "", False)
        intents = await self.cluster.intents()
        assert set(intents) == set(await self.cluster.pods(rc.id))
        assert {(each.owner, each.manifest) for each in intents.values()} == {(rc.id, sha)}
        entry = await self.call.client.read(self.call.keys.name("rcs", "web"))
        assert entry is not None
        assert codec.decode(str, entry.value, entry.key) == rc.id
        await self.replayed()
        for left in (KIND, f"names/{KIND}", f"work/{KIND}", f"locks/rcs/{rc.id}/mutation"):
            assert await self.cluster.entries(self.call.keys.tree(left)) == {}

    async def replayed(self) -> None:
        records: dict[int, list[Audit]] = {}
        for entry in (await self.cluster.entries(self.call.keys.tree("audit"))).values():
            records.setdefault(entry.create_index, []).append(codec.decode(Audit, entry.value, entry.key))
        page = await self.cluster.entries(self.call.keys.tree("pods"))
        standing = {self.call.keys.pod_parts(key) for key in page}
        assert {(pod.owner, pod.node, pod.instance) for pod in replay((), records)} == standing
