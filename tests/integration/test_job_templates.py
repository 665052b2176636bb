"""Starters on a real Consul that denies by default: what their token alone permits, with a farm at work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from store import operations
from store.errors import AccessDenied
from store.jobtemplates import STARTED, STARTS
from store.keys import Keys
from tests.farmctl import ROOT
from tests.fleet import start_farm
from tests.guarded import Guarded, guarded_consul

pytestmark = pytest.mark.xdist_group("access")

KEYS = Keys()
ODD = ["greet/../../rcs/x", "greet//x", "/", "greet/", "x", "greet/%2e%2e/x", "greet/a b?c#d", "greet/ä"]
TEMPLATE = str(ROOT / "examples/jobs/template.yaml")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=True) as made:
        yield made


async def test_r44_a_starter_with_its_own_rights_starts_jobs_and_changes_nothing_else(
    guarded: Guarded,
) -> None:
    farming = guarded.client("farm")
    farm = await start_farm(farming, "farm-1", keys=KEYS, kinds=("jobs", "jobtemplates"))
    # Processes of their own, because this one's output has the farm's log.
    operator, starter = (replace(guarded.farmctl(role), inside=False) for role in ("operator", "starter"))
    client, owner = guarded.client("starter"), guarded.client("owner")

    def life() -> str:
        operator.ok("job", "template", "create", "-f", TEMPLATE)
        one = starter.ok("job", "start", "greet", "--param", "name=Ada", "--id", "one", "-o", "name").out
        assert (
            starter.ok("job", "start", "greet", "--param", "name=Ada", "--id", "one", "-o", "name").out == one
        )
        assert starter("job", "start", "greet", "--param", "name=Eve", "--id", "one").code == 5
        refused = starter("job", "start", "greet", "--param", "language=fr", "--id", "two")
        assert refused.code == 9
        assert "params.language: found 'fr', expected one of en, de" in refused.err
        two = starter.ok(
            "job", "start", "greet", "--param", "name=B", "--input", "-", "--id", "two", stdin="x"
        )
        assert "(greet, two)" in two.out
        assert starter("job", "start", "greet", "--param", "name=B", "--id", "a/../../rcs/x").code == 2
        assert starter("job", "start", "none", "--id", "x").code == 9
        told = operator.ok("job", "template", "starts", "greet", "-o", "json").json["items"]
        assert {(each["key"], each["state"]) for each in told} == {("one", "accepted"), ("two", "accepted")}
        assert "2 answered" in operator.ok("job", "template", "explain", "greet").out
        for words in (
            ("job", "template", "list"),
            ("job", "list"),
            ("job", "run", "-f", str(ROOT / "examples/jobs/array.yaml")),
            ("job", "template", "disable", "greet"),
        ):
            assert starter(*words).code == 6, words
        return one.strip()

    try:
        odd = [f"{KEYS.tree(STARTS)}{key}" for key in ODD]
        await client.transaction([operations.put(key, b"{}") for key in odd])
        one = await asyncio.to_thread(life)
        left = (await owner.keys(KEYS.tree(STARTS))).items
        assert left == [KEYS.sentinel(KEYS.tree(STARTS))]
        jobs = [raw for raw in (await owner.list(KEYS.tree("jobs"))).items if raw.key[-1] != "t"]
        assert len(jobs) == 2
        found = await owner.read(KEYS.name("jobs", one.removeprefix("job/")))
        assert found is not None
        before = await guarded.world()
        for forbidden in (
            operations.put(KEYS.record(STARTED, "greet/one"), b"{}"),
            operations.delete(KEYS.sentinel(KEYS.tree(STARTS))),
            operations.delete_tree(KEYS.tree(STARTS)),
            operations.put(KEYS.record("jobtemplates", "00"), b"{}"),
            operations.put(KEYS.name("jobtemplates", "greet"), b'"00"'),
        ):
            with pytest.raises(AccessDenied):
                await client.transaction([forbidden])
        with pytest.raises(AccessDenied):
            await client.delete(KEYS.tree(STARTS), recurse=True)
        after = await guarded.world()
        assert {key: after[key] for key in after if "/status/" not in key} == {
            key: before[key] for key in before if "/status/" not in key
        }
    finally:
        await farm.close()
        await farming.close()
        await client.close()
        await owner.close()
