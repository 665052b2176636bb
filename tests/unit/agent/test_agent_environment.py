"""What a workload sees and as whom it runs."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from farmd.agent.environment import environment, limits, preflight, stop_signal
from farmd.agent.errors import StartFailed
from farmd.agent.users import Account, Users
from store.containers import Secret
from store.manifests import Manifest, Stop

OWN = Users(share=True).of(Manifest(id="any"))


def manifest(**fields: object) -> Manifest:
    return Manifest(**({"id": "web", "command": ["x"]} | fields))


def test_a_workload_gets_of_the_agents_environment_only_path_and_lang() -> None:
    agents = {"LANG": "de_DE.UTF-8", "PATH": "/opt/bin", "HOME": "/nonexistent", "AWS_SECRET_ACCESS_KEY": "t"}
    found = environment(manifest(env={"A": "1"}), OWN, agents, "n1", "web", {})
    own = pwd.getpwuid(os.geteuid())
    assert found == {
        "PATH": "/opt/bin",
        "LANG": "de_DE.UTF-8",
        "HOME": own.pw_dir,
        "USER": own.pw_name,
        "LOGNAME": own.pw_name,
        "SHELL": own.pw_shell,
        "A": "1",
        "FARMD_NODE": "n1",
        "FARMD_INSTANCE": "web",
    }


def test_the_manifest_wins_over_everything_but_farmds_own_variables() -> None:
    found = environment(manifest(env={"PATH": "/x", "HOME": "/h", "LANG": "C"}), OWN, {}, "n1", "web", {})
    assert (found["PATH"], found["HOME"], found["LANG"]) == ("/x", "/h", "C")


def test_an_agent_without_path_lang_and_account_gives_defaults() -> None:
    found = environment(manifest(), Account("54321", 54321, 54321, ()), {}, "n1", "web", {})
    assert (found["PATH"], found["LANG"], found["HOME"]) == (os.defpath, "C.UTF-8", "/")


def test_a_stored_manifest_that_names_farmds_own_variables_runs_and_does_not_override_them() -> None:
    found = environment(
        manifest(env={"FARMD_X": "1", "FARMD_NODE": "lies"}), OWN, {}, "n1", "web~2", {"http-admin": 8080}
    )
    assert found["FARMD_PORT_HTTP_ADMIN"] == "8080"
    assert (found["FARMD_NODE"], found["FARMD_INSTANCE"], found["FARMD_X"]) == ("n1", "web~2", "1")
    assert found["PATH"]


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


def test_a_workload_with_secrets_dumps_no_core_unless_it_asks_for_that() -> None:
    secret: dict[str, Any] = {"secrets": [Secret(name="db")]}
    assert [(name, value) for name, _, value in limits(manifest(**secret))] == [("core", 1)]
    assert [(name, value) for name, _, value in limits(manifest(ulimits={"core": -1}, **secret))] == [
        ("core", -1)
    ]
    assert limits(manifest()) == []
