"""Labels inside records: merged, taken away, matched; nothing else of a record is lost, absence is proven."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest

from store import codec, nodes, pods
from store.entry import Entry, Page, RawEntry
from store.errors import InputInvalid, NotFound, NotRegistered, RecordInvalid
from store.keys import Keys
from store.labels import (
    POD_ID_LABEL,
    RC_ID_LABEL,
    RESERVED_LABELS,
    Labeled,
    LabelType,
    StoreLabeler,
    pod_labels,
)
from store.manifests import Manifest
from store.operations import Operation, Verb
from store.pods import PodKey, current_pods
from store.rcs import ReplicationController
from store.selectors import Selector, parse

KEYS = Keys()
POD, NODE, RC = LabelType.POD, LabelType.NODE, LabelType.REPLICATION_CONTROLLER


class Memory:
    """Keys in memory, with compare-and-set."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.index = 100

    def write(self, key: str, value: bytes, flags: int = 0) -> None:
        self.index += 1
        self.entries[key] = Entry(key, value, self.index, flags=flags)

    def json(self, key: str) -> object:
        return json.loads(self.entries[key].value)

    async def read(self, key: str, /) -> Entry | None:
        return self.entries.get(key)

    async def list(self, prefix: str, /) -> Page[RawEntry]:
        found = [e for key, e in sorted(self.entries.items()) if key.startswith(prefix)]
        raws = [
            RawEntry(e.key, e.modify_index, value=msgspec.Raw(msgspec.json.encode(e.value))) for e in found
        ]
        return Page(self.index, raws)

    async def put(self, key: str, value: bytes, /, *, cas: int | None = None, flags: int = 0) -> bool:
        present = self.entries[key].modify_index if key in self.entries else 0
        if cas is not None and cas != present:
            return False
        self.write(key, value, flags)
        return True

    async def commit(self, operations: Sequence[Operation]) -> bool:
        assert all(o.verb is Verb.CAS for o in operations)
        return all([await self.put(o.key, o.value, cas=o.index, flags=o.flags) for o in operations])


@pytest.fixture
def store() -> Memory:
    """A registered cluster with one pod, one node and one RC without labels."""
    memory = Memory()
    for family in ("pods", "nodes", "rcs"):
        memory.write(KEYS.sentinel(KEYS.tree(family)), b'"cluster-1"')
    memory.write(KEYS.sentinel(KEYS.tree("pods") + "f"), b'"cluster-1"')
    memory.write(KEYS.pod("f1", "n1", "web"), codec.encode(pods.Pod(manifest="m" * 64, at=5.0)))
    memory.write(KEYS.node("n1"), b'{"cordoned":true,"from_the_future":[1]}', flags=9)
    memory.write(
        KEYS.record("rcs", "f1"),
        codec.encode(ReplicationController(id="f1", name="web", manifest="m" * 64, replicas_desired=0)),
    )
    return memory


@pytest.fixture
def labeler(store: Memory) -> StoreLabeler:
    return StoreLabeler(store, KEYS)


async def label(
    store: Memory, labeler: StoreLabeler, kind: LabelType, item: str, labels: Mapping[str, str]
) -> None:
    assert await store.commit(await labeler.set_labels_txn(kind, item, labels))


async def unlabel(
    store: Memory, labeler: StoreLabeler, kind: LabelType, item: str, keys: Iterable[str]
) -> None:
    assert await store.commit(await labeler.remove_labels_txn(kind, item, keys))


OBJECTS = [(POD, "f1/n1/web"), (NODE, "n1"), (RC, "f1")]
each_type = pytest.mark.parametrize(("kind", "item"), OBJECTS)


@each_type
async def test_basic_set_get_remove(store: Memory, labeler: StoreLabeler, kind: LabelType, item: str) -> None:
    await label(store, labeler, kind, item, {"a": "1", "b": "2"})
    await label(store, labeler, kind, item, {"b": "3"})
    assert (await labeler.get_labels(kind, item)).labels == {"a": "1", "b": "3"}
    await unlabel(store, labeler, kind, item, ["b", "absent"])
    assert (await labeler.get_labels(kind, item)).labels == {"a": "1"}


@each_type
async def test_set_get_remove_all_keeps_the_record(
    store: Memory, labeler: StoreLabeler, kind: LabelType, item: str
) -> None:
    before = {key: entry.value for key, entry in store.entries.items()}
    await label(store, labeler, kind, item, {"a": "1", "b": "2"})
    await unlabel(store, labeler, kind, item, ["a", "b"])
    assert (await labeler.get_labels(kind, item)).labels == {}
    assert {key: json.loads(entry.value) for key, entry in store.entries.items()} == {
        key: json.loads(value) for key, value in before.items()
    }


