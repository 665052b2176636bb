"""A farm's and an agent's process: ready, waiting, reloaded, refused, stopped; on real Consul."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from farmd.kinds import KINDS
from tests.credentials import mend, spoil
from tests.fleet import LIMIT
from tests.ports import free_ports
from tests.processes import NotifySocket, Program, eventually, get, term

ROLES = ["run", "agent"]


@pytest.fixture
def prefix(request) -> str:
    return f"test-{abs(hash(request.node.nodeid)):x}/"


@pytest.fixture
def start(tmp_path, consul_dev, prefix):
    """Start a role against real Consul, ended with the test."""
    running: list[Program] = []

    def begin(role: str, *arguments: str, **variables: str) -> Program:
        known = {
            "CONSUL_HTTP_ADDR": consul_dev,
            "FARMD_STORE__PREFIX": prefix,
            "FARMD_AGENT__STATE_DIR": str(tmp_path / "state"),
            "FARMD_AGENT__NODE": "n1",
            "FARMD_AGENT__SHARE_USER": "true",
            "FARMD_FARM__NAME": "f1",
        }
        program = Program(role, "--port", "0", *arguments, folder=tmp_path, **{**known, **variables})
        running.append(program.__enter__())
        return program

    yield begin
    for program in running:
        program.__exit__()


def url(program: Program) -> str:
    return f"http://127.0.0.1:{program.wait_for('web.listening')['port']}"


def asked_health(port: str, role: str = "farm") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "farmd", "health", role, "--port", port],
        env={name: value for name, value in os.environ.items() if not name.startswith("FARMD_")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def keys(consul: str, prefix: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"http://{consul}/v1/kv/{prefix}?keys") as answer:
            return list(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        error.close()
        return []


@pytest.fixture
def farm(start):
    """A ready farm, which has registered the cluster."""
    program = start("run")
    program.url = url(program)
    program.wait_for("process.ready")
    return program


def test_w3_r4_a_stopped_farm_leaves_no_lock_and_no_presence(farm, consul_dev, prefix):
    assert f"{prefix}farms/f1" in keys(consul_dev, prefix)
    assert term(farm) == 0
    left = keys(consul_dev, prefix)
    assert f"{prefix}farms/f1" not in left
    assert [key for key in left if "/locks/" in key and not key.endswith(".present")] == []


def test_the_faces_tell_what_a_farm_does(farm):
    assert get(farm.url + "/ready") == (200, '{"ready": true, "reason": ""}')
    assert json.loads(get(farm.url + "/health")[1])["health"] == "ok"
    assert asked_health(farm.url.rpartition(":")[2]) == (0, "ok\n", "")
    status = json.loads(get(farm.url + "/v1/status")[1])
    assert (status["role"], status["farm"], status["ready"]) == ("farm", "f1", True)
    metrics = get(farm.url + "/metrics")[1]
    for name in ("farmd_build_info", "farmd_loop_last_progress_timestamp_seconds"):
        assert f"\n{name}{{" in metrics
    assert 'farmd_store_requests_total{code="200",op="transaction"}' in metrics
    code, body = get(farm.url + "/nothing")
    assert (code, json.loads(body)["error"]["code"]) == (404, "not_found")


def test_a_farm_serves_its_page_and_stops_while_somebody_looks(farm):
    with urllib.request.urlopen(f"{farm.url}/farms", timeout=LIMIT) as answer:
        assert "Farms · farmd" in answer.read().decode()
    with urllib.request.urlopen(f"{farm.url}/events?of=/farms", timeout=LIMIT) as stream:
        assert stream.readline() == b"retry: 2000\n"
        assert term(farm) == 0


def test_r27_an_agent_needs_no_store_to_start_and_says_what_it_waits_for(start, free_port):
    with_nobody = start("agent", CONSUL_HTTP_ADDR=f"127.0.0.1:{free_port}")
    where = url(with_nobody)
    with_nobody.wait_for("agent.started")
    code, body = get(where + "/ready")
    assert code == 503
    assert json.loads(body)["reason"]
    assert get(where + "/health")[0] == 200
    assert term(with_nobody) == 0


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


def test_a_farm_waits_for_consul_says_so_and_goes_on_once_it_is_there(start, free_port, tmp_path):
    address = f"127.0.0.1:{free_port}"
    with NotifySocket(tmp_path / "notify") as systemd:
        farm = start("run", CONSUL_HTTP_ADDR=address, NOTIFY_SOCKET=str(systemd.path))
        where = url(farm)
        first = farm.wait_for("store.unreachable")
        assert first["code"] == "store_unavailable"
        assert systemd.wait_for("READY")["READY"] == "1"
        assert systemd.wait_for("STATUS")["STATUS"].startswith("waiting for Consul")
        code, body = get(where + "/ready")
        assert code == 503
        assert json.loads(body)["reason"].startswith("waiting for Consul")
        assert get(where + "/health")[0] == 200
        with Program("--http-addr", address, folder=tmp_path, module="store.embedded"):
            farm.wait_for("process.ready")
            assert get(where + "/ready")[0] == 200
            assert term(farm) == 0


def test_a_waiting_farm_stops_at_once(start, free_port):
    farm = start("run", CONSUL_HTTP_ADDR=f"127.0.0.1:{free_port}")
    farm.wait_for("store.unreachable")
    assert term(farm) == 0


@pytest.mark.parametrize("role", ROLES)
def test_systemd_hears_ready_reload_and_stop(start, tmp_path, role, farm):
    with NotifySocket(tmp_path / "notify") as systemd:
        variables = {"FARMD_FARM__NAME": "f2", "NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "400000"}
        program = start(role, **variables)
        systemd.wait_for("READY")
        systemd.wait_for("WATCHDOG")
        program.signal(signal.SIGHUP)
        assert int(systemd.wait_for("RELOADING")["MONOTONIC_USEC"]) > 0
        systemd.wait_for("READY")
        program.signal(signal.SIGTERM)
        systemd.wait_for("STOPPING")
        assert program.ends() == 0


def test_a_reload_applies_what_may_change_and_names_the_rest(farm, tmp_path):
    config = tmp_path / "farmd.toml"
    config.write_text('[log]\nlevel = "debug"\n[farm]\nttl = 20\n')
    farm.signal(signal.SIGHUP)
    seen = [farm.wait_for("config.restart_needed"), farm.wait_for("config.changed")]
    assert [(line["key"], line["after"]) for line in seen] == [("farm.ttl", "20.0"), ("log.level", '"debug"')]
    config.write_text("[log]\nlevel = 7\n")
    farm.signal(signal.SIGHUP)
    assert "log.level: found 7, expected one of debug, info" in farm.wait_for("config.refused")["mistake"]
    assert get(farm.url + "/ready")[0] == 200
    metrics = get(farm.url + "/metrics")[1]
    assert 'farmd_config_reloads_total{result="applied"} 1.0' in metrics
    assert 'farmd_config_reloads_total{result="refused"} 1.0' in metrics


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"FARMD_FARM__TTL": "1"},
            "environment FARMD_FARM__TTL: farm.ttl: found 1, expected a time from 10 to 60 s",
        ),
        (
            {"FARMD_FARM__KINDS": "rcs,magic"},
            f"environment FARMD_FARM__KINDS: farm.kinds: found 'magic', expected one of {', '.join(KINDS)}",
        ),
        (
            {"FARMD_FARM_TTL": "15"},
            "environment FARMD_FARM_TTL: unknown variable, did you mean 'FARMD_FARM__TTL'?",
        ),
        (
            {"CONSUL_HTTP_ADDR": "ftp://x"},
            "environment CONSUL_HTTP_ADDR: store.address: found 'ftp://x', expected host:port, [ipv6]:port,"
            " http://…, https://… or unix:///path",
        ),
        ({"CONSUL_HTTP_SSL": "maybe"}, "CONSUL_HTTP_SSL: found 'maybe', expected true or false"),
        (
            {"CONSUL_HTTP_TOKEN": "a b"},
            "CONSUL_HTTP_TOKEN: found characters that a token cannot contain, expected one token on one line",
        ),
        (
            {"CONSUL_CLIENT_CERT": "/c.pem"},
            "CONSUL_CLIENT_KEY: found nothing, expected a path, because a certificate needs its key",
        ),
    ],
)
def test_what_a_farm_and_an_agent_refuse_the_check_finds_and_all_say_it_alike(tmp_path, variables, line):
    def said(*command: str) -> tuple[int, str]:
        with Program(*command, folder=tmp_path, **variables) as program:
            return program.ends(), program.text

    for command in (["check-config"], ["run", "--port", "0"], ["agent", "--port", "0"]):
        assert said(*command) == (78, f"farmd: {line}\n")


def test_the_check_names_what_a_process_would_wait_for_or_end_at(tmp_path):
    (tmp_path / "token").write_text("one\ntwo\n")
    config = tmp_path / "checked.toml"
    config.write_text(f"""
        [agent]
        state_dir = "{tmp_path}/token/state"
        [store]
        address = "https://localhost:1"
        token_file = "{tmp_path}/token"
        [scheduler]
        token_file = "{tmp_path}"
        [rollouts]
        prometheus_token_file = "{tmp_path}/none"
        [web]
        bind = "203.0.113.7"
        port_file = "{tmp_path}/none/port"
        [[alerts.sinks]]
        type = "webhook"
        url = "http://h/"
        secret_file = "{tmp_path}/none"
        [[alerts.sinks]]
        type = "pagerduty"
        secret_env = "PAGER_KEY"
    """)
    with Program("check-config", "--config", str(config), folder=tmp_path, CONSUL_CACERT="/none") as check:
        assert check.ends() == 78
    assert check.text.replace(str(tmp_path), "…").splitlines() == [
        "farmd: CONSUL_CACERT: found '/none' (No such file or directory), expected a readable file",
        "farmd: scheduler.token_file: found '…', which is no file, expected a readable file",
        "farmd: rollouts.prometheus_token_file: found '…/none' (No such file or directory),"
        " expected a readable file",
        "farmd: store.token_file: found 2 lines in '…/token', expected a token alone on one line",
        "farmd: alerts.sinks[0].secret_file: found '…/none' (No such file or directory),"
        " expected a readable file",
        "farmd: alerts.sinks[1].secret_env: found nothing in the variable PAGER_KEY, expected a credential",
        "farmd: web.bind: cannot listen on 203.0.113.7:0: Cannot assign requested address",
        "farmd: web.port_file: found '…/none', expected a folder that exists",
        "farmd: agent.state_dir: …/token: Not a directory, expected a directory that the agent can use",
    ]


def test_the_check_tries_the_state_folder_as_an_agent_would_and_leaves_nothing_there(tmp_path):
    def said(state: Path) -> tuple[int, list[str]]:
        variables = {"FARMD_AGENT__STATE_DIR": str(state), "FARMD_AGENT__NODE": "n1"}
        with Program("check-config", folder=tmp_path, **variables) as check:
            return check.ends(), check.text.replace(str(tmp_path), "…").splitlines()

    usable = "expected a directory that the agent can use"
    assert said(Path("/proc/none/state")) == (
        78,
        [f"farmd: agent.state_dir: /proc: No such file or directory, {usable}"],
    )
    assert said(tmp_path / "new/state")[0] == 0
    assert not (tmp_path / "new").exists()
    (theirs := tmp_path / "theirs").mkdir()
    (theirs / "agent.json").write_text('{"node":"n2"}')
    assert said(theirs) == (
        78,
        ["farmd: agent.node: found 'n1', expected 'n2': …/theirs belongs to that node"],
    )
    assert [file.name for file in theirs.iterdir()] == ["agent.json"]


def test_a_port_file_in_no_folder_ends_a_farm_with_one_line(start, tmp_path):
    farm = start("run", FARMD_WEB__PORT_FILE=str(tmp_path / "none/port"))
    line = farm.wait_for("web.cannot_listen")
    assert farm.ends() == 75
    assert line["reason"] == f"web.port_file: {tmp_path}/none/port: No such file or directory"
    assert "Traceback" not in farm.text


@pytest.mark.parametrize("role", ROLES)
def test_a_token_file_that_is_not_good_is_waited_for_and_said_in_one_line(start, farm, tmp_path, role):
    token = tmp_path / "token"
    spoil(token, "second-line")
    program = start(role, CONSUL_HTTP_TOKEN_FILE=str(token), FARMD_FARM__NAME="f2")
    where = url(program)
    for how in ("binary", "folder", "missing"):
        line = program.wait_for("credential.invalid")
        assert line["error"].startswith("CONSUL_HTTP_TOKEN_FILE: found ")
        assert get(where + "/ready")[0] == 503
        spoil(token, how)
    program.wait_for("credential.invalid")
    mend(token, "s3cret")
    program.wait_for("process.ready")
    spoil(token, "second-line")
    program.wait_for("credential.invalid")
    assert get(where + "/ready")[0] == 200
    mend(token, "s3cret")
    program.wait_for("credential.good_again")
    assert term(program) == 0
    assert "Traceback" not in program.text
    assert "s3cret" not in program.text


def test_a_taken_port_is_one_line_and_exit_75(start, farm):
    program = start("run", "--port", farm.url.rpartition(":")[2], FARMD_FARM__NAME="f2")
    assert program.ends() == 75
    assert "web.bind: cannot listen on 127.0.0.1:" in program.text


def test_a_second_live_farm_under_one_name_is_refused(start, farm):
    second = start("run")
    assert second.ends() == 1
    assert "f1" in second.text
    assert "Traceback" not in second.text
    assert get(farm.url + "/ready")[0] == 200


def test_a_second_live_agent_under_one_name_is_refused(start, farm, tmp_path):
    first = start("agent")
    first.wait_for("process.ready")
    second = start("agent", FARMD_AGENT__STATE_DIR=str(tmp_path / "other"))
    assert second.ends() == 1
    assert "n1" in second.text
    assert term(first) == 0


def test_a_killed_farm_may_return_under_its_name_at_once(start, farm, consul_dev, prefix):
    farm.process.kill()
    farm.process.wait()
    again = start("run")
    again.wait_for("process.ready")
    assert term(again) == 0


def test_the_port_file_is_there_while_it_listens(start, tmp_path):
    file = tmp_path / "port"
    farm = start("run", FARMD_WEB__PORT_FILE=str(file))
    where = url(farm)
    assert where.endswith(
        ":" + eventually("the port file", lambda: file.exists() and file.read_text().strip())
    )
    assert term(farm) == 0
    assert not file.exists()
