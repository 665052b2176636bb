"""Commands that people give while no farm runs: each takes effect in the store, and says what it did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from farmd.web import tokens
from tests.farmctl import ROOT, Farmctl, embedded, in_cluster
from tests.kubeconfigs import kubeconfig
from tests.people import hello

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def farmctl() -> Iterator[Farmctl]:
    """A registered cluster without a farm."""
    with embedded() as address:
        yield in_cluster(address)


def rolled(farmctl: Farmctl, tmp_path: Path, name: str) -> None:
    """A controller of three pods whose rollout to another command was begun."""
    farmctl.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(hello(name=name)))
    changed = hello(name=name)
    changed["pod"]["command"] = ["sleep", "7777"]
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(changed))
    farmctl.ok("rc", "update", "-f", str(tmp_path / "new.yaml"))


def test_words_to_a_rollout_are_kept_for_the_farm_that_will_take_it(farmctl: Farmctl, tmp_path: Path) -> None:
    rolled(farmctl, tmp_path, "web")
    (row,) = farmctl.ok("rollout", "list", "-o", "json").json["items"]
    assert (row["name"], row["replicas"], row["started_from"]) == ("web", 3, 3)
    assert "unowned: no farm is alive" in farmctl.ok("rollout", "describe", "web").out
    assert farmctl.ok("rollout", "explain", "web").err == "no pods\n"
    assert '["sleep","9"] -> ["sleep","7777"]' in farmctl.ok("rollout", "diff", "web").out
    farmctl.ok("rollout", "pause", "web")
    assert farmctl.ok("rollout", "get", "web", "-o", "json").json["paused"] is True
    farmctl.ok("rollout", "resume", "web")
    farmctl.ok("rollout", "scale", "web", "5")
    farmctl.ok("rollout", "revert", "web", "-y")
    found = farmctl.ok("rollout", "get", "web", "-o", "json").json
    assert (found["paused"], found["replicas"], found["wish"]) == (False, 5, "revert")
    for noun in ("rollout", "rc"):
        assert farmctl.ok(noun, "history", "web").err == "no rollout of web is over\n"


def test_words_to_a_daemon_set(farmctl: Farmctl) -> None:
    file = str(EXAMPLES / "daemonset.yaml")
    farmctl.ok("daemonset", "create", "-f", file)
    assert farmctl.ok("daemonset", "diff", "-f", file).err == "daemonset/uptime: nothing to change\n"
    farmctl.ok("daemonset", "disable", "uptime")
    assert farmctl.ok("daemonset", "get", "uptime", "-o", "json").json["disabled"] is True
    farmctl.ok("daemonset", "enable", "uptime")
    farmctl.ok("daemonset", "restart", "uptime")
    found = farmctl.ok("daemonset", "get", "uptime", "-o", "json").json
    assert (found["disabled"], found["restart"]) == (False, 1)
    assert farmctl.ok("daemonset", "logs", "uptime").err == "daemonset/uptime has no pods\n"
    assert farmctl.ok("daemonset", "explain", "uptime").out == "0 of 0 nodes can take one more pod\n"


def test_words_to_a_job(farmctl: Farmctl) -> None:
    farmctl.ok("job", "run", "-f", str(EXAMPLES / "jobs" / "array.yaml"))
    assert farmctl.ok("job", "pods", "squares").err == "no pods\n"
    assert "squares is unowned: no farm is alive" in farmctl.ok("job", "explain", "squares").out
    farmctl.ok("job", "stop", "squares", "-y")
    assert farmctl.ok("job", "get", "squares", "-o", "json").json["suspend"] is True
    farmctl.ok("job", "resume", "squares")
    assert farmctl.ok("job", "get", "squares", "-o", "json").json["suspend"] is False
    assert farmctl("job", "delete", "squares", "-y", "--timeout", "1s").code == 8  # it waits for a farm
    assert farmctl.ok("job", "get", "squares", "-o", "json").json["deleting"] is True


def test_words_to_a_schedule(farmctl: Farmctl, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(EXAMPLES / "jobs" / "nightly.yaml")
    farmctl.ok("schedule", "create", "-f", file)
    assert farmctl.ok("schedule", "diff", "-f", file).err == "schedule/nightly: nothing to change\n"
    assert "30 2 * * *" in farmctl.ok("schedule", "list").out
    farmctl.ok("schedule", "run-now", "nightly")
    refused = farmctl("schedule", "run-now", "nightly")
    assert refused.code == 5
    assert "runs still, and overlap is forbid" in refused.err
    assert farmctl.ok("schedule", "history", "nightly", "-o", "json").json["items"][0]["outcome"] == ""
    farmctl.ok("schedule", "pause", "nightly")
    assert "none while it is paused" in farmctl.ok("schedule", "explain", "nightly").out
    farmctl.ok("schedule", "resume", "nightly")
    told = farmctl.ok("schedule", "describe", "nightly").out
    assert told.count(" CES") + told.count(" CET") == 5
    assert "nightly-2" in told
    farmctl.ok("schedule", "disable", "nightly")
    assert farmctl.ok("schedule", "get", "nightly", "-o", "json").json["disabled"] is True
    farmctl.ok("schedule", "enable", "nightly")
    assert farmctl.ok("schedule", "update", "-f", file).err == "schedule/nightly: nothing to change\n"
    monkeypatch.setenv("EDITOR", "true")
    farmctl("schedule", "edit", "nightly")
    assert farmctl("schedule", "delete", "nightly", "-y", "--timeout", "1s").code == 8  # it waits for a farm
    assert farmctl.ok("schedule", "get", "nightly", "-o", "json").json["deleting"] is True


def test_words_to_a_job_template(farmctl: Farmctl, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(EXAMPLES / "jobs" / "template.yaml")
    farmctl.ok("job", "template", "create", "-f", file)
    assert farmctl.ok("job", "template", "diff", "-f", file).err == "job-template/greet: nothing to change\n"
    assert "language, name*, times" in farmctl.ok("job", "template", "list").out
    told = farmctl.ok("job", "template", "describe", "greet").out
    assert "farmctl job start greet [--param language=en] --param name=STRING" in told
    assert "State:         ready" in told
    farmctl.ok("job", "template", "disable", "greet")
    assert (
        farmctl.ok("job-template", "get", "greet", "-o", "json").json["state"] == "disabled"
    )  # as hints say
    farmctl.ok("job", "template", "enable", "greet")
    assert (
        farmctl.ok("job", "template", "update", "-f", file).err == "job-template/greet: nothing to change\n"
    )
    monkeypatch.setenv("EDITOR", "true")
    farmctl("job", "template", "edit", "greet")
    late = farmctl("job", "start", "greet", "--param", "name=Ada", "--id", "a", "--timeout", "100ms")
    assert late.code == 8
    assert "repeat the command with the same --id" in late.err
    assert "no farm is alive" in farmctl.ok("job", "template", "explain", "greet").out
    farmctl.ok("job", "template", "delete", "greet", "-y")  # nobody works on it, so it is gone at once
    assert farmctl("job", "template", "get", "greet").code == 4


def test_what_is_asked_of_nothing_is_told_with_exit_4(farmctl: Farmctl) -> None:
    for words in (
        ("app", "release", "none", "rc/web"),
        ("deployment", "get", "none"),
        ("deployment", "describe", "none"),
        ("service", "logs", "none"),
    ):
        found = farmctl(*words)
        assert (found.code, found.out) == (4, ""), words
        assert found.err.startswith(f"farmctl: {words[0]} 'none' does not exist\n"), words
    assert farmctl.ok("alert", "list", "-o", "json").json["items"] == []


def test_commands_that_need_no_store(tmp_path: Path) -> None:
    nowhere = Farmctl("127.0.0.1:1", inside=True)
    file = tmp_path / "tokens"
    secret = nowhere.ok("token", "create", "ann", "--role", "viewer", "--file", str(file)).out.split()[-1]
    assert (line := tokens.fits(tokens.read(str(file)), secret)) is not None
    assert line.person[:2] == ("ann", "viewer")
    assert len(bytes.fromhex(nowhere.ok("manifest", "keygen", str(tmp_path / "key")).out)) == 32
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert "_FARMCTL_COMPLETE=bash_complete" in nowhere.ok("completion", "bash").out
    assert yaml.safe_load(nowhere.ok("example", "rc").out)["kind"] == "rc"
    assert "interval: time, default 2.0" in nowhere.ok("schema", "rc.pod.health").out
    for verb in ("install", "uninstall"):
        printed = list(yaml.safe_load_all(nowhere.ok("kubernetes", verb, "--print").out))
        assert "farmjobs.farmd.io" in [each["metadata"]["name"] for each in printed]


@pytest.mark.parametrize(
    "words",
    [
        ("kubernetes", "status"),
        ("kubernetes", "accept", "--name", "prod"),
        ("rollout", "plan", "-f", str(EXAMPLES / "knative" / "web.yaml")),
        ("rollout", "promote", "ksvc/shop/web"),
        ("rollout", "retry", "ksvc/shop/web"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_cluster_that_cannot_be_reached_is_one_line(
    farmctl: Farmctl, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig({"server": "http://127.0.0.1:1"}, {"token": "hush"}))
    found = farmctl(*words, "--kubeconfig", str(file))
    assert (found.code, found.out) == (7, "")
    assert "127.0.0.1:1" in found.err
    assert "hush" not in found.err
