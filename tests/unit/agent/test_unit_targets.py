"""A unit's shim is root inside the unit: no manifest lays anything where the shim could meet it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from farmd.agent import shim
from farmd.agent.errors import StartFailed
from farmd.agent.model import SystemdConfig
from farmd.agent.runtimes import unit_targets
from farmd.agent.runtimes.systemd import Units
from farmd.agent.runtimes.unit_targets import refuse_unsafe
from farmd.agent.state import StateDirectory
from farmd.agent.users import Users
from store.artifacts import Artifact
from store.containers import File, Mount, Secret
from store.manifests import Manifest
from tests.recorders import CountingRecorder
from tests.still_clock import StillClock

STATE = Path("/var/lib/farmd-agent")


def unit(**fields: Any) -> Manifest:
    return Manifest(id="web", runtime="systemd", command=["/bin/true"], **fields)


def units(tmp_path: Path, *allow: str, share: bool = False) -> Units:
    return Units(
        SystemdConfig(bus="unix:path=/nowhere", allow=allow),
        state=StateDirectory(tmp_path),
        node="n1",
        environ={},
        clock=StillClock(),
        recorder=CountingRecorder(),
        users=Users(share=share, allow=allow),
    )


@pytest.mark.parametrize(
    "target",
    [
        sys.executable,
        shim.__file__,
        str(Path(shim.__file__).with_name("become.py")),
        os.__file__,
        "/etc/ld.so.preload",
        "/etc",
        "/usr",
        "/lib",
        "/usr/lib/../lib/x",
        "/dev/null",
        "/proc/self",
        "/var/lib",
        f"{STATE}/instances/web/logs",
        "/tmp/link/x",  # on every machine: others than root may change what is in /tmp
    ],
)
def test_nothing_of_a_pod_lies_where_a_shim_meets_it_as_root(target: str) -> None:
    for fields in (
        {"files": [File(path=target, content="x")]},
        {"mounts": [Mount(source="v", target=target)]},
        {"mounts": [Mount(type="tmpfs", target=target)]},
        {"secrets": [Secret(name="s", path=target)]},
        {"artifacts": [Artifact(source="https://host/x", sha256="0" * 64, to=target)]},
    ):
        with pytest.raises(StartFailed, match="a unit cannot have a mount of its own at"):
            refuse_unsafe(unit(**fields), STATE)


def test_nothing_lies_in_what_workloads_may_have_made_a_link() -> None:
    data = Mount(source="v", target="/srv/data")
    with pytest.raises(StartFailed, match="the content of /srv/data"):
        refuse_unsafe(unit(mounts=[data], files=[File(path="/srv/data/link/x")]), STATE)


def test_the_usual_places_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if farmd were installed: this checkout may itself be below one of these places.
    monkeypatch.setattr(unit_targets, "_python", lambda: iter(["/opt/farmd"]))
    mounts = [
        Mount(source="v", target="/srv/data"),
        Mount(type="tmpfs", target="/srv/fast"),
        Mount(type="tmpfs", target="/tmp"),
        Mount(source="w", target="/srv/fast/cache"),
    ]
    files = [File(path="/etc/web.conf"), File(path="/usr/share/web/x"), File(path="/srv/data.conf")]
    refuse_unsafe(unit(mounts=mounts, files=files, secrets=[Secret(name="s")]), STATE)


def test_programs_that_gain_privileges_believe_no_file_of_a_pod() -> None:
    manifest = unit(files=[File(path="/etc/sudoers.d/web")])
    refuse_unsafe(manifest, STATE)
    with pytest.raises(StartFailed, match="uses /etc as root"):
        refuse_unsafe(manifest, STATE, new_privileges=True)


def test_a_bind_that_became_a_link_after_it_was_judged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    found = Mount(type="bind", source=str(tmp_path / "link"), target="/srv/x")
    with pytest.raises(StartFailed, match="was replaced by a link"):
        units(tmp_path)._existing(found, "mounts[0]")


def test_a_node_that_allows_root_and_a_pod_of_before_are_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Users, "of", lambda *_, kept=False: None)
    covers = unit(files=[File(path="/usr/bin/x")])
    units(tmp_path, "root").preflight(covers)
    units(tmp_path, share=True).preflight(covers)
    units(tmp_path).preflight(covers, kept=True)
    with pytest.raises(StartFailed, match="uses /usr/bin as root"):
        units(tmp_path).preflight(covers)
