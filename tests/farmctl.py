"""farmctl as a process, against any Consul, under a prefix of the test's own."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import patch

import structlog

from farmd.cli.main import run
from farmd.runtime.clock import SystemIds
from store.keys import Keys
from store.registration import register_cluster, register_node
from tests import earlier_calls, promises
from tests.fleet import patient_client
from tests.forked import Forked, forked_module, piped_module

ROOT = Path(__file__).parents[1]
PATIENCE = 180.0


@dataclass(frozen=True)
class Result:
    """What one run left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as JSON."""
        return json.loads(self.out)


@dataclass
class Farmctl:
    """Runs command lines. ``address`` goes into CONSUL_HTTP_ADDR, ``prefix`` keeps tests apart.

    ``tree`` is the folder of the code that a process runs, ``variables`` are more of its environment.
    ``inside``: run in this process, which saves a second a command, and differs in nothing that is
    asserted; terminals, signals and pipes always get a process.
    """

    address: str
    prefix: str = "farmd/"
    inside: bool = False
    tree: Path = ROOT
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment of each run, free of the tester's own settings; registries elsewhere are absent."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CONSUL_", "FARMCTL_", "FARMD_"))}
        where = {"CONSUL_HTTP_ADDR": self.address, "FARMD_STORE__PREFIX": self.prefix}
        where |= {"https_proxy": "http://127.0.0.1:1", "no_proxy": "", "DOCKER_CONFIG": "/nonexistent"}
        return {**kept, **where, **self.variables, "PYTHONPATH": str(self.tree), "TERM": "xterm"}

    def start(self, *arguments: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Start one run with pipes; the caller ends it."""
        promises.asked.append(arguments)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-m", "farmd.cli", *arguments]
        return subprocess.Popen(command, text=True, env=self.env, cwd=self.tree, **{**pipes, **kwargs})

    def __call__(self, *arguments: str, stdin: str = "") -> Result:
        """Run to the end."""
        promises.asked.append(arguments)
        if self.inside:
            return self._inside(arguments, stdin)
        with TemporaryFile() as typed, TemporaryFile() as out, TemporaryFile() as err:
            typed.write(stdin.encode())
            typed.seek(0)
            streams = (typed.fileno(), out.fileno(), err.fileno())
            process = self._run(arguments, streams)
            try:
                code = process.wait(PATIENCE)
            finally:
                process.kill()
            return Result(code, *(os.pread(each, 2**30, 0).decode() for each in streams[1:]))

    def _run(self, arguments: tuple[str, ...], streams: tuple[int, int, int]) -> Forked | earlier_calls.Call:
        if self.tree == ROOT:
            return forked_module("farmd.cli", *arguments, streams=streams, environ=self.env)
        return earlier_calls.call(self.tree, arguments, streams=streams, environ=self.env)

    def _inside(self, arguments: tuple[str, ...], stdin: str) -> Result:
        out, err = io.StringIO(), io.StringIO()
        typed = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        env, before, logging = self.env, dict(os.environ), structlog.get_config()
        try:
            os.environ.clear()
            os.environ.update(env)
            with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", typed):
                code = run(list(arguments))
        finally:
            os.environ.clear()
            os.environ.update(before)
            # farmctl is quiet but for itself; what this process logs later is somebody else's.
            structlog.configure(**logging)
        return Result(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: str, stdin: str = "") -> Result:
        """Run to the end; it must exit 0."""
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result
        return result

    def on_terminal(
        self,
        *arguments: str,
        answer: str = "",
        at: str = "[y/N]",
        until: str = "",
        number: int = signal.SIGINT,
    ) -> Result:
        """Run on a pseudo-terminal; type ``answer`` once ``at`` is shown. Once ``until`` is shown, send the
        signal: an interrupt, or what the kernel sends when the terminal is closed.
        """
        promises.asked.append(arguments)
        main, side = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "farmd.cli", *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            env=self.env,
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(side)
        seen = ""
        try:
            for text in output_of(main):
                seen += text
                if answer and at in seen:
                    os.write(main, answer.encode())
                    answer = ""
                if until and until in seen:
                    _wait_asleep(process.pid)
                    process.send_signal(number)
                    until = ""
            process.wait(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
            os.close(main)
        return Result(process.returncode, seen, "")


def _wait_asleep(pid: int) -> None:
    """Return once a process waits for something: a signal just before that may go unseen until then."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()


def output_of(terminal: int) -> Iterator[str]:
    """What is shown on a pseudo-terminal, until its programs have ended."""
    while select.select([terminal], [], [], PATIENCE)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            return
        if not data:
            return
        yield data.decode(errors="replace")


@contextmanager
def embedded() -> Iterator[str]:
    """The embedded server as a process; yields its address."""
    arguments = ("store.embedded", "--http-addr", "127.0.0.1:0")
    server, said = piped_module(*arguments, environ=os.environ)
    with said:
        try:
            yield said.readline().strip()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE)


_numbers = itertools.count()


def in_cluster(address: str, *nodes: str) -> Farmctl:
    """farmctl in a registered cluster under a prefix of its own, with nodes that have a sentinel."""
    prefix = f"test{next(_numbers)}/"

    async def register() -> None:
        client = patient_client(address)
        await register_cluster(client, Keys(prefix), SystemIds())
        for node in nodes:
            await register_node(client, Keys(prefix), node)
        await client.close()

    asyncio.run(register())
    return Farmctl(address, prefix, inside=True)


def put(farmctl: Farmctl, key: str, value: str) -> None:
    """Write a key by hand, as curl would."""
    _request(farmctl, key, "PUT", value.encode())


def delete(farmctl: Farmctl, key: str) -> None:
    """Delete a key by hand, as curl would."""
    _request(farmctl, key, "DELETE", None)


def _request(farmctl: Farmctl, key: str, method: str, body: bytes | None) -> None:
    url = f"http://{farmctl.address.removeprefix('http://')}/v1/kv/{farmctl.prefix}{key}"
    with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=PATIENCE) as answer:
        assert answer.read() == b"true"
