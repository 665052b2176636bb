"""Records of apps: what is recorded comes back, limits hold, and what was altered by hand is told apart."""

from __future__ import annotations

import random

import msgspec
import pytest

from store import apps, codec
from store.apps import App, Entry, TypedReference
from store.entry import Entry as RawEntry
from store.errors import InputInvalid, RecordInvalid, TooLarge
from store.families import APPS, TRACKERS, decode, well_formed
from store.keys import Keys

KEYS = Keys("t/")
RC = TypedReference(kind="rc", name="web")
PROXY = TypedReference(api_version="apps/v1", kind="Deployment", namespace="shop", name="proxy")
ENTRIES = (
    Entry(ref=RC, document={"name": "web", "replicas": 3}, ignore=["replicas"], wave=2),
    Entry(ref=PROXY, document={"apiVersion": "apps/v1"}, after=["rc/web"], on_remove="keep"),
    Entry(ref=TypedReference(kind="rc", name="old"), left=True),
)


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        (RC, "rc/web"),
        (PROXY, "deployment.apps/shop/proxy"),
        (TypedReference(api_version="v1", kind="Namespace", name="shop"), "namespace.core/shop"),
        (TypedReference(api_version="v1", kind="Node", name="n1"), "node.core/n1"),
        (TypedReference(kind="node", name="n1"), "node/n1"),
    ],
)
def test_the_identity_of_an_object_is_group_kind_namespace_and_name(ref: TypedReference, text: str) -> None:
    assert str(ref) == text


def test_the_version_of_an_api_is_no_part_of_the_identity() -> None:
    older = msgspec.structs.replace(PROXY, api_version="apps/v1beta1")
    assert str(older) == str(PROXY)


def test_entries_come_back_as_they_were_recorded() -> None:
    found = apps.tracker(7, ENTRIES, by="user/ada", at=5.0)
    stored = codec.decode(apps.ResourceTracker, codec.encode(found), "t")
    assert apps.entries(stored, "t") == ENTRIES
    assert (found.count, found.revision, found.by) == (3, 7, "user/ada")
    assert apps.tracker(8, ENTRIES).digest == found.digest


@pytest.mark.parametrize("packed", [b"", b"no zlib", apps.tracker(1, ENTRIES[:1]).packed])
def test_r10_a_tracker_that_was_altered_by_hand_does_not_decode(packed: bytes) -> None:
    bad = {**msgspec.to_builtins(apps.tracker(1, ENTRIES)), "packed": packed}
    with pytest.raises(RecordInvalid, match=r"^t/trackers/shop/00000001: (packed|digest): "):
        codec.decode(apps.ResourceTracker, codec.encode(bad), "t/trackers/shop/00000001")


def test_an_object_is_recorded_once() -> None:
    with pytest.raises(InputInvalid, match="rc/web twice, expected each object once"):
        apps.tracker(1, (ENTRIES[0], ENTRIES[0]))


def test_a_tracker_has_limits() -> None:
    many = [Entry(ref=TypedReference(kind="rc", name=f"r{n}")) for n in range(apps.MAX_ENTRIES + 1)]
    with pytest.raises(InputInvalid, match="2001 objects, expected at most 2000"):
        apps.tracker(1, many)
    noise = random.Random(1).randbytes(300_000).hex()
    with pytest.raises(TooLarge, match="expected at most 262144"):
        apps.tracker(1, [Entry(ref=RC, document={"text": noise})])
    blank = len(codec.encode([Entry(ref=RC, document={"text": ""})]))
    alike = " " * (apps.MAX_BYTES + 1 - blank)
    with pytest.raises(
        TooLarge, match=f"found {apps.MAX_BYTES + 1} bytes, expected at most {apps.MAX_BYTES}"
    ):
        apps.tracker(1, [Entry(ref=RC, document={"text": alike})])


def test_definitions_that_repeat_themselves_fit_where_the_older_packing_is_too_large() -> None:
    part = random.Random(1).randbytes(120_000).hex()
    written = [Entry(ref=RC, document={"first": part, "second": part})]
    found = apps.tracker(1, written)
    assert found.packed.startswith(apps.XZ)
    assert list(apps.entries(codec.decode(apps.ResourceTracker, codec.encode(found), "k"), "k")) == written
    assert not apps.tracker(1, ENTRIES).packed.startswith(apps.XZ)


def test_trackers_sort_by_their_number_and_belong_to_their_app() -> None:
    assert KEYS.tracker("shop", 12) == "t/trackers/shop/00000012"
    assert well_formed(KEYS, TRACKERS.name, KEYS.tracker("shop", 12))
    assert KEYS.tracker("shop", 12).startswith(KEYS.trackers("shop"))


def test_an_app_has_defaults_and_adopts_only_what_was_named() -> None:
    entry = RawEntry(KEYS.record("apps", "shop"), b'{"revision":3,"adopt":["rc/web"]}', 9, 9)
    app: App = decode(KEYS, APPS.name, entry)
    assert (app.revision, app.prune, app.repair, app.deadline, app.history) == (3, False, True, 600.0, 10)
    assert app.adopts(RC)
    assert not app.adopts(PROXY)
    assert App(revision=1, adopt=["*"]).adopts(PROXY)
