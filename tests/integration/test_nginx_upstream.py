"""The script of the nginx example, as a process, against farms that fail."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from tests.farmctl import ROOT
from tests.fleet import LIMIT
from tests.web_servers import serving

SCRIPT = ROOT / "examples" / "nginx" / "upstream.py"


async def half(request: web.Request) -> web.StreamResponse:
    """A farm that dies in the middle of its answer."""
    response = web.StreamResponse(headers={"Content-Length": "500"})
    await response.prepare(request)
    await response.write(b'{"index"')
    assert request.transport is not None
    request.transport.close()
    return response


async def whole(request: web.Request) -> web.StreamResponse:
    """A farm with one endpoint, which never changes."""
    if request.query["index"] != "0":
        await asyncio.Event().wait()
    return web.json_response({"index": 7, "items": [{"address": "10.0.0.7", "port": 20001}]})


async def test_a_farm_that_dies_while_it_answers_is_followed_by_another_farm(tmp_path: Path) -> None:
    output = tmp_path / "hello.upstream"
    async with serving(half) as dying, serving(whole) as living:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            *("--service", "hello", "--farm", dying, "--farm", living),
            *("--output", str(output), "--reload", "true"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdout is not None
        try:
            async with asyncio.timeout(LIMIT):
                lines = [await program.stdout.readline() for _ in range(2)]
        finally:
            if program.returncode is None:
                program.kill()
            await program.wait()
    assert dying.encode() in lines[0]
    assert lines[1] == b"upstream: 1 endpoints\n"
    assert output.read_text() == "upstream hello {\n    server 10.0.0.7:20001 max_fails=0;\n}\n"
