"""Broken compose files: each is refused in one line that names the place, and none ends in a traceback."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farmd.compose import schema
from farmd.deploy.project import ordered
from store.errors import InputInvalid
from tests.unit.compose.disk import project, resolved

DOCUMENTS: dict[str, tuple[str, str]] = {
    "empty": ("", "found no document"),
    "text": ("hello", "found 'hello', expected a mapping with services"),
    "list": ("- a", "found a list, expected a mapping"),
    "not YAML": ("services: {web: [}", "not YAML"),
    "tab": ("services:\n\tweb: a", "not YAML"),
    "unknown tag": ("services: {a: !python/object:os.system {}}", "not YAML"),
    "alias of nothing": ("services: {a: *b}", "the alias *b"),
    "number as key": ("services: {1: {image: x}}", "found the key 1, expected text"),
    "no services": ("volumes: {a: }", "services: found nothing, expected at least one service"),
    "services a list": ("services: [a]", "services: found a list, expected at least one service"),
    "service a text": ("services: {a: nginx}", "services.a: found 'nginx', expected a mapping with image"),
    "unlike any key": (
        "services: {a: {image: x, replcas: 3}}",
        "a.replcas: unknown key, expected one of 100, such as",
    ),
    "no image": ("services: {a: {command: x}}", "services.a.image: missing"),
    "build alone": ("services: {a: {build: .}}", "a.image: missing, expected an image: farmd builds none"),
    "bad image": ("services: {a: {image: 'A B'}}", "services.a: image: found 'A B', expected an image"),
    "bad name": ("services: {A b: {image: x}}", "services: found 'A b', expected letters, digits"),
    "names that meet": (
        "services: {a_b: {image: x}, a-b: {image: x}}",
        "services: found 'a-b' and 'a_b', which both become 'a-b'; rename one",
    ),
    "bad project": ("name: A b\nservices: {a: {image: x}}", "name: found 'A b', expected 1 to 63"),
    "unset": (
        "services: {a: {image: 'x:${TAG:?tell the version}'}}",
        "services.a.image: variable TAG has no value: tell the version",
    ),
    "unset in a file": (
        "services: {a: {image: '${TAG?}'}}",
        "shop/0.yaml: line 1: services.a.image: variable TAG",
    ),
    "deep template": (
        "services: {a: {image: '" + "${A:-" * 90_000 + "}" * 90_000 + "'}}",
        "services.a.image: found variables in more than 20 levels",
    ),
    "long number": (f"services: {{a: {{image: x, mem_limit: '{'9' * 999}g'}}}}", "9…, expected a size"),
    "long time": (f"services: {{a: {{image: x, stop_grace_period: '{'9' * 999}h'}}}}", "9…, expected a time"),
    "long name": (f"services: {{{'a' * 999}: {{image: x}}}}", "a…, expected 1 to 63"),
    "nothing as key": ("services: {~: {image: x}}", "found the key nothing, expected text"),
    "long chain of extends": (
        "services: {s0: {image: x}" + "".join(f", s{n}: {{extends: s{n - 1}}}" for n in range(1, 900)) + "}",
        "extends: found more than 64 services in one chain",
    ),
    "bad template": ("services: {a: {image: '${}'}}", "services.a.image: found '${}', expected variables"),
    "circle": ("services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [a]}}", "a -> b -> a"),
    "unknown dependency": (
        "services: {a: {image: x, depends_on: [bb]}, b: {image: x}}",
        "depends_on.bb: found none of the services that are deployed, did you mean 'b'?",
    ),
    "condition": (
        "services: {a: {image: x, depends_on: {b: {condition: healthy}}}, b: {image: x}}",
        "condition: found 'healthy', did you mean 'service_healthy'?",
    ),
    "long circle": (
        "services: {"
        + ", ".join(f"s{n}: {{image: x, depends_on: [s{(n + 1) % 200}]}}" for n in range(200))
        + "}",
        "depends_on forms a cycle: ",
    ),
    "values": ("services: {a: {image: x, command: [" + "a, " * 50_000 + "]}}", "more than 50000 values"),
    "many services": (
        "services: {" + "".join(f"s{n}: {{image: x}}, " for n in range(1001)) + "}",
        "line 1: services: found 1001 of them, expected at most 1000",
    ),
    "many active services": (
        "services: {" + "".join(f"s{n}: {{image: x}}, " for n in range(201)) + "}",
        "line 1: services: found 201 that are active, expected at most 200",
    ),
    "a long command": (
        "services: {a: {image: x, command: '" + "x" * 200_000 + "'}}",
        "services.a.command: found 200000 characters, expected at most 32768, or a list of words",
    ),
    "extends circle": ("services: {a: {extends: b}, b: {extends: a}}", "forms a cycle: a -> b -> a"),
    "extends nothing": ("services: {a: {extends: webb}, web: {image: x}}", "did you mean 'web'?"),
    "extends a list": ("services: {a: {extends: [b]}}", "services.a.extends: found a list"),
    "extends file": (
        "services: {a: {extends: {file: none.yaml, service: b}}}",
        "line 1: services.a.extends: found no file shop/none.yaml",
    ),
    "empty config": ("services: {a: {image: x, configs: [c]}}\nconfigs: {c: }", "expected file, content or"),
    "config file": ("services: {a: {image: x, configs: [c]}}\nconfigs: {c: {file: f}}", "no such file"),
    "config variable": (
        "services: {a: {image: x, configs: [c]}}\nconfigs: {c: {environment: NONE}}",
        "that is set",
    ),
    "secret file": (
        "services: {a: {image: x, secrets: [s]}}\nsecrets: {s: {file: f}}",
        "under /etc/farmd/secrets",
    ),
    "secret not external": ("services: {a: {image: x, secrets: [s]}}\nsecrets: {s: }", "external: true"),
    "sealed secret's version": (
        "services: {a: {image: x, secrets: [s]}}\nsecrets: {s: {external: true, name: shop/db@x}}",
        "line 2: secrets.s.name: found 'shop/db@x', expected NAME or NAME@VERSION",
    ),
    "external config's key": (
        "services: {a: {image: x, configs: [c]}}\nconfigs: {c: {external: true, name: a b}}",
        "line 2: configs.c.name: found 'a b', expected names of letters",
    ),
    "external volume": (
        "services: {a: {image: x}}\nvolumes: {v: {external: maybe}}",
        "volumes.v.external: found 'maybe'",
    ),
    "options of an external volume": (
        "services: {a: {image: x, volumes: ['v:/x']}}\nvolumes: {v: {external: true, driver: local}}",
        "line 2: volumes.v: found 'options of a new volume', expected none beside external",
    ),
    "extends of a file without services": (
        "services: {a: {extends: {file: list.yaml, service: b}}}",
        "services.a.extends: found service 'b' of shop/list.yaml, which has no services",
    ),
    "project": ("name: A B\nservices: {a: {image: x}}", "name: found 'A B', expected 1 to 63"),
}

# keys of a service that has an image
SERVICES: dict[str, tuple[str, str]] = {
    "twice": ("image: y", "image: found twice"),
    "port": ("ports: ['80:x']", "services.a.ports[0].target: found 'x'"),
    "port range": ("ports: ['8000-9000:80']", "expected as many published ports as ports of the container"),
    "range backwards": ("ports: ['9000-8000']", "expected a range that ends above its start"),
    "published range": ("ports: [{target: 80, published: 8000-9000}]", "8000-9000"),
    "port too high": ("ports: ['99999:80']", "services.a.ports: published port"),
    "port without target": ("ports: [{published: 80}]", "ports[0].target: missing"),
    "bad address": (
        "ports: ['1.2.3:80:80']",
        "services.a.ports: host address: found '1.2.3', expected an IP address",
    ),
    "ports twice": ("ports: ['80:80', '80:81']", "expected each published port once"),
    "ports and x-ports": ("ports: [80], x-ports: [81]", "expected none beside ports"),
    "consul without ports": ("x-consul: {}", "services.a.x-consul: found a service without ports, expected"),
    "consul name": ("ports: [80], x-consul: {name: a.b}", "x-consul.name: found 'a.b', expected 1 to 63"),
    "consul meta": ("ports: [80], x-consul: {meta: {owner: x}}", "x-consul.meta: found the key 'owner'"),
    "consul key": ("ports: [80], x-consul: {tag: x}", "x-consul.tag: unknown key, did you mean 'tags'?"),
    "consul text": ("ports: [80], x-consul: web", "services.a.x-consul: found 'web', expected a mapping"),
    "http": ("x-ports: [a.example.com:80/http]", "expected tcp or udp: a proxy"),
    "relative bind": ("volumes: ['./data:/data']", "services.a.volumes[0]: found './data'"),
    "home": ("volumes: ['~/x:/x:ro']", "found '~/x', expected an absolute path"),
    "unnamed volume": ("volumes: [/data]", "anonymous volumes"),
    "unknown volume": ("volumes: ['data:/x']", "expected a volume of the file (it has none)"),
    "mount option": ("volumes: ['/a:/x:rx']", "expected an option such as ro"),
    "mount target": ("volumes: ['/a:x']", "found 'x', expected an absolute path"),
    "mount type": ("volumes: [{type: npipe, source: a, target: /x}]", "found 'npipe'"),
    "tmpfs size": ("tmpfs: '/x:size=big'", "services.a.tmpfs[0]: found 'big'"),
    "unknown config": ("configs: [c]", "expected a config of the file"),
    "unknown secret": ("secrets: [s]", "expected a secret of the file"),
    "replicas": ("deploy: {replicas: many}", "deploy.replicas: found 'many', expected a whole"),
    "less than none": ("deploy: {replicas: -1}", "replicas"),
    "mode": ("deploy: {mode: globl}", "deploy.mode: found 'globl', did you mean 'global'?"),
    "job": ("deploy: {mode: replicated-job}", "deploy.mode: found 'replicated-job'"),
    "order": ("deploy: {update_config: {order: first}}", "order: found 'first'"),
    "continue": ("deploy: {update_config: {failure_action: continue}}", "found 'continue'"),
    "log driver": ("logging: {driver: gelf}", "logging.driver: found 'gelf'"),
    "no output": ("logging: {driver: none}", "logging.driver: found 'none'"),
    "log option": (
        "logging: {options: {syslog-address: 'udp://a:514'}}",
        "logging.options: found 'syslog-address', expected max-size and max-file",
    ),
    "no syslog address": ("logging: {driver: syslog}", "syslog-address: found '', expected udp://HOST"),
    "local syslog": (
        "logging: {driver: syslog, options: {syslog-address: 'unixgram:///dev/log'}}",
        "found 'unixgram:///dev/log', expected udp://HOST:PORT",
    ),
    "syslog port": (
        "logging: {driver: syslog, options: {syslog-address: 'tcp://a:70000'}}",
        "found 'tcp://a:70000', expected udp://HOST:PORT",
    ),
    "syslog certificates": (
        "logging: {driver: syslog, options: {syslog-address: 'tcp+tls://a', syslog-tls-ca-cert: /ca.pem}}",
        "found 'syslog-tls-ca-cert', expected none: agent.log_ca",
    ),
    "restart": ("restart: alway", "restart: found 'alway', did you mean 'always'?"),
    "pull": ("pull_policy: dayly", "pull_policy: found 'dayly'"),
    "size": ("mem_limit: 1 apple", "mem_limit: found '1 apple', expected a size"),
    "time": ("stop_grace_period: soon", "stop_grace_period: found 'soon'"),
    "cpus": ("cpus: two", "cpus: found 'two', expected a number"),
    "flag": ("init: maybe", "init: found 'maybe', expected true or false"),
    "quote": ('command: "echo \'a"', "expected words with closed quotes"),
    "command": ("command: {a: b}", "command: found a mapping"),
    "environment": ("environment: [{A: 1}]", "environment: found a mapping, expected text"),
    "env_file": ("env_file: none.env", "none.env: no such file"),
    "health": ("healthcheck: {test: [curl]}", "begins with CMD or CMD-SHELL"),
    "network": ("networks: [back]", "expected a network of the file (default)"),
    "network mode": ("network_mode: 'service:b'", "expected host, none or bridge"),
    "host and networks": ("network_mode: host, networks: [default]", "none beside"),
    "constraint": (
        "deploy: {placement: {constraints: [node.role == manager]}}",
        "found 'node.role == manager', expected a rule such as",
    ),
    "machines": ("x-machines: 'm1,,m2'", "expected names of machines, none empty"),
    "gpus": ("gpus: some", "services.a.gpus: found 'some'"),
    "hook": ("x-pre_deploy: {timeout: 5s}", "x-pre_deploy.command: missing"),
    "empty hook": ("x-pre_deploy: ''", "pre_deploy.command: found an empty list"),
    "hook key": ("x-pre_deploy: {command: a, comand: b}", "did you mean 'command'?"),
    "x-farmd": ("x-farmd: {onlost: wait}", "x-farmd.onlost: unknown key, did you mean"),
    "together of a service": ("x-farmd: {together: true}", "set it in x-farmd at the top"),
    "two counts": ("scale: 2, deploy: {replicas: 3}", "scale: found 2, expected as in deploy.replicas (3)"),
    "two limits": (
        "mem_limit: 1g, deploy: {resources: {limits: {memory: 2g}}}",
        "mem_limit: found 1073741824, expected as in deploy.resources.limits.memory (2147483648), or neither",
    ),
    "replicas of a global service": (
        "deploy: {mode: global, replicas: 2}",
        "deploy.replicas: found 2, expected none with mode global",
    ),
    "count of restarts": ("restart: 'always:3'", "restart: found 'always:3'"),
    "tmpfs option": ("tmpfs: '/x:sise=1m'", "tmpfs[0]: found 'sise', expected size, mode, or ro"),
    "a mapping for a list": ("env_file: {path: a}", "env_file: found a mapping, expected a list"),
    "protocol of a port": ("ports: ['80/']", "ports[0]: found '80/', expected a port such as"),
    "on_lost": ("x-farmd: {on_lost: run}", "x-farmd.on_lost: found 'run'"),
}
BROKEN = DOCUMENTS | {
    name: (f"services: {{a: {{image: x, {keys}}}}}", expected) for name, (keys, expected) in SERVICES.items()
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_names_the_place(name: str) -> None:
    text, expected = BROKEN[name]
    with pytest.raises(InputInvalid) as caught:
        project(text, name="" if name.endswith("project") else "shop", files={"list.yaml": "services: [a]"})
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_an_error_names_the_line_of_the_file_that_has_the_key() -> None:
    base = """
        services:
          web:
            image: x
            environment: {A: 1}
            healthcheck:
              test: [CMD, "true"]
              retries: many
          db: {image: y}
    """
    over = """
        x-common: &common
          restart: alway
        services:
          db:
            <<: *common
            labels: [a]
    """
    for texts, expected in (
        ((base,), "shop/0.yaml: line 8: services.web.healthcheck.retries: found 'many'"),
        ((base.replace("many", "3"), over), "shop/1.yaml: line 3: services.db.restart: found 'alway'"),
        ((base.replace("web", "w_b"), over), "shop/0.yaml: line 8: services.w_b.healthcheck.retries"),
    ):
        with pytest.raises(InputInvalid) as caught:
            project(*texts)
        assert caught.value.message.startswith(expected)


KEYS = st.sampled_from(sorted(schema.Service.__struct_encode_fields__))
ANY = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 1.5, "", "a", "80:80", "/x:/y", "A=1", "$", "${A:-b}", "./f", "1g", "5s"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["a", "test", "target", "source", "limits", "image", "external"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=5,
)


@given(
    st.dictionaries(KEYS, ANY, max_size=4),
    st.dictionaries(
        st.sampled_from(["volumes", "configs", "secrets", "networks", "x-farmd", "name"]), ANY, max_size=2
    ),
)
def test_no_document_ends_in_a_traceback(keys: dict[str, Any], top: dict[str, Any]) -> None:
    documents = [{"services": {"a": {"image": "x"} | keys, "b": keys}, **top}, {"services": {"a": keys}}]
    with contextlib.suppress(InputInvalid):
        resolved(project(*map(yaml.safe_dump, documents)))


@given(st.text(alphabet="{}[]:,-!&*<| \nab'\"$%#?>@0=~", max_size=60))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    with contextlib.suppress(InputInvalid):
        project(text)
    with contextlib.suppress(InputInvalid):
        project(f"services:\n  a: {{image: x, {text}}}")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("sysctls: {Bad: 1}", "services.a: container.sysctls: found 'Bad'"),
        ("volumes: ['/a:/x', '/b:/x/']", "services.a: mounts: found '/x/', expected a path of its own"),
        ("devices: [/etc/passwd]", "services.a: container.devices[0].host: found '/etc/passwd'"),
        ("mem_limit: 1m", "services.a: limits.memory: found 1048576"),
        ("environment: {FARMD_X: 1}", "services.a: env: found 'FARMD_X'"),
        ("healthcheck: {test: a, timeout: 40d, interval: 99999d}", "services.a: health.interval"),
        ("stop_signal: SIGNO", "services.a: stop.signal: found 'NO'"),
        ("x-farmd: {tolerations: [{key: ''}]}", "services.a: placement.tolerations[0]"),
    ],
)
def test_what_no_agent_takes_is_refused_before_it_is_planned(keys: str, expected: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        project(f"services: {{a: {{image: x, {keys}}}}}")
    assert caught.value.message.startswith(f"shop/0.yaml: line 1: {expected}")


def test_a_long_chain_of_dependencies_is_planned_from_its_end() -> None:
    chain = ", ".join(f"s{n:04}: {{image: x, depends_on: [s{n + 1:04}]}}" for n in range(199))
    found = project(f"services: {{{chain}, s0199: {{image: x}}}}")
    assert ordered(found.services, found.after) == sorted(found.services, reverse=True)
