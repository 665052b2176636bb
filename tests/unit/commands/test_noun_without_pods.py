"""A noun of a kind that nobody has written: what the frame gives to records that own no pods."""

from __future__ import annotations

import shlex
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from farmd import overview
from farmd.cli import groups, invocation
from farmd.commands import waiting
from farmd.commands.mutation import Call, commit
from farmd.commands.noun import Noun
from farmd.commands.specs import SpecFile, changed
from farmd.declaration import KindOfWork
from farmd.kinds import KINDS
from farmd.runtime.errors import WaitTimeout
from farmd.work.named import NamedKind
from store import codec
from store.errors import Conflict, InputInvalid, Locked, NotFound
from store.families import FAMILIES, Family
from store.farms import Member
from store.status import Status
from tests.people import KEYS, person


class Note(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    id: str
    name: str
    text: str
    labels: dict[str, str] = {}
    disabled: bool = False
    deleting: bool = False


class NoteSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    name: str
    says: str | None = None
    labels: dict[str, str] = {}
    disabled: bool | None = None


NOTE: Noun[NoteSpec, Note] = Noun(
    file=SpecFile(
        spec=NoteSpec, record=Note, names={"says": "text"}, kept={"says": "some text", "disabled": ""}
    ),
    told=lambda note: {"says": note.text},
    facts=lambda note, _: [("Says", note.text)],
)


@pytest.fixture(autouse=True)
def registered_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = KindOfWork(
        family="notes", one="note", many="notes", noun="note", runs=lambda: NamedKind, asked=lambda: NOTE
    )
    monkeypatch.setitem(KINDS, "notes", notes)
    monkeypatch.setitem(FAMILIES, "notes", Family(name="notes", record=Note, named=True))


def spec(**fields: Any) -> NoteSpec:
    return NOTE.file.parse({"name": "memo", **fields}, "note.yaml")


async def created(call: Call, **fields: Any) -> Note:
    mutation = await NOTE.create(call, spec(**{"says": "hello", **fields}))
    await commit(call, mutation)
    return await note(call)


async def note(call: Call) -> Note:
    return (await NOTE.records(call.client, KEYS).find("memo")).record


async def report(call: Call, **fields: Any) -> None:
    """What a farm that holds the note says of it."""
    stored = await NOTE.records(call.client, KEYS).find("memo")
    item = stored.record.id
    await call.client.put(KEYS.farm("one"), codec.encode(Member(id="one", version="1", kinds=["notes"])))
    await call.client.put(KEYS.lock("notes", item), b"farm/one/n")
    status = Status(record=stored.index, **fields)
    await call.client.put(KEYS.status("notes", item), codec.encode(status))


async def test_creating_an_equal_one_changes_nothing_and_a_different_one_is_a_conflict() -> None:
    async with person() as call:
        made = await NOTE.create(call, spec(says="hello", disabled=True))
        assert (made.change.action, made.change.after) == ("note.create", {"says": "hello", "disabled": True})
        await commit(call, made)
        assert not (await NOTE.create(call, spec(says="hello", disabled=True))).needed
        with pytest.raises(
            Conflict, match=r"note 'memo' exists and differs: says \(hello -> bye\)"
        ) as caught:
            await NOTE.create(call, spec(says="bye", disabled=True))
        assert caught.value.fields["hint"] == "farmctl note update -f FILE changes it"
        with pytest.raises(InputInvalid, match="new: says: missing, expected some text"):
            await NOTE.create(call, spec(name="new"))


async def test_an_update_keeps_what_the_file_leaves_out() -> None:
    async with person() as call:
        await created(call, disabled=True)
        mutation = await NOTE.update(call, spec(labels={"a": "b"}), now=True)
        assert (mutation.change.before, mutation.change.after) == ({"labels": ""}, {"labels": "a=b"})
        await commit(call, mutation)
        assert (await note(call)).text == "hello"
        assert NOTE.file.as_file(await note(call)) == {
            "name": "memo",
            "says": "hello",
            "labels": {"a": "b"},
            "disabled": True,
        }


async def test_r13_its_mutation_lock_keeps_people_out() -> None:
    async with person() as call:
        await call.client.put(KEYS.mutation_lock("notes", (await created(call)).id), b"user/bob@desk/n")
        for ask in (NOTE.disable(call, "memo"), NOTE.delete(call, "memo", cascade=False)):
            with pytest.raises(Locked, match="note 'memo' is locked by user/bob@desk"):
                await ask


async def test_a_delete_leaves_the_end_to_its_worker_and_is_waited_for() -> None:
    async with person() as call:
        made = await created(call)
        mutation = await NOTE.delete(call, "memo", cascade=False)
        assert (mutation.change.action, mutation.change.after) == ("note.mark-deleted", {"deleting": True})
        await commit(call, mutation)
        with pytest.raises(Conflict, match="being deleted"):
            await NOTE.enable(call, "memo")
        with pytest.raises(WaitTimeout, match="note 'memo' is still there after 0 s"):
            await waiting.deletion(call, NOTE, made.id, 0.0, lambda _: None)
        stored = await NOTE.records(call.client, KEYS).get(made.id)
        await call.client.transaction(NOTE.records(call.client, KEYS).delete(stored))
        await waiting.deletion(call, NOTE, made.id, 0.0, lambda _: None)


async def test_a_wait_goes_by_what_its_worker_says_of_this_very_record() -> None:
    async with person() as call:
        await created(call)
        await report(call, state="blocked", reason="no ink")
        with pytest.raises(WaitTimeout, match="note 'memo' did not converge within 0 s: blocked: no ink"):
            await waiting.convergence(call, NOTE, "memo", 0.0, lambda _: None)
        await report(call, state="converged")
        assert (await waiting.convergence(call, NOTE, "memo", 0.0, lambda _: None)).state == "converged"
        stored = await NOTE.records(call.client, KEYS).find("memo")
        newer = NOTE.records(call.client, KEYS).replace(stored, changed(stored.record, text="bye"))
        await call.client.transaction([newer])
        with pytest.raises(WaitTimeout, match="pending"):
            await waiting.convergence(call, NOTE, "memo", 0.0, lambda _: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command line would run, in place of running it."""
    found: list[Any] = []
    monkeypatch.setattr(invocation, "run", lambda *what, **_: found.append(what))
    return found


async def farmctl(call: Call, asked: list[Any], line: str) -> None:
    group = groups.group("notes")
    shown = CliRunner().invoke(group, shlex.split(line), catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    settings, function, params = asked.pop()
    await function(invocation.Invocation(settings, call), **params)


async def test_its_group_has_every_verb_but_those_of_pods(
    asked: list[Any], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    group = groups.group("notes")
    verbs = group.list_commands(click.Context(group))
    assert verbs == [
        *("create", "list", "get", "describe", "update", "edit", "diff"),
        *("enable", "disable", "delete"),
    ]
    file = tmp_path / "note.yaml"
    file.write_text("{name: memo, says: hello}")
    async with person() as call:
        for line in (
            f"create -f {file}",
            "list",
            "get memo --file",
            "disable note/memo",
            "enable memo",
            f"update -f {file}",
            "describe memo",
            "delete memo -y --no-wait",
        ):
            await farmctl(call, asked, line)
        shown = capsys.readouterr()
        assert shown.out.startswith("note/memo created (")
        assert "NAME" in shown.out
        assert "Says:          hello" in shown.out
        assert "Pods" not in shown.out
        assert "note/memo: nothing to change" in shown.err
        assert (await note(call)).deleting
        row = await overview.row(call.client, KEYS, NOTE.records(call.client, KEYS), "memo")
        assert row.state == "deleting"


async def test_what_is_not_there_is_not_found() -> None:
    async with person() as call:
        with pytest.raises(NotFound, match="note 'memo' does not exist"):
            await NOTE.update(call, spec(), now=True)
