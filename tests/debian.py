"""Fetch Debian packages by unpacking them into ``.cache``; nothing is installed, no root needed.

The mirror is the one that this machine's apt already uses, signature checking stays on, and apt's
own state is never touched: lists and cache live in a scratch directory that is removed afterwards.
Two processes that want the same thing wait for one another on a lock file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FETCH_SECONDS = 300

# Hooks of the machine's own apt would work on the machine's own cache.
_CONFIG = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "{scratch}/sources.list";
Dir::Etc::sourceparts "{scratch}/none";
Dir::State "{scratch}/state";
Dir::State::Lists "{scratch}/lists";
Dir::State::status "{status}";
Dir::Cache "{scratch}/cache";
APT::Sandbox::User "{user}";
Acquire::Languages "none";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Check-Valid-Until "false";
"""


class CannotFetch(Exception):
    """The package cannot be had from apt here; the message says in one line why."""


@contextlib.contextmanager
def locked(name: str, folder: Path | None = None) -> Iterator[None]:
    """Hold ``<name>.lock`` in ``.cache`` or ``folder`` across processes; the kernel frees a dead one's."""
    folder = folder or CACHE
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def mirror() -> str:
    """The Debian mirror in this machine's apt configuration.

    Raises:
        CannotFetch: apt is missing or has no source that ends in ``/debian``.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise CannotFetch("apt-get and dpkg-deb are not on PATH")
    listed = _run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"])
    for site in dict.fromkeys(listed.split()):
        if site.rstrip("/").endswith("/debian"):
            return site
    raise CannotFetch("apt's configuration names no mirror that ends in /debian")


def codename() -> str:
    """The suite of this machine, whose libraries fit.

    Raises:
        CannotFetch: this is no Debian.
    """
    release = Path("/etc/os-release")
    lines = release.read_text().splitlines() if release.exists() else []
    known = dict(line.split("=", 1) for line in lines if "=" in line)
    if known.get("ID") != "debian" or "VERSION_CODENAME" not in known:
        raise CannotFetch("this machine is no Debian")
    return known["VERSION_CODENAME"].strip('"')


def unpack(packages: Sequence[str], suite: str, into: Path) -> None:
    """Download ``packages`` (these only, no dependencies) of a Debian suite and unpack them.

    Raises:
        CannotFetch: no mirror, no such package, no network.
    """
    with tempfile.TemporaryDirectory(prefix="farmd-apt-") as name:
        scratch = Path(name)
        options = _prepare(scratch, suite)
        _run(["apt-get", *options, "-q", "update"], cwd=scratch)
        _run(["apt-get", *options, "-q", "download", *packages], cwd=scratch)
        into.mkdir(parents=True, exist_ok=True)
        for archive in sorted(scratch.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(archive), str(into)])


def tree(name: str, packages: Sequence[str], suite: str) -> Path:
    """``.cache/debian/<name>`` with those packages unpacked; fetched once, complete or absent."""
    final = CACHE / "debian" / name
    with locked(f"debian-{name}"):
        if not final.is_dir():
            part = final.with_name(f"{name}.part")
            shutil.rmtree(part, ignore_errors=True)
            unpack(packages, suite, part)
            part.rename(final)
    return final


def _prepare(scratch: Path, suite: str) -> list[str]:
    for folder in ("none", "state", "lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (scratch / "sources.list").write_text(f"deb {signed}{mirror()} {suite} main\n")
    user = "root" if os.geteuid() == 0 else ""
    configuration = scratch / "apt.conf"
    configuration.write_text(_CONFIG.format(scratch=scratch, status=scratch / "status", user=user))
    return [f"-c={configuration}"]


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, check=False, capture_output=True, text=True, timeout=FETCH_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise CannotFetch(f"{command[0]} took longer than {FETCH_SECONDS} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.startswith("E:")]
        reason = lines[0] if lines else f"exit code {done.returncode}"
        raise CannotFetch(f"{' '.join(command[:1] + command[-2:])}: {reason}")
    return done.stdout
