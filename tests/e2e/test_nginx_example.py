"""The nginx example on real parts: nobody who asks nginx meets a rollout, and nobody a switch.

Consul, farms and agents are processes. nginx is real: a pod whose file its agent renders, or beside farmd
with the script of the example. Clients ask all the time, each request on its own connection. None may fail.
"""

from __future__ import annotations

import collections
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest
import yaml

from tests import reaper
from tests.binaries import binary
from tests.farmctl import ROOT, Farmctl
from tests.fleet import LIMIT
from tests.ports import free_ports, pod_ports
from tests.processes import Program, eventually

EXAMPLES = ROOT / "examples"
NODES = ("n1", "n2", "n3", "n4")
CLIENTS = 3


class Visitors:
    """Clients who ask the same address again and again: what they were told, and what failed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        self.answers: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []

    def __enter__(self) -> Visitors:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT)

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                with urllib.request.urlopen(self._url, timeout=LIMIT) as answer:
                    self.answers[answer.read().decode().partition(" from")[0]] += 1
            except (OSError, HTTPException) as error:
                self.failures.append(f"{time.monotonic():.1f}: {error!r}")

    def only(self, greeting: str) -> None:
        """Wait until a hundred answers in a row are of one version."""
        eventually(f"a hundred answers {greeting!r}: {self.answers}", lambda: self._run_of(greeting))

    def _run_of(self, greeting: str) -> bool:
        before = self.answers.copy()
        eventually("a hundred answers", lambda: sum((self.answers - before).values()) >= 100)
        return set(self.answers - before) == {greeting}


class Scene:
    """Farms, agents, nginx and its follower; ``farmctl`` asks on the same Consul."""

    def __init__(self, folder: Path, consul: str) -> None:
        self.folder, self.farmctl = folder, Farmctl(consul, prefix=f"{folder.name}/")
        self._programs = contextlib.ExitStack()
        (self.port,) = free_ports(1)
        self._nginx = f"{binary('nginx')} -p {folder} -c nginx.conf -e error.log"

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()

    def farm(self, name: str) -> tuple[Program, str]:
        """A farm, and its address."""
        farm = self._start("run", name, FARMD_FARM__NAME=name)
        return farm, f"http://127.0.0.1:{farm.wait_for('web.listening')['port']}"

    def agent(self, node: str) -> None:
        first, last = pod_ports()
        state = str(self.folder / f"state-{node}")
        agent = self._start(
            "agent",
            node,
            FARMD_AGENT__NODE=node,
            FARMD_AGENT__SHARE_USER="true",
            FARMD_AGENT__STATE_DIR=state,
            FARMD_AGENT__PORT_RANGE=f"{first}-{last}",
            FARMD_AGENT__STOP_WORKLOADS_ON_EXIT="true",
        )
        self._programs.callback(_stopped, agent)

    def _start(self, role: str, name: str, **variables: str) -> Program:
        folder = self.folder / name
        folder.mkdir()
        known = {
            "CONSUL_HTTP_ADDR": self.farmctl.address,
            "FARMD_STORE__PREFIX": self.farmctl.prefix,
            "FARMD_LOG__FORMAT": "json",
        }
        program = Program(role, "--port", "0", folder=folder, **known, **variables)
        return self._programs.enter_context(program)

    def nginx(self, *farms: str, retries: bool = True) -> str:
        """nginx and its follower; the address that nginx serves.

        Without ``retries`` a request that one pod does not answer has failed.
        """
        text = (
            (EXAMPLES / "nginx" / "nginx.conf")
            .read_text()
            .replace("127.0.0.1:8888", f"127.0.0.1:{self.port}")
        )
        if not retries:
            text = text.replace("proxy_next_upstream error timeout", "proxy_next_upstream off")
        (self.folder / "nginx.conf").write_text(text)
        begin = f"{self._nginx} -s reload || {self._nginx}"
        command = [sys.executable, str(EXAMPLES / "nginx" / "upstream.py"), "--service", "hello"]
        command += [word for farm in farms for word in ("--farm", farm)]
        command += [
            "--output",
            str(self.folder / "hello.upstream"),
            "--reload",
            f"sh -c {shlex.quote(begin)}",
        ]
        self._programs.callback(self._stop_nginx)
        log = self._programs.enter_context((self.folder / "upstream.log").open("w"))
        follower = self._programs.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        self._programs.callback(follower.terminate)
        eventually("an nginx", (self.folder / "nginx.pid").exists)
        reaper.started(int((self.folder / "nginx.pid").read_text()), self.folder / "nothing")
        return f"http://127.0.0.1:{self.port}/"

    def edge(self) -> str:
        """nginx as a pod that farmd runs, by its example; the address that it serves."""
        document = yaml.safe_load((EXAMPLES / "nginx" / "edge.yaml").read_text())
        document["pod"]["command"][0] = str(binary("nginx"))
        document["pod"]["ports"]["http"]["port"] = self.port
        self.farmctl.ok("rc", "create", "-f", "-", "--wait", stdin=yaml.safe_dump(document))
        return f"http://127.0.0.1:{self.port}/"

    def _stop_nginx(self) -> None:
        subprocess.run(shlex.split(f"{self._nginx} -s stop"), check=False, capture_output=True)

    def errors(self) -> str:
        """What nginx complained of last."""
        return (self.folder / "error.log").read_text()[-2000:]

    def endpoints(self, farm: str) -> dict[str, object]:
        with urllib.request.urlopen(f"{farm}/v1/services/hello/endpoints", timeout=LIMIT) as answer:
            return dict(json.load(answer))


def _stopped(agent: Program) -> None:
    """Let an agent end, and its workloads before it."""
    agent.signal(signal.SIGTERM)
    agent.process.wait(LIMIT)


# It dies of SIGTERM at once, in the middle of whatever it does.
ABRUPT = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(os.environ["GREETING"])))
        self.end_headers()
        self.wfile.write(os.environ["GREETING"].encode())

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(os.environ["FARMD_PORT_HTTP"])), Hello).serve_forever()
"""


