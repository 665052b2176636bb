"""A container engine of the tests' own: podman with runc, with a network, limits and storage in one folder.

Podman has to be installed, because networks and limits need root and the system's own parts. Images are made
from busybox; what is pulled comes from registries that the tests started.

Engines of one machine see the same bridges, and podman keeps the names of all of them in one folder. Where
two engines have a network of one name, or take the same bridge, containers of the second one find no name
server. So each engine of the tests has addresses, bridges and a folder of names of its own.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests import reaper
from tests.containers import answers
from tests.engine_traces import LOCK, Traces, path, system

IMAGE = "localhost/busybox:test"
PARTS = {
    "podman": "podman",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "flock": "util-linux",
    "busybox": "busybox-static",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
}
START_SECONDS = 30.0

_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
helper_binaries_dir = ["{folder}", "{helpers}"]
[network]
network_config_dir = "{folder}/networks"
default_subnet = "10.{range}.255.0/24"
default_subnet_pools = [{{ base = "10.{range}.0.0/17", size = 24 }}]
"""
# Podman's first words are --config and the folder of all engines; its input names a bridge such as podman1.
# What netavark starts lives on and must not keep the lock: --close.
_NETAVARK = """\
#!/bin/sh
shift 2
sed 's/"network_interface":"podman/"network_interface":"{bridge}-/' |
    flock --close {lock} {helpers}/netavark --config {folder}/names "$@"
"""
_HELPERS = "/usr/lib/podman"


class EngineMissing(Exception):
    """Podman cannot run here; the message says in one line how to get it."""


class PodmanEngine:
    """``podman system service`` on a socket; ends with the ``with`` block, with all its containers.

    ``registries``: those that it asks without TLS. ``disk``: an existing folder for all that it stores.
    """

    def __init__(self, registries: Sequence[str] = (), disk: Path | None = None) -> None:
        where = f"{path()}:{_HELPERS}"
        missing = [package for name, package in PARTS.items() if shutil.which(name, path=where) is None]
        if missing or os.geteuid() != 0:
            what = (
                f"run as root: apt-get install --no-install-recommends {' '.join(missing or PARTS.values())}"
            )
            raise EngineMissing(f"the tests of containers need podman with runc: {what}")
        self._traces = Traces.begin()
        self._folder = self._traces.folder
        (self._folder / "names").mkdir()
        own = {
            "folder": self._folder,
            "helpers": _HELPERS,
            "range": self._traces.block,
            "bridge": self._traces.bridge,
            "lock": LOCK,
        }
        (self._folder / "containers.conf").write_text(_CONFIG.format_map(own))
        (self._folder / "netavark").write_text(_NETAVARK.format_map(own))
        (self._folder / "netavark").chmod(0o755)
        (self._folder / "registries.conf").write_text(
            "".join(f'[[registry]]\nlocation = "{each}"\ninsecure = true\n' for each in registries)
        )
        (self._folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        self.environment = {
            "PATH": path(),
            "HOME": str(self._folder),
            "CONTAINERS_CONF": str(self._folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self._folder / "registries.conf"),
            "TMPDIR": str(disk or self._folder),
        }
        storage = ["--root", str((disk or self._folder) / "root"), "--storage-driver", "vfs"]
        storage += ["--runroot", str(self._folder / "run"), "--tmpdir", str(self._folder / "tmp")]
        self._podman = ["podman", *storage]
        self.url = f"unix://{self._folder}/api.sock"
        self._service: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PodmanEngine:
        try:
            self.run("import", "-q", "-", IMAGE, given=busybox())
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.clear()
        self._traces.remove()

    def start(self) -> None:
        """Start the API service."""
        (self._folder / "api.sock").unlink(missing_ok=True)
        with (self._folder / "podman.log").open("ab") as log:
            self._service = subprocess.Popen(
                self.command("system", "service", "--time", "0", self.url),
                cwd=self._folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        reaper.started(self._service.pid)
        deadline = time.monotonic() + START_SECONDS
        while (reason := answers(self.url)) is not None:
            assert time.monotonic() < deadline, f"podman's service: {reason}"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL the API service; its containers go on."""
        if self._service is not None:
            self._service.kill()
            self._service.wait()
            reaper.reaped(self._service.pid)
            self._service = None

    def answer(self) -> None:
        """Answer again, however a test that failed left it."""
        if self._service is None:
            self.start()
        self.resume()

    def clear(self) -> None:
        """Remove all containers, and every port that one of them left published, as one killed amid its end.

        A rule that stays leads a port of this machine to an address where nobody is: whoever gets that port
        later listens on it, and is never reached.
        """
        self.remove("--all")
        self._traces.forget_rules("nat", "--dport")

    def lose_power(self) -> None:
        """What a loss of the machine's power does: all processes are gone, and all that lies in memory."""
        self.kill()
        ids = self.run("ps", "--quiet", "--no-trunc").split()
        for name in ("ConmonPid", "Pid"):  # the monitor first, so that it records no end
            for pid in self.run("inspect", "--format", f"{{{{.State.{name}}}}}", *ids).split() if ids else []:
                os.kill(int(pid), signal.SIGKILL)
        for each in ids:
            system("runc", "delete", "--force", each)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in mounts:
            if mount.startswith(f"{self._folder}/") and mount.endswith("/shm"):
                system("umount", "-l", mount)
        self._traces.forget_network()
        for name in ("run", "tmp"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def pause(self) -> None:
        """Stop answering, as an engine that hangs."""
        assert self._service is not None
        self._service.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Answer again."""
        assert self._service is not None
        self._service.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> list[str]:
        """The words that run podman with this engine's storage."""
        return [*self._podman, *words]

    def run(self, *words: str, given: bytes = b"") -> str:
        """Run a podman command; its output."""
        done = subprocess.run(
            self.command(*words), input=given, env=self.environment, capture_output=True, timeout=180,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def remove(self, *which: str) -> None:
        """Remove containers, by name or all; podman refuses one that ends while podman kills it, and is asked
        once more.
        """
        words = ("rm", "--force", "--time", "0", *which)
        try:
            self.run(*words)
        except AssertionError as refusal:
            if "container state improper" not in str(refusal):
                raise
            self.run(*words, "--ignore")  # the others are gone

    def holds(self, image: str) -> bool:
        """Whether it has an image; a list of all fails while one of them is being removed."""
        done = subprocess.run(self.command("image", "exists", image), env=self.environment, check=False)
        assert done.returncode in {0, 1}
        return done.returncode == 0

    def names(self) -> list[str]:
        """The names of all containers."""
        return sorted(self.run("ps", "--all", "--format", "{{.Names}}").split())


def busybox() -> bytes:
    """A root folder of busybox alone, as a tar archive."""
    binary = shutil.which("busybox", path=path())
    assert binary is not None
    names = subprocess.run([binary, "--list"], check=True, capture_output=True, text=True).stdout.split()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        packed.add(binary, "bin/busybox")
        for name in names:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                packed.addfile(link)
        for folder, mode in {"tmp": 0o1777, "etc": 0o755, "proc": 0o755, "dev": 0o755, "sys": 0o755}.items():
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            packed.addfile(entry)
        users = b"root:x:0:0:root:/:/bin/sh\nweb:x:1234:1234:web:/tmp:/bin/sh\n"
        users += b"farmd-pods:x:10002:10002::/nonexistent:/bin/false\n"
        file = tarfile.TarInfo("etc/passwd")
        file.size = len(users)
        packed.addfile(file, io.BytesIO(users))
    return archive.getvalue()
