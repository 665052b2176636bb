"""A fleet in which every connection is mutual TLS: Consul's, which denies by default, and our own HTTP."""

from __future__ import annotations

import asyncio
import json
import runpy
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farmd.commands.mutation import Call
from farmd.runtime.clock import SystemClock, SystemIds
from farmd.services.commands import Farms
from farmd.services.endpoints import Endpoint
from store.keys import Keys
from tests import prometheus
from tests.certificates import authority, caller, issue
from tests.credentials import mend
from tests.farmctl import ROOT
from tests.fleet import LIMIT
from tests.guarded import NODES, AsRole, Guarded, guarded_consul
from tests.ports import free_ports
from tests.processes import Program, eventually, get, stopped_at_the_end

pytestmark = pytest.mark.xdist_group("access")

HERE = "DNS:localhost,IP:127.0.0.1"
HELLO = (
    "{name: hello, replicas: 1, min_healthy_time: 0,"
    " pod: {id: hello, ports: {http: {}}, stop: {grace: 1},"
    " command: [sh, -c, 'echo i was heard; sleep 1000']}}"
)
SCRAPES = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: farmd
    scheme: https
    tls_config: {{ca_file: {pki}/ca.pem, cert_file: {pki}/person.pem, key_file: {pki}/person.key}}
    static_configs: [{{targets: ["{farm}", "{agent}"]}}]
"""
Start = Callable[..., Program]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One authority, and a certificate of Consul, of each process, and of a person."""
    folder = tmp_path_factory.mktemp("pki")
    authority(folder)
    for name in ("consul", "farm", "agent", "person", "successor"):
        issue(folder, name, HERE)
    return folder


@pytest.fixture(scope="module")
def secure(pki: Path) -> int:
    """Consul's port for HTTPS."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def guarded(pki: Path, secure: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    files = {"ca_file": "ca.pem", "cert_file": "consul.pem", "key_file": "consul.key"}
    more = {name: str(pki / path) for name, path in files.items()}
    config = {"ports": {"https": secure}, "verify_incoming_https": True, **more}
    with guarded_consul(tmp_path_factory.mktemp("acl"), key_list_policy=True, more=config) as made:
        yield made


def shown(pki: Path, name: str, word: str) -> dict[str, str]:
    """The variables that name a certificate and its authority."""
    files = {"CACERT": "ca.pem", "CLIENT_CERT": f"{name}.pem", "CLIENT_KEY": f"{name}.key"}
    return {f"{word}_{variable}": str(pki / path) for variable, path in files.items()}


def web(folder: Path, name: str, pki: Path) -> dict[str, str]:
    """The variables of a process that serves with a certificate of a folder."""
    files = {
        "TLS_CERT": folder / f"{name}.pem",
        "TLS_KEY": folder / f"{name}.key",
        "CLIENT_CA": pki / "ca.pem",
    }
    return {f"FARMD_WEB__{key}": str(path) for key, path in files.items()}


@pytest.fixture
def start(guarded: Guarded, pki: Path, secure: int, tmp_path: Path) -> Iterator[Start]:
    """Start a farm or an agent with its own certificate; workloads end with the test."""
    with stopped_at_the_end() as running:

        def begin(program: str, role: str, certificate: str, **variables: str) -> Program:
            for end in ("pem", "key"):
                mend(tmp_path / f"{certificate}.{end}", (pki / f"{certificate}.{end}").read_bytes())
            known = {
                "CONSUL_HTTP_ADDR": f"https://127.0.0.1:{secure}",
                "CONSUL_HTTP_TOKEN_FILE": str(guarded.token_file(role)),
                "FARMD_AGENT__STATE_DIR": str(tmp_path / "state"),
                "FARMD_AGENT__STOP_WORKLOADS_ON_EXIT": "true",
                "FARMD_AGENT__NODE": NODES[0],
                "FARMD_AGENT__SHARE_USER": "true",
                "FARMD_FARM__NAME": "farm-1",
                **web(tmp_path, certificate, pki),
                **shown(pki, certificate, "CONSUL"),
                **variables,
            }
            running.append(Program(program, "--port", "0", folder=tmp_path, **known))
            return running[-1]

        yield begin


@pytest.fixture
def farmctl(guarded: Guarded, pki: Path, secure: int) -> AsRole:
    """An operator's, over mutual TLS to Consul; of farms and agents it knows nothing."""
    token = guarded.token_file("operator")
    variables = shown(pki, "person", "CONSUL")
    return AsRole(f"https://127.0.0.1:{secure}", token_file=token, variables=variables)


