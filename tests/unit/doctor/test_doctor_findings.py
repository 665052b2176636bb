"""Each finding of the doctor: shown when it is there, and never for a healthy store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from farmd import overview
from farmd.commands.mutation import Call
from farmd.doctor.examine import examine
from farmd.doctor.model import Finding, Report
from farmd.doctor.records import MOST_OF_NODE
from store import codec, families
from store.audit import utc_hour
from store.daemonsets import DaemonSet
from store.failsafe import Acknowledgement, Failsafe
from store.families import FAMILIES
from store.farms import ClusterReport, Member
from store.jobs import Job, Run
from store.manifests import Manifest, canonical, digest
from store.nodes import Agent, Node, NodeStatus, Reserved
from store.operations import MAX_BODY_BYTES
from store.peers import Peer, document
from store.pods import Pod
from store.rcs import ReplicationControllerStore
from store.reality import Exit, Health, Intent, Reality
from store.registration import OLDEST_ALLOWED, SCHEMA_VERSION, Schema, register_node
from store.services import Service
from store.status import Status
from store.work import Work
from tests.people import KEYS, created, person

SHA = digest(canonical(Manifest(id="hello", command=["sleep", "9"])))
GONE = "dead0000dead0000"
ORPHANS = {"orphan-pod", "orphan-intent", "intent-without-pod", "stale-reality"}
LEFT_BEHIND = {
    "stale-name",
    "stale-status",
    "stale-work",
    "stale-run",
    "stale-lock",
    "lock-of-nobody",
    "managed-by-nobody",
    "service-of-nobody",
}


async def look(call: Call) -> Report:
    return await examine(call.client, KEYS, call.clock)


async def healthy(call: Call) -> str:
    """A small fleet in which nothing is wrong: a farm, a node, a controller with its pod."""
    rc_id = await created(call, replicas=1)
    session = await call.client.create_session(name="present", ttl=3600)
    farm = Member(id="one", version="1.0", kinds=["rcs", "nodes", "housekeeping"], since=call.clock.now())
    agent = Agent(node="n1", version="1.0", since=call.clock.now())
    await call.client.put(KEYS.farm("one"), codec.encode(farm), acquire=session)
    await call.client.put(KEYS.agent("n1"), codec.encode(agent), acquire=session)
    await call.client.put(KEYS.lock("rcs", rc_id), b"farm/one/nonce", acquire=session)
    await register_node(call.client, KEYS, "n1")
    await put(call, KEYS.node("n1"), Node())
    await place(call, rc_id)
    await put(call, KEYS.reality("n1", "hello"), Reality(manifest=SHA, owner=rc_id))
    await put(call, KEYS.status("rcs", rc_id), Status(state="converged"))
    return rc_id


async def put(call: Call, key: str, record: object) -> None:
    await call.client.put(key, codec.encode(record))


async def place(call: Call, owner: str, node: str = "n1", instance: str = "hello") -> None:
    await put(call, KEYS.pod(owner, node, instance), Pod(SHA))
    await put(call, KEYS.intent(node, instance), Intent(SHA, owner))


async def test_nothing_is_wrong_with_a_healthy_fleet() -> None:
    async with person() as call:
        await healthy(call)
        report = await look(call)
        assert report.findings == ()
        assert report.facts["farms"] == "one (1.0)"
        assert report.facts["nodes"] == "1, 1 with an agent"
        assert report.facts["consul version"] == "1.8.7"
        assert (report.facts["controllers"], report.facts["pods"]) == ("1", "1")


Harm = Callable[[Call, str], Awaitable[object]]


def gone(key: str) -> Harm:
    return lambda call, _: call.client.delete(key)


def wrote(key: str, record: object) -> Harm:
    return lambda call, _: put(call, key, record)


def raw(key: str, value: bytes) -> Harm:
    return lambda call, _: call.client.put(key, value)


async def orphan(call: Call, _: str) -> None:
    await place(call, GONE, instance="old")


async def late_farm(call: Call, _: str) -> None:
    await put(call, KEYS.farm("two"), Member(id="two", version="1.0", since=call.clock.now() + 600))


async def late_audit(call: Call, _: str) -> None:
    await call.client.put(KEYS.audit(utc_hour(call.clock.now() + 7200), "x"), b"{}")


async def held_lock(call: Call, _: str) -> None:
    session = await call.client.create_session(name="somebody", ttl=3600)
    await call.client.put(KEYS.lock("rcs", GONE), b"farm/one/n", acquire=session)


async def abandoned_lock(call: Call, rc: str) -> None:
    session = await call.client.create_session(name="somebody", ttl=3600)
    await call.client.put(KEYS.mutation_lock("rcs", rc), f"rollouts/{GONE}/n".encode(), acquire=session)


async def another_sha(call: Call, _: str) -> None:
    await put(call, KEYS.reality("n1", "hello"), Reality(manifest="f" * 64, intent=1))


async def not_restarted(call: Call, rc: str) -> None:
    await put(call, KEYS.intent("n1", "hello"), Intent(SHA, rc, restart=2))


HELLO = KEYS.reality("n1", "hello").removeprefix("farmd/")
STALE = KEYS.reality("n2", "old").removeprefix("farmd/")
LOGS = DaemonSet(id=GONE, name="logs", manifest="0" * 64)
FROZEN = Failsafe(evidence="agents: mass loss")
SENTINEL = KEYS.sentinel(KEYS.tree("work"))

SHOP = Service(id="0f", name="shop", port="http", active=[f"rcs/{GONE}"])

CASES: list[tuple[Harm, str, str]] = [
    (wrote(KEYS.record("services", "0f"), SHOP), "service-of-nobody", "services/0f"),
    (gone(SENTINEL), "sentinel-missing", "work/.present"),
    (gone(KEYS.sentinel("farmd/pods/7")), "sentinel-missing", "pods/7.present"),
    (wrote(SENTINEL, "another"), "sentinel-foreign", "work/.present"),
    (gone(KEYS.sentinel(KEYS.intents("n1"))), "sentinel-missing", "intent/n1/.present"),
    (gone(KEYS.schema), "schema", "meta/schema"),
    (raw(KEYS.schema, b'{"version": 99, "oldest": 98}'), "schema", "meta/schema"),
    (gone(KEYS.farm("one")), "no-farm", "farms"),
    (wrote(KEYS.farm("two"), Member(id="two", version="2.0")), "mixed-versions", "farms"),
    (wrote(KEYS.agent("n1"), Agent(node="n1", version="0.9")), "mixed-versions", "farms"),
    (wrote(KEYS.farm("two"), Member(id="two", version="1.0", starting=True)), "farm-starting", "farms/two"),
    (wrote(KEYS.farm("one"), Member(id="one", version="1", kinds=["housekeeping"])), "kind-unclaimed", "rcs"),
    (wrote(KEYS.farm("one"), Member(id="one", version="1", kinds=["rcs"])), "kind-unclaimed", "housekeeping"),
    (late_farm, "clock-skew", "farms/two"),
    (late_audit, "clock-skew", "audit/2027-01-15T10"),
    (gone(KEYS.agent("n1")), "node-absent", "nodes/n1"),
    (wrote(KEYS.farm("one"), Member(id="one", version="1", denied="may not")), "token-denied", "farms/one"),
    (wrote(KEYS.agent("n1"), Agent(node="n1", version="1", denied="may not")), "token-denied", "nodes/n1"),
    (
        wrote(KEYS.agent("n1"), Agent(node="n1", version="1", doubts={"container": "no answer"})),
        "runtime-silent",
        "nodes/n1",
    ),
    (
        wrote(KEYS.agent("n1"), Agent(node="n1", version="1", left={"/x/trash/old.0": "it is immutable"})),
        "not-removed",
        "nodes/n1",
    ),
    (wrote(KEYS.failsafe("rcs"), FROZEN), "frozen", "failsafe/rcs"),
    (raw(KEYS.intent("n1", "bad"), b'{"manifest": 3}'), "record-invalid", "intent/n1/bad"),
    (raw("farmd/pods/zz/odd", b"{}"), "record-invalid", "pods/zz/odd"),
    (raw("farmd/names/rcs/bad", b"{"), "record-invalid", "names/rcs/bad"),
    (gone(KEYS.manifest(SHA)), "manifest-missing", "intent/n1/hello"),
    (raw(KEYS.record("daemonsets", GONE), b'{"id": 3}'), "record-invalid", f"daemonsets/{GONE}"),
    (wrote(KEYS.record("daemonsets", GONE), LOGS), "manifest-missing", f"daemonsets/{GONE}"),
    (wrote(KEYS.record("daemonsets", GONE), LOGS), "kind-unclaimed", "daemonsets"),
    (wrote(KEYS.status("nodes", "n1"), Status(state="converged")), "record-invalid", "status/nodes/n1"),
    (wrote(KEYS.farm("one"), Member(id="one", version="1", kinds=["rcs"])), "kind-unclaimed", "nodes"),
    (raw(KEYS.manifest(SHA), b"no manifest"), "manifest-invalid", f"manifests/{SHA}"),
    (another_sha, "reality-differs", HELLO),
    (not_restarted, "reality-differs", HELLO),
    (gone(KEYS.farm("one")), "farm-without-presence", "farms/one"),
    (orphan, "orphan-pod", f"pods/{GONE}/n1/old"),
    (wrote(KEYS.intent("n1", "old"), Intent(SHA, GONE)), "orphan-intent", "intent/n1/old"),
    (wrote(KEYS.reality("n2", "old"), Reality(manifest=SHA)), "stale-reality", STALE),
    (wrote(KEYS.name("rcs", "old"), GONE), "stale-name", "names/rcs/old"),
    (wrote(KEYS.status("rcs", GONE), Status(state="converged")), "stale-status", f"status/rcs/{GONE}"),
    (wrote(KEYS.work("rcs", GONE), Work(crashes=1)), "stale-work", f"work/rcs/{GONE}"),
    (wrote(KEYS.record("runs", GONE), Run(restarts=1)), "stale-run", f"runs/{GONE}"),
    (raw(KEYS.record("runs", GONE), b"{"), "stale-run", f"runs/{GONE}"),
    (
        wrote(KEYS.reserved("n1"), Reserved({"hello": {"cpu": 1.0}, "old": {"cpu": 1.0}})),
        "stale-reservation",
        "reserved/n1/old",
    ),
    (held_lock, "stale-lock", f"locks/rcs/{GONE}"),
    (raw(KEYS.lock("housekeeping", "audit"), b"farm/x/y"), "lock-of-nobody", "locks/housekeeping/audit"),
    (raw(KEYS.mutation_lock("rcs", "ab"), b"user/x/y"), "lock-of-nobody", "locks/rcs/ab/mutation"),
]


@pytest.mark.parametrize(("harm", "code", "found"), CASES, ids=[f"{c}: {o}" for _, c, o in CASES])
async def test_each_harm_has_its_finding_with_a_reason_and_a_remedy(
    harm: Harm, code: str, found: str
) -> None:
    async with person() as call:
        await healthy(call)
        await harm(call, "")
        report = await look(call)
        (finding,) = [each for each in report.findings if (each.code, each.object) == (code, found)]
        assert finding.explanation
        assert finding.fix
        assert "\n" not in finding.explanation + finding.fix


async def test_more_reality_of_a_node_than_an_agent_writes_is_told_with_its_size() -> None:
    async with person() as call:
        await healthy(call)
        for number in range(MOST_OF_NODE // MAX_BODY_BYTES):
            await call.client.put(KEYS.reality("n2", f"web-{number}"), b"{}".ljust(MAX_BODY_BYTES))
        assert "reality-large" not in {each.code for each in (await look(call)).findings}
        await call.client.put(KEYS.reality("n2", "web-more"), b"{}")
        (large,) = [each for each in (await look(call)).findings if each.code == "reality-large"]
        assert large.object == "agents/n2"
        assert "takes 17 MiB in Consul, expected at most 16 MiB" in large.explanation


async def test_r13_a_mutation_lock_whose_rollout_is_gone_keeps_people_out_for_no_reason() -> None:
    async with person() as call:
        rc_id = await healthy(call)
        await abandoned_lock(call, rc_id)
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.object) == ("stale-lock", f"locks/rcs/{rc_id}/mutation")
        assert f"rollouts/{GONE} locks out changes by people" in finding.explanation
        await put(call, KEYS.record("rollouts", GONE), {"id": GONE})
        assert "stale-lock" not in {each.code for each in (await look(call)).findings}


async def test_the_one_item_of_a_kind_without_items_of_its_own_is_no_record_that_is_gone() -> None:
    async with person() as call:
        await healthy(call)
        session = await call.client.create_session(name="farm", ttl=3600)
        for family in (each for each in FAMILIES.values() if each.item):
            await call.client.put(KEYS.lock(family.name, family.item), b"farm/one/n", acquire=session)
            await put(call, KEYS.status(family.name, family.item), Status(state="converged"))
        found = (await look(call)).findings
        assert {each.code for each in found} & {"stale-lock", "stale-status"} == set()


async def test_r20_a_node_that_was_forgotten_while_its_pods_ran_on_is_registered_and_not_restored() -> None:
    async with person() as call:
        await healthy(call)
        await call.client.delete(KEYS.sentinel(KEYS.intents("n1")))
        (finding,) = (await look(call)).findings
        assert "its agent starts and stops nothing" in finding.explanation
        assert finding.fix.startswith("if the node was forgotten: farmctl node register n1")


async def test_r20_no_node_is_named_where_the_sentinel_of_all_intents_is_missing() -> None:
    async with person() as call:
        await healthy(call)
        await call.client.delete(KEYS.sentinel(KEYS.tree("intent")))
        (finding,) = (await look(call)).findings
        assert "removals freeze" in finding.explanation
        assert "register" not in finding.fix


async def test_the_removal_of_a_run_says_that_its_job_begins_anew() -> None:
    async with person() as call:
        await healthy(call)
        await put(call, KEYS.record("jobs", GONE), Job(id=GONE, name="bert", types=[]))
        await call.client.put(KEYS.record("runs", GONE), b"{")
        fixes = {each.code: each.fix for each in (await look(call)).findings}
        assert "restarts its job: completed slots run again" in fixes["record-invalid"]


async def test_runs_of_jobs_that_are_there_and_of_jobs_in_kubernetes_are_no_leftovers() -> None:
    async with person() as call:
        await healthy(call)
        await put(call, KEYS.record("runs", "0f9c1e6a-58d1-4c1b-9a53-6b1d2f1f7c11"), Run(restarts=1))
        await put(call, KEYS.record("jobs", GONE), Job(id=GONE, name="bert", types=[]))
        await put(call, KEYS.record("runs", GONE), Run(restarts=1))
        assert [each.object for each in (await look(call)).findings if each.code == "stale-run"] == []


async def test_r29_a_document_of_peers_is_no_manifest_and_must_be_there() -> None:
    async with person() as call:
        rc_id, body = await healthy(call), document([Peer("worker", 0, 0, "10.0.0.7")])
        await call.client.put(KEYS.manifest(digest(body)), body)
        await put(call, KEYS.intent("n1", "hello"), Intent(SHA, rc_id, peers=digest(body)))
        assert (await look(call)).findings == ()
        await call.client.delete(KEYS.manifest(digest(body)))
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.object) == ("manifest-missing", "intent/n1/hello")


async def test_an_intent_that_its_owner_does_not_count() -> None:
    async with person() as call:
        rc_id = await healthy(call)
        await put(call, KEYS.intent("n1", "extra"), Intent(SHA, rc_id))
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.object) == ("intent-without-pod", "intent/n1/extra")


async def test_a_blocked_item_is_named_with_its_reason() -> None:
    async with person() as call:
        rc_id = await healthy(call)
        await put(call, KEYS.status("rcs", rc_id), Status(state="blocked", reason="no eligible node"))
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.explanation) == ("blocked", "rc/hello: no eligible node")
        assert finding.fix == "farmctl rc explain hello"


async def test_what_is_blocked_by_its_own_broken_record_is_told_once_with_what_mends_it() -> None:
    async with person() as call:
        rc_id = await healthy(call)
        await call.client.put(KEYS.record("rcs", rc_id), b"{")
        entry = await call.client.read(KEYS.record("rcs", rc_id))
        assert entry is not None
        status = Status(state="blocked", reason="does not decode", record=entry.modify_index)
        await put(call, KEYS.status("rcs", rc_id), status)
        codes = [finding.code for finding in (await look(call)).findings]
        assert "record-invalid" in codes
        assert "blocked" not in codes


async def edit(call: Call, rc_id: str, **fields: object) -> None:
    """Change a controller's record by hand."""
    entry = await call.client.read(KEYS.record("rcs", rc_id))
    assert entry is not None
    await call.client.put(entry.key, json.dumps(json.loads(entry.value) | fields).encode())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"needs": ["gpu.1"]}, "it needs gpu.1, which no farm that may claim it has"),
        ({"labels": {"team": "a"}}, "its labels match the selector of no live farm"),
    ],
)
async def test_r11_what_no_farm_may_claim_is_told_with_the_reason(
    fields: dict[str, object], why: str
) -> None:
    async with person() as call:
        rc_id = await healthy(call)
        farm = Member(id="one", version="1.0", kinds=["rcs", "nodes", "housekeeping"], selector="team!=a")
        entry = await call.client.read(KEYS.farm("one"))
        assert entry is not None
        await call.client.put(KEYS.farm("one"), codec.encode(farm), acquire=entry.session)
        house = Member(id="two", version="1.0", kinds=["housekeeping"])
        await call.client.put(KEYS.farm("two"), codec.encode(house), acquire=entry.session)
        await edit(call, rc_id, **fields)
        await call.client.delete(KEYS.lock("rcs", rc_id))
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.object) == ("unowned", f"rcs/{rc_id}")
        assert why in finding.explanation
        row = await overview.row(call.client, KEYS, ReplicationControllerStore(call.client, KEYS), "hello")
        assert (row.state, why in row.reason) == ("unowned", True)
        assert (await overview.owners(call.client, KEYS))["rcs"].rows[0].reason == row.reason


