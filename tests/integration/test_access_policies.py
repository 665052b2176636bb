"""A whole life of a fleet in which each process and person has its own token, with the policies that ship.

Farms and agents are processes; Consul denies by default and also asks for the right to list (DESIGN §11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from farmd.clock import SystemIds
from store import codec
from store.consul.client import ConsulClient
from store.entry import Entry
from store.failsafe import Failsafe
from store.intent import Intent
from store.keys import Keys
from store.pods import Pod
from store.reality import Reality
from store.registration import register_cluster, register_node
from tests.farmctl import Result
from tests.guarded import NODES, AsRole, Guarded, guarded_consul
from tests.processes import Program, eventually, get, term

pytestmark = pytest.mark.xdist_group("access")

KEYS = Keys()
WAIT = ("--wait", "--timeout", "60s")
HELLO = "{name: hello, replicas: 2, pod: {id: hello, command: [sleep, '1000'], stop: {grace: 1}}}"
UPTIME = "{name: uptime, pod: {id: uptime, command: [sleep, '1000'], stop: {grace: 1}}}"
OLD_AUDIT = KEYS.audit("2020-01-01T00", "0a")
STALE = Reality(manifest="0" * 64)
Start = Callable[..., Program]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=True) as made:
        yield made


@pytest.fixture(autouse=True)
def empty(guarded: Guarded) -> None:
    """Nothing of the test before."""
    guarded.shell("consul kv delete -recurse ''")


@pytest.fixture
def start(guarded: Guarded, tmp_path: Path) -> Iterator[Start]:
    """Start a farm or an agent with the token of a role; workloads end with the test."""
    running: list[Program] = []

    def begin(program: str, name: str, role: str, **variables: str) -> Program:
        known = {
            "CONSUL_HTTP_ADDR": guarded.server.address,
            "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file(role)),
            "FARMD_AGENT__STATE_DIR": str(tmp_path / name),
            "FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": "true",
            "FARMD_AGENT__NODE": name,
            "FARMD_FARM__NAME": name,
            "FARMD_HOUSEKEEPING__INTERVAL": "1",
        }
        running.append(Program(program, "--port", "0", folder=tmp_path, **{**known, **variables}))
        return running[-1]

    yield begin
    for program in running:
        if program.process.poll() is None:
            term(program)
        program.__exit__()


def asked(guarded: Guarded, what: Callable[[ConsulClient], Awaitable[object]], role: str = "owner") -> None:
    """Ask with the token of a role."""

    async def ask() -> None:
        client = guarded.client(role)
        try:
            await what(client)
        finally:
            await client.close()

    asyncio.run(ask())


def put(guarded: Guarded, key: str, record: msgspec.Struct) -> None:
    """Write a record as the owner."""
    asked(guarded, lambda client: client.put(key, codec.encode(record)))


def world(guarded: Guarded) -> dict[str, Entry]:
    return asyncio.run(guarded.world())


def registered(guarded: Guarded, *nodes: str) -> None:
    """A cluster with nodes, and nobody at work."""
    asked(guarded, lambda client: register_cluster(client, KEYS, SystemIds()), "farm")
    for node in nodes:
        asked(guarded, lambda client, node=node: register_node(client, KEYS, node))


def denied(result: Result, key: str) -> None:
    """One line that names what was denied, one that says what to look at, and the exit code."""
    assert result.code == 6, result
    told, hint = result.err.splitlines()[-2:]
    assert told.startswith("farmctl: ")
    assert " 403 Permission denied" in told or " 409 Permission denied (" in told
    assert f"{KEYS.prefix}{key}" in told
    assert hint.startswith("hint: the token may not do this")
    assert result.err.count("farmctl: ") == 1


def look_at_everything(farmctl: AsRole) -> None:
    for line in (
        "rc list",
        "rc get hello",
        "rc describe hello",
        "rc explain hello",
        "rc pods hello",
        "daemonset list",
        "daemonset explain uptime",
        "farm list",
        "pod list",
        "pod logs node-1/uptime",
        "node list",
        "node describe node-1",
        "audit list",
        "failsafe status",
        "top",
        "doctor",
    ):
        farmctl.ok(*line.split())


def test_a_whole_life_each_under_its_own_token(guarded: Guarded, start: Start) -> None:
    farms = [start("run", "f1", "farm")]
    farms[0].wait_for("process.ready")
    asked(guarded, lambda client: client.put(OLD_AUDIT, b"{}"))
    agents = [start("agent", node, f"agent-{node}") for node in NODES]
    for agent in agents:
        agent.wait_for("process.ready")
    operator = guarded.farmctl("operator")

    def nodes() -> bool:
        found = operator.ok("node", "list", "-o", "json").json["items"]
        return [(node["name"], node["state"]) for node in found] == [(name, "ready") for name in NODES]

    eventually("two nodes", nodes)

    operator.ok("rc", "create", "-f", "-", *WAIT, stdin=HELLO)
    operator.ok("daemonset", "create", "-f", "-", *WAIT, stdin=UPTIME)
    look_at_everything(guarded.farmctl("reader"))
    look_at_everything(operator)

    # Another farm comes, and the first one leaves all its work to it.
    farms.append(start("run", "f2", "farm"))
    farms[1].wait_for("process.ready")
    assert term(farms[0]) == 0

    operator.ok("rc", "set-replicas", "hello", "1", "-y", *WAIT)
    (place,) = operator.ok("rc", "pods", "hello", "-o", "json").json["items"]
    operator.ok("node", "drain", place["node"], "--deadline", "1h", *WAIT)
    (moved,) = operator.ok("rc", "pods", "hello", "-o", "json").json["items"]
    assert moved["node"] != place["node"]
    operator.ok("node", "undrain", place["node"])
    operator.ok("node", "label", place["node"], "rack=a")
    operator.ok("node", "cordon", place["node"])
    operator.ok("node", "uncordon", place["node"])
    changed = HELLO.replace("'1000'", "'999'")
    operator.ok("rc", "update", "-f", "-", "--now", "-y", *WAIT, stdin=changed)
    operator.ok("rc", "disable", "hello")
    operator.ok("rc", "enable", "hello")
    operator.ok("doctor")
    operator.ok("rc", "delete", "hello", "--cascade", "-y", "--timeout", "60s")
    operator.ok("daemonset", "delete", "uptime", "--cascade", "-y", "--timeout", "60s")
    actions = {item["action"] for item in operator.ok("audit", "list", "-o", "json").json["items"]}
    assert {"rc.create", "rc.set-replicas", "node.drain", "rc.delete", "daemonset.delete"} <= actions

    eventually("the pruning of an old hour", lambda: OLD_AUDIT not in world(guarded))
    left = [key for key in world(guarded) if key.startswith((KEYS.tree("pods"), KEYS.tree("intent")))]
    assert [key for key in left if not key.endswith(".present")] == []
    for program in (*agents, farms[1]):
        assert term(program) == 0
    for program in (*farms, *agents):
        assert "access_denied" not in program.text
        assert "ermission denied" not in program.text


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("rc create -f -", "manifests/"),
        ("rc set-replicas hello 9", "rcs/"),
        ("rc delete hello -y", "rcs/"),
        ("rc disable hello", "rcs/"),
        ("node cordon node-1", "nodes/node-1"),
        ("node label node-1 a=b", "nodes/node-1"),
        ("node drain node-1 --deadline 1h", "nodes/node-1"),
        ("node register node-3", "intent/node-3/.present"),
        ("failsafe clear rcs --evidence lost --for 1m --reason x -y", "failsafe/rcs"),
        ("doctor --fix stale-reality -y", "reality/"),
    ],
)
def test_a_reader_changes_nothing(guarded: Guarded, line: str, key: str) -> None:
    registered(guarded, *NODES)
    guarded.farmctl("operator").ok(
        "rc", "create", "-f", "-", stdin=HELLO.replace("replicas: 2", "replicas: 0")
    )
    put(guarded, KEYS.failsafe("rcs"), Failsafe(evidence="lost", since=1.0, by="f1"))
    put(guarded, KEYS.reality("node-9", "x"), STALE)
    before = world(guarded)
    denied(guarded.farmctl("reader")(*line.split(), stdin=HELLO.replace("hello", "other")), key)
    assert world(guarded) == before


def test_an_operator_takes_away_what_belongs_to_nobody_but_not_what_an_agent_reported(
    guarded: Guarded,
) -> None:
    registered(guarded, *NODES)
    pod, intent, reality = (
        KEYS.pod("0a", "node-1", "x"),
        KEYS.intent("node-1", "x"),
        KEYS.reality("node-9", "x"),
    )
    for key, record in ((pod, Pod("0" * 64)), (intent, Intent("0" * 64, "0a")), (reality, STALE)):
        put(guarded, key, record)
    operator = guarded.farmctl("operator")
    operator.ok("doctor", "--fix", "orphan-pod", "-y")
    before = world(guarded)
    assert {pod, intent} & set(before) == set()
    denied(operator("doctor", "--fix", "stale-reality", "-y"), "reality/")
    assert world(guarded) == before
    guarded.farmctl("repair").ok("doctor", "--fix", "stale-reality", "-y")
    assert reality not in world(guarded)


def test_to_forget_a_node_takes_the_right_to_repair(guarded: Guarded) -> None:
    registered(guarded, *NODES)
    operator = guarded.farmctl("operator")
    operator.ok("node", "register", "node-9")
    operator.ok("node", "cordon", "node-9")
    put(guarded, KEYS.reality("node-9", "x"), STALE)
    before = world(guarded)
    denied(operator("node", "forget", "node-9", "-y"), "reality/")
    assert world(guarded) == before
    guarded.farmctl("repair").ok("node", "forget", "node-9", "-y")
    assert [key for key in world(guarded) if "node-9" in key.split("/")] == []


def test_r13_an_operator_breaks_a_mutation_lock_with_a_reason(guarded: Guarded) -> None:
    registered(guarded, *NODES)
    operator = guarded.farmctl("operator")
    operator.ok("rc", "create", "-f", "-", stdin=HELLO)
    (item,) = operator.ok("rc", "list", "-o", "json").json["items"]
    lock = KEYS.mutation_lock("rcs", item["id"])
    asked(guarded, lambda client: client.put(lock, b"user/ada@host/n@1"))
    assert operator("rc", "set-replicas", "hello", "3").code == 5
    operator.ok("rc", "set-replicas", "hello", "3", "--force", "--reason", "ada left", "-y")
    assert lock not in world(guarded)


def test_r20_agents_with_one_token_for_all_join_where_an_operator_registered_their_node(
    guarded: Guarded, start: Start
) -> None:
    farm = start("run", "f1", "farm")
    farm.wait_for("process.ready")
    agent = start("agent", "node-3", "agents")
    refused = agent.wait_for("agent.not_present")
    assert refused["code"] == "access_denied"
    assert KEYS.sentinel(KEYS.intents("node-3")) in refused["error"]
    assert KEYS.agent("node-3") not in world(guarded)  # nobody sends it pods that it would never hear of
    guarded.farmctl("operator").ok("node", "register", "node-3", "-y")
    agent.wait_for("process.ready")
    guarded.farmctl("operator").ok("daemonset", "create", "-f", "-", *WAIT, stdin=UPTIME)


def test_an_agent_with_the_token_of_another_node_writes_nothing_and_says_what_it_lacks(
    guarded: Guarded, start: Start
) -> None:
    registered(guarded, *NODES)
    before = world(guarded)
    agent = start("agent", "node-2", "agent-node-1")
    where = f"http://127.0.0.1:{agent.wait_for('web.listening')['port']}"
    refused = agent.wait_for("agent.not_present")
    assert refused["code"] == "access_denied"
    assert refused["error"] == f"get {KEYS.sentinel(KEYS.intents('node-2'))}: 403 Permission denied"
    assert get(where + "/ready")[0] == 503
    assert term(agent) == 0
    assert world(guarded) == before


def test_a_farm_with_the_token_of_a_reader_ends_with_one_line_and_writes_nothing(
    guarded: Guarded, start: Start
) -> None:
    farm = start("run", "f1", "reader")
    assert farm.ends() == 1
    (line,) = [line for line in farm.log if line["event"] == "process.failed"]
    assert line["code"] == "access_denied"
    assert KEYS.cluster in line["reason"]
    assert "Traceback" not in farm.text
    assert world(guarded) == {}


def delete_tokens(guarded: Guarded, accessors: list[str]) -> None:
    for accessor in accessors:
        guarded.shell(f"consul acl token delete -id {accessor}")


def running(guarded: Guarded) -> tuple[int, float]:
    """Process id and start of the one pod."""
    entry = world(guarded)[KEYS.reality("node-1", "hello")]
    reality = codec.decode(Reality, entry.value, entry.key)
    return reality.pid, reality.started


@pytest.mark.parametrize("gap", [False, True], ids=["new-first", "old-deleted-first"])
def test_tokens_rotate_while_everything_runs(guarded: Guarded, start: Start, gap: bool) -> None:
    old = [guarded.new_token("farm", "farmd-farm"), guarded.new_token("agent-node-1", "farmd-agent-node-1")]
    farm, agent = start("run", "f1", "farm"), start("agent", "node-1", "agent-node-1")
    farm.wait_for("process.ready")
    agent.wait_for("process.ready")
    operator = guarded.farmctl("operator")
    one = HELLO.replace("replicas: 2", "replicas: 1")
    operator.ok("rc", "create", "-f", "-", *WAIT, stdin=one)
    before = running(guarded)
    if gap:
        delete_tokens(guarded, old)
        for program in (farm, agent):
            program.wait_for("session.renewal_failed", code="access_denied")
    guarded.new_token("farm", "farmd-farm")
    guarded.new_token("agent-node-1", "farmd-agent-node-1")
    if not gap:
        delete_tokens(guarded, old)
    operator.ok("rc", "set-replicas", "hello", "1", *WAIT)
    assert running(guarded) == before
    operator.ok("rc", "update", "-f", "-", "--now", "-y", *WAIT, stdin=one.replace("'1000'", "'999'"))
    assert operator.ok("rc", "pods", "hello", "-o", "json").json["items"][0]["health"] == "passing"
    assert term(agent) == 0
    assert term(farm) == 0
    for program in (farm, agent):
        assert {line["event"] for line in program.log} & {"session.lost", "process.failed"} == set()
        assert gap or "access_denied" not in program.text
