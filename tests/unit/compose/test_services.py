"""What each key of a compose service becomes: uncloud's vectors, and the forms of the specification.

Where they differ: ports are published on each machine instead of an ingress, relative binds are refused
unless they are small files, secrets are external alone, and an absent count of replicas is 1.
"""

from __future__ import annotations

from typing import Any

import pytest

from farmd.compose.mounts import unnamed
from farmd.deploy import port_spec
from farmd.deploy.model import (
    BindOptions,
    ConfigSpec,
    Device,
    DeviceReservation,
    FileMount,
    Hook,
    LogDriver,
    Resources,
    TmpfsOptions,
    Ulimit,
    VolumeDriver,
    VolumeMount,
    VolumeOptions,
    VolumeSpec,
)
from store.errors import InputInvalid
from store.manifests import Constraint, HealthCheck, Restart, Spread, Stop, Toleration
from tests.unit.compose.disk import project, service

GIB = 1024**3

NETWORKS = """
networks:
  back: {name: back-end, driver: bridge}
  proxy: {external: true}
  old: {external: {name: elsewhere}}
"""
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
        ("x-ports: [8080, '53:53/udp@host']", "8080/tcp 53:53/udp@host"),
        ("image: a", ""),
    ],
)
def test_ports(keys: str, expected: str) -> None:
    assert " ".join(map(port_spec.text, service(keys, env={"P": "9000"}).ports)) == expected


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


VOLUMES = """
volumes:
  data:
  named: {name: own}
  there: {external: true}
  old: {external: {name: elsewhere}}
  opts: {driver_opts: {type: nfs}}
  driver: {driver: custom, driver_opts: {a: 1}, labels: [x=y]}
"""


@pytest.mark.parametrize(
    ("entry", "volume"),
    [
        ("data:/x", VolumeOptions(name="shop_data")),
        ("named:/x", VolumeOptions(name="own")),
        ("there:/x", VolumeOptions(name="there")),
        ("old:/x", VolumeOptions(name="elsewhere")),
        ("opts:/x", VolumeOptions(name="shop_opts", driver=VolumeDriver("", {"type": "nfs"}))),
        (
            "driver:/x",
            VolumeOptions(name="shop_driver", driver=VolumeDriver("custom", {"a": "1"}), labels={"x": "y"}),
        ),
        ("data:/x:nocopy", VolumeOptions(name="shop_data", no_copy=True)),
    ],
)
def test_named_volumes(entry: str, volume: VolumeOptions) -> None:
    found = service(f"volumes: ['{entry}']", VOLUMES)
    assert found.volumes == [VolumeSpec(name=volume.name, volume=volume)]
    assert found.container.mounts == [VolumeMount(volume=volume.name, path="/x")]


def test_folders_memory_and_files_that_travel() -> None:
    found = service(
        """
        volumes:
          - /srv/data:/data:ro
          - {type: bind, source: /dev, target: /dev2, bind: {create_host_path: false, propagation: rshared}}
          - {type: tmpfs, target: /cache, tmpfs: {size: 64m, mode: 0o1777}}
          - ./nginx.conf:/etc/nginx.conf:ro
        tmpfs: /run:size=1m
        """,
        files={"nginx.conf": "server {}"},
    )
    assert found.volumes == [
        VolumeSpec(
            name=unnamed("bind", "/data"),
            type="bind",
            bind=BindOptions(host_path="/srv/data", create_host_path=True),
        ),
        VolumeSpec(
            name=unnamed("bind", "/dev2"),
            type="bind",
            bind=BindOptions(host_path="/dev", propagation="rshared"),
        ),
        VolumeSpec(
            name=unnamed("tmpfs", "/cache"), type="tmpfs", tmpfs=TmpfsOptions(size=64 * 1024**2, mode=0o1777)
        ),
        VolumeSpec(name=unnamed("tmpfs", "/run"), type="tmpfs", tmpfs=TmpfsOptions(size=1024**2)),
    ]
    assert [mount.read_only for mount in found.container.mounts] == [True, False, False, False]
    assert found.configs == [ConfigSpec(name="/etc/nginx.conf", content="server {}")]
    assert found.container.configs == [FileMount(name="/etc/nginx.conf", path="/etc/nginx.conf")]