def abrupt(greeting: str) -> str:
    """The example with a server that ends at SIGTERM, and therefore leaves first."""
    document = yaml.safe_load((EXAMPLES / "hello.yaml").read_text())
    document["pod"] |= {"args": [ABRUPT], "env": {"GREETING": greeting}, "stop": {"delay": "2s"}}
    return yaml.safe_dump(document)


def example(name: str, **fields: object) -> str:
    return yaml.safe_dump(yaml.safe_load((EXAMPLES / name).read_text()) | fields)


@pytest.fixture
def scene(tmp_path: Path, consul_dev: str) -> Iterator[Scene]:
    with Scene(tmp_path, consul_dev) as made:
        yield made


@pytest.mark.slow
def test_no_request_fails_while_a_version_comes_step_by_step_and_by_a_switch(scene: Scene) -> None:
    (first, one), (_, two) = scene.farm("f1"), scene.farm("f2")
    for node in NODES:
        scene.agent(node)
    scene.farmctl.ok("rc", "create", "-f", "-", "--wait", stdin=example("hello.yaml"))
    scene.farmctl.ok("service", "create", "hello", "--port", "http", "rc/hello")
    with Visitors(scene.edge()) as visitors:
        visitors.only("hello")
        scene.farmctl.ok("rc", "update", "-f", "-", "--wait", stdin=example("rollout.yaml"))
        visitors.only("hello again")
        eventually("the same endpoints from both farms", lambda: scene.endpoints(one) == scene.endpoints(two))
        first.signal(signal.SIGTERM)  # an agent may ask this one
        green = {"strategy": "blue-green", "keep_old": "2s", "progress_deadline": "300s"}
        scene.farmctl.ok("rc", "update", "-f", "-", "--wait", stdin=example("hello.yaml", rollout=green))
        visitors.only("hello")
        assert visitors.failures == [], visitors.failures[:5]
    serving = scene.farmctl.ok("service", "endpoints", "hello", "-o", "json").json["items"]
    eventually("what farmctl reads from the farm, too", lambda: scene.endpoints(two)["items"] == serving)
    assert len(serving) == 3


@pytest.mark.slow
def test_no_request_is_cut_off_by_a_server_that_ends_at_once_and_leaves_before(scene: Scene) -> None:
    """Rollout, restart and removal: nginx sends no request twice, so each has to be answered by its pod."""
    _, farm = scene.farm("f1")
    for node in NODES:
        scene.agent(node)
    scene.farmctl.ok("rc", "create", "-f", "-", "--wait", stdin=abrupt("one"))
    scene.farmctl.ok("service", "create", "hello", "--port", "http", "rc/hello")
    with Visitors(scene.nginx(farm, retries=False)) as visitors:
        visitors.only("one")
        scene.farmctl.ok("rc", "update", "-f", "-", "--wait", stdin=abrupt("two"))
        visitors.only("two")
        scene.farmctl.ok("rc", "restart", "hello", "--wait")
        scene.farmctl.ok("rc", "scale", "hello", "2", "-y", "--wait")
        visitors.only("two")
        assert visitors.failures == [], (visitors.failures[:5], scene.errors())
