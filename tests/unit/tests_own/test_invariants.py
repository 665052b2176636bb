"""Each invariant of the fault tests notices the very damage that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from store import codec
from store.audit import Audit
from store.daemonsets import DaemonSet
from store.entry import Entry
from store.keys import Keys
from store.locks import Holder
from store.manifests import Manifest
from store.nodes import Drain, Node, Reserved
from store.pods import Pod
from store.rcs import ReplicationController
from store.reality import Intent
from store.services import Service
from store.work import Transfer, Work
from tests.fault.invariants import Dump, unfinished, violations

KEYS = Keys()
SHA = "a" * 64
RC = ReplicationController(id="0f", name="web", manifest=SHA, pod_id="web", replicas_desired=2)
Entries = dict[str, Entry]


def put(entries: Entries, key: str, record: object, index: int, created: int = 0, session: str = "") -> None:
    value = record if isinstance(record, bytes) else codec.encode(record)
    entries[key] = Entry(
        key=key, value=value, modify_index=index, create_index=created or index, flags=0, session=session
    )


def healthy() -> Entries:
    """Two pods, placed in one transaction at 10, under the claim of 9; one of them replaced at 12."""
    entries: Entries = {}
    put(entries, KEYS.record("rcs", RC.id), RC, 5)
    put(entries, KEYS.name("rcs", RC.name), RC.id, 5)
    put(entries, KEYS.manifest(SHA), Manifest(id="web", command=["x"], resources={"cpu": 1.0}), 5)
    put(entries, KEYS.lock("rcs", RC.id), Holder("farm", "f1", "n").value(), 9, session="s")
    for node, index in (("n1", 10), ("n2", 12)):
        put(entries, KEYS.pod(RC.id, node, "web"), Pod(manifest=SHA), index, created=10)
        put(entries, KEYS.intent(node, "web"), Intent(manifest=SHA, owner=RC.id), index, created=10)
        put(entries, KEYS.reserved(node), Reserved(instances={"web": {"cpu": 1.0}}), index, created=10)
    audit(entries, 10, placed=["n1/web", "n2/web"], before={"pods": 0}, after={"pods": 2})
    audit(entries, 12, relabelled=["n2/web"], before={"pods": 2}, after={"pods": 2})
    return entries


def audit(entries: Entries, index: int, *, actor: str = "farm/f1", **fields: object) -> None:
    record = msgspec.convert(
        {"at": 1.0, "actor": actor, "action": "x", "kind": "rcs", "id": RC.id, **fields}, Audit
    )
    put(entries, KEYS.audit("2026-11-20T17", f"{index}-{len(entries)}"), record, index)


def test_a_healthy_store_has_no_violation() -> None:
    dump = Dump(KEYS, healthy())
    assert violations(dump) == []
    assert unfinished(dump) == []


def lose(family: str) -> Callable[[Entries], None]:
    def damage(entries: Entries) -> None:
        del entries[next(key for key in entries if key.startswith(KEYS.tree(family)))]

    return damage


def second_owner(entries: Entries) -> None:
    put(entries, KEYS.pod("1e", "n1", "web"), Pod(manifest=SHA), 10)


def other_manifest(entries: Entries) -> None:
    put(entries, KEYS.intent("n1", "web"), Intent(manifest="b" * 64, owner=RC.id), 10)


def foreign_intent(entries: Entries) -> None:
    put(entries, KEYS.intent("n3", "web"), Intent(manifest=SHA, owner=RC.id), 10)


def placed_twice(entries: Entries) -> None:
    audit(entries, 11, placed=["n1/web"], before={"pods": 2}, after={"pods": 3})


def removed_unseen(entries: Entries) -> None:
    audit(entries, 11, removed=["n7/web"], before={"pods": 2}, after={"pods": 1})


def miscounted(entries: Entries) -> None:
    audit(entries, 11, before={"pods": 2}, after={"pods": 4})


def unaudited(entries: Entries) -> None:
    put(entries, KEYS.pod(RC.id, "n1", "web"), Pod(manifest=SHA), 11, created=10)


def two_in_one(entries: Entries) -> None:
    audit(entries, 12)


def rewritten(entries: Entries) -> None:
    key = next(key for key in entries if key.startswith(KEYS.tree("audit")))
    put(entries, key, entries[key].value, 14, created=entries[key].create_index)


def zombie(entries: Entries) -> None:
    audit(entries, 13, actor="farm/f2")


def reserved_for_nobody(entries: Entries) -> None:
    put(entries, KEYS.reserved("n9"), Reserved(instances={"web": {"cpu": 1.0}}), 10)


def second_name(entries: Entries) -> None:
    put(entries, KEYS.name("rcs", "other"), "77", 5)


def service_of_one_that_is_gone(entries: Entries) -> None:
    active = [f"rcs/{RC.id}", "rcs/1e"]
    put(entries, KEYS.record("services", "5e"), Service(id="5e", name="web", active=active), 5)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (second_owner, "one_owner_a_place"),
        (lose("rcs"), "one_owner_a_place"),
        (lose("intent"), "pods_and_intents_agree"),
        (lose("pods"), "pods_and_intents_agree"),
        (other_manifest, "pods_and_intents_agree"),
        (foreign_intent, "pods_and_intents_agree"),
        (lose("pods"), "audit_adds_up"),
        (lose("audit"), "audit_adds_up"),
        (placed_twice, "audit_adds_up"),
        (removed_unseen, "audit_adds_up"),
        (miscounted, "audit_adds_up"),
        (unaudited, "audit_is_in_the_change"),
        (two_in_one, "audit_is_in_the_change"),
        (rewritten, "audit_is_in_the_change"),
        (zombie, "fenced_out_stays_out"),
        (lose("reserved"), "reservations_fit"),
        (reserved_for_nobody, "reservations_fit"),
        (second_name, "names_are_unique"),
        (lose("names"), "names_are_unique"),
        (service_of_one_that_is_gone, "services_name_who_is_there"),
    ],
)
def test_damage_is_noticed(damage: Callable[[Entries], None], check: str) -> None:
    entries = healthy()
    damage(entries)
    assert check in {line.partition(":")[0] for line in violations(Dump(KEYS, entries))}


def test_a_reservation_of_a_move_is_not_for_nobody() -> None:
    entries = healthy()
    move = Transfer(id="t", old_node="n1", old_instance="web", new_node="n9", new_instance="web")
    reserved_for_nobody(entries)
    put(entries, KEYS.work("rcs", RC.id), Work(transfer=move), 11)
    assert violations(Dump(KEYS, entries)) == []


def test_missing_and_outdated_pods_are_unfinished() -> None:
    entries = healthy()
    put(entries, KEYS.record("rcs", RC.id), msgspec.structs.replace(RC, replicas_desired=3), 5)
    put(entries, KEYS.pod(RC.id, "n1", "web"), Pod(manifest="b" * 64), 10)
    assert unfinished(Dump(KEYS, entries)) == [
        "web: 2 pods, expected 3",
        "web: 1 pods with another manifest",
    ]


def test_what_daemon_sets_moves_and_drains_lack_is_unfinished() -> None:
    entries = healthy()
    each = DaemonSet(id="1a", name="logs", manifest="b" * 64, node_selector="zone=a")
    put(entries, KEYS.record("daemonsets", each.id), each, 5)
    put(entries, KEYS.node("n1"), Node(labels={"zone": "a"}), 5)
    put(entries, KEYS.node("n2"), Node(labels={"zone": "b"}, drain=Drain(stage="system")), 5)
    put(entries, KEYS.pod(each.id, "n2", "log"), Pod(manifest=SHA), 10)
    move = Transfer(id="t", old_node="n1", old_instance="web", new_node="n2", new_instance="web")
    put(entries, KEYS.work("rcs", RC.id), Work(transfer=move), 11)
    assert unfinished(Dump(KEYS, entries)) == [
        "logs: lacks ['n1'], has ['n2']",
        "logs: 1 pods with another manifest",
        f"{KEYS.work('rcs', RC.id)}: a move is under way",
        "n2: its drain is at system",
    ]
