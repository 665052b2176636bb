"""What each role may write and read under the policies that ship, on a Consul that denies by default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator

import pytest

from farmd.runtime.clock import SystemIds
from store import config, families, operations, secrets
from store.consul.client import ConsulClient
from store.errors import AccessDenied
from store.keys import Keys
from store.registration import register_cluster, register_node
from tests.farmctl import ROOT, Farmctl
from tests.guarded import NODES, OWNER, Guarded, guarded_consul

pytestmark = pytest.mark.xdist_group("access")

KEYS = Keys()
MINE, OTHER = NODES
# One key of each family, and what belongs to one node for two of them.
EXAMPLES = {
    "cluster": KEYS.cluster,
    "schema": KEYS.schema,
    "tree sentinel": KEYS.sentinel(KEYS.tree("rcs")),
    "shard sentinel": KEYS.sentinel(families.shards(KEYS, "reality")[0]),
    "manifests": KEYS.manifest("0" * 64),
    "signatures": KEYS.signature("0" * 64, "0" * 16, "rcs/hello"),
    "revocations": KEYS.revocation("0" * 64, "rcs/hello"),
    "access": KEYS.access("logs", MINE, "0" * 64),
    "access of another": KEYS.access("logs", OTHER, "0" * 64),
    "another purpose": KEYS.access("exec", MINE, "0" * 64),
    "usage": KEYS.access("usage", MINE, "0" * 64),
    "ends": KEYS.access("ends", MINE, "0" * 64),
    "ends of another": KEYS.access("ends", OTHER, "0" * 64),
    "config": config.key_of(KEYS, "shop/db_url"),
    "config-history": f"{config.history_of(KEYS, 'shop/db_url')}00000001",
    "secrets": secrets.key_of(KEYS, "shop/db"),
    "secret-versions": f"{secrets.versions_of(KEYS, 'shop/db')}00000001",
    "secret-groups": secrets.group_key(KEYS, "prod"),
    "names": KEYS.name("rcs", "hello"),
    "rcs": KEYS.record("rcs", "0a"),
    "daemonsets": KEYS.record("daemonsets", "0b"),
    "services": KEYS.record("services", "0d"),
    "rollouts": KEYS.record("rollouts", "0e"),
    "deployments": KEYS.record("deployments", "0f"),
    "jobs": KEYS.record("jobs", "0a"),
    "runs": KEYS.record("runs", "0a"),
    "schedules": KEYS.record("schedules", "0b"),
    "jobtemplates": KEYS.record("jobtemplates", "0d"),
    "starts": KEYS.record("starts", "greet/one"),
    "starts sentinel": KEYS.sentinel(KEYS.tree("starts")),
    "started": KEYS.record("started", "greet/one"),
    "apps": KEYS.record("apps", "shop"),
    "trackers": KEYS.tracker("shop", 1),
    "history": KEYS.history("hello", "0e"),
    "pods": KEYS.pod("0a", MINE, "hello"),
    "nodes": KEYS.node(MINE),
    "reserved": KEYS.reserved(MINE),
    "farms": KEYS.farm("f1"),
    "locks": KEYS.lock("rcs", "0a"),
    "mutation locks": KEYS.mutation_lock("rcs", "0a"),
    "work": KEYS.work("rcs", "0a"),
    "status": KEYS.status("rcs", "0a"),
    "failsafe": KEYS.failsafe("rcs"),
    "audit": KEYS.audit("2026-11-20T17", "0c"),
    "intent": KEYS.intent(MINE, "hello"),
    "node sentinel": KEYS.sentinel(KEYS.intents(MINE)),
    "reality": KEYS.reality(MINE, "hello"),
    "agents": KEYS.agent(MINE),
    "intent of another": KEYS.intent(OTHER, "hello"),
    "node sentinel of another": KEYS.sentinel(KEYS.intents(OTHER)),
    "reality of another": KEYS.reality(OTHER, "hello"),
    "agents of another": KEYS.agent(OTHER),
    "record of another": KEYS.node(OTHER),
}
REPORTED = {"reality", "reality of another", "agents", "agents of another"}
TOLD = {"intent", "intent of another", "node sentinel", "node sentinel of another", "pods", "reserved"}
PEOPLES = {"nodes", "record of another", "manifests", "signatures", "revocations", "failsafe", "audit"}
OWNERS = {"rcs", "daemonsets", "services", "rollouts", "deployments", "jobs", "runs", "history", "names"}
OWNERS |= {"apps", "trackers", "schedules"}
SIGNED_FOR = {"signatures", "revocations", "names"}
CONFIG = {"config", "config-history"}
SECRETS = {"secrets", "secret-versions", "secret-groups"}
LOGS, USAGE = {"access", "access of another"}, {"usage"}
MAY_WRITE = {
    "farm": {
        *TOLD,
        *PEOPLES,
        *("cluster", "schema", "tree sentinel", "shard sentinel", "farms", "locks", "mutation locks", "work"),
        *OWNERS,
        *("status", "agents", "agents of another"),
        *("jobtemplates", "starts", "starts sentinel", "started"),
        *USAGE,
        *("ends", "ends of another"),
    },
    f"agent-{MINE}": {"reality", "agents", "node sentinel", "access", "another purpose", "ends"} | USAGE,
    "agents": REPORTED | LOGS | USAGE | {"shard sentinel"},
    "operator": {
        *LOGS,
        *CONFIG,
        *SECRETS,
        *TOLD,
        *PEOPLES,
        *OWNERS,
        *("tree sentinel", "locks", "mutation locks", "work", "status"),
        *("jobtemplates", "starts", "starts sentinel"),
    },
    "reader": LOGS,
    "starter": {"starts"},
    "exec": LOGS | {"another purpose", "audit"},
}
MAY_READ = {
    "farm": set(EXAMPLES) - SECRETS,
    f"agent-{MINE}": {"cluster", "manifests", "intent", "node sentinel", "reality", "agents", "nodes"}
    | {"access", "another purpose", "farms", "ends"}
    | USAGE
    | SIGNED_FOR,
    "agents": REPORTED
    | LOGS
    | USAGE
    | {"farms", "cluster", "manifests", "nodes", "record of another", "shard sentinel", *SIGNED_FOR}
    | {"intent", "intent of another", "node sentinel", "node sentinel of another"},
    "operator": set(EXAMPLES),
    "reader": set(EXAMPLES),
    "starter": {"starts", "starts sentinel", "started"},
    "exec": set(EXAMPLES),
}


@pytest.fixture(scope="module", params=[False, True], ids=["default", "key-list-policy"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=request.param) as made:
        yield made


@pytest.fixture
async def owner(guarded: Guarded) -> AsyncIterator[ConsulClient]:
    """The test itself; every example is there when a test begins, and only that."""
    client = guarded.client("owner")
    await client.delete("", recurse=True)
    for key in EXAMPLES.values():
        await client.put(key, b"before")
    yield client
    await client.close()


@pytest.fixture
async def role(request: pytest.FixtureRequest, guarded: Guarded) -> AsyncIterator[tuple[str, ConsulClient]]:
    client = guarded.client(request.param)
    yield request.param, client
    await client.close()


async def denial(work: Awaitable[object]) -> str | None:
    """What Consul's refusal says; None where it does what was asked."""
    try:
        await work
    except AccessDenied as error:
        return error.message
    return None