def test_one_file_and_one_volume_are_seen_in_several_places() -> None:
    found = service(
        """
        volumes:
          - ./f:/a:ro
          - ./f:/b:ro
          - {type: volume, source: data, target: /x, volume: {subpath: x}}
          - {type: volume, source: data, target: /y, volume: {subpath: y}}
        tmpfs: ["/run:ro,noexec,mode=0700"]
        """,
        VOLUMES,
        files={"f": "text"},
    )
    assert [(each.name, each.content) for each in found.configs] == [("/a", "text"), ("/b", "text")]
    assert [each.path for each in found.container.configs] == ["/a", "/b"]
    assert {each.volume.subpath for each in found.volumes if each.volume} == {"x", "y"}
    assert [(mount.path, mount.read_only) for mount in found.container.mounts] == [
        ("/x", False),
        ("/y", False),
        ("/run", True),
    ]


def test_configs_and_secrets() -> None:
    found = service(
        """
        configs: [inline, {source: file, target: /etc/f, uid: 1000, gid: "5", mode: 0440}, env]
        secrets: [key, {source: other, target: x.pem}]
        """,
        """
        configs:
          inline: {content: "a $B"}
          file: {file: ./f.conf}
          env: {environment: B}
        secrets:
          key: {external: true}
          other: {external: true, name: real}
        """,
        files={"f.conf": "f"},
        env={"B": "b"},
    )
    assert found.configs == [
        ConfigSpec(name="inline", content="a b"),
        ConfigSpec(name="file", content="f"),
        ConfigSpec(name="env", content="b"),
    ]
    assert found.container.configs == [
        FileMount(name="inline", path="/inline"),
        FileMount(name="file", path="/etc/f", uid="1000", gid="5", mode=0o440),
        FileMount(name="env", path="/env"),
    ]
    assert found.container.secrets == [
        FileMount(name="key", path="/run/secrets/key"),
        FileMount(name="real", path="/run/secrets/x.pem"),
    ]


def test_extends_takes_what_another_service_says() -> None:
    found = project(
        """
        services:
          base: {image: a, environment: {A: 1, B: 1}, command: [x], ports: [80]}
          web:
            extends: base
            environment: {B: 2}
            ports: [81]
          far: {extends: {file: lib/common.yaml, service: far}, command: [y]}
        """,
        files={
            "lib/common.yaml": "services: {far: {extends: root, env_file: f.env}, root: {image: b}}",
            "lib/f.env": "X=1",
        },
    ).services
    web, far = found["web"].container, found["far"].container
    assert (web.image, web.env, web.command) == ("a", {"A": "1", "B": "2"}, ["x"])
    assert [port.container for port in found["web"].ports] == [80, 81]
    assert (far.image, far.env, far.command) == ("b", {"X": "1"}, ["y"])


