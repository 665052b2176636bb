"""farmctl as a process against the embedded server: controllers from file to deletion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.farmctl import Farmctl, in_cluster, put
from tests.fleet import LIMIT
from tests.people import hello

HELLO = yaml.safe_dump(hello(pod_labels={"app": "hello"}))


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    """A registered cluster with one node, under a prefix of its own."""
    return in_cluster(address, "web1")


def test_a_controllers_life_in_commands(farmctl: Farmctl) -> None:
    farmctl.inside = False
    made = farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    assert made.out.startswith("rc/hello created (")
    rc_id = made.out.split("(")[1].split(")")[0]
    assert "unchanged" in farmctl.ok("rc", "create", "-f", "-", stdin=HELLO).out

    listed = farmctl.ok("rc", "list", "-o", "json").json
    assert (listed["apiVersion"], listed["kind"]) == ("farmd/v1", "ReplicationControllerList")
    assert [(item["id"], item["replicas_desired"]) for item in listed["items"]] == [(rc_id, 3)]

    changed = farmctl.ok("rc", "set-replicas", "hello", "5", "--reason", "load", "-o", "json").json
    assert changed["items"][0]["before"] == {"replicas": 3}
    assert changed["items"][0]["after"] == {"replicas": 5}
    assert farmctl.ok("rc", "get", rc_id[:8], "-o", "json").json["replicas_desired"] == 5

    assert farmctl.ok("all", "-o", "name").out.splitlines() == ["rc/hello"]
    farmctl.ok("rc", "scale", "hello", "0", "-y")
    assert farmctl.ok("rc", "delete", "hello", "-y").out == f"rc/hello deleted ({rc_id})\n"
    assert farmctl("rc", "get", "hello").code == 4
    actions = [item["action"] for item in farmctl.ok("audit", "list", "-o", "json").json["items"]]
    assert actions == ["rc.delete", "rc.set-replicas", "rc.set-replicas", "rc.create"]
    events = farmctl.ok("events", "-o", "json").json["items"]
    assert [each["what"] for each in events] == actions[::-1]


def test_no_change_falls_through_to_the_beginning_of_an_id(farmctl: Farmctl) -> None:
    made = farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    rc_id = made.out.split("(")[1].split(")")[0]
    changes = (
        ["delete", "--cascade", "-y"],
        ["set-replicas", "-y"],
        ["disable"],
        ["enable"],
        ["restart"],
    )
    for begins in (rc_id[:2], rc_id[:8]):
        for verb, *more in changes:
            number = ["0"] if verb == "set-replicas" else []
            refused = farmctl("rc", verb, begins, *number, *more)
            assert (refused.code, f"rc {begins!r} does not exist" in refused.err) == (4, True), refused
            assert ("is a prefix of the id of rc/hello" in refused.err) == (len(begins) == 8)
    assert farmctl("rc", "describe", rc_id[:7]).code == 4
    for verb in ("get", "describe", "pods", "logs", "explain"):
        told = farmctl("rc", verb, rc_id[:8])
        assert f"{rc_id[:8]} is a prefix of the id of rc/hello" in told.err
    assert f"{rc_id} is the id of rc/hello" in farmctl.ok("rc", "get", rc_id).err
    assert "rc/hello disabled" in farmctl.ok("rc", "disable", rc_id).out


def test_dry_run_walks_the_same_way_and_writes_nothing(farmctl: Farmctl) -> None:
    shown = farmctl.ok("rc", "create", "-f", "-", "--dry-run", stdin=HELLO)
    assert "create: replicas 3" in shown.out
    assert "nothing was written" in shown.err
    assert farmctl.ok("rc", "list", "-o", "json").json["items"] == []
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    assert "3 -> 0" in farmctl.ok("rc", "set-replicas", "hello", "0", "--dry-run").out
    assert "removes 0 pods" in farmctl.ok("rc", "delete", "hello", "--cascade", "--dry-run").out
    assert farmctl("rc", "create", "-f", "-", "--dry-run", stdin=HELLO.replace("3", "4")).code == 5
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["replicas_desired"] == 3


def test_destructive_changes_need_y_where_nobody_can_be_asked(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    for arguments in (["rc", "set-replicas", "hello", "1"], ["rc", "delete", "hello", "--cascade"]):
        refused = farmctl(*arguments)
        assert refused.code == 2
        assert "-y" in refused.err
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["replicas_desired"] == 3


def test_on_a_terminal_a_person_is_asked(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    declined = farmctl.on_terminal("rc", "set-replicas", "hello", "1", answer="n\n")
    assert declined.code == 10
    assert "replicas 3 -> 1" in declined.out
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["replicas_desired"] == 3
    assert farmctl.on_terminal("rc", "set-replicas", "hello", "1", answer="y\n").code == 0
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["replicas_desired"] == 1


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("replicas: 3", "replica: 3", "(document 2): replica: unknown key, did you mean 'replicas'?"),
        ("replicas: 3", "replicas: -3", "(document 2): replicas: found -3"),
        ("replicas: 3", "replicas: three", "(document 2): replicas: found 'three', expected a whole number"),
        ("name: hello", "name: ../x", "(document 2): name: found '../x'"),
        ("id: hello", "id: ''", "(document 2): pod.id: found ''"),
        ("replicas: 3", "replicas: 3\nnode_selector: a in (b", "(document 2): node_selector: "),
        ("replicas: 3", "replicas: 3\nreplicas: 4", "stdin: not YAML: replicas: found twice"),
        ("replicas: 3", "replicas: [", "stdin: not YAML: "),
        ("replicas: 3\n", "", "replicas: missing"),
    ],
)
def test_bad_files_are_one_line_and_exit_2(farmctl: Farmctl, old: str, new: str, named: str) -> None:
    assert old in HELLO
    second = yaml.safe_dump({**hello(), "name": "good"})
    refused = farmctl("rc", "create", "-f", "-", stdin=second + "---\n" + HELLO.replace(old, new))
    assert refused.code == 2
    assert named in refused.err.splitlines()[0]
    assert not refused.out
    assert farmctl.ok("rc", "list", "-o", "json").json["items"] == []


def test_files_that_cannot_be_read_are_one_line(farmctl: Farmctl, tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, named in (("/nope.yaml", "No such file"), (str(tmp_path), "directory"), (str(binary), "UTF-8")):
        refused = farmctl("rc", "create", "-f", path)
        assert refused.code == 2
        assert named in refused.err


@pytest.mark.parametrize("count", ["-1", "many", "1.5", "99999999999"])
def test_bad_counts_are_refused(farmctl: Farmctl, count: str) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    refused = farmctl("rc", "set-replicas", "hello", count, "-y")
    assert refused.code == 2
    assert count in refused.err


def test_a_corrupt_record_is_reported_beside_the_good_ones(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    put(farmctl, "rcs/bad0", '{"id": "bad0", "name": "bad", "manifest": "x"}')
    put(farmctl, "names/rcs/bad", '"bad0"')
    put(farmctl, "nodes/odd", "<html>")
    listed = farmctl.ok("rc", "list", "-o", "json")
    assert [item["name"] for item in listed.json["items"]] == ["hello"]
    assert "replicas_desired" in listed.json["broken"][0]
    assert "replicas_desired" in listed.err
    for arguments in (
        ["rc", "get", "bad"],
        ["rc", "set-replicas", "bad", "1"],
        ["rc", "delete", "bad", "-y"],
    ):
        refused = farmctl(*arguments)
        assert refused.code == 7
        assert "rcs/bad0" in refused.err.splitlines()[0]
    assert "nodes/odd" in farmctl.ok("node", "list").err
    assert "rcs/bad0" in farmctl.ok("top").out


def test_a_corrupt_status_keeps_nobody_from_looking_and_waiting(farmctl: Farmctl) -> None:
    made = farmctl.ok("rc", "create", "-f", "-", "-o", "json", stdin=HELLO).json["items"][0]["id"]
    put(farmctl, f"status/rcs/{made}", "<html>")
    for arguments in (
        ["rc", "get", "hello"],
        ["rc", "describe", "hello"],
        ["rc", "pods", "hello"],
        ["rc", "list"],
    ):
        farmctl.ok(*arguments)
    late = farmctl("rc", "enable", "hello", "--wait", "--timeout", "1s")
    assert (late.code, "0 of 3 placed" in late.err) == (8, True)


def test_a_corrupt_freeze_is_shown_and_acknowledged_like_any_other(farmctl: Farmctl) -> None:
    put(farmctl, "failsafe/rcs", "<html>")
    evidence = "failsafe: the record of the freeze does not decode"
    assert f"FROZEN rcs: {evidence}" in farmctl.ok("top").out
    (row,) = farmctl.ok("failsafe", "status", "-o", "json").json["items"]
    assert (row["kind"], row["frozen"], row["evidence"]) == ("rcs", True, evidence)
    word = ("--evidence", evidence, "--for", "10m", "--reason", "a slip", "-y")
    farmctl.ok("failsafe", "clear", "rcs", *word)
    (row,) = farmctl.ok("failsafe", "status", "-o", "json").json["items"]
    assert (row["frozen"], row["acknowledgement"]["evidence"]) == (False, evidence)


def test_cascade_without_a_farm_exits_8_and_says_so(farmctl: Farmctl) -> None:
    rc_id = farmctl.ok("rc", "create", "-f", "-", "-o", "json", stdin=HELLO).json["items"][0]["id"]
    put(farmctl, f"pods/{rc_id}/web1/hello", json.dumps({"manifest": "0" * 64, "labels": {"app": "hello"}}))
    refused = farmctl("rc", "delete", "hello")
    assert refused.code == 5
    assert "wants 3 replicas and has 1 pod," in refused.err
    late = farmctl("rc", "delete", "hello", "--cascade", "-y", "--timeout", "1s")
    assert late.code == 8
    assert "no farm is running" in late.err
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["deleting"] is True
    assert farmctl("rc", "set-replicas", "hello", "2").code == 5


def test_waiting_for_what_nobody_does_exits_8_with_the_reason(farmctl: Farmctl) -> None:
    late = farmctl("rc", "create", "-f", "-", "--wait", "--timeout", "1s", stdin=HELLO)
    assert late.code == 8
    assert "0 of 3 placed" in late.err
    assert "no farm is running" in late.err


def test_update_begins_a_rollout_or_replaces_now_and_hides_the_environment(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    changed = yaml.safe_dump({**yaml.safe_load(HELLO), "pod": {**hello()["pod"], "env": {"KEY": "s3cret"}}})
    foretold = farmctl.ok("rc", "update", "-f", "-", "--dry-run", stdin=changed)
    assert foretold.out.startswith("rollout/hello: create: pod ")
    assert "s3cret" not in foretold.err + foretold.out
    done = farmctl.ok("rc", "update", "-f", "-", "--now", "-y", stdin=changed)
    assert "pod.env: changes KEY" in done.err
    assert "s3cret" not in done.err + done.out + farmctl.ok("audit", "list", "-o", "json").out
    as_file = farmctl.ok("rc", "get", "hello", "--file").out
    assert "unchanged" in farmctl.ok("rc", "update", "-f", "-", "--now", stdin=as_file).out


def test_a_locked_controller_is_refused_with_its_holder_and_force_needs_a_reason(farmctl: Farmctl) -> None:
    rc_id = farmctl.ok("rc", "create", "-f", "-", "-o", "json", stdin=HELLO).json["items"][0]["id"]
    put(farmctl, f"locks/rcs/{rc_id}/mutation", "rollouts/r1/n1@1800000000")
    refused = farmctl("rc", "disable", "hello")
    assert refused.code == 5
    assert "locked by rollouts/r1 since 2027-01-15T08:00:00Z" in refused.err
    assert farmctl("rc", "disable", "hello", "--force", "-y").code == 2
    farmctl.ok("rc", "disable", "hello", "--force", "-y", "--reason", "it hangs")
    last = farmctl.ok("audit", "list", "-o", "json", "--limit", "1").json["items"][0]
    assert (last["reason"], last["before"]["mutation_lock"]) == ("it hangs", "rollouts/r1")


def test_an_unregistered_cluster_says_what_to_do(address: str) -> None:
    alone = Farmctl(address, "nobody/", inside=True)
    refused = alone("rc", "create", "-f", "-", stdin=HELLO)
    assert refused.code == 4
    assert "start a farm first" in refused.err
    # An empty answer from a place where nothing is registered proves nothing (R20).
    for listing in ("rc list", "daemonset list", "node list", "pod list", "farm list", "audit list", "top"):
        refused = alone(*listing.split())
        assert (refused.code, refused.out) == (4, ""), listing
        assert "no cluster is registered" in refused.err


def test_a_watched_list_shows_changes_and_ends_with_130(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    with farmctl.start("rc", "list", "-w", "-o", "json") as watching:
        try:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["items"][0]["replicas_desired"] == 3
            farmctl.ok("rc", "set-replicas", "hello", "4")
            assert json.loads(watching.stdout.readline())["items"][0]["replicas_desired"] == 4
            watching.send_signal(2)
            _, err = watching.communicate(timeout=LIMIT)
        finally:
            watching.kill()
    assert watching.returncode == 130
    assert err == "farmctl: interrupted\n"


@pytest.mark.parametrize(
    ("words", "item"), [("rc delete hello --cascade", "rc/hello"), ("node drain web1 --wait", "node/web1")]
)
def test_an_interrupted_wait_says_what_goes_on(farmctl: Farmctl, words: str, item: str) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    with farmctl.start(*words.split(), "-y") as waiting:
        try:
            assert waiting.stderr is not None
            for _ in ("what it changes", "how far it is"):
                while not waiting.stderr.readline().startswith(f"{item}: "):
                    assert waiting.poll() is None
            waiting.send_signal(2)
            _, err = waiting.communicate(timeout=LIMIT)
        finally:
            waiting.kill()
    told = f"{item}: continues without this wait; farmctl {item.replace('/', ' describe ')}"
    assert (waiting.returncode, err) == (130, f"{told}\nfarmctl: interrupted\n")


def test_top_and_lists_are_drawn_live_on_a_terminal(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    for arguments in (["top"], ["rc", "list", "-w"]):
        drawn = farmctl.on_terminal(*arguments, until="hello")
        assert drawn.code == 130
        assert "Traceback" not in drawn.out


def test_top_scrolls_sorts_and_ends_with_q(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    sorted_ = farmctl.on_terminal("top", answer="s", at="s sorts: trouble", until="s sorts: name")
    assert (sorted_.code, "Traceback" in sorted_.out) == (130, False)
    ended = farmctl.on_terminal("top", answer="q", at="q quits")
    assert (ended.code, "Traceback" in ended.out) == (0, False)


def test_a_reader_that_goes_away_is_no_error(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    with farmctl.start("rc", "list", "-w", "-o", "json") as watching:
        try:
            assert watching.stdout is not None
            watching.stdout.readline()
            watching.stdout.close()
            farmctl.ok("rc", "set-replicas", "hello", "4")
            assert watching.wait(timeout=LIMIT) == 0
            assert watching.stderr is not None
            assert watching.stderr.read() == ""
        finally:
            watching.kill()


def test_completion_knows_the_names_of_objects(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    farmctl.ok("node", "label", "web1", "rack=a")

    def complete(*words: str) -> list[str]:
        env = {
            **farmctl.env,
            "_FARMCTL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["farmctl", *words]),
        }
        env["COMP_CWORD"] = str(len(words))
        code = [sys.executable, "-m", "farmd.cli"]
        done = subprocess.run(code, env=env, capture_output=True, text=True, timeout=180, check=True)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("rc", "get", "he") == ["hello"]
    assert complete("node", "cordon", "w") == ["web1"]
    assert "set-replicas" in complete("rc", "se")
