"""What a workload sees and as whom it runs."""

from __future__ import annotations

import os
import pwd

import pytest

from farmd.agent.environment import account, environment, limits, preflight, stop_signal
from farmd.agent.errors import StartFailed
from store.manifests import Manifest, Stop

SECRETS = {
    "NOTIFY_SOCKET": "/run/x",
    "CONSUL_HTTP_TOKEN": "t",
    "CONSUL_HTTP_ADDR": "a",
    "FARMD_WEB__TOKEN": "t",
    "WATCHDOG_USEC": "1",
    "LISTEN_FDS": "1",
    "CREDENTIALS_DIRECTORY": "/run/c",
    "KUBECONFIG": "/k",
}


def manifest(**fields: object) -> Manifest:
    return Manifest(**({"id": "web", "command": ["x"]} | fields))


def test_secrets_of_the_agent_do_not_reach_a_workload() -> None:
    found = environment(manifest(), SECRETS | {"LANG": "C.UTF-8", "PATH": "/bin"}, "n1", "web", {})
    assert found == {"LANG": "C.UTF-8", "PATH": "/bin", "FARMD_NODE": "n1", "FARMD_INSTANCE": "web"}


def test_ports_and_names_are_in_the_environment_and_win() -> None:
    found = environment(
        manifest(env={"A": "1", "FARMD_NODE": "lies"}), {}, "n1", "web~2", {"http-admin": 8080}
    )
    assert found["FARMD_PORT_HTTP_ADMIN"] == "8080"
    assert (found["FARMD_NODE"], found["FARMD_INSTANCE"], found["A"]) == ("n1", "web~2", "1")
    assert found["PATH"]


def test_an_agent_that_is_not_root_refuses_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(StartFailed, match="only an agent that runs as root"):
        account(manifest(user="root"))


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(StartFailed, match="user: found 'nobody-here'"):
        preflight(manifest(user="nobody-here"))


def test_the_agents_own_user_needs_no_change() -> None:
    assert account(manifest(user=pwd.getpwuid(os.geteuid()).pw_name)) is None
    assert account(manifest()) is None


def test_unknown_limits_and_signals_are_named() -> None:
    with pytest.raises(StartFailed, match=r"ulimits: found 'nofiles', expected one of .*nofile"):
        preflight(manifest(ulimits={"nofiles": 1}))
    with pytest.raises(StartFailed, match=r"stop\.signal: found 'TREM'"):
        preflight(manifest(stop=Stop(signal="TREM")))


@pytest.mark.parametrize("name", ["TERM", "SIGTERM", "term"])
def test_stop_signals(name: str) -> None:
    assert stop_signal(manifest(stop=Stop(signal=name))).name == "SIGTERM"


def test_limits_by_name() -> None:
    assert [(name, value) for name, _, value in limits(manifest(ulimits={"nofile": 64, "core": -1}))] == [
        ("nofile", 64),
        ("core", -1),
    ]