@pytest.mark.parametrize(("kind", "item"), [(POD, "f1/n1/none"), (NODE, "none"), (RC, "none")])
async def test_empty_get_remove(store: Memory, labeler: StoreLabeler, kind: LabelType, item: str) -> None:
    before = dict(store.entries)
    assert await labeler.get_labels(kind, item) == Labeled(kind, item, {}, 0)
    await unlabel(store, labeler, kind, item, ["a"])
    assert store.entries == before


async def test_labels_of_an_unknown_node_make_its_record_but_no_pod_or_rc_is_made(
    store: Memory, labeler: StoreLabeler
) -> None:
    await label(store, labeler, NODE, "n2", {"zone": "a"})
    assert codec.decode(nodes.Node, store.entries[KEYS.node("n2")].value, "") == nodes.Node(
        labels={"zone": "a"}
    )
    for kind, item in [(POD, "f1/n1/none"), (RC, "none")]:
        with pytest.raises(NotFound, match="none: not found"):
            await label(store, labeler, kind, item, {"a": "1"})


async def test_fields_that_this_version_does_not_know_and_flags_survive(
    store: Memory, labeler: StoreLabeler
) -> None:
    await label(store, labeler, NODE, "n1", {"zone": "a"})
    assert store.json(KEYS.node("n1")) == {"cordoned": True, "from_the_future": [1], "labels": {"zone": "a"}}
    assert store.entries[KEYS.node("n1")].flags == 9


async def test_basic_match_and_list_labels(store: Memory, labeler: StoreLabeler) -> None:
    for node, color in [("n1", "red"), ("n2", "green"), ("n3", "red")]:
        await label(store, labeler, NODE, node, {"color": color})
    store.write(KEYS.node("n4"), b"{}")

    async def matches(text: str) -> list[str]:
        return [found.id for found in await labeler.get_matches(parse(text), NODE)]

    assert await matches("color=red") == ["n1", "n3"]
    assert await matches("color notin (red)") == ["n2", "n4"]
    assert await matches("x=1,x=0") == []
    listed = await labeler.get_matches(Selector(), NODE)
    assert [(found.id, found.labels) for found in listed] == [
        ("n1", {"color": "red"}),
        ("n2", {"color": "green"}),
        ("n3", {"color": "red"}),
        ("n4", {}),
    ]
    assert listed[0].index == store.entries[KEYS.node("n1")].modify_index


async def test_pods_are_matched_across_owners_by_owner_node_and_instance(
    store: Memory, labeler: StoreLabeler
) -> None:
    await label(store, labeler, POD, "f1/n1/web", {RC_ID_LABEL: "f1"})
    store.write(KEYS.pod("0a", "n2", "web~1"), codec.encode(pods.Pod("m", {RC_ID_LABEL: "0a"})))
    assert [found.id for found in await labeler.get_matches(Selector(), POD)] == ["0a/n2/web~1", "f1/n1/web"]
    assert [f.id for f in await labeler.get_matches(parse(f"{RC_ID_LABEL}=0a"), POD)] == ["0a/n2/web~1"]


async def test_r20_a_tree_with_its_sentinel_may_be_empty(store: Memory, labeler: StoreLabeler) -> None:
    del store.entries[KEYS.node("n1")]
    assert await labeler.get_matches(Selector(), NODE) == []


async def test_r20_a_tree_without_its_sentinel_is_no_evidence_that_nothing_matches(
    store: Memory, labeler: StoreLabeler
) -> None:
    store.entries.clear()
    with pytest.raises(NotRegistered, match="sentinel"):
        await labeler.get_matches(parse("color=red"), NODE)


async def test_r20_a_sentinel_of_another_cluster_is_refused(store: Memory) -> None:
    with pytest.raises(NotRegistered, match="found cluster 'cluster-1', expected 'cluster-2'"):
        await StoreLabeler(store, KEYS, cluster="cluster-2").get_matches(Selector(), NODE)
    assert len(await StoreLabeler(store, KEYS, cluster="cluster-1").get_matches(Selector(), NODE)) == 1


async def test_a_record_that_does_not_decode_is_not_left_out(store: Memory, labeler: StoreLabeler) -> None:
    store.write(KEYS.node("n0"), b'{"labels":["no map"]}')
    with pytest.raises(RecordInvalid, match="farmd/nodes/n0"):
        await labeler.get_matches(Selector(), NODE)


async def test_set_labels_txn_is_visible_only_after_commit(store: Memory, labeler: StoreLabeler) -> None:
    operations = await labeler.set_labels_txn(NODE, "n1", {"a": "1"})
    assert (await labeler.get_labels(NODE, "n1")).labels == {}
    assert await store.commit(operations)
    assert (await labeler.get_labels(NODE, "n1")).labels == {"a": "1"}


