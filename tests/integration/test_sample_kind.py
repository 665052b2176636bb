"""A kind of work of 150 lines (``tests/sample``) has all that the frame gives, on a real Consul.

The kind is registered for the length of a test; nothing in ``farmd`` knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest
import yaml

from farmd.cli.main import farmctl as root
from farmd.cli.settings import Settings
from farmd.doctor.examine import examine
from farmd.kinds import KINDS
from farmd.runtime.clock import SystemIds
from store import codec
from store.errors import TransactionRejected
from store.failsafe import Failsafe
from store.families import FAMILIES
from store.keys import Keys
from store.status import ItemStatus
from tests.farmctl import Farmctl, Result
from tests.fleet import CLOCK, Cluster, RunningFarm, client_of, cluster_on, eventually, in_time, start_farm
from tests.mortal import bury, mortal_farm
from tests.proxy import Proxy, Seen
from tests.sample.kind import DECLARATION
from tests.sample.record import NOTED, NOTES, Copy, Note

SAMPLE = Path(__file__).parents[1] / "sample"
LINES = 150


class Notes:
    """Notes in one cluster, the farms that keep them, and somebody who types."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.farms: list[RunningFarm] = []
        self._farmctl = Farmctl(address, cluster.keys.prefix, inside=True)

    @property
    def keys(self) -> Keys:
        return self.cluster.keys

    async def start(self, name: str, address: str = "") -> RunningFarm:
        client = client_of(address or self.address)
        farm = await start_farm(client, name, keys=self.keys, kinds=("notes",))
        self.farms.append(farm)
        return farm

    async def farmctl(self, *arguments: str, **fields: object) -> Result:
        stdin = yaml.safe_dump(fields) if fields else ""
        return await asyncio.to_thread(self._farmctl, *arguments, stdin=stdin)

    async def ok(self, *arguments: str, **fields: object) -> str:
        result = await self.farmctl(*arguments, **fields)
        assert result.code == 0, result
        return result.out

    async def write(self, name: str, text: str, **fields: object) -> str:
        """A note as a person's transaction leaves it; its id."""
        note = Note(id=SystemIds().new(), name=name, text=text, **fields)  # type: ignore[arg-type]
        await self.cluster.put(self.keys.record("notes", note.id), note)
        await self.cluster.put(self.keys.name("notes", name), note.id)
        return note.id

    async def copies(self) -> dict[str, str]:
        found = await self.cluster.entries(self.keys.tree("noted"))
        return {self.keys.last_part(key): codec.decode(Copy, e.value, key).text for key, e in found.items()}

    async def copied(self, copies: dict[str, str], within: float = 15.0) -> None:
        async def so() -> bool:
            return await self.copies() == copies

        await eventually(so, within=within, what=f"the copies {copies}")

    async def told(self, item: str, state: str) -> ItemStatus:
        """The status of a note, once it says so."""

        async def so() -> ItemStatus | None:
            key = self.keys.status("notes", item)
            entry = await self.cluster.client.read(key)
            status = None if entry is None else codec.decode(ItemStatus, entry.value, key)
            return status if status is not None and status.state == state else None

        return await eventually(so, what=f"the status {state}")  # type: ignore[no-any-return]

    async def actors(self, action: str) -> list[str]:
        return [audit.actor for audit in await self.cluster.audits() if audit.action == action]

    async def close(self) -> None:
        for farm in self.farms:
            if not farm.task.done():
                await farm.close()
            await farm.client.close()


@asynccontextmanager
async def notes_on(address: str) -> AsyncIterator[Notes]:
    async with cluster_on(address) as cluster:
        made = Notes(cluster, address)
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def notes(consul_dev: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Notes]:
    for family in (NOTES, NOTED):
        monkeypatch.setitem(FAMILIES, family.name, family)
    monkeypatch.setitem(KINDS, DECLARATION.family, DECLARATION)
    async with notes_on(consul_dev) as made:
        yield made


def test_the_sample_is_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SAMPLE.glob("*.py")) <= LINES


