"""R32: the doctor names owners whose new pods nodes refuse, where a node enforces signatures."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from farmd.commands.mutation import Call, Mutation, commit
from farmd.commands.signing import Start, signer
from farmd.doctor import security as check
from farmd.doctor.survey import survey
from farmd.replication.commands import RC
from farmd.signing.keys import sign
from store import codec, signatures
from store.nodes import Agent
from store.signatures import Statement
from tests.people import KEYS, created, person

DAY = 86_400


async def fleet(call: Call, feature: str) -> tuple[str, str]:
    """A controller, on a node with a policy; its id and its manifest's digest."""
    rc_id = await created(call)
    agent = Agent(node="n1", version="1", features=[feature])
    await call.client.put(KEYS.agent("n1"), codec.encode(agent))
    return rc_id, (await RC.records(call.client, KEYS).get(rc_id)).record.manifest


async def signed(call: Call, key: Ed25519PrivateKey, start: Start, seconds: float) -> Mutation:
    return (await signer(call, key, seconds)).signed(start)


async def found(call: Call) -> list[tuple[str, str]]:
    seen = await survey(call.client, KEYS, call.clock)
    return [(each.code, each.object) for each in check.check(seen)]


@pytest.mark.parametrize(
    ("owner", "days", "code"),
    [
        ("", 0, "unsigned"),
        ("rcs/other", 90, "unsigned"),
        ("rcs/hello", 6, "signature-ends"),
        ("rcs/hello", 90, None),
    ],
)
async def test_an_owner_without_a_lasting_signature_is_a_finding(
    owner: str, days: int, code: str | None
) -> None:
    async with person() as call:
        rc_id, sha = await fleet(call, "signatures.enforce")
        if owner:
            key = Ed25519PrivateKey.generate()
            await commit(call, await signed(call, key, Start(owner, sha), days * DAY))
        assert await found(call) == ([(code, f"rcs/{rc_id}")] if code else [])


async def test_a_false_signature_counts_for_nothing() -> None:
    async with person() as call:
        rc_id, sha = await fleet(call, "signatures.enforce")
        await commit(
            call, await signed(call, Ed25519PrivateKey.generate(), Start("rcs/hello", sha), 90 * DAY)
        )
        [true], _ = await signatures.of(call.client, KEYS, sha)
        false = signatures.put(KEYS, replace(true, signature="0" * 128))
        await call.client.transaction([false])
        assert await found(call) == [("unsigned", f"rcs/{rc_id}")]


@pytest.mark.parametrize(
    ("held", "code"),
    [
        ([(1, 90)], "unsigned"),  # the node refuses it until tomorrow
        ([(0, 3), (1, 90)], None),  # the next one begins before the first one ends
        ([(0, 3), (4, 90)], "signature-ends"),
    ],
)
async def test_a_signature_counts_from_its_begin(held: list[tuple[int, int]], code: str | None) -> None:
    async with person() as call:
        rc_id, sha = await fleet(call, "signatures.enforce")
        for begins, ends in held:  # in days from now
            now = int(call.clock.now())
            statement = Statement(sha, "rcs/hello", now + begins * DAY, now + ends * DAY)
            made = signatures.put(KEYS, sign(Ed25519PrivateKey.generate(), statement))
            await call.client.transaction([made])
        assert await found(call) == ([(code, f"rcs/{rc_id}")] if code else [])


@pytest.mark.parametrize("feature", ["jobs.1", "signatures.warn"])
async def test_nothing_is_said_where_no_node_enforces(feature: str) -> None:
    async with person() as call:
        await fleet(call, feature)
        assert await found(call) == []


@pytest.mark.parametrize(
    ("trusted", "code"),
    [
        ({}, "unsigned"),
        ({"mine": ["rcs/other-*"]}, "unsigned"),
        ({"another": ["*"]}, "unsigned"),
        ({"mine": ["rcs/h*"]}, None),
        (None, None),  # an agent of before says nothing of whom it trusts
    ],
)
async def test_a_signature_that_no_node_trusts_counts_for_nothing(
    trusted: dict[str, list[str]] | None, code: str | None
) -> None:
    async with person() as call:
        rc_id, sha = await fleet(call, "signatures.enforce")
        await commit(
            call, await signed(call, Ed25519PrivateKey.generate(), Start("rcs/hello", sha), 90 * DAY)
        )
        [signature], _ = await signatures.of(call.client, KEYS, sha)
        key = signature.key_id
        trusts = None if trusted is None else {key if k == "mine" else k: v for k, v in trusted.items()}
        agent = Agent(node="n1", version="1", features=["signatures.enforce"], trusts=trusts)
        await call.client.put(KEYS.agent("n1"), codec.encode(agent))
        assert await found(call) == ([(code, f"rcs/{rc_id}")] if code else [])
        seen = await survey(call.client, KEYS, call.clock)
        assert all(f"no node trusts key {key} for it" in each.explanation for each in check.check(seen))


async def test_one_node_that_trusts_the_key_is_enough() -> None:
    async with person() as call:
        _, sha = await fleet(call, "signatures.enforce")
        stranger = Agent(node="n2", version="1", features=["signatures.enforce"], trusts={})
        await call.client.put(KEYS.agent("n2"), codec.encode(stranger))
        await commit(
            call, await signed(call, Ed25519PrivateKey.generate(), Start("rcs/hello", sha), 90 * DAY)
        )
        assert await found(call) == []
