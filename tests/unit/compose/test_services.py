"""What each key of a compose service becomes: uncloud's vectors, and the forms of the specification.

Where they differ: ports are published on each machine instead of an ingress, relative binds are refused
unless they are small files, secrets are external alone, and an absent count of replicas is 1.
"""

from __future__ import annotations

from typing import Any

import pytest

from farmd.deploy import spec
from farmd.deploy.spec import Device, DeviceReservation, Hook, LogDriver, Resources, Ulimit
from store.manifests import Constraint, HealthCheck, Restart, Spread, Stop, Toleration
from store.services import Catalog
from tests.unit.compose.disk import service

GIB = 1024**3

NETWORKS = """
networks:
  back: {name: back-end, driver: bridge}
  proxy: {external: true}
  old: {external: {name: elsewhere}}
"""
SIZES = {"max-size": str(10 * 1024**2), "max-file": "4"}
CONTAINER: list[tuple[str, str, Any]] = [
    ("command: echo 'a b' $$X", "command", ["echo", "a b", "$X"]),
    ("command: [sleep, 5, 1.5, x]", "command", ["sleep", "5", "1.5", "x"]),
    ("entrypoint: /bin/sh -c", "entrypoint", ["/bin/sh", "-c"]),
    ("environment: [A=1, B=x=y, C]", "env", {"A": "1", "B": "x=y"}),
    (
        "environment: {A: 1, B: true, C: 010, D: 1.5, E: yes, F: }",
        "env",
        {"A": "1", "B": "true", "C": "010", "D": "1.5", "E": "yes"},
    ),
    ("user: 1000", "user", "1000"),
    ("user: 22:22", "user", "22:22"),
    ("group_add: [1, wheel]", "groups", ["1", "wheel"]),
    ("working_dir: /srv", "working_directory", "/srv"),
    ("hostname: h", "hostname", "h"),
    ("platform: linux/arm64", "platform", "linux/arm64"),
    ("labels: [a=b, c]", "labels", {"a": "b", "c": ""}),
    ("pull_policy: if_not_present", "pull", "missing"),
    ("pull_policy: always", "pull", "always"),
    ("pull_policy: daily", "pull", "missing"),
    ("mem_limit: 1GiB", "resources", Resources(memory=GIB)),
    (
        "deploy: {resources: {reservations: {devices: [{count: all, capabilities: [gpu]}]}}}",
        "resources",
        Resources(device_reservations=[DeviceReservation(count=-1, capabilities=[["gpu"]])]),
    ),
    ("init: 'false'", "init", False),
    ("image: a", "init", None),
    ("privileged: true", "privileged", True),
    ("pid: host", "pid", "host"),
    ("read_only: true", "read_only", True),
    ("network_mode: host", "networks", {}),
    ("network_mode: none", "network", "none"),
    ("image: a", "networks", {"shop_default": ["web"]}),
    ("networks: {default: {aliases: [www]}}", "networks", {"shop_default": ["web", "www"]}),
    ("networks: [back]", "networks", {"back-end": ["web"]}),
    ("networks: [proxy]", "networks", {"proxy": ["web"]}),
    ("networks: [old]", "networks", {"elsewhere": ["web"]}),
    ("dns: 1.1.1.1", "dns", ["1.1.1.1"]),
    ("dns_search: [a.example]", "dns_search", ["a.example"]),
    ("dns_opt: [ndots:1]", "dns_options", ["ndots:1"]),
    ("extra_hosts: ['a:1.1.1.1', 'b=::1']", "hosts", {"a": "1.1.1.1", "b": "::1"}),
    ("cap_add: [NET_ADMIN]", "cap_add", ["NET_ADMIN"]),
    ("cap_drop: [ALL]", "cap_drop", ["ALL"]),
    ("sysctls: {net.core.somaxconn: 1024}", "sysctls", {"net.core.somaxconn": "1024"}),
    ("security_opt: ['no-new-privileges:true']", "security_options", ["no-new-privileges:true"]),
    (
        "logging: {driver: json-file, options: {max-size: 10m, max-file: 3}}",
        "log",
        LogDriver(options={"max-size": str(10 * 1024**2), "max-file": "3"}),
    ),
    ("logging: {driver: json-file}", "log", None),
    ("logging: {driver: journald, options: {tag: x}}", "log", LogDriver(options=SIZES, to=["journald"])),
    *(
        (
            f"logging: {{driver: syslog, options: {{syslog-address: '{address}', syslog-format: rfc5424}}}}",
            "log",
            LogDriver(options=SIZES, to=[to]),
        )
        for address, to in {
            "udp://logs.example:5514": "syslog+udp://logs.example:5514",
            "tcp://10.0.0.1": "syslog://10.0.0.1:514",
            "tcp+tls://[2001:db8::1]:6514": "syslog+tls://[2001:db8::1]:6514",
        }.items()
    ),
    (
        "healthcheck: {test: curl -f localhost, interval: 1m30s, timeout: 5s, retries: 5, start_period: 9s}",
        "health",
        HealthCheck(
            type="command",
            command=["/bin/sh", "-c", "curl -f localhost"],
            interval=90.0,
            timeout=5.0,
            failures=5,
            start_period=9.0,
        ),
    ),
    (
        'healthcheck: {test: [CMD, "true"]}',
        "health",
        HealthCheck(type="command", command=["true"], interval=30.0, timeout=30.0, failures=3),
    ),
    ("healthcheck: {test: [NONE]}", "health", None),
    ("healthcheck: {disable: true}", "health", None),
    ("stop_signal: SIGQUIT\nstop_grace_period: 1m", "stop", Stop(signal="QUIT", grace=60.0)),
    ("restart: unless-stopped", "restart", Restart(policy="always")),
    ("restart: 'no'", "restart", Restart(policy="never")),
    ("restart: no", "restart", Restart(policy="never")),
    ("restart: on-failure:3", "restart", Restart(policy="on-failure")),
    (
        "deploy: {restart_policy: {condition: none, delay: 5s}}",
        "restart",
        Restart(initial=5.0, policy="never"),
    ),
    (
        "cpus: 1.5\nmem_limit: 1g\nmem_reservation: 512m\nshm_size: 64mb\npids_limit: 100",
        "resources",
        Resources(cpu=1.5, memory=GIB, memory_reservation=GIB // 2, shared_memory=64 * 1024**2, pids=100),
    ),
    (
        "cpus: 2\ndeploy: {resources: {limits: {cpus: '2', memory: 1G, pids: 9}, reservations: {cpus: 1}}}",
        "resources",
        Resources(cpu=2.0, memory=GIB, pids=9, cpu_reservation=1.0),
    ),
    (
        "ulimits: {nofile: {soft: 1, hard: 2}, nproc: 3}",
        "resources",
        Resources(ulimits={"nofile": Ulimit(1, 2), "nproc": Ulimit(3, 3)}),
    ),
    (
        "devices: [/dev/dri, '/dev/sda:/dev/xvda:r', vendor.com/class=device1]",
        "resources",
        Resources(
            devices=[
                Device(host="/dev/dri"),
                Device(host="/dev/sda", container="/dev/xvda", permissions="r"),
            ],
            device_reservations=[DeviceReservation(driver="cdi", device_ids=["vendor.com/class=device1"])],
        ),
    ),
    (
        "gpus: all",
        "resources",
        Resources(device_reservations=[DeviceReservation(count=-1, capabilities=[["gpu"]])]),
    ),
    (
        "gpus: [{device_ids: ['0', 1], capabilities: [compute]}]",
        "resources",
        Resources(
            device_reservations=[DeviceReservation(device_ids=["0", "1"], capabilities=[["compute", "gpu"]])]
        ),
    ),
    (
        "gpus: [{count: 2, capabilities: [utility], driver: nvidia, options: {a: b}}]",
        "resources",
        Resources(
            device_reservations=[
                DeviceReservation(
                    driver="nvidia", count=2, options={"a": "b"}, capabilities=[["utility", "gpu"]]
                )
            ]
        ),
    ),
    (
        "deploy: {resources: {reservations: {devices: [{capabilities: [tpu], count: 4}]}}}",
        "resources",
        Resources(device_reservations=[DeviceReservation(count=4, capabilities=[["tpu"]])]),
    ),
]


@pytest.mark.parametrize(("keys", "field", "expected"), CONTAINER)
def test_a_key_of_the_container(keys: str, field: str, expected: Any) -> None:
    assert getattr(service(keys, NETWORKS).container, field) == expected


SERVICE: list[tuple[str, str, Any]] = [
    ("image: a", "replicas", 1),
    ("scale: 3", "replicas", 3),
    ("deploy: {replicas: 0}", "replicas", 0),
    ("scale: 3\ndeploy: {replicas: 3}", "replicas", 3),
    ("scale: ${N}", "replicas", 4),
    ("deploy: {mode: global}", "mode", "global"),
    ("deploy: {labels: [a=b]}", "labels", {"a": "b"}),
    ("x-pre_deploy: migrate --all", "pre_deploy", Hook(command=["migrate", "--all"])),
    (
        "x-pre_deploy: {command: [a, b], environment: [X=1], privileged: false, timeout: 30s, user: 5}",
        "pre_deploy",
        Hook(command=["a", "b"], env={"X": "1"}, privileged=False, timeout=30.0, user="5"),
    ),
    ("x-farmd: {on_lost: wait}", "on_lost", "wait"),
    ("x-farmd: {unhealthy_after: 1m}", "unhealthy_after", 60.0),
    ("image: a", "catalog", None),
    ("ports: [80]\nx-consul: {}", "catalog", Catalog()),
    (
        "ports: [80]\nx-consul: {name: shop, tags: [edge, 2], meta: [team=a], canary_tags: [canary]}",
        "catalog",
        Catalog(name="shop", tags=["edge", "2"], meta={"team": "a"}, canary_tags=["canary"]),
    ),
]


@pytest.mark.parametrize(("keys", "field", "expected"), SERVICE)
def test_a_key_of_the_service(keys: str, field: str, expected: Any) -> None:
    assert getattr(service(keys, env={"N": "4"}), field) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("ports: [80]", "80/tcp"),
        ("ports: ['8080:80', '53:53/udp']", "8080:80/tcp@host 53:53/udp@host"),
        (
            "ports: [{target: 80, published: '8080', mode: ingress}]",
            "8080:80/tcp@host",
        ),
        ("ports: [{target: 80, protocol: udp}]", "80/udp"),
        ("ports: ['0.0.0.0:80:80', '[::]:81:81']", "80:80/tcp@host 81:81/tcp@host"),
        ("ports: [{target: 80, published: 80, host_ip: 0.0.0.0}]", "80:80/tcp@host"),
        ("ports: ['${P}:80']", "9000:80/tcp@host"),
        ("ports: ['80:80', '80:80']", "80:80/tcp@host"),
        ("ports: ['8000-8001:80-81', 90-91]", "8000:80/tcp@host 8001:81/tcp@host 90/tcp 91/tcp"),
        ("ports: ['127.0.0.1:80:80', '[::1]:81:81']", "127.0.0.1:80:80/tcp@host [::1]:81:81/tcp@host"),
        ("x-ports: [8080, '53:53/udp@host']", "8080/tcp 53:53/udp@host"),
        ("image: a", ""),
    ],
)
def test_ports(keys: str, expected: str) -> None:
    assert " ".join(map(spec.text, service(keys, env={"P": "9000"}).ports)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("m1", ["m1"]),
        ("'m1, m2'", ["m1", "m2"]),
        ("[m1, ' m2 ']", ["m1", "m2"]),
        ("['m1,m2', m3]", ["m1", "m2", "m3"]),
        ("123", ["123"]),
        ("[]", []),
    ],
)
def test_machines(value: str, expected: list[str]) -> None:
    assert service(f"x-machines: {value}").placement.machines == expected


