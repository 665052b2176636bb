"""What people ask of daemon sets: files, CAS, locks, no-op, conflict, deletion (R13, R24, W12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from farmd.commands import waiting
from farmd.commands.mutation import Call, commit
from farmd.commands.waiting import Spells, describe
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC
from farmd.runtime.errors import WaitTimeout
from store import codec, manifests
from store.audit import AuditReader, Filter
from store.daemonsets import DaemonSet
from store.errors import Conflict, InputInvalid, Locked
from store.locks import Holder, MutationLocker
from store.status import Status
from store.work import Work
from tests.people import KEYS, person, place, snapshot

EXAMPLES = Path(__file__).parents[3] / "examples"


def logs(**fields: Any) -> dict[str, Any]:
    pod = {"id": "logs", "command": ["ship"], **fields.pop("pod", {})}
    return {"name": "logs", **fields, "pod": pod}


async def created(call: Call, **fields: Any) -> DaemonSet:
    mutation = await DAEMON_SET.create(call, DAEMON_SET.file.parse(logs(**fields), "test"))
    await commit(call, mutation)
    return await found(call)


async def found(call: Call) -> DaemonSet:
    return (await DAEMON_SET.records(call.client, KEYS).find("logs")).record


async def tell(call: Call, daemonset: DaemonSet, status: Status) -> None:
    """What its owner would report."""
    await call.client.put(KEYS.lock("daemonsets", daemonset.id), b"farms/f1/n1")
    await call.client.put(KEYS.status("daemonsets", daemonset.id), codec.encode(status))


# -- files ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_healthy_time": -1}, "min_healthy_time: found -1, expected 0 to"),
        (
            {"min_health": -1},
            "min_health: found -1, expected a whole number of at least 0 or a share from 0% to 100%",
        ),
        ({"min_health": "101%"}, "min_health: found '101%'"),
        ({"max_unavailable": 0}, "max_unavailable: found 0, expected"),
        ({"max_unavailable": "0%"}, "max_unavailable: found '0%'"),
        ({"max_unavailable": 2, "min_health": 1}, "max_unavailable: found 2 beside min_health 1"),
        ({"min_health": "half"}, "min_health: found 'half'"),
        ({"rate": -1}, "rate: found -1, expected a whole number from 0"),
        ({"max_in_progress": 0}, "max_in_progress: found 0, expected a whole number from 1"),
        ({"replicas": 3}, "replicas: unknown key"),
        ({"min_helth": 3}, "did you mean 'min_health'"),
        ({"node_selector": "a in"}, "node_selector"),
        ({"pod_labels": {"daemon_set_id": "x"}}, "expected labels other than farmd's own"),
        ({"pod": {"placement": {"spread": [{"label": "z"}]}}}, "pod.placement.spread: found 1 rules"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        DAEMON_SET.file.parse(logs(**fields), "logs.yaml")
    assert caught.value.message.startswith("logs.yaml")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("daemonset*.yaml")), ids=lambda path: path.name)
def test_the_example_is_good_and_survives_the_way_through_the_store(path: Path) -> None:
    (spec,) = DAEMON_SET.file.parse_all((path.read_text(), path.name))
    wanted = DAEMON_SET.file.build(spec, "ab12", manifests.digest(manifests.canonical(spec.pod)))
    stored = codec.decode(DaemonSet, codec.encode(wanted), "key")
    assert stored == wanted
    again = DAEMON_SET.file.parse(DAEMON_SET.file.as_file(stored, spec.pod), "again")
    assert DAEMON_SET.file.build(again, "ab12", wanted.manifest) == wanted


@pytest.mark.parametrize(
    ("floor", "nodes", "kept"),
    [(None, 5, 4), (None, 0, 0), (3, 5, 3), (9, 5, 9), ("90%", 10, 9), ("90%", 3, 3), ("1%", 3, 1)],
)
def test_min_health_is_a_number_or_a_share_rounded_up(floor: Any, nodes: int, kept: int) -> None:
    assert DaemonSet(id="a", name="a", manifest="m", min_health=floor).floor(nodes) == kept


@pytest.mark.parametrize(("most", "nodes", "kept"), [(2, 10, 8), (2, 1, 0), ("25%", 10, 8), ("5%", 10, 9)])
def test_max_unavailable_is_a_number_or_a_share_rounded_down_to_one_at_least(
    most: Any, nodes: int, kept: int
) -> None:
    spec = DAEMON_SET.file.parse(logs(max_unavailable=most), "test")
    record = msgspec.structs.replace(DAEMON_SET.file.build(spec, "a"), manifest="m")
    assert codec.decode(DaemonSet, codec.encode(record), "key").floor(nodes) == kept
    assert ("Stay healthy", f"all but {most}") in DAEMON_SET.facts(record, None)


@pytest.mark.parametrize(
    ("floor", "pods"), [(None, 1), (None, 3), ("60%", 3), ("90%", 10), (2, 3), ("90%", 0)]
)
def test_a_floor_that_lets_a_pod_go_is_no_standstill(floor: Any, pods: int) -> None:
    assert DaemonSet(id="a", name="a", manifest="m", min_health=floor).standstill(pods) == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"min_health": "90%"},
            (
                "replaces no pod that serves: min_health 90% keeps all of 3 pods; set it to 2"
                " or less to replace one at a time",
            ),
        ),
        ({"min_health": "60%"}, ()),
    ],
)
async def test_a_restart_and_an_update_say_before_they_write_that_min_health_keeps_every_pod(
    fields: dict[str, Any], told: tuple[str, ...]
) -> None:
    async with person() as call:
        daemonset = await created(call, **fields)
        for node in ("n1", "n2", "n3"):
            await place(call, daemonset.id, node, "logs")
        restart = await DAEMON_SET.restart(call, "logs")
        assert restart.change.details[1:] == told
        newer = DAEMON_SET.file.parse(logs(**fields, pod={"command": ["ship", "-v"]}), "test")
        update = await DAEMON_SET.update(call, newer, now=True)
        assert update.change.details[1:] == told


# -- changes -------------------------------------------------------------------------------------
async def test_w12_create_is_one_audited_transaction_and_again_changes_nothing() -> None:
    async with person(reason="first") as call:
        daemonset = await created(call, min_health="90%", rate=5)
        (audit,) = await AuditReader(call.client, KEYS).read(Filter(kind="daemonsets"), 10)
        assert (audit.action, audit.id, audit.reason) == ("daemonset.create", daemonset.id, "first")
        assert audit.manifest == daemonset.manifest
        before = await snapshot(call)
        again = await DAEMON_SET.create(call, DAEMON_SET.file.parse(logs(min_health="90%", rate=5), "test"))
        assert not again.needed
        assert await snapshot(call) == before


async def test_a_different_create_is_a_conflict_that_names_the_fields() -> None:
    async with person() as call:
        await created(call, rate=5)
        with pytest.raises(Conflict) as caught:
            await DAEMON_SET.create(
                call, DAEMON_SET.file.parse(logs(rate=6, pod={"command": ["ship", "-v"]}), "test")
            )
        assert set(caught.value.fields["differs"]) == {"pod", "rate"}
        assert "rate (5 -> 6)" in caught.value.message
        assert "pod.command" in caught.value.message


async def test_a_controller_may_bear_the_same_name() -> None:
    async with person() as call:
        await created(call)
        spec = RC.file.parse({"name": "logs", "replicas": 1, "pod": {"id": "x", "command": ["x"]}}, "rc")
        assert (await RC.create(call, spec)).needed


async def test_disable_enable_and_update_are_edits_of_the_version_that_was_read() -> None:
    async with person() as call:
        daemonset = await created(call)
        stale = await DAEMON_SET.disable(call, "logs")
        await commit(call, await DAEMON_SET.disable(call, daemonset.id))
        assert (await found(call)).disabled
        with pytest.raises(Conflict):
            await commit(call, stale)
        await commit(call, await DAEMON_SET.enable(call, "logs"))
        newer = DAEMON_SET.file.parse(logs(node_selector="a=1", pod={"command": ["ship", "2"]}), "test")
        with pytest.raises(InputInvalid, match="expected --now"):
            await DAEMON_SET.update(call, newer, now=False)
        mutation = await DAEMON_SET.update(call, newer, now=True)
        assert mutation.change.destructive
        assert mutation.change.details == ('pod.command: ["ship"] -> ["ship","2"]',)
        await commit(call, mutation)
        assert (await found(call)).manifest == manifests.digest(manifests.canonical(newer.pod))
        assert await manifests.read(call.client, KEYS, (await found(call)).manifest) == newer.pod


async def test_the_pod_id_never_changes() -> None:
    async with person() as call:
        await created(call)
        with pytest.raises(InputInvalid, match="expected 'logs', which its pods bear"):
            await DAEMON_SET.update(call, DAEMON_SET.file.parse(logs(pod={"id": "other"}), "test"), now=True)


async def test_r13_a_locked_one_is_refused_with_who_holds_it() -> None:
    async with person() as call:
        daemonset = await created(call)
        session = await call.client.create_session(name="test", ttl=10)
        locker = MutationLocker(call.client, KEYS, "daemonsets")
        await locker.take(daemonset.id, session, Holder("rollouts", "r1", "n1"))
        for asked in (DAEMON_SET.disable(call, "logs"), DAEMON_SET.delete(call, "logs", cascade=True)):
            with pytest.raises(Locked, match="rollouts/r1"):
                await asked


# -- deletion ------------------------------------------------------------------------------------
async def test_deletion_is_refused_while_pods_remain_and_cascades_when_asked() -> None:
    async with person() as call:
        daemonset = await created(call)
        await place(call, daemonset.id, "n1", "logs")
        with pytest.raises(Conflict, match="has 1 pod, expected 0") as caught:
            await DAEMON_SET.delete(call, "logs", cascade=False)
        assert "--cascade" in caught.value.fields["hint"]
        await commit(call, await DAEMON_SET.delete(call, "logs", cascade=True))
        assert (await found(call)).deleting
        with pytest.raises(Conflict, match="is being deleted"):
            await DAEMON_SET.enable(call, "logs")
        with pytest.raises(WaitTimeout, match="still has 1 pod"):
            await waiting.deletion(call, DAEMON_SET, daemonset.id, 0.0, lambda _: None)
        await call.client.delete(KEYS.pod(daemonset.id, "n1", "logs"))
        with pytest.raises(WaitTimeout, match="is still there"):
            await waiting.deletion(call, DAEMON_SET, daemonset.id, 0.0, lambda _: None)
        await commit(call, await DAEMON_SET.delete(call, "logs", cascade=False))
        await waiting.deletion(call, DAEMON_SET, daemonset.id, 5.0, lambda _: None)
        assert not (await call.client.keys(KEYS.name("daemonsets", ""))).items
        assert not [key for key in await snapshot(call) if daemonset.id in key and "audit" not in key]


async def test_r12_one_that_still_wants_pods_is_marked_before_it_goes_even_without_any() -> None:
    async with person() as call:
        await created(call)
        mutation = await DAEMON_SET.delete(call, "logs", cascade=False)
        assert mutation.change.action == "daemonset.mark-deleted"
        await commit(call, mutation)
        assert (await DAEMON_SET.delete(call, "logs", cascade=False)).change.action == "daemonset.delete"


# -- waiting -------------------------------------------------------------------------------------
async def test_only_a_report_on_this_very_record_says_how_many_there_should_be() -> None:
    async with person() as call:
        daemonset = await created(call)
        index = (await DAEMON_SET.records(call.client, KEYS).find("logs")).index
        spells = Spells(call.clock)
        assert (await waiting.look(call, DAEMON_SET, "logs", spells)).desired == -1
        await tell(call, daemonset, Status(state="converged", desired=0, record=index))
        assert (await waiting.look(call, DAEMON_SET, "logs", spells)).converged
        await commit(
            call,
            await DAEMON_SET.update(call, DAEMON_SET.file.parse(logs(node_selector="a=1"), "t"), now=True),
        )
        look = await waiting.look(call, DAEMON_SET, "logs", spells)
        assert (look.state, look.desired, look.converged) == ("pending", -1, False)
        assert describe(msgspec.structs.replace(look, reason="")) == "0 of ? placed, 0 healthy; pending"


async def test_pods_on_lost_nodes_are_not_waited_for() -> None:
    async with person() as call:
        daemonset = await created(call)
        index = (await DAEMON_SET.records(call.client, KEYS).find("logs")).index
        await place(call, daemonset.id, "n1", "logs")
        await call.client.put(KEYS.work("nodes", "n1"), codec.encode(Work(lost_since=5.0)))
        await tell(call, daemonset, Status(state="converged", desired=0, record=index))
        assert (await waiting.convergence(call, DAEMON_SET, "logs", 5.0, lambda _: None)).placed == 0
