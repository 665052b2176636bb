"""farmctl apply, diff and app, as people see them; no farm runs here, so what is recorded stays a wish."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.farmctl import Farmctl, in_cluster, put

WEB = """\
apiVersion: farmd/v1
kind: rc
name: web
replicas: {replicas}
pod: {{id: web, command: [/srv/web, {argument}]}}
wave: 1
"""
DB = "apiVersion: farmd/v1\nkind: rc\nname: db\nreplicas: 1\npod: {id: db, command: [/srv/db]}\n"


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    made = in_cluster(address)
    made.inside = True
    return made


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "db.yaml").write_text(DB)
    (folder / "web.yaml").write_text(WEB.format(replicas=3, argument="--v1"))
    return folder


def test_apply_shows_the_plan_asks_and_records_the_revision(farmctl: Farmctl, shop: Path) -> None:
    asked = farmctl("apply", "-f", str(shop), "--app", "shop")
    assert asked.code == 2
    assert "there is no terminal to confirm it on" in asked.err
    assert farmctl.ok("app", "list", "-o", "json").json["items"] == []
    done = farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait", "--reason", "first")
    assert done.err.splitlines()[:3] == [
        "app/shop: revision 1, 2 objects in 2 steps",
        "1  + rc/db   replicas 1",
        "2  + rc/web  replicas 3",
    ]
    assert done.out == "app/shop revision 1 recorded\n"
    (row,) = farmctl.ok("app", "list", "-o", "json").json["items"]
    assert (row["name"], row["state"], row["record"]["revision"]) == ("shop", "unowned", 1)
    assert farmctl.ok("app", "list", "-o", "name").out == "app/shop\n"


def test_a_plan_names_the_labels_of_a_node_and_not_whose_they_become(farmctl: Farmctl) -> None:
    node = "apiVersion: farmd/v1\nkind: node\nname: n1\nlabels: {rack: r1, zone: a}\n"
    planned = farmctl("diff", "-f", "-", "--app", "shop", stdin=node)
    assert planned.out.splitlines()[1] == "1  + node/n1  labels.rack r1, labels.zone a"


def test_diff_exits_3_where_changes_are_due_and_dry_run_writes_nothing(farmctl: Farmctl, shop: Path) -> None:
    assert farmctl("diff", "-f", str(shop), "--app", "shop").code == 3
    dry = farmctl.ok("apply", "-f", str(shop), "--app", "shop", "--dry-run", "-o", "json").json
    assert [(act["step"], act["act"], act["object"]) for act in dry["acts"]] == [
        (1, "create", "rc/db"),
        (2, "create", "rc/web"),
    ]
    assert farmctl("apply", "-f", str(shop), "--app", "shop", "--dry-run", "--detailed-exitcode").code == 3
    assert farmctl.ok("app", "list", "-o", "json").json["items"] == []


def test_a_refusal_exits_with_5_and_names_every_object(farmctl: Farmctl, shop: Path) -> None:
    for name in ("db", "web"):
        made = shop.parent / f"{name}.yaml"
        made.write_text(f"name: {name}\nreplicas: 9\npod: {{id: {name}, command: [x]}}\n")
        farmctl.ok("rc", "create", "-f", str(made))
    refused = farmctl("apply", "-f", str(shop), "--app", "shop", "-y")
    assert refused.code == 5
    (line,) = [line for line in refused.err.splitlines() if line.startswith("farmctl:")]
    assert "rc/db: exists and differs: " in line
    assert "rc/web: exists and differs: " in line
    assert farmctl("app", "get", "shop").code == 4


def test_an_empty_folder_with_prune_and_yes_exits_with_2_and_records_nothing(
    farmctl: Farmctl, shop: Path
) -> None:
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    empty = shop.parent / "empty"
    empty.mkdir()
    refused = farmctl("apply", "-f", str(empty), "--app", "shop", "--prune", "-y")
    assert refused.code == 2
    assert (
        "app 'shop': found no object in the files; --mass-removal --prune removes rc/db, rc/web"
        in refused.err
    )
    assert [row["revision"] for row in farmctl.ok("app", "history", "shop", "-o", "json").json["items"]] == [
        1
    ]


def test_a_bundle_that_no_record_holds_is_refused_in_one_line(farmctl: Farmctl, shop: Path) -> None:
    noise = "".join(hashlib.sha256(bytes([one, two])).hexdigest() for one in range(64) for two in range(200))
    config = {"apiVersion": "farmd/v1", "kind": "rc", "name": "x", "replicas": 1, "labels": {}}
    texts = [noise[at : at + 20_000] for at in range(0, len(noise), 20_000)]
    for number, text in enumerate(texts):
        pod = {"id": "x", "command": ["x"], "env": {"NOISE": text}}
        (shop / f"{number}.json").write_text(json.dumps({**config, "name": f"x{number}", "pod": pod}))
    refused = farmctl("apply", "-f", str(shop), "--app", "shop", "-y")
    assert refused.code == 2
    assert re.search(r"app: found \d+ bytes when packed, expected at most 262144\n", refused.err)
    assert farmctl.ok("app", "list", "-o", "json").json["items"] == []


def test_a_tracker_altered_by_hand_is_named_and_the_doctor_knows_the_way_out(
    farmctl: Farmctl, shop: Path
) -> None:
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    key = "trackers/shop/00000001"
    put(farmctl, key, '{"revision":1,"digest":"x","count":1,"packed":"AAAA"}')
    for words in (("app", "get", "shop"), ("diff", "-f", str(shop), "--app", "shop")):
        refused = farmctl(*words)
        assert refused.code == 7
        assert f"{key}: packed: " in refused.err
        assert "farmctl doctor shows the fix" in refused.err
    assert f"farmctl doctor --fix {key} removes it" in farmctl("doctor").out
    farmctl.ok("doctor", "--fix", key, "-y", "--reason", "altered by hand")
    assert "Revision:   1, which somebody removed" in farmctl.ok("app", "describe", "shop").out
    again = farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    assert again.out == "app/shop revision 2 recorded\n"


@pytest.mark.parametrize("revision", [1, 2])
def test_an_app_with_a_broken_revision_is_described_as_far_as_it_can_be_read(
    farmctl: Farmctl, shop: Path, revision: int
) -> None:
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    (shop / "web.yaml").write_text(WEB.format(replicas=4, argument="--v1"))
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    key = f"trackers/shop/{revision:08}"
    put(farmctl, key, '{"revision":1,"digest":"x","count":1,"packed":"AAAA"}')
    told = farmctl.ok("app", "describe", "shop").out
    (line,) = [line for line in told.splitlines() if line.startswith("Broken:")]
    assert f"{key}: packed: " in line
    assert line.endswith(f"farmctl doctor --fix {key} removes it")
    assert ("Revision:   2, which cannot be read" in told) is (revision == 2)
    assert [line.split()[:2] for line in told.splitlines()[-2:]] == [
        ["rc/db", "missing"],
        ["rc/web", "missing"],
    ]
    (broken,) = farmctl.ok("app", "describe", "shop", "-o", "json").json["broken"]
    assert f"{key}: packed: " in broken
    explained = farmctl.ok("app", "explain", "shop").out
    assert f"farmctl doctor --fix {key} removes it" in explained
    assert "rc/web: missing" in explained


def test_an_object_is_not_said_to_be_in_no_file_where_an_app_cannot_be_read(
    farmctl: Farmctl, shop: Path
) -> None:
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    put(farmctl, "apps/shop", "{")
    explained = farmctl("app", "explain", "rc/web")
    assert explained.code == 4
    assert "apps/shop: " in explained.err
    assert "'rc/web' is in no app that could be read" in explained.err


def test_what_get_prints_is_what_apply_accepts(farmctl: Farmctl, shop: Path) -> None:
    settings = (
        "apiVersion: farmd/v1\nkind: app\nname: shop\non_failure: rollback\ndeadline: 90s\nlabels: {a: b}\n"
    )
    (shop / "app.yaml").write_text(settings)
    farmctl.ok("apply", "-f", str(shop), "-y", "--no-wait")
    printed = farmctl.ok("app", "get", "shop").out
    again = farmctl.ok("apply", "-f", "-", "-y", stdin=printed)
    assert again.out == "app/shop unchanged\n"


def test_history_describe_and_explain_tell_who_wants_what(farmctl: Farmctl, shop: Path) -> None:
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait", "--reason", "first")
    (shop / "web.yaml").write_text(WEB.format(replicas=4, argument="--v1"))
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    rows = farmctl.ok("app", "history", "shop", "-o", "json").json["items"]
    assert [(row["revision"], row["state"], row["reason"]) for row in rows] == [
        (2, "wanted", ""),
        (1, "", "first"),
    ]
    assert "packed" not in rows[0]
    told = farmctl.ok("app", "describe", "shop").out
    assert "Progress:   no farm is alive\n" in told
    assert "rc/web" in told
    assert "missing" in told
    explained = farmctl.ok("app", "explain", "rc/web").out
    assert explained.splitlines()[0] == "rc/web: missing in app/shop, revision 2"
    assert farmctl("app", "explain", "rc/none").code == 4
    assert farmctl("app", "explain", "none").code == 4
    assert farmctl.ok("app", "explain", "shop").out.splitlines() == [
        "app/shop: no farm is alive",
        "rc/db: missing",
        "  wave 0",
        "rc/web: missing",
        "  wave 1",
    ]
    shown = farmctl.ok("top").out.splitlines()
    assert "  apps 1" in shown[0]
    assert "apps  unowned 1" in shown
    at = shown.index("APP   STATE    REVISION  REACHED  READY  LEFT  REASON")
    assert shown[at + 1].split() == ["shop", "unowned", "2", "-", "-", "-", "no", "farm", "is", "alive"]
    (app,) = farmctl.ok("top", "-o", "json").json["apps"]
    assert (app["name"], app["state"]) == ("shop", "unowned")


def test_without_a_farm_the_wait_ends_with_8_and_says_so(farmctl: Farmctl, shop: Path) -> None:
    late = farmctl("apply", "-f", str(shop), "--app", "shop", "-y", "--timeout", "1s")
    assert late.code == 8
    assert "app 'shop' has not reached revision 1 after 1 s: no farm has looked at it yet" in late.err
    assert "no live farm applies apps" in late.err


@pytest.mark.parametrize("name", ["bad name", "../x", "app/"])
def test_a_name_that_no_app_can_have_is_refused_in_one_line(farmctl: Farmctl, shop: Path, name: str) -> None:
    refused = farmctl("diff", "-f", str(shop), "--app", name)
    assert (refused.code, "app: " in refused.err, "expected" in refused.err) == (2, True, True)


def test_words_to_an_app(farmctl: Farmctl, shop: Path) -> None:
    farmctl.ok("apply", "-f", str(shop), "--app", "shop", "-y", "--no-wait")
    assert farmctl.ok("app", "pause", "shop").out == "app/shop paused\n"
    paused = farmctl.ok("apply", "-f", str(shop), "--app", "app/shop", "-y", "--prune")
    assert paused.out == "app/shop revision 2 recorded; paused: farmctl app resume shop\n"
    assert farmctl.ok("app", "resume", "app/shop").out == "app/shop resumed\n"
    gone = farmctl.ok("app", "delete", "shop", "-y", "--no-wait")
    assert "app/shop: marked" in gone.err
    assert farmctl("app", "pause", "shop").code == 5
    assert farmctl("app", "pause", "none").code == 4


def test_a_folder_for_another_tool_prints_the_pipe(farmctl: Farmctl, shop: Path) -> None:
    (shop / "kustomization.yaml").write_text("resources: [db.yaml]\n")
    refused = farmctl("apply", "-f", str(shop), "--app", "shop")
    assert refused.code == 2
    assert f"hint: kustomize build {shop} | farmctl apply -f - --app APP" in refused.err
