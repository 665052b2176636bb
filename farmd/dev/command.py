"""``farmd dev``: runs a cluster on this machine until ^C, and prints its address."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from farmd.dev import tree
from farmd.dev.cluster import ClusterFailed, LocalCluster
from farmd.dev.plan import ignored
from farmd.process.start import collect_rarely
from store.words import count_of

EXAMPLE = "examples/hello.yaml"


class _Stopped(Exception):
    """A signal asked the command to end."""


USUAL = ("/run/docker.sock", "/run/podman/podman.sock")


def engine_of(said: str, env: Mapping[str, str]) -> str:
    """The address of the engine for containers: the one that was said, else that of ``DOCKER_HOST`` or of a
    usual socket, if it answers; empty: none does.
    """
    if said:
        return said if "://" in said else f"unix://{said}"
    own = f"/run/user/{os.getuid()}/podman/podman.sock"
    for address in (env.get("DOCKER_HOST", ""), *(f"unix://{path}" for path in (*USUAL, own))):
        if address.startswith("unix://") and _answers(address.removeprefix("unix://")):
            return address
    return ""


def _answers(path: str) -> bool:
    """Whether something listens on a socket."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(1.0)
        return end.connect_ex(path) == 0


def run_dev(
    farms: int, agents: int, data_dir: Path | None, http_addr: str, log_level: str, config: str, engine: str
) -> int:
    """Keep a cluster up until a signal; returns the exit code."""
    collect_rarely()
    engine = engine_of(engine, os.environ)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        with LocalCluster(
            farms=farms,
            agents=agents,
            data_dir=data_dir,
            http_addr=http_addr,
            log_level=log_level,
            config=config,
            engine=engine,
        ) as cluster:
            cluster.wait_ready()
            for name in ignored(os.environ):
                print(
                    f"farmd dev: {name}: ignored, because a development cluster sets that itself",
                    file=sys.stderr,
                )
            print("\n".join(greeting(cluster)), flush=True)
            while True:
                for event in cluster.events(1.0):
                    print(f"{event.get('name')} ended with code {event.get('code')}", flush=True)
    except _Stopped:
        left = tree.descendants(os.getpid())
        print(f"stopped; processes left: {len(left)}", flush=True)
        return 1 if left else 0
    except ClusterFailed as error:
        print(f"farmd dev: {error}", file=sys.stderr)
        return 1


def _stop(_number: int, _frame: object) -> None:
    # The first signal ends the cluster; further signals must not interrupt that.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise _Stopped


def greeting(cluster: LocalCluster) -> list[str]:
    """The address of a farm's page, and three lines for the user's shell."""
    plan = cluster.plan
    return [
        f"running: {count_of(plan.farms, 'farm')} and {count_of(plan.agents, 'agent')};"
        f" state and logs: {plan.folder}; ^C ends it all",
        f"containers: {plan.engine or 'none: no engine answers (--engine SOCKET)'}",
        *(f"in a browser: {cluster.url(name)}/" for name in plan.farm_names()[:1]),
        "",
        f"export CONSUL_HTTP_ADDR={cluster.store}",
        f"{farmctl()} rc create -f {example()}",
        f"{farmctl()} top",
    ]


def farmctl() -> str:
    """The command that runs farmctl in the current folder."""
    beside = Path(sys.executable).with_name("farmctl")
    if shutil.which("farmctl"):
        return "farmctl"
    return str(beside) if beside.exists() else f"{sys.executable} -m farmd.cli"


def example() -> str:
    """The path of the first example, from the current folder."""
    shipped = Path(__file__).resolve().parents[2] / EXAMPLE
    return EXAMPLE if Path(EXAMPLE).exists() or not shipped.exists() else str(shipped)