# -- claims ----------------------------------------------------------------------------------------
async def test_r7_two_farms_share_the_notes_and_an_edit_converges(notes: Notes) -> None:
    a, b = await notes.start("a"), await notes.start("b")
    items = [await notes.write(f"note-{number}", "draft") for number in range(12)]
    await notes.copied(dict.fromkeys(items, "draft"))

    async def shared() -> bool:
        return bool(a.owned and b.owned) and sorted([*a.owned, *b.owned]) == sorted(items)

    await eventually(shared, what="each note has one owner, and each farm some notes")
    await notes.cluster.put(
        notes.keys.record("notes", items[0]), Note(id=items[0], name="note-0", text="new")
    )
    await notes.copied({**dict.fromkeys(items, "draft"), items[0]: "new"})
    # A copy that another hand changes or deletes is put right, too.
    await notes.cluster.client.delete(notes.keys.record("noted", items[1]))
    await notes.cluster.put(notes.keys.record("noted", items[2]), Copy("forged"))
    await notes.copied({**dict.fromkeys(items, "draft"), items[0]: "new"})


@pytest.mark.parametrize("answered", [True, False])
async def test_r12_a_farm_that_dies_right_after_a_write_leaves_its_notes_to_another(
    notes: Notes, answered: bool
) -> None:
    items = [await notes.write(f"note-{number}", "draft") for number in range(3)]
    settings = {"kinds": ("notes",)}
    async with mortal_farm(notes.cluster, notes.address, "note.copy", answered=answered, **settings) as dead:
        await dead.falls()
        await bury(notes.cluster)
        b = await notes.start("b")
        await notes.copied(dict.fromkeys(items, "draft"))

        async def taken() -> bool:
            return b.owned == set(items)

        await eventually(taken, what="the take-over")
        assert len(await notes.actors("note.copy")) == len(items), "each copy is written once"


# -- fences ----------------------------------------------------------------------------------------
async def test_r12_the_fence_refuses_the_late_write_of_a_worker_that_lost_its_note(notes: Notes) -> None:
    def copies(seen: Seen) -> bool:
        return seen.path == "/v1/txn" and b"/noted/" in seen.body

    async with Proxy(notes.address) as proxy:
        hold = proxy.hold(copies)
        a = await notes.start("a", proxy.address)
        item = await notes.write("memo", "draft")
        await in_time(hold.reached.wait())
        (claim,) = [claim for loop in a.farm.loops for claim in loop.supervisor.owned.values()]
        await notes.cluster.client.destroy_session(claim.session)
        b = await notes.start("b")
        await notes.copied({item: "draft"})
        assert b.owned == {item}
        hold.release()

        async def lost() -> bool:
            return item not in a.owned

        await eventually(lost, what="the loser stops its worker")
        assert await notes.actors("note.copy") == ["farm/b"]
        with pytest.raises(TransactionRejected):
            await a.client.transaction(claim.fence())


# -- doubt -----------------------------------------------------------------------------------------
async def test_r18_a_freeze_holds_back_what_removes_until_the_thaw(notes: Notes) -> None:
    farm = await notes.start("a")
    kept, empty = await notes.write("kept", "draft"), await notes.write("empty", "")
    await notes.copied({kept: "draft"})
    await notes.told(empty, "converged")
    sentinel = notes.keys.sentinel(notes.keys.tree("notes"))
    bears = await notes.cluster.client.read(sentinel)
    assert bears is not None
    await notes.cluster.client.delete(sentinel)

    async def frozen() -> bool:
        key = notes.keys.failsafe("notes")
        entry = await notes.cluster.client.read(key)
        return entry is not None and "notes: " in codec.decode(Failsafe, entry.value, key).evidence

    await eventually(frozen, what="the freeze")
    # Nobody asked for the removal of this copy; what adds goes on.
    await notes.cluster.put(notes.keys.record("noted", empty), Copy("stray"))
    await notes.cluster.client.delete(notes.keys.record("noted", kept))
    assert (await notes.told(empty, "frozen")).reason.startswith("frozen: notes: ")
    await notes.copied({kept: "draft", empty: "stray"})
    assert farm.metric("farmd_frozen", kind="notes") == 1
    await notes.cluster.client.put(sentinel, bears.value)
    await notes.copied({kept: "draft"})
    await notes.told(empty, "converged")