PROFILES = """
services:
  web: {image: a, depends_on: {db: {condition: service_healthy}}}
  db: {image: a}
  debug: {image: a, profiles: [dev], depends_on: {seed: {condition: service_completed_successfully}}}
  seed: {image: a, profiles: [dev, seed], restart: "no"}
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["db", "web"]),
        ({"profiles": ["dev"]}, ["db", "debug", "seed", "web"]),
        ({"profiles": ["*"]}, ["db", "debug", "seed", "web"]),
        ({"services": ["debug"]}, ["debug", "seed"]),
        ({"services": ["web"]}, ["db", "web"]),
    ],
)
def test_profiles_and_named_services(options: dict[str, Any], expected: list[str]) -> None:
    assert sorted(project(PROFILES, **options).services) == expected


JOB = (
    "services: {a: {image: x, depends_on: {b: {condition: service_completed_successfully}}}, b: {image: y%s}}"
)


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ("", "never"),
        (", restart: on-failure", "on-failure"),
        (", deploy: {restart_policy: {condition: none}}", "never"),
    ],
)
def test_what_another_service_waits_to_complete_is_not_started_again(keys: str, policy: str) -> None:
    found = project(JOB % keys).services
    assert (found["b"].container.restart.policy, found["a"].container.restart.policy) == (policy, "always")


@pytest.mark.parametrize("keys", ["restart: always", "deploy: {restart_policy: {condition: any}}"])
def test_what_never_ends_cannot_be_waited_for(keys: str) -> None:
    expected = (
        r"services\.b\.restart: found 'always', expected no or on-failure: a waits until it has completed"
    )
    with pytest.raises(InputInvalid, match=expected):
        project(JOB % f", {keys}")


def test_what_comes_before_a_service_and_what_it_must_be() -> None:
    assert project(PROFILES, profiles=["dev"]).after == {
        "web": {"db": "healthy"},
        "db": {},
        "debug": {"seed": "completed"},
        "seed": {},
    }


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("services: {a: {image: x}, b: {image: x}}", True),
        ("services: {a: {image: x}}", False),
        ("services: {a: {image: x, scale: 2}, b: {image: x}}", False),
        ("services: {a: {image: x, deploy: {mode: global}}, b: {image: x}}", False),
        ("services: {a: {image: x}, b: {image: x}}\nx-farmd: {together: false}", False),
    ],
)
def test_a_project_of_single_pods_stands_together(text: str, together: bool) -> None:
    assert project(text).together == together


def test_the_projects_name_is_said_or_that_of_the_folder() -> None:
    text = "services: {a: {image: x}}"
    assert project(text, name="").name == "shop"
    assert project(f"name: other\n{text}", name="").name == "other"
    assert project(f"name: other\n{text}", name="", env={"COMPOSE_PROJECT_NAME": "env"}).name == "env"
    assert project(f"name: other\n{text}", name="flag").name == "flag"


def test_a_name_that_cannot_be_is_not_laid_to_the_file() -> None:
    with pytest.raises(InputInvalid, match=r"^shop/0\.yaml: project's name: found 'A B', expected 1 to 63"):
        project("name: other\nservices: {a: {image: x}}", name="A B")


def test_a_profile_that_no_service_has_is_warned_of() -> None:
    assert project(PROFILES, profiles=["dev", "*"]).warnings == ()
    assert project(PROFILES, profiles=["dve"]).warnings == ("no service has the profile 'dve'",)


def test_a_prefix_keeps_the_services_of_two_projects_apart() -> None:
    found = project("services: {a: {image: x, depends_on: [b]}, b: {image: x}}\nx-farmd: {prefix: blog-}")
    assert found.after == {"blog-a": {"blog-b": "started"}, "blog-b": {}}
    assert found.services["blog-a"].container.networks == {"shop_default": ["a"]}


FAR = "services:\n  web:\n    extends: {file: lib/common.yaml, service: far}\n    command: [y]\n"


def test_an_unset_variable_is_warned_of_in_the_file_that_names_it() -> None:
    found = project(FAR, files={"lib/common.yaml": "services:\n  far:\n    image: x\n    user: $ID\n"})
    assert found.warnings == (
        "shop/lib/common.yaml: line 4: services.far.user: variable ID is not set, so it is empty",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "services:\n  far:\n    image: x\n    ports: ['80:x']\n",
            "line 4: services.web.ports[0].target: found 'x'",
        ),
        ("services:\n  far:\n    image: x\n    bogus: 1\n", "line 4: services.web.bogus: unknown key"),
        ("services:\n  far:\n    image: [\n", "not YAML: "),
        ("services:\n  far:\n    image: ${A:?}\n", "line 3: services.far.image: variable A has no value"),
    ],
)
def test_an_error_in_an_extended_service_names_the_file_and_the_line_that_have_it(
    text: str, message: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        project(FAR, files={"lib/common.yaml": text})
    assert refused.value.message.startswith(f"shop/lib/common.yaml: {message}")


def test_unset_variables_are_warned_of_once() -> None:
    found = project("services: {a: {image: 'x:${TAG}1', hostname: 'h${TAG}'}}")
    assert found.warnings == (
        "shop/0.yaml: line 1: services.a.image: variable TAG is not set, so it is empty",
    )