def test_every_family_is_asked_for() -> None:
    asked = {key.removeprefix(KEYS.prefix).split("/")[0] for key in EXAMPLES.values()}
    # House-keeping, what lies in Kubernetes and what is in Consul's catalogue have items, and no records.
    assert asked >= families.FAMILIES.keys() - {"housekeeping", "kubejobs", "progressive", "catalog"}


@pytest.mark.parametrize("role", MAY_WRITE, indirect=True)
async def test_a_role_writes_what_is_its_own_and_nothing_else(
    guarded: Guarded, owner: ConsulClient, role: tuple[str, ConsulClient]
) -> None:
    name, client = role
    written = set()
    for what, key in EXAMPLES.items():
        before = await guarded.world()
        if (told := await denial(client.put(key, b"after"))) is None:
            written.add(what)
            continue
        assert told == f"put {key}: 403 Permission denied"
        inside = await denial(client.transaction([operations.put(key, b"after")]))
        assert inside == f"transaction: 409 Permission denied (set {key})"
        assert await denial(client.delete(key)) == f"delete {key}: 403 Permission denied"
        assert await guarded.world() == before
    assert written == MAY_WRITE[name]


@pytest.mark.parametrize("role", MAY_READ, indirect=True)
async def test_a_role_reads_what_it_needs_and_nothing_else(
    owner: ConsulClient, role: tuple[str, ConsulClient]
) -> None:
    name, client = role
    seen = set()
    for what, key in EXAMPLES.items():
        if (told := await denial(client.read(key))) is None:
            seen.add(what)
        else:
            assert told == f"get {key}: 403 Permission denied"
    assert seen == MAY_READ[name]


