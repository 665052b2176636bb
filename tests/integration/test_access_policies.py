"""A whole life of a fleet in which each process and person has its own token, with the policies that ship.

Farms and agents are processes; Consul denies by default and also asks for the right to list (DESIGN §11).
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import codec
from store.entry import Entry
from store.failsafe import Failsafe
from store.keys import Keys
from store.nodes import Agent as Presence
from store.reality import Reality
from tests.credentials import mend
from tests.guarded import NODES, AsRole, Guarded, asked, guarded_consul, put, registered, world
from tests.processes import Program, eventually, get, stopped_at_the_end, term

pytestmark = pytest.mark.xdist_group("access")

KEYS = Keys()
WAIT = ("--wait", "--timeout", "150s")
HELLO = (
    "{name: hello, replicas: 2, min_healthy_time: 0,"
    " pod: {id: hello, command: [sleep, '1000'], stop: {grace: 1}}}"
)
UPTIME = "{name: uptime, min_healthy_time: 0, pod: {id: uptime, command: [sleep, '1000'], stop: {grace: 1}}}"
OLD_AUDIT = KEYS.audit("2020-01-01T00", "0a")
Start = Callable[..., Program]


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Asks for the right to list, unless a test wants a server that only hides what may not be read."""
    key_list_policy = getattr(request, "param", True)
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=key_list_policy) as made:
        yield made


@pytest.fixture(autouse=True)
def empty(guarded: Guarded) -> None:
    """Nothing of the test before."""
    asked(guarded, lambda client: client.delete("", recurse=True))


@pytest.fixture
def start(guarded: Guarded, tmp_path: Path) -> Iterator[Start]:
    """Start a farm or an agent with the token of a role; workloads end with the test."""
    with stopped_at_the_end() as running:

        def begin(program: str, name: str, role: str, **variables: str) -> Program:
            known = {
                "CONSUL_HTTP_ADDR": guarded.server.address,
                "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file(role)),
                "FARMD_AGENT__STATE_DIR": str(tmp_path / name),
                "FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": "true",
                "FARMD_AGENT__NODE": name,
                "FARMD_AGENT__SHARE_USER": "true",
                "FARMD_FARM__NAME": name,
                "FARMD_HOUSEKEEPING__INTERVAL": "1",
            }
            running.append(Program(program, "--port", "0", folder=tmp_path, **{**known, **variables}))
            return running[-1]

        yield begin


