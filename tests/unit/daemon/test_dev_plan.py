"""What ``farmd dev`` takes of a real fleet's settings."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

from farmd.dev.cluster import engine_of
from farmd.dev.plan import ClusterLayout, environment, ignored


def test_variables_of_the_configuration_reach_the_processes_but_for_the_clusters_own() -> None:
    given = {
        "FARMD_AGENT__TTL": "20",
        "FARMD_STORE__ADDRESS": "10.0.0.1:8500",
        "FARMD_AGENT__NODE": "web1",
        "FARMD_TEST_CONSUL": "external",
        "CONSUL_HTTP_TOKEN": "secret",
        "HOME": "/root",
    }
    kept = environment(given)
    assert kept["FARMD_AGENT__TTL"] == "20"
    assert kept.keys() & given.keys() == {"FARMD_AGENT__TTL", "HOME"}
    assert ignored(given) == ["FARMD_AGENT__NODE", "FARMD_STORE__ADDRESS"]


def test_values_of_a_file_count_but_for_the_clusters_own(tmp_path: Path) -> None:
    config = tmp_path / "farmd.toml"
    config.write_text(
        '[agent]\nnode = "web1"\nttl = 20\nlabels = {rack = "r1"}\n'
        '[alerts]\nsinks = [{type = "log", urgencies = ["high"]}]\n'
    )
    plan = ClusterLayout(str(tmp_path), config=str(config), engine="unix:///run/docker.sock")
    plan.agent_command("node-2", "127.0.0.1:8500", 20000)
    made = tomllib.loads((tmp_path / "node-2.toml").read_text())
    agent = made["agent"]
    assert (agent["node"], agent["ttl"], agent["labels"]) == ("node-2", 20, {"zone": "b"})
    assert agent["engine"] == "unix:///run/docker.sock"
    assert made["alerts"] == {"sinks": [{"type": "log", "urgencies": ["high"]}]}


def test_an_engine_is_used_where_its_socket_answers(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    address = f"unix://{path}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert engine_of("", {"DOCKER_HOST": address}) == address
    assert engine_of("", {"DOCKER_HOST": address}) != address
    assert engine_of(str(path), {}) == address