def serial(port: int, pki: Path) -> str:
    """The number of the certificate that a process shows to a new caller."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as plain,
        caller(pki, "person").wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found = secure.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


def health(role: str, port: int, tmp_path: Path, pki: Path) -> tuple[int, str]:
    """What a container's health check says, which has the variables of the process itself."""
    told = subprocess.run(
        [sys.executable, "-m", "farmd", "health", role, "--port", str(port)],
        env={"FARMD_CONFIG": str(tmp_path / "farmd.toml"), **web(tmp_path, role, pki)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return told.returncode, told.stdout + told.stderr


async def polled(guarded: Guarded, pki: Path) -> tuple[Endpoint, ...] | None:
    """The endpoints of ``front`` as a farm tells them to one who watches."""
    client = guarded.client("reader")
    try:
        call = Call(client, Keys(), SystemClock(), SystemIds(), "user/test@here")
        return await Farms(call, caller(pki, "person")).wait("front")
    finally:
        await client.close()


def scraped(scraping: prometheus.Server) -> list[int]:
    """Whether Prometheus reached its targets: 1 for each that it did."""
    found = json.loads(get(f"{scraping.url}/api/v1/query?query=up")[1])["data"]["result"]
    return [int(each["value"][1]) for each in found]


def test_whoever_calls_our_http_does_so_over_mutual_tls(
    guarded: Guarded, start: Start, farmctl: AsRole, pki: Path, tmp_path: Path
) -> None:
    farm, agent = start("run", "farm", "farm"), start("agent", f"agent-{NODES[0]}", "agent")
    ports = {
        role: each.wait_for("web.listening", tls=True)["port"]
        for role, each in (("farm", farm), ("agent", agent))
    }
    for each in (farm, agent):
        each.wait_for("process.ready")
    for line, text in (
        ("rc create -f - --wait --timeout 150s", HELLO),
        ("service create front --port http rc/hello", ""),
    ):
        done = farmctl(*line.split(), stdin=text)
        assert done.code == 0, done

    blind = farmctl("rc", "logs", "hello")
    assert (blind.code, blind.err.count("certificate is refused")) == (7, 1), blind
    assert "FARMCTL_CACERT" in blind.err
    person = replace(farmctl, variables={**farmctl.variables, **shown(pki, "person", "FARMCTL")})
    process = replace(person, inside=False)
    eventually("the output", lambda: "i was heard" in process("rc", "logs", "hello").out)

    bundle = tmp_path / "bundle.tar.gz"
    assert person("debug", "bundle", str(bundle)).code == 0
    with tarfile.open(bundle) as archive:
        assert "bundle/farms/farm-1/metrics" in archive.getnames()

    for role, port in ports.items():
        assert health(role, port, tmp_path, pki) == (0, "ok\n")

    assert [each.instance for each in asyncio.run(polled(guarded, pki)) or ()] == ["hello"]

    router = runpy.run_path(str(ROOT / "examples/nginx/upstream.py"))
    tls = router["trusting"](*(str(pki / name) for name in ("ca.pem", "person.pem", "person.key")))
    assert len(router["asked"](f"https://localhost:{ports['farm']}", "front", 0, tls)[1]) == 1

    scraping = prometheus.Server()
    targets = {role: f"localhost:{port}" for role, port in ports.items()}
    (scraping.folder / "prometheus.yml").write_text(SCRAPES.format(pki=pki, **targets))
    with scraping:
        eventually("both scraped", lambda: scraped(scraping) == [1, 1])


def test_a_reload_takes_a_good_pair_and_keeps_the_old_one_instead_of_a_bad_one(
    start: Start, pki: Path, tmp_path: Path
) -> None:
    farm = start("run", "farm", "farm")
    port = farm.wait_for("web.listening", tls=True)["port"]
    before = serial(port, pki)
    mend(tmp_path / "farm.key", (pki / "successor.key").read_bytes())
    farm.signal(signal.SIGHUP)
    told = farm.wait_for("credential.invalid")
    assert told["error"].startswith("web.tls_cert: ")
    assert (told["until_mended"], serial(port, pki)) == ("the last good one stays in use", before)
    mend(tmp_path / "farm.pem", (pki / "successor.pem").read_bytes())
    farm.signal(signal.SIGHUP)
    farm.wait_for("credential.good_again")
    assert serial(port, pki) != before


def test_a_key_that_does_not_fit_is_one_line_of_check_config_and_at_the_start(
    start: Start, pki: Path, tmp_path: Path
) -> None:
    variables = web(pki, "farm", pki) | {"FARMD_WEB__TLS_KEY": str(pki / "successor.key")}
    wrong = f"'{pki}/farm.pem' (its key belongs to another certificate)"
    said = f"web.tls_cert: found {wrong}, expected readable PEM"
    env = {"FARMD_CONFIG": str(tmp_path / "farmd.toml"), **variables}
    (tmp_path / "farmd.toml").touch()
    checked = subprocess.run(
        [sys.executable, "-m", "farmd", "check-config"],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (78, f"farmd: {said}\n")
    farm = start("run", "farm", "farm", **variables)
    assert farm.wait_for("process.failed")["reason"] == said
    assert farm.ends() == 75