def look_at_everything(farmctl: AsRole) -> None:
    for line in (
        "rc list",
        "rc get hello",
        "rc describe hello",
        "rc explain hello",
        "rc pods hello",
        "daemonset list",
        "daemonset explain uptime",
        "job list",
        "job describe election",
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
    operator.ok("job", "run", "-f", "examples/jobs/gang.yaml", *WAIT)
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
    operator.ok("pod", "restart", f"{moved['node']}/{moved['instance']}", *WAIT)
    operator.ok("rc", "restart", "hello", *WAIT)
    operator.ok("job", "delete", "election", "-y", "--timeout", "150s")
    operator.ok("rc", "disable", "hello")
    operator.ok("rc", "enable", "hello")
    operator.ok("doctor")
    operator.ok("rc", "delete", "hello", "--cascade", "-y", "--timeout", "150s")
    operator.ok("daemonset", "delete", "uptime", "--cascade", "-y", "--timeout", "150s")
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


def document(kind: str, name: str, *, seconds: int = 1000) -> str:
    """One owner of pods of a bundle."""
    pod = {"id": name, "command": ["sleep", str(seconds)], "stop": {"grace": 1}}
    fields = {"replicas": 1} if kind == "rc" else {}
    said = {"apiVersion": "farmd/v1", "kind": kind, "name": name, "min_healthy_time": 0, "pod": pod}
    return f"---\n{json.dumps(said | fields)}\n"


def test_a_farm_keeps_an_app_whole_and_hands_an_object_of_it_over(guarded: Guarded, start: Start) -> None:
    farm = start("run", "f1", "farm")
    farm.wait_for("process.ready")
    agent = start("agent", "node-1", "agent-node-1")
    agent.wait_for("process.ready")
    operator = guarded.farmctl("operator")

    def apply(app: str, bundle: str, *more: str) -> str:
        words = ("apply", "-f", "-", "--app", app, "-y", "--timeout", "150s", *more)
        return operator.ok(*words, stdin=bundle).out

    def parts() -> dict[str, str]:
        found = operator.ok("rc", "list", "-o", "json").json["items"]
        return {row["name"]: row.get("part_of", "") for row in found}

    node = "---\n{apiVersion: farmd/v1, kind: node, name: node-1, labels: {rack: a}}\n"
    web, changed = document("rc", "web"), document("rc", "web", seconds=999)
    made = apply("shop", web + node + document("rc", "old") + document("daemonset", "logs"))
    assert made.startswith("app/shop reached revision 1 in ")
    assert apply("shop", changed + node, "--prune").startswith("app/shop reached revision 2 in ")
    assert parts() == {"web": "apps/shop"}
    apply("next", changed, "--adopt", "rc/web", "--no-wait")
    assert apply("shop", node, "--prune", "--mass-removal").startswith("app/shop reached revision 3 in ")
    eventually("the hand-over", lambda: parts() == {"web": "apps/next"})
    reader = guarded.farmctl("reader")
    reader.ok("app", "list")
    reader.ok("app", "describe", "next")
    for app in ("next", "shop"):
        operator.ok("app", "delete", app, "-y", "--timeout", "150s")
    assert parts() == {}
    assert not [key for key in world(guarded) if key.startswith(tuple(map(KEYS.trackers, ("shop", "next"))))]
    for program in (agent, farm):
        assert term(program) == 0
        assert "ermission denied" not in program.text


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
    keys = f"{KEYS.agent('node-2')}, {KEYS.realities('node-2')}"
    lacks = f"Consul's token: may not write {keys}; acl/agent.hcl has the rules"

    def said() -> bool:
        code, body = get(where + "/ready")
        return (code, json.loads(body)["reason"]) == (503, lacks)

    eventually("what the token lacks", said)
    assert term(agent) == 0
    assert world(guarded) == before


@pytest.mark.parametrize("role", ["reader", "unknown"])
def test_a_farm_with_a_token_that_may_not_write_waits_for_a_good_one_and_writes_nothing(
    guarded: Guarded, start: Start, tmp_path: Path, role: str
) -> None:
    token = tmp_path / "token"
    mend(token, guarded.token_file(role).read_bytes() if role == "reader" else str(uuid.UUID(int=7)))
    farm = start("run", "f1", role, CONSUL_HTTP_TOKEN_FILE=str(token))
    assert farm.wait_for("store.unreachable")["code"] == "access_denied"
    assert world(guarded) == {}
    mend(token, guarded.token_file("farm").read_bytes())
    farm.wait_for("process.ready")
    assert "Traceback" not in farm.text


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


@pytest.mark.parametrize("guarded", [False], indirect=True, ids=["default"])
def test_r19_a_tree_that_the_token_may_not_read_any_more_freezes_and_removes_nothing(
    guarded: Guarded, start: Start
) -> None:
    accessor = guarded.new_token("farm", "farmd-farm")
    farm = start("run", "f1", "farm", FARMD_FARM__LOST_AFTER="1")
    farm.wait_for("process.ready")
    for node in NODES:
        start("agent", node, f"agent-{node}").wait_for("process.ready")
    guarded.farmctl("operator").ok("rc", "create", "-f", "-", *WAIT, stdin=HELLO)
    told = (KEYS.tree("pods"), KEYS.tree("intent"), KEYS.work("nodes", ""))

    def standing() -> dict[str, bytes]:
        return {key: entry.value for key, entry in world(guarded).items() if key.startswith(told)}

    before = standing()
    guarded.shell('echo \'key_prefix "farmd/agents/" { policy = "deny" }\' >blind.hcl')
    guarded.shell("consul acl policy create -name blind -rules @blind.hcl")
    guarded.shell(f"consul acl token update -id {accessor} -policy-name farmd-farm -policy-name blind")
    pokes = itertools.count(1.0)

    def frozen() -> Entry | None:
        # A query that is parked keeps its rights until something changes.
        put(guarded, KEYS.agent("node-9"), Presence(node="node-9", version="1", since=next(pokes)))
        return world(guarded).get(KEYS.failsafe("nodes"))

    entry = eventually("a freeze", frozen)
    evidence = codec.decode(Failsafe, entry.value, entry.key).evidence
    assert evidence == "agents: the answer lacks the sentinel"
    assert standing() == before
