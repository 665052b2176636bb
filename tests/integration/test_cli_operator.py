"""What an operator's hands do by themselves: pipes, ^C, slips, names as other commands print them."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from tests.farmctl import ROOT, Farmctl, in_cluster, put
from tests.fleet import LIMIT
from tests.people import hello
from tests.scripted_consul import Scripted, Seen, json_answer, text_answer

HELLO = yaml.safe_dump(hello())
LOGS = yaml.safe_dump({"name": "logs", "pod": {"id": "logs", "command": ["ship"]}})


@pytest.fixture
def farmctl(address: str) -> Farmctl:
    made = in_cluster(address, "web1")
    put(made, "nodes/web1", "{}")
    return made


def many(*names: str, **fields: object) -> str:
    """A file with several controllers."""
    return yaml.safe_dump_all(
        hello(**{"name": name, "pod_id": name, "replicas": 0} | fields) for name in names
    )


def test_ctrl_c_at_a_question_ends_it_at_once_and_writes_nothing(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    ended = farmctl.on_terminal("rc", "set-replicas", "hello", "1", until="[y/N]")
    assert ended.code == 130
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["replicas_desired"] == 3


def test_an_output_that_cannot_be_written_is_one_line(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    with Path("/dev/full").open("w") as full, farmctl.start("rc", "list", stdout=full) as process:
        _, err = process.communicate(timeout=180)
    assert process.returncode == 1
    assert err == "farmctl: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-"])
def test_a_closed_stream_keeps_nothing_from_being_done(farmctl: Farmctl, closed: str) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    script = f"exec {sys.executable} -m farmd.cli rc set-replicas hello 4 {closed}"
    ended = subprocess.run(
        ["sh", "-c", script], env=farmctl.env, cwd=ROOT, timeout=180, check=False, capture_output=True
    )
    assert ended.returncode == 0
    assert farmctl.ok("rc", "get", "hello", "-o", "json").json["replicas_desired"] == 4


def test_names_are_taken_as_o_name_prints_them(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=many("a", "b"))
    farmctl.ok("daemonset", "create", "-f", "-", stdin=LOGS)
    names = farmctl.ok("rc", "list", "-o", "name").out.split()
    assert names == ["rc/a", "rc/b"]
    assert farmctl.ok("rc", "describe", "rc/a", "-o", "name").out == "rc/a\n"
    assert farmctl.ok("ds", "describe", "daemonset/logs", "-o", "name").out == "daemonset/logs\n"
    assert farmctl.ok("node", "describe", "node/web1", "-o", "name").out == "node/web1\n"
    assert "rc.create" in farmctl.ok("audit", "list", "--item", "rc/a", "--kind", "rc").out
    farmctl.ok("rc", "delete", "-y", *names)
    assert farmctl.ok("rc", "list", "-o", "name").out == ""


def test_the_same_object_twice_on_one_line_is_changed_once(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=many("a"))
    rc_id = farmctl.ok("rc", "get", "a", "-o", "json").json["id"]
    assert farmctl.ok("node", "cordon", "web1", "node/web1").out == "node/web1 cordoned\n"
    assert farmctl.ok("rc", "delete", "-y", "a", "rc/a", rc_id).out == f"rc/a deleted ({rc_id})\n"


async def test_what_stops_in_the_middle_has_told_what_it_wrote_and_says_how_far_it_came() -> None:
    written = 0

    async def answer(seen: Seen) -> web.StreamResponse | None:
        nonlocal written
        if not seen.target.startswith("/v1/txn"):
            return json_answer("[]", status=404)
        written += 1
        return json_answer('{"Results": [], "Errors": null}') if written < 3 else text_answer("no", 403)

    async def registered(seen: Seen) -> web.StreamResponse | None:
        if seen.target.startswith("/v1/kv/farmd/meta/cluster"):
            entry = {"Key": "farmd/meta/cluster", "Value": "ImEi", "Flags": 0, "LockIndex": 0}
            return json_answer(json.dumps([entry | {"CreateIndex": 3, "ModifyIndex": 3}]))
        return await answer(seen)

    async with Scripted(registered) as consul:
        farmctl = Farmctl(consul.address)
        ended = await asyncio.to_thread(farmctl, "rc", "create", "-f", "-", stdin=many("a", "b", "c", "d"))
    assert ended.code == 6
    assert [line.split()[0] for line in ended.out.splitlines()] == ["rc/a", "rc/b"]
    assert "farmctl: 2 of 4 changes were written before this:" in ended.err


async def test_interrupted_changes_say_which_of_them_may_or_may_not_be_written(tmp_path: Path) -> None:
    written, held, over = 0, asyncio.Event(), asyncio.Event()

    async def registered(seen: Seen) -> web.StreamResponse | None:
        nonlocal written
        if seen.target.startswith("/v1/kv/farmd/meta/cluster"):
            entry = {"Key": "farmd/meta/cluster", "Value": "ImEi", "Flags": 0, "LockIndex": 0}
            return json_answer(json.dumps([entry | {"CreateIndex": 3, "ModifyIndex": 3}]))
        if not seen.target.startswith("/v1/txn"):
            return json_answer("[]", status=404)
        written += 1
        if written == 3:
            held.set()
            await over.wait()
        return json_answer('{"Results": [], "Errors": null}')

    file = tmp_path / "many.yaml"
    file.write_text(many("a", "b", "c", "d"))
    async with Scripted(registered) as consul:
        with Farmctl(consul.address).start("rc", "create", "-f", str(file)) as creating:
            try:
                await asyncio.wait_for(held.wait(), LIMIT)
                creating.send_signal(signal.SIGINT)
                _, err = await asyncio.to_thread(creating.communicate, timeout=LIMIT)
            finally:
                creating.kill()
                over.set()
    assert creating.returncode == 130
    assert err.splitlines()[-2:] == [
        "farmctl: 2 of 4 changes were written before this, rc/c may or may not be written:",
        "farmctl: interrupted",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rc", "lst"), "No such command 'lst', did you mean 'list'?"),
        (("daemonst",), "No such command 'daemonst', did you mean 'daemonset'?"),
        (("frobnicate",), "No such command 'frobnicate'."),
        (("completion",), "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
    ],
)
def test_a_slip_is_one_line_with_the_nearest_word(
    farmctl: Farmctl, arguments: tuple[str, ...], said: str
) -> None:
    refused = farmctl(*arguments)
    assert refused.code == 2
    assert refused.err.splitlines()[0] == f"farmctl: {said}"


def test_no_command_at_all_shows_what_there_is(farmctl: Farmctl) -> None:
    shown = farmctl()
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("Usage: farmctl ")
    assert "hint:" not in shown.err


def test_a_file_comes_in_the_format_that_was_asked_for(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    spec = json.loads(farmctl.ok("rc", "get", "hello", "--file", "-o", "json").out)
    assert spec == yaml.safe_load(farmctl.ok("rc", "get", "hello", "--file").out)
    assert "unchanged" in farmctl.ok("rc", "create", "-f", "-", stdin=json.dumps(spec)).out


def test_top_knows_daemon_sets_and_says_what_it_leaves_out(farmctl: Farmctl) -> None:
    farmctl.ok("daemonset", "create", "-f", "-", stdin=LOGS)
    farmctl.ok("rc", "create", "-f", "-", stdin=many(*(f"svc-{number}" for number in range(23))))
    shown = farmctl.ok("top").out
    assert "rcs 23  daemon sets 1" in shown
    assert "daemon sets  unowned 1" in shown
    assert "... and 3 more" in shown
    assert [row["record"]["name"] for row in farmctl.ok("top", "-o", "json").json["daemonsets"]] == ["logs"]
    assert farmctl("top", "-o", "name").code == 2


def test_daemon_sets_are_explained_as_controllers_are(farmctl: Farmctl) -> None:
    put(farmctl, "nodes/web1", json.dumps({"labels": {"role": "db"}}))
    farmctl.ok("daemonset", "create", "-f", "-", stdin=LOGS + "node_selector: role=web\n")
    told = farmctl.ok("daemonset", "explain", "logs").out
    assert told.splitlines()[0] == "0 of 1 node can take one more pod"
    assert "selector: " in told
    assert farmctl.ok("daemonset", "explain", "logs", "-o", "name").out == ""


def test_r13_describe_says_who_holds_the_lock_and_since_when(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=HELLO)
    rc_id = farmctl.ok("rc", "get", "hello", "-o", "json").json["id"]
    assert "Locked:" not in farmctl.ok("rc", "describe", "hello").out
    put(farmctl, f"locks/rcs/{rc_id}/mutation", "user/ada@laptop/x@1795279000")
    told = farmctl.ok("rc", "describe", "hello").out
    assert "Locked:        by user/ada@laptop since 2026-11-21T16:36:40Z" in told


def test_completion_offers_no_name_twice_and_knows_items_of_the_audit(farmctl: Farmctl) -> None:
    farmctl.ok("rc", "create", "-f", "-", stdin=many("a", "b"))
    put(farmctl, "nodes/web2", "{}")

    def complete(line: str, word: int) -> list[str]:
        env = {"_FARMCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(word)}
        found = subprocess.run(
            [sys.executable, "-c", "from farmd.cli.main import farmctl; farmctl(prog_name='farmctl')"],
            env={**farmctl.env, **env}, cwd=ROOT, text=True, capture_output=True, timeout=180, check=False,
        )  # fmt: skip
        return [text.removeprefix("plain,") for text in found.stdout.split()]

    assert complete("farmctl node cordon ", 3) == ["web1", "web2"]
    assert complete("farmctl node cordon web1 ", 4) == ["web2"]
    assert complete("farmctl rc delete a ", 4) == ["b"]
    assert complete("farmctl audit list --item ", 4) == ["a", "b", "web1", "web2"]


async def test_a_store_that_is_away_for_a_moment_ends_no_watch() -> None:
    looks = 0

    async def answer(seen: Seen) -> web.StreamResponse | None:
        nonlocal looks
        if seen.target.startswith("/v1/kv/farmd/farms/"):
            looks += 1
            if looks == 2:
                return text_answer("rpc error: No cluster leader", 500)
            member = base64.b64encode(json.dumps({"id": f"f{looks}", "version": "1"}).encode()).decode()
            entry = {"Key": "farmd/farms/f", "Value": member, "Flags": 0, "LockIndex": 0}
            return json_answer(json.dumps([entry | {"CreateIndex": 3, "ModifyIndex": 3}]))
        return json_answer("[]", status=404)

    async with Scripted(answer) as consul:
        with Farmctl(consul.address).start("farm", "list", "-w", "-o", "json") as watching:
            try:
                assert watching.stdout is not None
                lines = [await asyncio.to_thread(watching.stdout.readline) for _ in range(2)]
            finally:
                watching.kill()
            assert watching.stderr is not None
            said = watching.stderr.read()
    assert [json.loads(line)["items"][0]["id"] for line in lines] == ["f1", "f3"]
    assert said.count("trying again") == 1


def test_findings_are_paragraphs_on_a_terminal_and_a_line_each_elsewhere(farmctl: Farmctl) -> None:
    shown = farmctl.on_terminal("doctor").out.replace("\r\n", "\n")
    assert "\n\nno-farm  farms\n  no farm is alive: " in shown
    assert "\n  fix: start one anywhere: farmd run\n" in shown
    (line,) = [line for line in farmctl("doctor").out.splitlines() if line.startswith("no-farm ")]
    assert line.endswith("farmd run")