async def test_a_deletion_that_takes_long_is_told_with_what_it_waits_for() -> None:
    async with person() as call:
        rc_id = await healthy(call)
        await edit(call, rc_id, deleting=True, replicas_desired=0)
        waits = Status(state="progressing", reason="waiting for n1/hello", since=call.clock.now())
        await put(call, KEYS.status("rcs", rc_id), waits)
        assert (await look(call)).findings == ()
        await call.clock.sleep(61.0)
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.object) == ("deletion-waits", f"rcs/{rc_id}")
        assert "waiting for n1/hello" in finding.explanation


@pytest.mark.parametrize(
    ("reality", "why"),
    [
        (Reality(manifest=SHA, phase="backoff", exits=[Exit(1.0, 1)]), "exited with code 1"),
        (Reality(manifest=SHA, phase="backoff", exits=[Exit(1.0, -9)]), "ended by SIGKILL"),
        (Reality(manifest=SHA, phase="failed", reason="no such user: web"), "no such user: web"),
        (Reality(manifest=SHA, health=Health("critical", 1.0, "HTTP 500")), "HTTP 500"),
        (
            Reality(manifest=SHA, restarts=3, exits=[Exit(1.8e9 - at, 1) for at in (200, 60, 9)]),
            "it ended 3 times in 300 s",
        ),
    ],
)
async def test_pods_that_do_not_work_are_told_with_the_exit_of_one(reality: Reality, why: str) -> None:
    async with person() as call:
        rc_id = await healthy(call)
        await put(call, KEYS.reality("n1", "hello"), reality)
        (finding,) = (await look(call)).findings
        assert (finding.code, finding.object) == ("pods-down", f"rcs/{rc_id}")
        assert f"rc/hello: 1 of 1 pod not working; n1/hello: {why}" in finding.explanation


