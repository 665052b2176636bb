"""farmctl export and import, as people see them: a folder that changes where somebody changed something."""

from __future__ import annotations

from pathlib import Path

import pytest

from farmd.cli import export
from tests.farmctl import Farmctl, in_cluster, put

WEB = "name: web\nreplicas: 2\npod: {id: web, command: [/srv/web], env: {PASSWORD: hunter2}}\n"
DB = "name: db\nreplicas: 1\npod: {id: db, command: [/srv/db]}\n"


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    made = in_cluster(address, "n1")
    made.inside = True
    return made


def contents(folder: Path) -> dict[str, str]:
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


def test_an_export_is_repeated_byte_for_byte_and_only_its_owner_can_read_it(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=f"{WEB}---\n{DB}")
    farmctl.ok("node", "label", "n1", "rack=r1")
    folder = tmp_path / "fleet"
    assert farmctl.ok("export", str(folder)).out == f"{folder}: 2 rcs, 1 node, 0 apps\n"
    first = contents(folder)
    assert sorted(first) == ["node.yaml", "rc.yaml"]
    assert first["rc.yaml"].index("name: db") < first["rc.yaml"].index("name: web")
    assert {oct(each.stat().st_mode & 0o777) for each in folder.iterdir()} == {"0o600"}
    farmctl.ok("export", str(folder))
    assert contents(folder) == first


def test_files_of_what_is_gone_go_and_files_of_others_stay(farmctl: Farmctl, tmp_path: Path) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=DB.replace("replicas: 1", "replicas: 0"))
    farmctl.ok("export", str(tmp_path))
    (tmp_path / "notes.yaml").write_text("mine: 1\n")
    farmctl.ok("rc", "delete", "db", "-y")
    farmctl.ok("export", str(tmp_path))
    assert list(contents(tmp_path)) == ["notes.yaml"]
    (tmp_path / "rc.yaml").write_text("mine: 2\n")
    farmctl.ok("rc", "create", "-f", "-", stdin=WEB)
    refused = farmctl("export", str(tmp_path))
    assert refused.code == 2
    assert (
        refused.err == f"farmctl: {tmp_path}/rc.yaml: found a file that export did not write, expected none\n"
    )
    assert (tmp_path / "rc.yaml").read_text() == "mine: 2\n"


def test_an_import_creates_what_is_missing_refuses_what_differs_and_may_be_repeated(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=f"{WEB}---\n{DB}")
    farmctl.ok("export", str(tmp_path))
    farmctl.ok("rc", "set-replicas", "db", "0", "-y")
    farmctl.ok("rc", "delete", "db", "-y")
    farmctl.ok("rc", "set-replicas", "web", "5", "-y")
    done = farmctl("import", str(tmp_path))
    assert (done.code, done.out.split(" (")[0]) == (5, "rc/db created")
    assert "farmctl: rc/web: differs: replicas 5 -> 2\n" in done.err
    assert done.err.endswith("hint: --overwrite replaces them with what the files say\n")
    assert farmctl.ok("rc", "get", "web", "-o", "json").json["replicas_desired"] == 5
    farmctl.ok("import", str(tmp_path), "--overwrite", "-y")
    assert farmctl.ok("rc", "get", "web", "-o", "json").json["replicas_desired"] == 2
    again = farmctl.ok("import", str(tmp_path))
    assert (again.out, again.err) == ("", "2 objects as the files say: rc/db, rc/web\n")


def test_a_folder_without_a_record_is_no_export(farmctl: Farmctl, tmp_path: Path) -> None:
    refused = farmctl("import", str(tmp_path))
    assert (refused.code, refused.err) == (
        2,
        f"farmctl: {tmp_path}: found no record in the files, expected those of an export\n",
    )


