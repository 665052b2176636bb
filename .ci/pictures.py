"""Pictures of a real fleet for the README, in ``docs/pictures``: ``make pictures``.

It starts ``farmd dev``, runs the examples, and keeps a rollout at its first stage, where the page
and ``farmctl`` show it. The page is drawn by the chromium that the tests use.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from playwright.async_api import async_playwright, expect
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/pictures"
SIZE = {"width": 1280, "height": 820}
MOST_BYTES = 200_000
MOST_LOOKS = 100
WITHOUT = "text => document.body.innerHTML = document.body.innerHTML.replaceAll(text, '')"
# farmctl notes LOGNAME as the person who changes something.
PERSON = {"LOGNAME": "ada"}


def main() -> None:
    """Take all pictures again."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, fleet(scratch) as (address, page):
        farmctl = Farmctl(address)
        story(farmctl)
        drawn("top", farmctl("top"))
        drawn("rollout", farmctl("rollout", "status", "hello"))
        asyncio.run(photographed(page))
    for picture in FOLDER.iterdir():
        size = picture.stat().st_size
        sys.stdout.write(f"{picture.relative_to(ROOT)}: {size // 1000} kB\n")
        if size > MOST_BYTES:
            raise SystemExit(f"{picture.name}: found {size} bytes, expected at most {MOST_BYTES}")


class Farmctl:
    """Runs commands as a person would, and returns what they show."""

    def __init__(self, address: str) -> None:
        self._environment = {**os.environ, **PERSON, "CONSUL_HTTP_ADDR": address}

    def __call__(self, *words: str, text: str = "") -> str:
        command = [sys.executable, "-m", "farmd.cli", *words]
        done = subprocess.run(
            command,
            input=text,
            env=self._environment,
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return without_host(done.stdout)


def without_host(text: str) -> str:
    """What farmctl shows, without the name of this machine, in columns as before."""
    host = socket.gethostname()
    width = max(len(host), len("HOST"))
    return re.sub(rf"@{re.escape(host)}\b", "", text).replace(
        f" {host.ljust(width)} ", f" {'host'.ljust(width)} "
    )


@contextmanager
def fleet(scratch: str) -> Iterator[tuple[str, str]]:
    """``farmd dev``; the addresses of its store and of its page."""
    words = [sys.executable, "-m", "farmd", "dev", "--log-level", "error"]
    environment = {**os.environ, "TMPDIR": scratch, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as running:
        try:
            assert running.stdout is not None
            said = ""
            for line in running.stdout:
                said += line
                if "farmctl top" in line:
                    break
            store, page = re.search(r"CONSUL_HTTP_ADDR=(\S+)", said), re.search(r"in a browser: (\S+)", said)
            assert store is not None, said
            assert page is not None, said
            yield store[1], page[1]
        finally:
            running.send_signal(signal.SIGINT)


def story(farmctl: Farmctl) -> None:
    """Controllers, a daemon set, a service, and a rollout whose second stage waits for approval."""
    farmctl("rc", "create", "-f", "examples/hello.yaml", "--wait")
    farmctl("daemonset", "create", "-f", "examples/daemonset.yaml", "--wait")
    farmctl("service", "create", "hello", "--port", "http", "rc/hello")
    farmctl("node", "cordon", "node-2", "--reason", "new disk")
    second = yaml.safe_load((ROOT / "examples/rollout.yaml").read_text())
    second["rollout"]["stages"] = [1, {"to": "100%", "approve": True}]
    farmctl("rc", "update", "-f", "-", text=yaml.safe_dump(second))
    for _ in range(MOST_LOOKS):
        if "waits for farmctl rollout approve" in farmctl("rollout", "status", "hello"):
            return
    raise SystemExit("the rollout did not reach its first stage")


def drawn(name: str, text: str) -> None:
    """A terminal's text as SVG."""
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text(text.rstrip()))
    svg = console.export_svg(title=f"farmctl {name.replace('rollout', 'rollout status hello')}")
    # Without the fonts that a browser would fetch from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    (FOLDER / f"{name}.svg").write_text(svg)


async def photographed(address: str) -> None:
    """The page of the fleet."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = await browser.new_page(viewport=SIZE, color_scheme="light")
        await page.goto(address)
        await expect(page.get_by_text("hello").first).to_be_visible()
        host = "@" + socket.gethostname()
        await page.evaluate(WITHOUT, host)
        await page.screenshot(path=FOLDER / "page.png")
        await browser.close()


if __name__ == "__main__":
    main()
