"""A process that read large answers keeps only what it kept of them."""

import gc
import subprocess
import sys

import pytest

from farmd.process.start import COLLECT_AFTER, collect_rarely, pause_collection

PROGRAM = """
import sys
from farmd.process.daemon import return_large_blocks
if sys.argv[1] == "yes":
    assert return_large_blocks()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20

def read(megabytes):
    body = bytearray(megabytes * 2**20)
    return bytes(body)

before = resident()
kept = []
for number in range(40):
    answer = [read(1), read(2)]
    kept.append(bytes(100_000))  # what is kept of it lies above
print(resident() - before)
"""

START = """
import asyncio, gc
from farmd.config.sources import load
from farmd.process import daemon
from farmd.process.services import Built

class Service:
    def lacks(self):
        return ""

    async def run(self, stop):
        while not gc.isenabled():
            await asyncio.sleep(0)

def build(dependencies):
    assert not gc.isenabled(), "while it starts"
    return Built(Service(), mount=lambda app: None, status=dict, publish=lambda: None)

daemon.START_SECONDS = 0.0
loaded = load(None, {}, {"web": {"farm_port": 0}})
code = daemon._process("farm", build, 0, loaded, lambda: loaded, {})
assert gc.get_freeze_count() > 10_000, "what it has imported and built"
assert gc.get_threshold() == daemon.collect_rarely.__globals__["COLLECT_AFTER"]
raise SystemExit(code)
"""


def grown(told: str) -> int:
    out = subprocess.run([sys.executable, "-c", PROGRAM, told], capture_output=True, text=True, check=True)
    return int(out.stdout)


def test_large_blocks_go_back_as_they_are_freed():
    assert grown("yes") <= 12, "megabytes: 4 are kept, the last answer has 3"


def test_what_a_farm_keeps_is_not_searched_for_garbage_each_few_hundred_objects() -> None:
    before = gc.get_threshold()
    try:
        pause_collection()
        collect_rarely()
        assert gc.isenabled()
        assert gc.get_threshold() == COLLECT_AFTER
        assert COLLECT_AFTER[0] > 10 * 700, "Python's default"
    finally:
        gc.set_threshold(*before)
        gc.enable()
        gc.unfreeze()


def test_no_garbage_is_searched_for_during_a_start_and_never_among_what_it_made() -> None:
    subprocess.run([sys.executable, "-c", START], check=True, stdout=subprocess.DEVNULL)


def test_a_farm_starts_without_rich_and_a_command_can_still_import_it() -> None:
    program = (
        "import sys; from farmd.process.start import begin; begin(); import farmd.process.daemon;"
        " assert 'rich' not in sys.modules; import rich.table"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "program",
    [
        "from farmd.process.start import begin, import_aiohttp; begin(); import_aiohttp();"
        " import farmd.process.farm_service, farmd.process.agent_service, farmd.process.daemon",
        "import farmd.cli.noun_show, farmd.cli.invocation",
    ],
    ids=["daemon", "command"],
)
def test_a_process_starts_without_the_authorities_of_its_machine(program: str) -> None:
    program += (
        "; import gc, ssl; found = [one for one in gc.get_objects() if isinstance(one, ssl.SSLContext)];"
        " assert not any(one.cert_store_stats()['x509_ca'] for one in found), 'those of aiohttp'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