def test_a_dry_run_of_an_import_writes_nothing(farmctl: Farmctl, tmp_path: Path) -> None:
    (tmp_path / "rc.yaml").write_text(f"apiVersion: farmd/v1\nkind: rc\n{WEB}")
    assert farmctl.ok("import", str(tmp_path), "--dry-run").out.startswith("rc/web: create: replicas 2")
    assert farmctl.ok("rc", "list", "-o", "name").out == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "kind: rc\nname: web\n",
            "1: apiVersion: missing, expected farmd/v1, or that of a Kubernetes object",
        ),
        ("apiVersion: farmd/v1\nkind: rollout\nname: web\n", "kind: found 'rollout'"),
        ("apiVersion: farmd/v1\nkind: rc\nname: web\nreplica: 2\n", "replica"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\n", "farmctl apply -f FILE"),
    ],
)
def test_a_file_that_does_not_fit_stops_all_before_anything_is_written(
    farmctl: Farmctl, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "a.yaml").write_text(f"apiVersion: farmd/v1\nkind: rc\n{WEB}")
    (tmp_path / "b.yaml").write_text(text)
    done = farmctl("import", str(tmp_path))
    assert done.code == 2
    assert told in done.err
    assert done.err.startswith(f"farmctl: {tmp_path}/b.yaml:")
    assert farmctl.ok("rc", "list", "-o", "name").out == ""


def test_a_record_that_does_not_decode_is_named_and_the_others_are_written(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=WEB)
    put(farmctl, "rcs/broken", "{")
    done = farmctl.ok("export", str(tmp_path))
    assert "not written: " in done.err
    assert "rcs/broken" in done.err
    assert "name: web" in (tmp_path / "rc.yaml").read_text()


def test_many_documents_come_in_several_files_which_are_read_again(
    farmctl: Farmctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MOST_DOCUMENTS", 1)
    farmctl.ok("rc", "create", "-f", "-", stdin=f"{WEB}---\n{DB}")
    farmctl.ok("export", str(tmp_path))
    assert sorted(contents(tmp_path)) == ["rc-2.yaml", "rc.yaml"]
    assert farmctl.ok("import", str(tmp_path)).err == "2 objects as the files say: rc/db, rc/web\n"


def test_an_app_is_a_folder_that_apply_takes_and_a_paused_one_is_not_applied(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    document = f"apiVersion: farmd/v1\nkind: rc\n{DB}"
    (tmp_path / "db.yaml").write_text(document)
    farmctl.ok("apply", "-f", str(tmp_path / "db.yaml"), "--app", "shop", "-y", "--no-wait")
    folder = tmp_path / "fleet"
    farmctl.ok("export", str(folder))
    assert "farmctl apply -f apps/shop -y || failed=1\n" in (folder / "commands.sh").read_text()
    applied = farmctl.ok("apply", "-f", str(folder / "apps/shop"), "--no-wait", "-y")
    assert "unchanged" in applied.out
    farmctl.ok("app", "pause", "shop")
    paused = farmctl.ok("export", str(folder))
    assert "not written: app/shop: is paused, so commands do not apply apps/shop" in paused.err
    assert sorted(contents(folder)) == ["apps/shop/1.yaml"]


def test_a_name_for_pods_is_a_file_that_one_import_takes_with_that_of_its_pods(
    farmctl: Farmctl, tmp_path: Path
) -> None:
    text = WEB.replace("pod: {", "pod: {ports: {http: {}}, ")
    farmctl.ok("rc", "create", "-f", "-", stdin=text.replace("replicas: 2", "replicas: 0"))
    farmctl.ok("service", "create", "front", "--port", "http", "rc/web", "--catalog", "--tag", "edge")
    document = farmctl.ok("get", "service", "front", "-o", "yaml").out
    assert farmctl.ok("export", str(tmp_path)).out == f"{tmp_path}: 1 rc, 1 service, 0 apps\n"
    first = contents(tmp_path)
    assert sorted(first) == ["rc.yaml", "service.yaml"]
    assert first["service.yaml"] == export.HEAD + document
    farmctl.ok("service", "delete", "front", "-y")
    farmctl.ok("rc", "delete", "web", "-y")

    rehearsed = farmctl.ok("import", str(tmp_path), "--dry-run")
    assert "service/front: is created after the objects that it refers to" in rehearsed.err
    assert farmctl.ok("service", "list", "-o", "name").out == ""
    farmctl.ok("import", str(tmp_path))
    assert farmctl.ok("import", str(tmp_path)).err == "2 objects as the files say: service/front, rc/web\n"
    farmctl.ok("export", str(tmp_path))
    assert contents(tmp_path) == first

    farmctl.ok("service", "catalog", "front", "--off")
    farmctl.ok("export", str(tmp_path))
    assert "farmctl service catalog front --off" in (tmp_path / "commands.sh").read_text()
    farmctl.ok("rc", "delete", "web", "-y")
    assert "service/front: service names rcs/" in farmctl.ok("export", str(tmp_path)).err
