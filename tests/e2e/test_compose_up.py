"""The compose file's services run as it asks: Consul with ACLs, farms, agents, Prometheus, Alertmanager."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.composed import LEFT_OUT, Composed, composed
from tests.processes import eventually

pytestmark = [pytest.mark.xdist_group("compose up"), pytest.mark.slow]


@pytest.fixture(scope="module")
def project() -> Iterator[Composed]:
    with composed() as made:
        yield made


def asked(project: Composed, service: str, path: str) -> object:
    with urllib.request.urlopen(project.url(service) + path, timeout=180) as answer:
        return json.load(answer)


def containers(project: Composed) -> dict[str, dict]:
    """What podman says of each container, by service."""
    listed = json.loads(project.engine.run("inspect", *project.engine.names()))
    return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in listed}


def test_every_service_that_can_be_had_is_healthy(project: Composed) -> None:
    wanted = {name for name, each in project.project.items() if "profiles" not in each} - LEFT_OUT.keys()
    found = containers(project)
    assert found.keys() == wanted
    assert found.pop("acl")["State"]["ExitCode"] == 0
    assert {each["State"]["Health"]["Status"] for each in found.values()} == {"healthy"}


def test_people_work_with_the_fleet_under_its_policies(project: Composed) -> None:
    nodes = json.loads(project.farmctl("node", "list", "-o", "json"))["items"]
    assert {node["name"] for node in nodes} == {"node-1", "node-2", "node-3"}
    project.farmctl("daemonset", "create", "-f", "/examples/daemonset.yaml", "--wait", "--reason", "a trial")
    pods = json.loads(project.farmctl("pod", "list", "-o", "json"))["items"]
    assert {pod["node"] for pod in pods} == {"node-1", "node-2", "node-3"}


def test_consul_tells_nothing_without_a_token(project: Composed) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        asked(project, "consul-1", "/v1/kv/farmd/meta/cluster")


def test_prometheus_scrapes_all_and_knows_its_alertmanager(project: Composed) -> None:
    def scraped() -> bool:
        targets = asked(project, "prometheus", "/api/v1/targets")["data"]["activeTargets"]  # type: ignore[index]
        return [each["health"] for each in targets] == ["up"] * 5

    eventually("five targets that are up", scraped)

    def told() -> bool:
        known = asked(project, "prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]  # type: ignore[index]
        return len(known) == 1

    eventually("an Alertmanager", told)
    groups = asked(project, "prometheus", "/api/v1/rules")["data"]["groups"]  # type: ignore[index]
    assert sum(len(group["rules"]) for group in groups) > 30
    assert asked(project, "alertmanager", "/api/v2/status")["config"]  # type: ignore[index]


def test_only_agents_are_root_and_no_root_folder_can_be_written(project: Composed) -> None:
    able = {f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")}
    for name, each in containers(project).items():
        agent = name.startswith("agent-")
        assert each["HostConfig"]["ReadonlyRootfs"], name
        assert (each["Config"]["User"].partition(":")[0] in ("", "0", "root")) == agent, name
        assert set(each["EffectiveCaps"] or ()) == (able if agent else set()), name


def test_pods_are_another_user_who_reads_no_token(project: Composed) -> None:
    agent = containers(project)["agent-1"]["Id"]
    users = project.engine.run("exec", agent, "sh", "-c", "stat -c %u /proc/[0-9]*").split()
    assert {"0", "10002"} == set(users)
    read = (
        "id -u; cat /run/tokens/*/* /var/lib/farmd-agent/agent.json /proc/1/environ 2>/dev/null; echo nothing"
    )
    said = project.engine.run("exec", "--user", "10002:10002", agent, "sh", "-c", read)
    assert said.split() == ["10002", "nothing"]


def test_the_fleet_goes_on_without_one_of_its_farms(project: Composed) -> None:
    project.run("kill", "farm-1")
    project.farmctl("daemonset", "delete", "uptime", "--cascade", "-y", "--reason", "a trial")
    assert json.loads(project.farmctl("pod", "list", "-o", "json"))["items"] == []


def test_it_may_be_bootstrapped_again(project: Composed) -> None:
    project.run("up", "--no-build", "--pull", "never", "--no-deps", "--force-recreate", "acl")
    assert containers(project)["acl"]["State"]["ExitCode"] == 0