async def test_ends_of_starts_that_an_update_replaced_are_no_finding() -> None:
    async with person() as call:
        await healthy(call)
        ends = [Exit(1.8e9 - at, -15) for at in (200, 60, 9)]
        await put(call, KEYS.reality("n1", "hello"), Reality(manifest=SHA, restarts=1, exits=ends))
        assert (await look(call)).findings == ()


async def test_a_farm_that_was_started_a_moment_ago_is_no_finding() -> None:
    async with person() as call:
        await healthy(call)
        since = call.clock.now() - 60.0
        await put(call, KEYS.farm("two"), Member(id="two", version="1.0", starting=True, since=since))
        assert (await look(call)).findings == ()


async def test_an_acknowledged_freeze_is_no_finding() -> None:
    async with person() as call:
        await healthy(call)
        word = Acknowledgement("agents: mass loss", "user/ada", call.clock.now() + 60)
        await put(call, KEYS.failsafe("rcs"), Failsafe(evidence="agents: mass loss", acknowledgement=word))
        assert (await look(call)).findings == ()


async def test_a_store_without_a_cluster_is_one_finding() -> None:
    async with person(registered=False) as call:
        (finding,) = (await look(call)).findings
        assert finding.code == "not-registered"


async def test_r20_a_family_that_no_farm_of_this_cluster_ever_knew_lacks_nothing() -> None:
    """farmctl is newer than all farms; the first newer farm creates the sentinels with all others."""
    async with person() as call:
        await healthy(call)
        known = [family.name for family in families.younger()][1:]
        (young, *_) = families.younger()
        for key in families.sentinels(KEYS, [young]):
            await call.client.delete(key)
        await put(call, KEYS.schema, Schema(SCHEMA_VERSION, OLDEST_ALLOWED, families=known))
        assert (await look(call)).findings == ()
        await put(call, KEYS.schema, Schema(SCHEMA_VERSION, OLDEST_ALLOWED, families=[*known, young.name]))
        assert {each.code for each in (await look(call)).findings} == {"sentinel-missing"}


