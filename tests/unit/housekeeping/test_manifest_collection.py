"""R24: a manifest goes only after condemnation, wait and proof; a new reference always wins."""

from __future__ import annotations

import msgspec
import pytest

from farmd.farm.errors import ClaimLost
from farmd.housekeeping import chores as chore
from farmd.housekeeping.chores import ManifestCollection
from farmd.housekeeping.facts import PATIENCE_SECONDS, Sighting
from store import codec, manifests, operations
from store.audit import Audit
from store.errors import NotRegistered
from store.pods import Pod
from store.ports import Request
from store.rcs import ReplicationController
from store.reality import Intent
from tests.house import HOUR, House, house, manifest

AGE = 2 * HOUR


def refer(home: House, number: int = 1, name: str = "hello") -> list[operations.Operation]:
    """A transaction as ``farmctl rc create`` writes it."""
    sha, body = manifest(number)
    rc = ReplicationController(id=f"ab{number:02}", name=name, manifest=sha, replicas_desired=1)
    record = operations.put(home.keys.record("rcs", rc.id), codec.encode(rc))
    return [manifests.ensure(home.keys, body), record]


async def test_r24_condemned_first_and_deleted_only_after_the_age() -> None:
    async with house(manifest_age=AGE) as home:
        sha = await home.store_manifest()
        work = home.collection()
        await work.round()
        entry = await home.manifest_entry(sha)
        assert entry is not None
        assert entry.flags == int(home.clock.now())
        assert entry.value == manifest()[1]
        await home.clock.advance(AGE - 60)
        await work.round()
        assert await home.manifest_entry(sha) is not None
        await home.clock.advance(60)
        await work.round()
        assert await home.manifest_entry(sha) is None
        (key,) = (await home.client.list(home.keys.tree("audit"))).items
        record = codec.decode(Audit, key.decoded(), key.key)
        assert (record.action, record.id, record.actor) == ("manifest.collect", sha, "farm/one")


async def test_r24_the_wait_is_longer_than_any_transaction_whatever_the_age() -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        work = home.collection()
        await work.round()
        await work.round()
        await home.clock.advance(PATIENCE_SECONDS - 1)
        await work.round()
        assert await home.manifest_entry(sha) is not None
        await home.clock.advance(1)
        await work.round()
        assert await home.manifest_entry(sha) is None


async def test_r24_a_farm_remembers_what_it_saw_condemned_while_another_one_had_the_chore() -> None:
    async with house(manifest_age=0) as home:
        sha, seen = await home.store_manifest(), dict[str, Sighting]()
        await ManifestCollection(home.context, home.settings, home.writer, seen).round()
        await home.collection().round()
        await home.clock.advance(PATIENCE_SECONDS)
        await ManifestCollection(home.context, home.settings, home.writer, seen).round()
        assert await home.manifest_entry(sha) is None


async def test_r24_whoever_takes_over_waits_anew_by_its_own_clock() -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        await home.collection().round()
        await home.clock.advance(10 * HOUR)
        successor = home.collection()
        await successor.round()
        assert await home.manifest_entry(sha) is not None
        await home.clock.advance(PATIENCE_SECONDS)
        await successor.round()
        assert await home.manifest_entry(sha) is None


async def test_r24_a_condemnation_from_the_future_is_written_again() -> None:
    async with house(manifest_age=AGE) as home:
        sha, body = manifest()
        ahead = int(home.clock.now() + 10**6)
        await home.client.put(home.keys.manifest(sha), body, flags=ahead)
        await home.collection().round()
        entry = await home.manifest_entry(sha)
        assert entry is not None
        assert entry.flags == int(home.clock.now())


def deletes(request: Request, sha: str) -> bool:
    return b"delete-cas" in request.body and sha.encode() in request.body


@pytest.mark.parametrize("when", ["before the references are read", "between proof and deletion"])
async def test_r24_a_reference_made_meanwhile_defeats_the_condemnation(when: str) -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        work = home.collection()
        await work.round()
        await home.clock.advance(PATIENCE_SECONDS)
        assert home.faulty is not None
        made = False

        async def somebody_refers(request: Request) -> None:
            nonlocal made
            early = request.path.endswith("/v1/kv/farmd/rcs/0")
            if not made and (early if when.startswith("before") else deletes(request, sha)):
                made = True
                await home.client.transaction(refer(home))

        home.faulty.before = somebody_refers
        await work.round()
        assert made
        entry = await home.manifest_entry(sha)
        assert entry is not None, "a manifest that an RC refers to is gone"
        assert entry.flags == 0
        await home.clock.advance(10 * HOUR)
        await work.round()
        assert await home.manifest_entry(sha) is not None


async def test_r24_a_reference_that_came_after_the_deletion_brings_the_body_back() -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        work = home.collection()
        await work.round()
        await home.clock.advance(PATIENCE_SECONDS)
        await work.round()
        assert await home.manifest_entry(sha) is None
        await home.client.transaction(refer(home))
        assert await manifests.read_body(home.client, home.keys, sha) == manifest()[1]


