"""The README's five minutes, line by line as they stand there, against the fleet that `make dev` starts."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.farmctl import ROOT, Farmctl
from tests.processes import Program


def five_minutes() -> list[list[str]]:
    """The commands of the block, without their comments."""
    text = (ROOT / "README.md").read_text()
    block = text.partition("## Five minutes")[2].partition("```sh\n")[2].partition("```")[0]
    return [words for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.slow
def test_every_line_of_the_five_minutes_works(tmp_path: Path) -> None:
    commands = five_minutes()
    assert len(commands) > 15
    with Program("dev", folder=tmp_path, TMPDIR=str(tmp_path)) as fleet:
        fleet.wait_text("farmctl top")
        address = re.search(r"CONSUL_HTTP_ADDR=(\S+)", fleet.text)
        assert address is not None
        farmctl = Farmctl(address[1])
        for program, *arguments in commands:
            assert program in {"export", "curl", "farmctl"}
            if program == "farmctl":
                farmctl.ok(*arguments)
        assert farmctl.ok("rc", "list", "-o", "name").out == ""
        assert farmctl.ok("daemonset", "get", "uptime", "-o", "json").json["status"]["healthy"] == 4
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.ends() == 0