@pytest.mark.parametrize("tree", ["rcs", "daemonsets"])
async def test_r20_nothing_is_an_orphan_while_the_records_are_in_doubt(tree: str) -> None:
    async with person() as call:
        await healthy(call)
        await orphan(call, "")
        await wrote(KEYS.name("rcs", "old"), GONE)(call, "")
        await call.client.delete(KEYS.tree(tree), recurse=True)
        codes = {finding.code for finding in (await look(call)).findings}
        assert "sentinel-missing" in codes
        assert not codes & (ORPHANS | LEFT_BEHIND)


@pytest.mark.parametrize("family", ["daemonsets", "jobs", "unheard-of"])
async def test_pods_of_other_kinds_have_owners_too(family: str) -> None:
    async with person() as call:
        await healthy(call)
        await place(call, GONE, instance="other")
        await call.client.put(KEYS.record(family, GONE), b"{}")
        assert not {finding.code for finding in (await look(call)).findings} & ORPHANS


async def test_an_orphan_of_one_moment_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    async with person() as call:
        await healthy(call)
        await orphan(call, "")
        read = call.client.list
        seen = 0

        async def list_(prefix: str, **options: object) -> object:
            nonlocal seen
            page = await read(prefix, **options)  # type: ignore[arg-type]
            if prefix == KEYS.tree("nodes"):
                seen += 1
                for key in (KEYS.pod(GONE, "n1", "old"), KEYS.intent("n1", "old")):
                    await call.client.delete(key)
            return page

        monkeypatch.setattr(call.client, "list", list_)
        assert (await look(call)).findings == ()
        assert seen == 2


