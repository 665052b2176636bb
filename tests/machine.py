"""``python -m tests.machine``: what `make test-all` needs of this machine, before anything runs.

In a second or two it tells all that is missing, with the one command that installs it; as root on Debian it
runs that command by itself. Then it tells what will be built, and how long everything takes. What tests can
fetch without being installed is not its matter (``tests/binaries.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import binaries, go_programs

# Program, or file → the Debian package that has it.
PROGRAMS = {
    "podman": "podman",
    "runc": "runc",
    "catatonit": "catatonit",
    "iptables": "iptables",
    "ip": "iproute2",
    "busybox": "busybox-static",
    "dbus-daemon": "dbus-daemon",
    "mkfs.ext4": "e2fsprogs",
    "nsenter": "util-linux",
    "chromium": "chromium",
    "haproxy": "haproxy",
    "git": "git",
    "openssl": "openssl",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    "/usr/lib/systemd/systemd": "systemd",
}
MINUTES = 21
"""All tests on two idle cores."""


def missing() -> list[str]:
    """The packages of what is not here."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [package for name, package in PROGRAMS.items() if shutil.which(name, path=path) is None]


def install(packages: list[str]) -> list[str]:
    """The command that installs packages on Debian."""
    return ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]


def troubles() -> Iterator[str]:
    """All that keeps `make test-all` from passing here, a line each."""
    packages = missing()
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(packages)}", file=sys.stderr)
        quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
        for command in (["apt-get", "update", "-qq"], install(packages)):
            subprocess.run(command, check=False, **quiet)
        packages = missing()
    if packages:
        lacking = [name for name, package in PROGRAMS.items() if package in packages]
        yield f"missing: {' '.join(lacking)}; Debian: sudo {' '.join(install(packages))}"
    if os.geteuid() != 0:
        yield "not root: containers, the packet filter and mounts are tested as root: sudo make test-all"
    if shutil.which("apt-get") is None:
        absent = [name for name in binaries.PACKAGED if binaries.here(name) is None]
        if absent:
            yield f"missing: {' '.join(absent)}: not a Debian, so they cannot be fetched; put them on PATH"
    free, needed = shutil.disk_usage(Path.home()).free, go_programs.FREE_BYTES
    if builds() and free < needed:
        yield f"{go_programs.cache()}: {free >> 30} GiB free, builds need {needed >> 30} GiB"


def builds() -> list[str]:
    """What will be built first."""
    return [name for name in go_programs.BUILT if go_programs.here(name) is None]


def main() -> int:
    """Tell all; 1 where something is missing."""
    if found := list(troubles()):
        print(*(f"make test-all: {trouble}" for trouble in found), sep="\n", file=sys.stderr)
        return 1
    if names := builds():
        modules = {go_programs.BUILT[name].module for name in names}
        minutes = sum(go_programs.MINUTES[module] for module in modules)
        print(
            f"{', '.join(names)}: built once, in about {minutes} minutes on two idle cores", file=sys.stderr
        )
    print(f"all tests: about {MINUTES} minutes on two idle cores", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
