"""A machine of the tests' own whose first process is systemd: a container that sees this machine's ``/usr``.

``suite`` runs files of tests inside it, with this checkout and its Python.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.engine import EngineMissing, PodmanEngine

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "localhost/systemd:test"
INIT = "/usr/lib/systemd/systemd"
BUS = "unix:path=/run/dbus/system_bus_socket"
INSIDE = "FARMD_TEST_SYSTEMD"
"""The variable that tells a suite that it runs inside."""
PARTS = {INIT: "systemd", "/usr/bin/dbus-daemon": "dbus", "/usr/bin/nsenter": "util-linux"}
START_SECONDS = 30.0
SUITE_SECONDS = 240.0
FILES = {
    "etc/passwd": [
        "root:x:0:0:root:/root:/bin/sh",
        "messagebus:x:100:102::/nonexistent:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ],
    "etc/group": ["root:x:0:", "tty:x:5:", "messagebus:x:102:", "nogroup:x:65534:"],
    "etc/machine-id": [],
    "etc/hosts": ["127.0.0.1 localhost"],
}
"""What a machine begins with: the users that systemd and D-Bus need."""
# Its control groups are below the container's, whose paths systemd sees as this machine does: else it would
# run without the controllers of limits.
OPTIONS = ("--systemd=always", "--cap-add=SYS_ADMIN,SYS_PTRACE", "--network=host", "--cgroupns=host",
           "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw")  # fmt: skip


class Machine:
    """systemd as the first process of a container of an engine; ends with the ``with`` block."""

    def __init__(self, engine: PodmanEngine, mounts: Mapping[str, str] | None = None) -> None:
        """``mounts``: what else is seen inside, by where."""
        self._mounts = mounts or {}
        missing = [package for path, package in PARTS.items() if not Path(path).exists()]
        if missing:
            what = f"apt-get install --no-install-recommends {' '.join(missing)}"
            raise EngineMissing(f"the tests of systemd's runtime need systemd and D-Bus: {what}")
        self._engine = engine

    def __enter__(self) -> Machine:
        self._engine.run("import", "--quiet", "-", IMAGE, given=_root())
        volumes = [f"--volume={path}:{path}:ro" for path in seen()]
        volumes += [f"--volume={path}:{where}:ro" for where, path in self._mounts.items()]
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=4096:4096"]
        self._engine.run("run", "--detach", "--name=machine", *OPTIONS, *limits, *volumes, IMAGE, INIT)
        deadline = time.monotonic() + START_SECONDS
        while (done := self.execute("busctl", "status")).returncode != 0:
            assert time.monotonic() < deadline, f"systemd in a container: {done.stdout}"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.run("rm", "--force", "--time=0", "machine")

    def put(self, folder: Path) -> None:
        """Copy all that is in a folder to where it would be below the root folder."""
        self._engine.run("cp", f"{folder}/.", "machine:/")

    def execute(self, *words: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command inside; its output and errors are one text."""
        variables = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", INSIDE: BUS}
        given = [f"--env={name}={value}" for name, value in variables.items()]
        command = self._engine.command("exec", f"--workdir={ROOT}", *given, "machine", *words)
        return subprocess.run(
            command, env=self._engine.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=seconds, check=False,
        )  # fmt: skip

    def suite(self, *files: str) -> subprocess.CompletedProcess[str]:
        """Run tests inside."""
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
        return self.execute(*words, seconds=SUITE_SECONDS)


def seen() -> list[str]:
    """The folders that such a machine sees where this one has them: programs, Python, this checkout."""
    found = {"/usr", sys.base_prefix, sys.prefix, str(ROOT)}
    return [each for each in found if not any(Path(each).is_relative_to(o) for o in found - {each})]


def _root() -> bytes:
    """A root folder of links into ``/usr``, and of the users that systemd and D-Bus need."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        for name in ("etc", "proc", "sys", "dev", "run", "tmp", "var", "usr", "root"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            packed.addfile(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            packed.addfile(link)
        # A first start would ask for a default of each unit; only the bus is needed.
        link = tarfile.TarInfo("etc/systemd/system/default.target")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/lib/systemd/system/multi-user.target"
        packed.addfile(link)
        for name, lines in FILES.items():
            text = "".join(f"{line}\n" for line in lines).encode()
            file = tarfile.TarInfo(name)
            file.size = len(text)
            packed.addfile(file, io.BytesIO(text))
    return archive.getvalue()