async def test_what_a_nodes_worker_tells_of_a_drain_is_no_broken_record() -> None:
    async with person() as call:
        await healthy(call)
        await put(call, KEYS.status("nodes", "n1"), NodeStatus(state="draining", left=1))
        assert (await look(call)).findings == ()


async def test_a_blocked_daemon_set_is_named_and_can_be_explained() -> None:
    async with person() as call:
        await healthy(call)
        await put(call, KEYS.record("daemonsets", GONE), LOGS)
        await put(
            call, KEYS.status("daemonsets", GONE), Status(state="blocked", reason="no node is eligible")
        )
        (found,) = [each for each in (await look(call)).findings if each.code == "blocked"]
        assert found.explanation == "daemonset/logs: no node is eligible"
        assert found.fix == "farmctl daemonset explain logs"


async def test_what_to_type_against_a_freeze_is_a_whole_command() -> None:
    async with person() as call:
        await healthy(call)
        await put(call, KEYS.failsafe("rcs"), Failsafe(evidence="nodes: 3 of 4 agents are absent"))
        (found,) = [each for each in (await look(call)).findings if each.code == "frozen"]
        assert (
            "farmctl failsafe clear rcs --evidence 'nodes: 3 of 4 agents are absent' --for 10m" in found.fix
        )


@pytest.mark.parametrize("there", [False, True], ids=["its farms are gone", "one is there"])
async def test_a_freeze_outside_that_no_farm_can_end_says_so(there: bool) -> None:
    async with person() as call:
        await healthy(call)
        await put(call, KEYS.failsafe("kubejobs"), Failsafe(evidence="kubernetes prod: pods is in doubt"))
        if there:
            clusters = {"prod": ClusterReport()}
            farm = Member(id="two", version="1.0", kinds=["kubejobs"], clusters=clusters)
            await put(call, KEYS.farm("two"), farm)
        (found,) = [each for each in (await look(call)).findings if each.code == "frozen"]
        assert ("no live farm works in kubernetes" in found.explanation) is not there
        assert "farmctl failsafe clear kubejobs --evidence" in found.fix


def test_a_target_fits_by_code_object_or_part() -> None:
    finding = Finding("orphan-pod", "pods/ab01/n1/hello", "why", "how")
    assert all(map(finding.fits, ["orphan-pod", "pods/ab01/n1/hello", "pods/ab01", "ab01", "n1", "hello"]))
    assert not any(map(finding.fits, ["orphan", "ab0", "", "/", "pods/ab0"]))