async def test_r10_a_corrupt_note_is_told_by_status_and_doctor_and_its_copy_stays(notes: Notes) -> None:
    farm = await notes.start("a")
    item, other = await notes.write("memo", "draft"), await notes.write("other", "fine")
    await notes.copied({item: "draft", other: "fine"})
    await notes.cluster.client.put(notes.keys.record("notes", item), b'{"id": 7}')
    reason = (await notes.told(item, "blocked")).reason
    assert f"notes/{item}" in reason
    report = await examine(notes.cluster.client, notes.keys, CLOCK)
    found = {(finding.code, finding.object): finding for finding in report.findings}
    assert found["record-invalid", f"notes/{item}"].fix.endswith("removes it")
    assert ("blocked", f"status/notes/{item}") not in found, "what does not decode is told once"
    listed = await notes.farmctl("note", "list", "-o", "name")
    assert listed.out == "note/other\n"
    assert f"notes/{item}" in listed.err
    assert await notes.copies() == {item: "draft", other: "fine"}

    farm.farm.publish()
    assert farm.metric("farmd_blocked", kind="notes") == 1
    assert farm.metric("farmd_invalid_records", family="notes") == 1
    # A copy that does not decode is left alone, and told; removed, it is written anew.
    await notes.cluster.client.put(notes.keys.record("noted", other), b"{")
    await notes.told(other, "blocked")
    await notes.ok("doctor", "--fix", f"noted/{other}", "-y")
    await notes.copied({item: "draft", other: "fine"})
    await notes.told(other, "converged")


# -- people ----------------------------------------------------------------------------------------
async def test_a_notes_life_in_commands_and_metrics(notes: Notes, tmp_path: Path) -> None:
    farm = await notes.start("a")
    made = await notes.ok("note", "create", "-f", "-", "--wait", name="memo", text="draft", labels={"a": "b"})
    assert made.startswith("note/memo created (")
    (item,) = await notes.copies()
    listed = (await notes.ok("note", "list", "-l", "a=b", "-o", "wide")).splitlines()
    assert [line.split() for line in listed] == [
        ["NAME", "ID", "STATE", "OWNER", "REASON"],
        ["memo", item, "converged", "a"],
    ]
    file = tmp_path / "memo.yaml"
    file.write_text(await notes.ok("note", "get", "memo", "--file"))
    assert (await notes.ok("note", "create", "-f", str(file))).startswith("note/memo unchanged")
    await notes.ok("note", "disable", "memo")
    await notes.told(item, "disabled")
    await notes.ok("note", "update", "-f", "-", name="memo", text="final")
    assert await notes.copies() == {item: "draft"}
    await notes.ok("note", "enable", "memo", "--wait")
    assert await notes.copies() == {item: "final"}
    described = await notes.ok("note", "describe", "memo")
    assert "State:         converged" in described
    assert "Text:          final" in described
    for action in ("note.create", "note.copy", "note.disable", "note.update", "note.enable"):
        assert action in described
    assert "note.copy" in await notes.ok("audit", "list", "--item", "note/memo")
    assert await asyncio.to_thread(completed, notes, "me") == ["memo"]

    farm.farm.publish()
    assert farm.metric("farmd_owned", kind="notes") == 1
    assert farm.metric("farmd_cycles_total", kind="notes", result="done") >= 1
    assert farm.metric("farmd_cycle_duration_seconds_count", kind="notes") >= 3

    assert (await notes.ok("note", "delete", "memo", "-y")).endswith(f"note/memo deleted ({item})\n")
    assert await notes.copies() == {}
    left = await notes.cluster.entries(notes.keys.prefix)
    assert not [key for key in left if item in key and "/audit/" not in key and "/locks/" not in key]
    findings = (await examine(notes.cluster.client, notes.keys, CLOCK)).findings
    assert [finding.object for finding in findings] == ["housekeeping"], "which no farm of this test claims"


def completed(notes: Notes, incomplete: str) -> list[str]:
    """What a shell offers behind ``farmctl note describe``."""
    environment = {"CONSUL_HTTP_ADDR": notes.address, "FARMD_STORE__PREFIX": notes.keys.prefix}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        group = root.get_command(click.Context(root), "note")
        assert isinstance(group, click.Group)
        context = click.Context(group, obj=Settings())
        describe = group.get_command(context, "describe")
        assert describe is not None
        (argument,) = [each for each in describe.params if isinstance(each, click.Argument)]
        return [item.value for item in argument.shell_complete(context, incomplete)]