async def test_remove_labels_txn_is_visible_only_after_commit(store: Memory, labeler: StoreLabeler) -> None:
    await label(store, labeler, NODE, "n1", {"a": "1", "b": "2"})
    operations = await labeler.remove_labels_txn(NODE, "n1", ["a"])
    assert (await labeler.get_labels(NODE, "n1")).labels == {"a": "1", "b": "2"}
    assert await store.commit(operations)
    assert (await labeler.get_labels(NODE, "n1")).labels == {"b": "2"}


async def test_remove_all_labels_txn(store: Memory, labeler: StoreLabeler) -> None:
    await label(store, labeler, NODE, "n1", {"a": "1", "b": "2"})
    assert await store.commit(await labeler.remove_labels_txn(NODE, "n1", ["a", "b"]))
    assert store.json(KEYS.node("n1")) == {"cordoned": True, "from_the_future": [1]}


@pytest.mark.parametrize("change", ["set", "remove"])
async def test_a_txn_fails_if_labels_change(store: Memory, labeler: StoreLabeler, change: str) -> None:
    await label(store, labeler, NODE, "n1", {"a": "1"})
    if change == "set":
        operations = await labeler.set_labels_txn(NODE, "n1", {"b": "2"})
    else:
        operations = await labeler.remove_labels_txn(NODE, "n1", ["a"])
    await label(store, labeler, NODE, "n1", {"c": "3"})
    assert not await store.commit(operations)
    assert (await labeler.get_labels(NODE, "n1")).labels == {"a": "1", "c": "3"}


async def test_a_txn_on_a_new_node_fails_if_it_was_made_meanwhile(
    store: Memory, labeler: StoreLabeler
) -> None:
    operations = await labeler.set_labels_txn(NODE, "n2", {"a": "1"})
    store.write(KEYS.node("n2"), b"{}")
    assert not await store.commit(operations)


async def test_no_labels_are_no_operation_and_equal_ones_still_check_the_record(
    store: Memory, labeler: StoreLabeler
) -> None:
    assert await labeler.set_labels_txn(NODE, "n1", {}) == []
    assert await labeler.remove_labels_txn(NODE, "n1", []) == []
    await label(store, labeler, NODE, "n1", {"a": "1"})
    assert len(await labeler.set_labels_txn(NODE, "n1", {"a": "1"})) == 1


@pytest.mark.parametrize("labels", [{"a b": "1"}, {"a": "x y"}, {"a": "x" * 64}])
async def test_labels_that_no_selector_could_name_are_refused(
    store: Memory, labeler: StoreLabeler, labels: dict[str, str]
) -> None:
    before = dict(store.entries)
    with pytest.raises(InputInvalid):
        await labeler.set_labels_txn(NODE, "n1", labels)
    assert store.entries == before


def test_reserved_labels_override_the_rcs_own() -> None:
    rc = ReplicationController(
        id="f1",
        name="web",
        manifest="m",
        replicas_desired=1,
        pod_labels={"color": "red", RC_ID_LABEL: "forged", POD_ID_LABEL: "forged"},
    )
    assert pod_labels(rc, Manifest(id="web-app", command=["true"])) == {
        "color": "red",
        "replication_controller_id": "f1",
        "pod_id": "web-app",
    }
    assert {RC_ID_LABEL, POD_ID_LABEL} <= RESERVED_LABELS


async def test_current_pods_are_those_of_one_owner(store: Memory) -> None:
    store.write(KEYS.pod("f1", "n0", "web"), codec.encode(pods.Pod("m2")))
    store.write(KEYS.pod("f10", "n1", "web"), codec.encode(pods.Pod("m3")))
    found = await current_pods("f1", store, KEYS)
    assert list(found) == [PodKey("f1", "n0", "web"), PodKey("f1", "n1", "web")]
    first = found[PodKey("f1", "n0", "web")]
    assert first.record == pods.Pod("m2")
    assert first.index == store.entries[first.key].modify_index


async def test_r20_no_current_pods_is_believed_only_beside_the_sentinel(store: Memory) -> None:
    assert await current_pods("none", store, KEYS) == {}
    store.entries.clear()
    with pytest.raises(NotRegistered):
        await current_pods("none", store, KEYS)


async def test_a_current_pod_that_does_not_decode_is_not_left_out(store: Memory) -> None:
    store.write(KEYS.pod("f1", "n2", "web"), b'{"labels":{}}')
    with pytest.raises(RecordInvalid, match="farmd/pods/f1/n2/web"):
        await current_pods("f1", store, KEYS)