async def test_an_agent_never_learns_what_other_nodes_shall_run(
    guarded: Guarded, owner: ConsulClient
) -> None:
    client = guarded.client(f"agent-{MINE}")
    try:
        mine = await client.list(KEYS.intents(MINE))
        assert {raw.key for raw in mine.items} == {EXAMPLES["intent"], EXAMPLES["node sentinel"]}
        for hidden in (KEYS.intents(OTHER), KEYS.tree("rcs"), KEYS.realities(OTHER)):
            # Consul hides what may not be read, or refuses to list at all where it asks for that right.
            told = await denial(client.list(hidden))
            if told is None:
                assert (await client.list(hidden)).items == []
            else:
                assert told == f"list {hidden}: 403 Permission denied"
    finally:
        await client.close()


async def test_a_name_that_begins_like_another_is_another_node(guarded: Guarded, owner: ConsulClient) -> None:
    client = guarded.client(f"agent-{MINE}")
    try:
        for key in (KEYS.agent(f"{MINE}0"), KEYS.realities(f"{MINE}0") + "x", KEYS.intents(f"{MINE}0") + "x"):
            with pytest.raises(AccessDenied):
                await client.put(key, b"forged")
            assert await owner.read(key) is None
    finally:
        await client.close()


async def test_r20_a_farm_registers_the_cluster_and_an_agent_its_node(
    guarded: Guarded, owner: ConsulClient
) -> None:
    await owner.delete("", recurse=True)
    farm, agent = guarded.client("farm"), guarded.client(f"agent-{MINE}")
    try:
        cluster = await register_cluster(farm, KEYS, SystemIds())
        assert set(await guarded.world()) == {KEYS.cluster, KEYS.schema, *families.sentinels(KEYS)}
        await register_node(agent, KEYS, MINE)
        sentinel = await owner.read(KEYS.sentinel(KEYS.intents(MINE)))
        assert sentinel is not None
        assert sentinel.value == f'"{cluster}"'.encode()
        with pytest.raises(AccessDenied):
            await register_node(agent, KEYS, OTHER)
    finally:
        await farm.close()
        await agent.close()


async def test_the_policies_serve_another_prefix(guarded: Guarded, owner: ConsulClient) -> None:
    text = (ROOT / "acl/README.md").read_text()
    command = text.partition("**Another prefix**: `")[2].partition("`")[0]
    words = command.removeprefix("FARMD_STORE__PREFIX=other/ farmctl ").split()
    owns = Farmctl(guarded.server.address, "other/", inside=True, variables={"CONSUL_HTTP_TOKEN": OWNER})
    made = await asyncio.to_thread(owns.ok, *words)
    assert "policy other-farm: created" in made.err
    guarded.token_file("other").write_text(made.out)
    client = guarded.client("other")
    try:
        await register_cluster(client, Keys("other/"), SystemIds())
        assert await denial(client.read(KEYS.cluster)) == f"get {KEYS.cluster}: 403 Permission denied"
        assert await denial(client.read(Keys("other/").cluster)) is None
    finally:
        await client.close()


@pytest.mark.parametrize("line", ["rc list", "pod list", "audit list", "doctor"])
async def test_what_a_token_may_not_read_is_never_shown_as_empty(
    guarded: Guarded, owner: ConsulClient, line: str
) -> None:
    result = await asyncio.to_thread(guarded.farmctl(f"agent-{MINE}"), *line.split())
    assert result.code == 6, result
    assert result.out == ""
    told, hint = result.err.splitlines()[-2:]
    assert told.startswith("farmctl: ")
    assert told.endswith("403 Permission denied")
    assert hint.startswith("hint: the token may not do this")


@pytest.mark.parametrize(
    ("role", "may"), [("farm", True), (f"agent-{MINE}", True), ("operator", False), ("reader", False)]
)
async def test_only_farms_and_agents_open_sessions(guarded: Guarded, role: str, may: bool) -> None:
    client = guarded.client(role)
    try:
        if not may:
            with pytest.raises(AccessDenied):
                await client.create_session(name="test", ttl=10)
            return
        session = await client.create_session(name="test", ttl=10)
        await client.renew_session(session)
        await client.destroy_session(session)
    finally:
        await client.close()