def test_placement_update_and_tolerations() -> None:
    found = service("""
        deploy:
          placement:
            constraints: [node.hostname == m1, "node.labels.zone!=b", node.platform.arch == amd64]
            preferences: [{spread: node.labels.rack}]
            max_replicas_per_node: 2
          update_config: {parallelism: 2, delay: 5s, order: start-first, monitor: 30s, failure_action: pause}
        x-farmd: {min_healthy_time: 10s, deadline: 5m, tolerations: [{key: gpu}]}
    """)
    assert found.placement.constraints == [
        Constraint("hostname", "=", ["m1"]),
        Constraint("zone", "!=", ["b"]),
        Constraint("arch", "=", ["amd64"]),
    ]
    assert (found.placement.spread, found.placement.max_per_node) == ([Spread("rack")], 2)
    assert found.placement.tolerations == [Toleration("gpu")]
    update = found.update
    assert (update.parallelism, update.delay, update.order, update.monitor) == (2, 5.0, "start-first", 30.0)
    assert (update.on_failure, update.min_healthy_time, update.deadline) == ("pause", 10.0, 300.0)


@pytest.mark.parametrize(
    ("monitor", "expected"), [("", None), ("parallelism: 1", None), ("monitor: 0s", 0.0)]
)
def test_the_monitor_is_kept_as_it_is_said(monitor: str, expected: float | None) -> None:
    assert service(f"deploy: {{update_config: {{{monitor}}}}}").update.monitor == expected
