"""What may happen to a fleet within an hour, in a minute, while a real Prometheus looks on.

Two farms and three agents are processes; Consul, Prometheus, the API server and the engine of one agent are
real. The first farm reaches Consul and the API server through proxies.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import yaml

from monitoring.ask import Prometheus
from tests.engine import IMAGE, PodmanEngine
from tests.farmctl import ROOT, Farmctl
from tests.fleet import eventually
from tests.kubeconfigs import kubeconfig
from tests.kubernetes.farmjobs import Jobs
from tests.ports import free_ports, pod_ports
from tests.processes import Program
from tests.prometheus import Server
from tests.proxy import Proxy

LOOP = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
CHECK = {"type": "command", "command": ["true"], "interval": "500ms", "timeout": "1s"}


def controller(name: str, *more: str, command: list[str] | None = None, **fields: object) -> str:
    """The file of a controller; ``more`` makes its pod another version."""
    pod = {"id": name, "command": command or LOOP, "args": list(more), "health": CHECK}
    return yaml.safe_dump({"name": name, "replicas": 1, "min_healthy_time": "0s", "pod": pod} | fields)


def job(name: str, command: str, **fields: object) -> str:
    """The file of a job of one member."""
    worker = {"name": "worker", "replicas": 1, "pod": {"id": name, "command": ["sh", "-c", command]}}
    return yaml.safe_dump({"name": name, "types": [worker | fields], "backoff_limit": 1})


class Hour:
    """The fleet, and one method for each thing that happens to it."""

    def __init__(self, jobs: Jobs, folder: Path) -> None:
        self.jobs, self.folder = jobs, folder
        self.farmctl = Farmctl(jobs.consul, jobs.prefix, variables={"KUBECONFIG": str(folder / "nowhere")})
        self.prometheus = Prometheus("", interval="10s")
        self.first: Program
        self.second: Program
        self._stack = AsyncExitStack()
        self._programs = ExitStack()

    async def begin(self) -> None:
        """Start everything; the fleet is ready, and Prometheus scrapes all of it."""
        self.proxy = await self._stack.enter_async_context(Proxy(self.jobs.consul))
        server = self.jobs.server
        self.outside = Proxy(server.url.removeprefix("https://"), tls=server.login())
        await self._stack.enter_async_context(self.outside)
        path = self.folder / "kubeconfig"
        path.write_text(kubeconfig({"server": f"http://{self.outside.address}"}))
        outside = {"KUBECONFIG": str(path), "FARMD_KUBERNETES__NAMESPACES": self.jobs.namespace}
        self.engine = self._programs.enter_context(await asyncio.to_thread(PodmanEngine))
        webs = free_ports(5)
        self.first = self._start("run", "f1", webs[0], self.proxy.address, FARMD_FARM__NAME="f1", **outside)
        self.second = self._start("run", "f2", webs[1], self.jobs.consul, FARMD_FARM__NAME="f2")
        for number, port in enumerate(webs[2:], start=1):
            self._agent(f"n{number}", port, engine=self.engine.url if number == 3 else "")
        await asyncio.to_thread(self.first.wait_for, "process.ready")
        await asyncio.to_thread(self.second.wait_for, "process.ready")
        self._server = Server()
        self.prometheus = Prometheus(self._server.url, interval="10s")
        self._configure([f"127.0.0.1:{port}" for port in webs])
        self._stack.callback(self._server.close)
        await asyncio.to_thread(self._server.start)
        await self.seen("count(up == 1) == 5")

    def _configure(self, targets: list[str]) -> None:
        jobs = {"farmd-farm": targets[:2], "farmd-agent": targets[2:]}
        config = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "1s"),
            "rule_files": [str(ROOT / "monitoring/rules.yml")],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": each}]} for name, each in jobs.items()
            ],
        }
        (self._server.folder / "prometheus.yml").write_text(json.dumps(config))

    def _start(self, role: str, name: str, port: int, consul: str, **variables: str) -> Program:
        folder = self.folder / name
        folder.mkdir()
        known = {
            "CONSUL_HTTP_ADDR": consul,
            "FARMD_STORE__PREFIX": self.jobs.prefix,
            "FARMD_LOG__FORMAT": "json",
        }
        program = Program(role, "--port", str(port), folder=folder, **known, **variables)
        return self._programs.enter_context(program)

    def _agent(self, node: str, port: int, engine: str) -> None:
        first, last = pod_ports()
        agent = self._start(
            "agent",
            node,
            port,
            self.jobs.consul,
            FARMD_AGENT__NODE=node,
            FARMD_AGENT__SHARE_USER="true",
            FARMD_AGENT__STATE_DIR=str(self.folder / f"state-{node}"),
            FARMD_AGENT__PORT_RANGE=f"{first}-{last}",
            FARMD_AGENT__STOP_WORKLOADS_ON_EXIT="true",
            FARMD_AGENT__ENGINE=engine,
        )
        self._programs.callback(lambda: agent.ends(signal.SIGTERM))

    async def end(self) -> None:
        """End all processes, and their workloads; containers need an engine for that."""
        self.engine.kill()
        await asyncio.to_thread(self.engine.start)
        await asyncio.to_thread(self._programs.close)
        await self._stack.aclose()

    async def seen(self, expr: str) -> None:
        """Wait until Prometheus has numbers for which this holds."""

        async def so() -> bool:
            return bool(await asyncio.to_thread(self.prometheus.now, expr))

        await eventually(so, what=expr)

    async def run(self, *words: str, stdin: str = "") -> str:
        """Run farmctl; its output."""
        done = await asyncio.to_thread(lambda: self.farmctl(*words, stdin=stdin))
        assert done.code == 0, f"{words}: {done.err}"
        return done.out

    # -- what happens ----------------------------------------------------------------------------
    async def controllers(self) -> None:
        """A controller is scaled, and gets two versions behind a gate; another rollout waits for a person."""
        gates = [{"name": "web", "http": f"{self._server.url}/-/ready", "every": "1s", "timeout": "1s"}]
        policy = {"stages": [1, {"to": "100%", "gates": ["web"]}], "gates": gates}
        await self.run("rc", "create", "-f", "-", "--wait", stdin=controller("hello", replicas=2))
        await self.run("rc", "set-replicas", "hello", "3", "--wait")
        second = controller("hello", "v2", replicas=3, rollout=policy)
        await self.run("rc", "update", "-f", "-", "--wait", stdin=second)
        asking = {"stages": [1, {"to": "100%", "approve": True}]}
        third = controller("hello", "v3", replicas=3, rollout=asking)
        await self.run("rc", "update", "-f", "-", "--no-wait", stdin=third)

    async def daemons(self) -> None:
        """A daemon set comes to every node."""
        pod = {"id": "logs", "command": LOOP, "health": CHECK}
        file = yaml.safe_dump({"name": "logs", "min_healthy_time": "0s", "pod": pod})
        await self.run("daemonset", "create", "-f", "-", "--wait", stdin=file)

    async def starved(self) -> None:
        """A controller finds no node, and the pods of another do not stay up."""
        lonely = controller("lonely", node_selector="zone=nowhere")
        await self.run("rc", "create", "-f", "-", "--no-wait", stdin=lonely)
        await self.run("rc", "create", "-f", "-", "--no-wait", stdin=controller("crash", command=["false"]))

    async def members(self) -> None:
        """One job ends well, one fails, one finds no room, and one lies in Kubernetes."""
        await self.run("job", "run", "-f", "-", "--wait", stdin=job("good", "true"))
        await self.run("job", "run", "-f", "-", "--no-wait", stdin=job("bad", "exit 3"))
        await self.run(
            "job", "run", "-f", "-", "--no-wait", stdin=job("big", "true", node_selector="zone=nowhere")
        )
        self.jobs.create("real", {"Worker": {"replicas": 2}})
        await self.jobs.until("two pods", lambda: len(self.jobs.pods()) == 2)

    async def bundle(self) -> None:
        """An app is applied."""
        file = f"apiVersion: farmd/v1\nkind: rc\n{controller('bundled')}"
        await self.run("apply", "-f", "-", "--app", "shop", "-y", "--wait", stdin=file)

    async def deployment(self) -> None:
        """A service comes; of another the image cannot be pulled, and somebody holds it there."""
        for name, image in {"web": IMAGE, "db": "127.0.0.1:1/db:1"}.items():
            file = self.folder / f"{name}.yaml"
            service = {
                "image": image,
                "command": ["sleep", "1000"],
                "x-machines": "n3",
                "pull_policy": "missing",
            }
            # Its pod fails after two attempts, on a busy machine before anybody can hold it: then it halts.
            update = {"deploy": {"update_config": {"monitor": "1s", "failure_action": "pause"}}}
            file.write_text(yaml.safe_dump({"name": name, "services": {name: service | update}}))
            await self.run("deploy", "-f", str(file), "-y", "--wait" if name == "web" else "--no-wait")
        # The farm that ended the first one is perhaps the one that is killed later.
        await self.seen("sum(farmd_deployment_duration_seconds_count) > 0")
        await self.seen('sum(farmd_image_pull_duration_seconds_count{result="failed"}) > 0')
        (held,) = json.loads(await self.run("deployment", "list", "-o", "json"))["items"]
        await self.run("deployment", "pause", held["id"])

    async def configuration(self) -> None:
        """A farm is told a configuration that it refuses."""
        (self.folder / "f1" / "farmd.toml").write_text("[farm]\nbogus = 1\n")
        self.first.signal(signal.SIGHUP)
        await asyncio.to_thread(self.first.wait_for, "config.refused")

    async def trouble(self) -> None:
        """Servers fail, an engine and a farm are killed, a record is damaged, and a sentinel is gone."""
        self.engine.kill()
        self.outside.fail(403)
        self.proxy.fail(500)
        await self.seen('sum(farmd_store_requests_total{code="500"}) > 0')
        self.proxy.recover()
        await self.seen('sum(farmd_kubernetes_requests_total{code="403"}) > 0')
        self.second.signal(signal.SIGKILL)
        client, keys = self.jobs.client, self.jobs.keys
        await client.put(keys.record("rcs", "damaged"), b"{")
        await self.seen('max(farmd_invalid_records{family="rcs"}) > 0')
        await client.delete(keys.sentinel(keys.tree("rcs")))
        await self.seen('max(farmd_frozen{kind="rcs"}) == 1')


@asynccontextmanager
async def hour(jobs: Jobs, folder: Path) -> AsyncIterator[Hour]:
    """All that happens, until the fleet has seen it; everything ends with the block."""
    made = Hour(jobs, folder)
    try:
        await made.begin()
        await asyncio.gather(
            made.controllers(),
            made.daemons(),
            made.starved(),
            made.members(),
            made.bundle(),
            made.deployment(),
        )
        await made.configuration()
        await made.trouble()
        yield made
    finally:
        await made.end()
