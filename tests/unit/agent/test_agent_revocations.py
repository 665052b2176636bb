"""Others than the agent write revocations, so what a node reads and keeps of them has a bound (R32)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from farmd.agent import revocations as followed
from farmd.agent.revocations import Revocations
from farmd.agent.state import StateDirectory
from farmd.observe.progress import Progress
from store import revocations, signatures
from store.consul.client import ConsulClient
from store.errors import RecordInvalid, TooLarge
from store.keys import Keys
from store.revocations import Revocation
from store.signatures import LARGEST, Statement
from tests.recorders import CountingRecorder
from tests.virtual import VirtualClock, embedded_client

KEYS = Keys("farmd/")


def revocation(number: int, **fields: str) -> Revocation:
    return Revocation(statement=Statement(f"{number:064x}", "rcs/web", 0, 2**40), **fields)


class Node:
    def __init__(self, folder: Path) -> None:
        self.clock, self.state = VirtualClock(), StateDirectory(folder)
        self.client: ConsulClient = embedded_client(self.clock)
        self.revocations = self.started()

    def started(self) -> Revocations:
        return Revocations(
            client=self.client,
            keys=KEYS,
            state=self.state,
            clock=self.clock,
            rng=random.Random(1),
            progress=Progress(self.clock, CountingRecorder()),
        )

    async def write(self, *made: Revocation) -> None:
        for each in made:
            await self.client.transaction([revocations.put(KEYS, each)])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(followed, "MOST", 5)
    made = Node(tmp_path / "s")
    with made.state.locked("n1"):
        yield made


async def test_more_revocations_than_a_node_keeps_permit_no_first_start_and_take_no_room(node: Node) -> None:
    await node.write(*map(revocation, range(5)))
    known = await node.revocations.read()
    saved = node.state.saved_revocations()
    await node.write(revocation(5))
    with capture_logs() as told:
        for _ in range(2):
            with pytest.raises(TooLarge, match="found 6 revocations that this node knows, expected at most"):
                await node.revocations.read()
    assert [each["event"] for each in told] == ["revocations.too_many"]
    assert (node.state.saved_revocations(), node.revocations.known) == (saved, known)


async def test_a_node_that_has_room_again_goes_on(node: Node) -> None:
    await node.write(*map(revocation, range(6)))
    with pytest.raises(TooLarge):
        await node.revocations.read()
    await node.client.delete(KEYS.revocation(revocation(0).statement.digest, "rcs/web"))
    assert len((await node.revocations.read()).before) == 5


async def test_a_node_keeps_of_a_revocation_only_what_it_judges_by(node: Node) -> None:
    await node.write(revocation(1, reason="r" * 2000, by="b" * 1000))
    await node.revocations.read()
    assert len(node.state.saved_revocations() or b"") < 300
    assert node.started().known == node.revocations.known


async def test_a_record_that_is_too_large_is_no_revocation_and_no_signature(node: Node) -> None:
    await node.write(revocation(1), revocation(2, reason="r" * LARGEST))
    assert len((await node.revocations.read()).before) == 1
    digest = "0" * 64
    await node.client.put(KEYS.signature(digest, "0" * 16, "rcs/web"), b"{" + b" " * LARGEST + b"}")
    found, broken = await signatures.of(node.client, KEYS, digest)
    assert found == []
    assert "expected at most 4096" in broken[0].message


async def test_more_signatures_of_a_manifest_than_anybody_needs_refuse_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "MOST_OF_ONE", 3)
    digest = "0" * 64
    for number in range(4):
        await node.client.put(KEYS.signature(digest, f"{number:016x}", "rcs/web"), b"{}")
    with pytest.raises(RecordInvalid, match="found 4 signatures, expected at most 3"):
        await signatures.of(node.client, KEYS, digest)
