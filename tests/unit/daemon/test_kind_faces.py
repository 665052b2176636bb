"""Every kind of work that the registry has shows all its faces; a new one fails here until it does."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import get_origin

import click
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from farmd import cli, kinds
from farmd.cli import names
from farmd.cli.main import farmctl
from farmd.cli.noun_edit import going_on
from farmd.commands.mutation import Call, Change, Mutation
from farmd.config.sections import FarmSection
from farmd.declaration import KindOfWork
from farmd.doctor import presence, work
from farmd.doctor.survey import survey
from farmd.kinds import KINDS
from farmd.observe.recorder import Metrics
from store import codec, families
from store.errors import RecordInvalid
from store.families import FAMILIES, Family
from store.farms import Member
from store.status import ItemStatus
from tests.people import KEYS, person

ROOT = Path(__file__).parents[3]
ASKED = [kind for kind in KINDS.values() if kind.noun]
WITH_RECORDS = [family for family in FAMILIES.values() if family.record is not None]
BY_FAMILY = {"ids": lambda one: getattr(one, "family", "") or one.name}
ITEM = "0123456789abcdef"
ENDING = {kind.family for kind in KINDS.values() if kind.ended}  # by themselves, so nobody deletes one
MADE_OTHERWISE = {"deployments", "jobs"}  # by farmctl deploy, and job run


async def put(call: Call, key: str, value: object) -> None:
    await call.client.put(key, codec.encode(value))


def least(record: type[msgspec.Struct]) -> dict[str, object]:
    """The least that decodes as a record: the fields that it must have."""
    made: dict[object, object] = {str: ITEM, int: 1, list: []}
    required = [field for field in msgspec.structs.fields(record) if field.required]
    bare = {each.encode_name: getattr(each.type, "__origin__", each.type) for each in required}
    return {name: made[get_origin(kind) or kind] for name, kind in bare.items()}


def policy(role: str) -> str:
    return (ROOT / "acl" / f"{role}.hcl").read_text()


@pytest.mark.parametrize("kind", KINDS.values(), **BY_FAMILY)
def test_a_kind_is_a_family_that_is_claimed_by_a_class_of_that_name(kind: KindOfWork) -> None:
    assert FAMILIES[kind.family].claimed
    assert FAMILIES[kind.family].outside == bool(kind.outside)
    assert FAMILIES[kind.family].owns_pods == kind.owns_pods
    assert kind.runs().name == kind.family
    assert kind.family in FarmSection().kinds


@pytest.mark.parametrize("kind", KINDS.values(), **BY_FAMILY)
def test_each_part_that_it_declares_is_there(kind: KindOfWork) -> None:
    parts = [getattr(kind, field.name) for field in dataclasses.fields(kind)]
    assert [part for part in parts if callable(part) and part() is None] == []


def test_a_package_has_its_modules_before_they_are_imported_and_no_other() -> None:
    assert cli.apply.diff.name == "diff"
    with pytest.raises(AttributeError, match=r"'farmd\.cli' has no attribute 'aply'"):
        cli.aply  # type: ignore[attr-defined]  # noqa: B018


def test_every_family_that_is_claimed_is_a_kind() -> None:
    assert {family.name for family in families.claimed()} == KINDS.keys()


@pytest.mark.parametrize("kind", ASKED, **BY_FAMILY)
def test_people_can_ask_for_it(kind: KindOfWork) -> None:
    for word in (kind.noun, *kind.aliases):
        group = farmctl.get_command(click.Context(farmctl), word)
        assert isinstance(group, click.Group)
        verbs = {"list", "describe"} | ({"get"} if families.named(kind.family) else set())
        verbs |= {"create"} if families.named(kind.family) and kind.family not in MADE_OTHERWISE else set()
        verbs |= (
            {"update", "edit", "diff", "delete"}
            if families.named(kind.family) and kind.family not in ENDING
            else set()
        )
        verbs |= {"pods", "logs", "explain"} if families.owns_pods(kind.family) else set()
        assert verbs <= set(group.list_commands(click.Context(group)))
    assert kind.title
    assert not families.named(kind.family) or kinds.asked(kind.family).kind == kind.family


@pytest.mark.parametrize("kind", ASKED, **BY_FAMILY)
def test_the_audit_knows_its_noun(kind: KindOfWork) -> None:
    assert {kinds.family_of(word) for word in (kind.noun, *kind.aliases)} == {kind.family}
    assert kinds.title(kind.family, "hello") == f"{kind.noun}/hello"


@pytest.mark.parametrize("kind", ASKED, **BY_FAMILY)
async def test_its_names_are_completed(kind: KindOfWork, monkeypatch: pytest.MonkeyPatch) -> None:
    async with person() as call:
        trees = kind.names or (f"names/{kind.family}" if families.named(kind.family) else kind.family,)
        for number, tree in enumerate(trees):
            await put(call, f"{KEYS.tree(tree)}item-{number}", ITEM)
        found: list[list[str]] = []

        async def ask(_settings: object, source: names._Source) -> list[str]:
            found.append(sorted(await source(call.client, KEYS)))
            return found[0]

        monkeypatch.setattr(names, "_ask", ask)
        monkeypatch.setattr(names.Settings, "of", lambda _: None)
        context = SimpleNamespace(params={})
        await asyncio.to_thread(names.objects(kind.family), context, None, "item")  # type: ignore[arg-type]
        assert found == [[f"item-{number}" for number in range(len(trees))]]


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if not kind.outside], **BY_FAMILY)
async def test_the_doctor_says_that_nobody_claims_it(kind: KindOfWork) -> None:
    async with person() as call:
        if FAMILIES[kind.family].record is not None:
            await put(call, KEYS.record(kind.family, ITEM), {})
        if kind.among:
            await put(call, KEYS.record(kind.among, ITEM), {"id": ITEM, "name": ITEM, kind.family: {}})
        await put(call, KEYS.farm("one"), Member(id="one", version="1"))
        found = presence.check(await survey(call.client, KEYS, call.clock))
        assert ("kind-unclaimed", kind.family) in {(each.code, each.object) for each in found}


async def test_the_doctor_does_not_miss_a_kind_that_no_record_asks_for() -> None:
    """An older farm beside newer ones, or alone, knows no such kind."""
    async with person() as call:
        for kind in (kind for kind in KINDS.values() if kind.among):
            await put(call, KEYS.record(kind.among, ITEM), {"id": ITEM, "name": ITEM})
            await put(call, KEYS.farm("one"), Member(id="one", version="1"))
            found = presence.check(await survey(call.client, KEYS, call.clock))
            assert ("kind-unclaimed", kind.family) not in {(each.code, each.object) for each in found}


@pytest.mark.parametrize("kind", KINDS.values(), **BY_FAMILY)
async def test_the_doctor_says_that_an_item_is_blocked_and_where_more_is_told(kind: KindOfWork) -> None:
    async with person() as call:
        if (record := FAMILIES[kind.family].record) is not None:
            await put(call, KEYS.record(kind.family, ITEM), least(record))
        await put(call, KEYS.status(kind.family, ITEM), ItemStatus(state="blocked", reason="no room"))
        (found,) = work.check(await survey(call.client, KEYS, call.clock))
        assert found.explanation == f"{kinds.title(kind.family, ITEM)}: no room"
        assert f"farmctl {kind.noun} " in found.fix or not kind.noun


@pytest.mark.parametrize("family", WITH_RECORDS, **BY_FAMILY)
async def test_the_doctor_reads_every_family_of_records(family: Family[object]) -> None:
    async with person() as call:
        key = "/".join([KEYS.tree(family.name) + "0", *["x"] * (family.parts - 1)])
        await call.client.put(key, b"\xff")
        seen = await survey(call.client, KEYS, call.clock)
        (entry,) = seen.records(family.name)
        with pytest.raises(RecordInvalid):
            families.decode(KEYS, family.name, entry)


@pytest.mark.parametrize("kind", KINDS.values(), **BY_FAMILY)
def test_its_metrics_are_declared(kind: KindOfWork) -> None:
    metrics = Metrics(CollectorRegistry())
    for name in ("farmd_owned", "farmd_blocked", "farmd_frozen"):
        metrics.set(name, 1, kind=kind.family)
    if FAMILIES[kind.family].cached:
        metrics.set("farmd_invalid_records", 0, family=kind.family)


@pytest.mark.parametrize("family", WITH_RECORDS, **BY_FAMILY)
def test_the_policies_and_the_protocol_name_every_family_of_records(family: Family[object]) -> None:
    assert f'"farmd/{family.name}/' in policy("farm")
    if family.named:
        assert f'key_prefix "farmd/{family.name}/" {{ policy = "write" }}' in policy("operator")
    assert f"`{family.name}/" in (ROOT / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize("family", ["rollouts", "services", "apps", "jobs"])
def test_whoever_repairs_may_prove_that_no_later_version_owns_it(family: str) -> None:
    assert f'key_prefix "farmd/{family}/" {{ policy = "write" }}' in policy("operator")


@pytest.mark.parametrize("kind", ASKED, **BY_FAMILY)
def test_the_manual_has_its_commands(kind: KindOfWork) -> None:
    rows = (ROOT / "docs" / "cli.md").read_text().splitlines()
    typed = kind.noun.replace("-", " ") if kind.under else kind.noun
    assert any(row.startswith(f"#### {typed} ") for row in rows)


@pytest.mark.parametrize("kind", [kind for kind in ASKED if kind.asked], **BY_FAMILY)
def test_what_goes_on_without_a_wait_is_looked_at_with_a_command_that_there_is(kind: KindOfWork) -> None:
    said: list[str] = []
    made = Mutation(Change(kind.family, ITEM, "web", "run"))
    with pytest.raises(asyncio.CancelledError), going_on(SimpleNamespace(say=said.append), [made]):  # type: ignore[arg-type]
        raise asyncio.CancelledError

    noun, command, name = said[0].rpartition("farmctl")[2].split()
    group = farmctl.get_command(click.Context(farmctl), noun)
    assert isinstance(group, click.Group)
    assert (group.get_command(click.Context(group), command) is not None, name) == (True, "web")