class Unheard(msgspec.Struct):
    """A record of a family or a version that this one does not know."""

    inner: dict[str, str]


REFERENCES = {
    "rcs/ab01": lambda sha: codec.encode(
        ReplicationController(id="ab01", name="x", manifest=sha, replicas_desired=0)
    ),
    "rcs/ab02": lambda sha: f'{{"id": "ab02", "before_that": "{sha}"}}'.encode(),  # does not decode
    "pods/ab01/n1/hello": lambda sha: codec.encode(Pod(sha)),
    "intent/n1/hello": lambda sha: codec.encode(Intent(sha, "ab01")),
    "reality/0/n1/hello": lambda sha: b'{"manifest":"' + sha.encode() + b'"}',
    "daemonsets/ab01": lambda sha: codec.encode(Unheard({"manifest": sha})),
    "rollouts/ab01": lambda sha: codec.encode(Unheard({"old": sha})),
    "services/ab01": lambda sha: codec.encode(Unheard({"current": sha})),
    "work/rcs/ab01": lambda sha: codec.encode(Unheard({"transfer": sha})),
    "inventions/ab01": lambda sha: codec.encode(Unheard({"what": sha})),
}


@pytest.mark.parametrize("key", REFERENCES)
async def test_r24_any_record_that_bears_the_digest_keeps_the_manifest(key: str) -> None:
    async with house(manifest_age=0) as home:
        kept, gone = await home.store_manifest(1), await home.store_manifest(2)
        await home.client.put(home.keys.prefix + key, REFERENCES[key](kept))
        work = home.collection()
        await work.round()
        await home.clock.advance(PATIENCE_SECONDS)
        await work.round()
        entry = await home.manifest_entry(kept)
        assert entry is not None
        assert entry.flags == 0
        assert await home.manifest_entry(gone) is None


async def test_r24_a_condemnation_of_what_is_referred_to_is_taken_back() -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        work = home.collection()
        await work.round()
        # Not by ensure: as a hand would write it.
        await home.client.put(home.keys.intent("n1", "hello"), codec.encode(Intent(sha, "ab01")))
        await home.clock.advance(10 * HOUR)
        await work.round()
        entry = await home.manifest_entry(sha)
        assert entry is not None
        assert entry.flags == 0


@pytest.mark.parametrize("tree", ["rcs/7", "pods/0", "reality/f/", "intent/", "work/", "daemonsets/"])
@pytest.mark.parametrize("what", ["missing", "foreign"])
async def test_r20_without_its_sentinel_no_answer_proves_that_nothing_refers(tree: str, what: str) -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        work = home.collection()
        await work.round()
        await home.clock.advance(PATIENCE_SECONDS)
        sentinel = home.keys.sentinel(home.keys.prefix + tree)
        if what == "missing":
            await home.client.delete(sentinel)
        else:
            await home.client.put(sentinel, b'"somebody else"')
        with pytest.raises(NotRegistered, match=r"\.present: (missing|has another)"):
            await work.round()
        assert await home.manifest_entry(sha) is not None


async def test_r12_a_lost_claim_writes_nothing() -> None:
    async with house(manifest_age=0) as home:
        sha = await home.store_manifest()
        await home.client.delete(home.claim.key)
        with pytest.raises(ClaimLost):
            await home.collection().round()
        entry = await home.manifest_entry(sha)
        assert entry is not None
        assert entry.flags == 0


async def test_what_the_caches_know_costs_no_reading() -> None:
    async with house() as home:
        pod = Pod(manifest=await home.store_manifest())
        home.context.caches.pods.wrote(home.keys.pod("a", "node-1", "hello"), pod, 1)
        assert home.faulty is not None
        home.faulty.sent.clear()
        await home.collection().round()
        assert [request.path for request in home.faulty.sent] == ["/v1/kv/farmd/manifests/"]


async def test_rounds_are_bounded_and_every_manifest_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chore, "MANIFESTS_A_ROUND", 3)
    async with house(manifest_age=AGE) as home:
        shas = [await home.store_manifest(number) for number in range(8)]
        work = home.collection()
        condemned = []
        for _ in range(3):
            assert (await work.round()).more
            entries = [await home.manifest_entry(sha) for sha in shas]
            condemned.append(sum(entry is not None and entry.flags > 0 for entry in entries))
        assert condemned == [3, 6, 8]


async def test_r32_a_manifest_goes_with_its_signatures_and_takes_no_others() -> None:
    async with house(manifest_age=0) as home:
        gone, kept = await home.store_manifest(1), await home.store_manifest(2)
        await home.client.transaction(refer(home, 2))
        for sha in (gone, kept):
            await home.client.put(home.keys.signature(sha, "0" * 16, "rcs/x"), b"{}")
        work = home.collection()
        await work.round()
        await home.clock.advance(PATIENCE_SECONDS)
        await work.round()
        left = await home.client.keys(home.keys.tree("signatures"))
        assert left.items == [home.keys.signature(kept, "0" * 16, "rcs/x")]
