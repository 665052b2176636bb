"""A manifest in systemd's words, what a bus does instead of answering, and what an unused systemd costs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes import systemd
from farmd.agent.runtimes.runtime import Launch
from farmd.agent.runtimes.systemd import Systemd, SystemdSilent
from store.containers import Limits, Mount
from store.manifests import Manifest, Stop


def properties(**fields: Any) -> dict[str, Any]:
    manifest = Manifest(id="web", runtime="systemd", command=["x"], **fields)
    launch = Launch(instance="web~1", sha="a" * 64, manifest=manifest, ports={}, start="s1", started=5.5)
    found = systemd.properties("n1", launch, ["python", "shim"], {"LANG": "C"}, [], -500)
    return {name: variant.value for name, variant in found}


def test_names_hold_node_and_instance_and_nothing_that_systemd_refuses() -> None:
    assert systemd.unit_of("n1", "web~0") == "farmd..n1..web..0.service"


def test_a_unit_of_a_program_alone_is_not_limited() -> None:
    made = properties(stop=Stop(grace=3))
    assert {name for name in made if "Max" in name or "Quota" in name or "Paths" in name} == {"TasksMax"}
    assert (made["TasksMax"], made["TimeoutStopUSec"]) == (systemd.UNLIMITED, 3_000_001)
    assert (made["ExecStart"], made["Environment"]) == ([("python", ["python", "shim"], False)], ["LANG=C"])


def test_limits_leave_room_for_the_shim() -> None:
    made = properties(limits=Limits(memory=64 * 2**20, cpu=0.25, pids=10, io_weight=50))
    wanted = {"MemoryMax": 64 * 2**20, "MemorySwapMax": 0, "CPUQuotaPerSecUSec": 250_000, "TasksMax": 11}
    wanted |= {"IOWeight": 50}
    assert made | wanted == made


def test_mounts_are_the_nodes_folders_under_other_paths() -> None:
    mounts = [
        Mount(type="bind", source="/srv/in", target="/in", read_only=True),
        Mount(type="bind", source="/v/data/sub", target="/data"),
        Mount(type="tmpfs", target="/fast", size=1024, mode=0o700, read_only=True),
    ]
    made = properties(mounts=mounts)
    assert made["BindReadOnlyPaths"] == [("/srv/in", "/in", False, systemd.RECURSIVE)]
    assert made["BindPaths"] == [("/v/data/sub", "/data", False, systemd.RECURSIVE)]
    assert made["TemporaryFileSystem"] == [("/fast", "size=1024,mode=700,ro")]


@pytest.mark.parametrize("listens", [False, True])
async def test_a_bus_that_is_away_or_hangs_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.setattr("farmd.agent.runtimes.systemd.ANSWER_SECONDS", 0.2)
    address = f"unix:path={tmp_path}/bus"
    systemd = Systemd(address)
    with socket.socket(socket.AF_UNIX) as bus:
        if listens:
            bus.bind(f"{tmp_path}/bus")
            bus.listen()
        with pytest.raises(SystemdSilent, match=f"systemd at {address} does not answer") as told:
            await systemd.ask("Ping")
    systemd.close()
    assert "\n" not in told.value.message


def test_the_extra_is_imported_only_where_it_is_used() -> None:
    code = "import sys, farmd.agent.agent, farmd.agent.runtimes.systemd; sys.exit('dbus_fast' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_another_users_systemd_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bus").touch()
    systemd = Systemd(f"unix:path={tmp_path}/bus")
    systemd.require_owner()
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    with pytest.raises(StartFailed, match=r"found .*/bus of uid \d+, expected one of uid 4242"):
        systemd.require_owner()
