"""R32: an agent starts only what a person signed whom its node trusts, on real Consul."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from farmd.agent.model import Policy, SigningConfig
from farmd.signing import keys as signing
from store import codec, revocations, signatures
from store.manifests import Manifest
from store.rcs import ReplicationController, ReplicationControllerStore
from store.reality import Reality
from store.registration import cluster_id
from store.revocations import Revocation
from store.signatures import Signature, Statement
from tests.agents import Agents, alive, kill, sha_of, shell
from tests.fleet import eventually

RUNS = shell("exec sleep 1000")
NEWER = shell("exec sleep 1001")
HOUR = 3600


class People:
    """A person with a key whom the node trusts, and the owners that exist."""

    def __init__(self, rig: Agents) -> None:
        self.rig = rig
        self.key = signing.load(self._made(rig.root / "alice.key"))
        self.trust = rig.root / "trust"
        self.trusts("rcs/web", "n1")

    @staticmethod
    def _made(path: Path) -> Path:
        signing.generate(path)
        return path

    def trusts(self, owners: str, nodes: str) -> None:
        self.trust.write_text(f"alice {signing.public_of(self.key)} {owners} {nodes}\n")

    def config(self, policy: Policy = "enforce") -> SigningConfig:
        return SigningConfig(policy=policy, trust=str(self.trust))

    async def owner(self, ident: str, name: str, manifest: Manifest = RUNS) -> None:
        rc = ReplicationController(id=ident, name=name, manifest=sha_of(manifest), replicas_desired=1)
        records = ReplicationControllerStore(self.rig.client, self.rig.keys)
        await self.rig.client.transaction(list(records.create(rc)))

    async def signs(self, manifest: Manifest, owner: str = "rcs/web", ends: float = HOUR) -> Signature:
        now = int(time.time())
        said = Statement(sha_of(manifest), owner, now - HOUR, now + int(ends))
        signed = signing.sign(self.key, said)
        await self.keep(signed)
        return signed

    async def revokes(self, manifest: Manifest, owner: str = "rcs/web") -> str:
        """Revoke what was signed so far; the key of the revocation."""
        said = Statement(sha_of(manifest), owner, 0, int(time.time()) + 1)
        await self.rig.client.transaction([revocations.put(self.rig.keys, Revocation(statement=said))])
        return self.rig.keys.revocation(said.digest, owner)

    async def keep(self, signed: Signature) -> None:
        await self.rig.client.transaction([signatures.put(self.rig.keys, signed)])


@pytest.fixture
async def people(rig: Agents) -> People:
    made = People(rig)
    rig.signing = made.config()
    await made.owner("ab01", "web")
    await made.owner("ab02", "shop")
    return made


def refused(reality: Reality) -> bool:
    return reality.phase == "failed" and not reality.pid


async def test_a_pod_that_nobody_signed_does_not_start_until_somebody_signs_it(
    rig: Agents, people: People
) -> None:
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    found = await rig.until(refused)
    assert found.reason == f"not signed: nobody signed manifest {sha_of(RUNS)[:12]}"
    assert found.refused > 0
    await people.signs(RUNS)
    await rig.until_running(RUNS)


async def test_a_signature_for_one_owner_starts_no_pod_of_another(rig: Agents, people: People) -> None:
    people.trusts("rcs/*", "*")
    await people.signs(RUNS, "rcs/web")
    await rig.agent()
    await rig.want(RUNS, owner="ab02")
    told = await rig.until(refused)
    assert told.reason == f"not signed: manifest {sha_of(RUNS)[:12]} is signed for rcs/web, not for ab02"
    await rig.want(RUNS, owner="ab01")
    await rig.until_running(RUNS)


async def test_whoever_writes_intents_starts_nothing_new_and_takes_no_other_place(
    rig: Agents, people: People
) -> None:
    """What the token of a farm can do: it writes any record, and forges no signature."""
    signed = await people.signs(RUNS)
    thief = rig.root / "thief.key"
    signing.generate(thief)
    forged = signing.sign(signing.load(thief), replace(signed.statement, digest=sha_of(NEWER)))
    await people.keep(forged)
    await people.keep(replace(forged, key=signed.key))
    await rig.agent()
    await rig.want(NEWER, owner="ab01")
    await rig.want(RUNS, owner="ab01", instance="db")
    await rig.want(RUNS, owner="nobody", instance="web~1")
    for instance, reason in (
        ("web", f"the signature by key {signed.key_id} is false: manifest {sha_of(NEWER)[:12]} for rcs/web"),
        ("db", "instance db does not belong to rcs/web with pod web"),
        ("web~1", f"manifest {sha_of(RUNS)[:12]} is signed for rcs/web, not for nobody"),
    ):
        assert (await rig.until(refused, instance=instance)).reason == f"not signed: {reason}"
    assert rig.identities() == []


async def test_what_runs_goes_on_without_its_signature_and_starts_again(rig: Agents, people: People) -> None:
    signed = await people.signs(RUNS)
    first = await rig.agent()
    await rig.want(RUNS, owner="ab01")
    before = await rig.until_running(RUNS)
    await rig.client.delete(rig.keys.signature(sha_of(RUNS), signed.key_id, "rcs/web"))
    people.trust.write_text("")
    kill(before)
    again = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    await first.crash()
    await rig.agent()
    index = await rig.want(RUNS, owner="ab01", restart=1)
    after = await rig.until(lambda r: r.intent == index and r.phase == "running" and r.pid != again.pid)
    assert alive(after)


async def test_an_update_that_nobody_signed_leaves_the_former_pod_running(
    rig: Agents, people: People
) -> None:
    await people.signs(RUNS)
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    before = await rig.until_running(RUNS)
    await people.signs(NEWER, ends=-1)
    index = await rig.want(NEWER, owner="ab01")
    told = await rig.until(lambda r: r.refused == index)
    assert "the signature by alice has expired" in told.reason
    assert (told.pid, told.phase) == (before.pid, "running")
    assert alive(before)


async def test_a_key_that_leaves_the_trust_file_starts_nothing_and_the_new_one_does(
    rig: Agents, people: People
) -> None:
    await people.signs(RUNS)
    old = people.trust.read_text()
    people.trust.write_text("alice of spring\n")
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    told = await rig.until(refused)
    assert told.reason.endswith("line 1: found 3 words, expected name, public key, owners and nodes")
    people.trust.write_text(old.replace(signing.public_of(people.key), "0" * 64))
    await rig.until(lambda r: "is not trusted here" in r.reason)
    people.trust.write_text(old)
    await rig.until_running(RUNS)

    async def told_whom_it_trusts() -> bool:
        found = await rig.presence()
        assert found is not None
        return found[0].trusts == {signatures.key_id(signing.public_of(people.key)): ["rcs/web"]}

    await eventually(told_whom_it_trusts, what="the keys that the node trusts")


async def test_a_revoked_signature_stops_nothing_that_runs_and_refuses_every_later_start(
    rig: Agents, people: People
) -> None:
    """After a crash, a restart that is asked for, a restart of the agent, and once the record is deleted."""
    signed = await people.signs(RUNS)
    first = await rig.agent()
    await rig.want(RUNS, owner="ab01")
    before = await rig.until_running(RUNS)
    place = await people.revokes(RUNS)
    reason = f"not signed: the signature by alice was revoked: manifest {sha_of(RUNS)[:12]} for rcs/web"
    told = await rig.until(lambda r: r.reason == reason)
    assert (told.pid, told.phase, told.refused) == (before.pid, "running", 0)
    index = await rig.want(RUNS, owner="ab01", restart=1)
    told = await rig.until(lambda r: r.refused == index)
    assert (told.pid, told.phase) == (before.pid, "running")
    assert alive(before)
    kill(before)
    await rig.until(lambda r: r.phase == "failed" and reason in r.reason)
    await first.crash()
    await rig.client.delete(place)
    await people.keep(signed)
    await rig.agent()
    index = await rig.want(RUNS, owner="ab01", restart=2)
    await rig.until(lambda r: r.refused == index and reason in r.reason)
    assert [each.pid for each in rig.identities()] == [before.pid]
    await people.keep(signing.sign(people.key, replace(signed.statement, begins=int(time.time()) + 2)))
    await rig.until_running(RUNS)


async def test_an_agent_that_was_away_learns_of_a_revocation_before_it_starts_what_ended(
    rig: Agents, people: People
) -> None:
    await people.signs(RUNS)
    first = await rig.agent()
    await rig.want(RUNS, owner="ab01")
    before = await rig.until_running(RUNS)
    await first.crash()
    kill(before)
    await people.revokes(RUNS)
    await rig.agent()
    await rig.until(lambda r: r.phase == "failed" and "was revoked" in r.reason)
    assert [each.pid for each in rig.identities()] == [before.pid]


async def test_a_revocation_for_one_owner_concerns_no_other_one(rig: Agents, people: People) -> None:
    people.trusts("rcs/*", "*")
    await people.signs(RUNS, "rcs/web")
    await people.signs(RUNS, "rcs/shop")
    await rig.agent()
    await rig.want(RUNS, owner="ab02")
    before = await rig.until_running(RUNS)
    await people.revokes(RUNS, "rcs/web")
    await rig.want(RUNS, owner="ab01", instance="web~1")
    await rig.until(lambda r: "was revoked" in r.reason, instance="web~1")
    kill(before)
    again = await rig.until(lambda r: r.restarts == 1 and r.phase == "running")
    assert again.reason == ""


async def test_a_signature_of_another_cluster_starts_nothing_here(rig: Agents, people: People) -> None:
    signed = await people.signs(RUNS, ends=HOUR)
    await rig.client.delete(rig.keys.signature(sha_of(RUNS), signed.key_id, "rcs/web"))
    await people.keep(signing.sign(people.key, replace(signed.statement, cluster="staging")))
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    assert "is for cluster staging" in (await rig.until(refused)).reason
    own = await cluster_id(rig.client, rig.keys)
    await people.keep(signing.sign(people.key, replace(signed.statement, cluster=own)))
    await rig.until_running(RUNS)


async def test_a_node_that_a_person_may_not_deploy_to_refuses(rig: Agents, people: People) -> None:
    people.trusts("rcs/web", "db-*")
    await people.signs(RUNS)
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    assert (await rig.until(refused)).reason.startswith("not signed: alice may not deploy to n1")


async def test_a_signature_is_for_the_first_start_and_not_for_its_preparation(
    rig: Agents, people: People
) -> None:
    """A member on hold starts long after its intent was obeyed."""
    await people.signs(RUNS)
    running = await rig.agent()
    await rig.want(RUNS, owner="ab01", hold=True)
    await rig.until(lambda r: r.phase == "held")
    signed = await people.signs(RUNS, ends=-1)
    await rig.want(RUNS, owner="ab01")
    await rig.until(lambda r: "has expired" in r.reason)
    assert rig.identities() == []
    await people.keep(signing.sign(people.key, replace(signed.statement, ends=signed.statement.ends + HOUR)))
    await rig.until_running(RUNS)
    assert running.agent.lacks() == ""


async def test_a_node_that_warns_starts_the_pod_and_says_what_is_missing(rig: Agents, people: People) -> None:
    rig.signing = people.config("warn")
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    told = await rig.until_running(RUNS)
    assert told.reason == f"not signed: nobody signed manifest {sha_of(RUNS)[:12]}"
    found = await rig.presence()
    assert found is not None
    assert "signatures.warn" in found[0].features
    await rig.want(RUNS, owner="ab01", instance="web~1")
    await rig.until_running(RUNS, instance="web~1")
    assert (await rig.realities())["web"].reason == told.reason
    await people.signs(RUNS)
    await rig.until(lambda r: not r.reason)


async def test_a_node_that_begins_to_enforce_leaves_what_runs_and_starts_nothing_unsigned(
    rig: Agents, people: People
) -> None:
    rig.signing = None
    first = await rig.agent()
    await rig.want(RUNS, owner="ab01")
    before = await rig.until_running(RUNS)
    await first.crash()
    rig.signing = people.config()
    await rig.agent()
    index = await rig.want(NEWER, owner="ab01")
    told = await rig.until(lambda r: r.refused == index)
    assert told.pid == before.pid
    assert alive(before)


async def test_a_record_of_a_signature_that_does_not_decode_refuses(rig: Agents, people: People) -> None:
    signed = await people.signs(RUNS)
    key = rig.keys.signature(sha_of(RUNS), signed.key_id, "rcs/web")
    await rig.client.put(key, codec.encode({"statement": 1}))
    await rig.agent()
    await rig.want(RUNS, owner="ab01")
    assert key in (await rig.until(refused)).reason
