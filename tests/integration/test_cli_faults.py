"""farmctl before a store that is away, is not Consul, refuses, or loses an answer: one line, one code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from farmd.runtime.clock import SystemIds
from store.registration import register_cluster
from tests.credentials import BAD, spoil
from tests.farmctl import Farmctl, embedded
from tests.fleet import KEYS, patient_client
from tests.people import hello
from tests.proxy import Proxy
from tests.scripted_consul import Scripted, Seen, json_answer, text_answer

HELLO = yaml.safe_dump(hello())


@pytest.mark.parametrize(
    ("make", "code", "named"),
    [
        (lambda: text_answer("<html>hello</html>", 200, "text/html"), 7, "not Consul"),
        (lambda: json_answer('[{"LockIndex": 0, "Key'), 7, "not Consul"),
        (lambda: text_answer("Permission denied", 403), 6, "token"),
        (lambda: text_answer("No cluster leader", 500), 7, "leader"),
        (lambda: text_answer("Too many connections", 429), 7, "connections"),
        (lambda: text_answer("<h1>502</h1>", 502, "text/html"), 7, "hint"),
        (lambda: None, 7, "hint"),
    ],
    ids=["html", "cut-json", "denied", "no-leader", "throttled", "proxy", "hang-up"],
)
@pytest.mark.parametrize(
    "arguments", [["rc", "list"], ["rc", "set-replicas", "x", "1"]], ids=["read", "write"]
)
async def test_a_strange_store_is_one_line_a_hint_and_the_right_code(
    make: Callable[[], web.Response | None], code: int, named: str, arguments: list[str]
) -> None:
    async def answer(_: Seen) -> web.StreamResponse | None:
        return make()

    async with Scripted(answer) as server:
        refused = await asyncio.to_thread(Farmctl(server.address), *arguments)
    assert refused.code == code
    assert refused.out == ""
    first, second = refused.err.splitlines()
    assert first.startswith("farmctl: ")
    assert second.startswith("hint: ")
    assert named in refused.err


async def test_an_absent_store_exits_7() -> None:
    refused = await asyncio.to_thread(Farmctl("127.0.0.1:1"), "rc", "list")
    assert refused.code == 7
    assert refused.err.startswith("farmctl: http://127.0.0.1:1: cannot connect: Connection refused\n")


@pytest.mark.parametrize("address", ["ftp://x", "a b:1", "host:99999"])
async def test_an_address_that_cannot_be_meant_exits_2(address: str) -> None:
    refused = await asyncio.to_thread(Farmctl(address), "rc", "list")
    assert refused.code == 2
    assert "CONSUL_HTTP_ADDR" in refused.err


@dataclass
class WithFile(Farmctl):
    """farmctl with a variable that names a file."""

    variable: str = ""
    file: Path = Path()

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, self.variable: str(self.file)}


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("variable", ["CONSUL_HTTP_TOKEN_FILE", "CONSUL_CACERT"])
def test_a_credential_that_is_not_good_is_one_line_a_hint_and_exits_2(
    tmp_path: Path, variable: str, how: str
) -> None:
    file = tmp_path / "credential"
    spoil(file, how)
    refused = WithFile("https://127.0.0.1:1", inside=True, variable=variable, file=file)("rc", "list", "-w")
    assert refused.code == 2
    first, second = refused.err.splitlines()
    assert first.startswith(f"farmctl: {variable}: found ")
    assert str(file) in first
    assert second.startswith("hint: ")


async def test_r12_a_lost_answer_is_looked_up_before_anything_is_said() -> None:
    with embedded() as address:
        client = patient_client(address)
        await register_cluster(client, KEYS, SystemIds())
        async with Proxy(address) as proxy:
            person = Farmctl(proxy.address)
            written = proxy.hold_transaction(1, answer=True)
            run = asyncio.create_task(asyncio.to_thread(person, "rc", "create", "-f", "-", stdin=HELLO))
            await written.reached.wait()
            written.drop()
            assert (await run).code == 0

            unwritten = proxy.hold_transaction(1)
            run = asyncio.create_task(asyncio.to_thread(person, "rc", "set-replicas", "hello", "9"))
            await unwritten.reached.wait()
            unwritten.drop()
            lost = await run
            assert lost.code == 7
            assert "may or may not" in lost.err
        listed = await asyncio.to_thread(Farmctl(address).ok, "rc", "get", "hello", "-o", "json")
        assert listed.json["replicas_desired"] == 3
        await client.close()
