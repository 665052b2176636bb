"""Finds or fetches the programs of others that tests, bench and CI run.

``python -m tests.binaries consul nginx`` prints the path of each. The order: PATH, ``.cache/bin/<name>``,
the program out of an image where a Docker-compatible API answers (Consul alone), the Debian package,
unpacked: nothing is installed. Those that have to be built come by ``tests/go_programs.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests import debian, go_programs

FOLDER = debian.CACHE / "bin"
SHARE = debian.CACHE / "share"
IMAGE = os.environ.get("FARMD_TEST_CONSUL_IMAGE", "hashicorp/consul:1.8.7")


class NotToBeHad(Exception):
    """A program is not here and cannot be fetched; the message says in one line how to get it."""


@dataclass(frozen=True)
class Packaged:
    """A program in a Debian package; ``proof`` is the argument with which it only tells its version.

    ``suite`` is the Debian release whose package is taken; None: this machine's own. ``share`` is a folder of
    ``usr/share`` that the program reads; it comes into ``SHARE``.
    """

    package: str
    path: str
    proof: str
    suite: str | None = None
    share: str = ""


PACKAGED = {
    "consul": Packaged("consul", "usr/bin/consul", "version", "bullseye"),
    "nginx": Packaged("nginx", "usr/sbin/nginx", "-v"),
    "prometheus": Packaged("prometheus", "usr/bin/prometheus", "--version"),
    "docker-registry": Packaged("docker-registry", "usr/bin/docker-registry", "--version"),
    "prometheus-alertmanager": Packaged(
        "prometheus-alertmanager", "usr/bin/prometheus-alertmanager", "--version", share="prometheus"
    ),
    "promtool": Packaged("prometheus", "usr/bin/promtool", "--version"),
    "linux.uml": Packaged("user-mode-linux", "usr/bin/linux.uml", "--version"),
    "age": Packaged("age", "usr/bin/age", "--version"),
    "age-keygen": Packaged("age", "usr/bin/age-keygen", "--version"),
}


def binary(name: str) -> Path:
    """The program, fetched into ``.cache/bin`` if need be.

    Raises:
        NotToBeHad: nowhere to be had.
    """
    reasons = list[str]()
    if (found := here(name)) is not None:
        return found
    if name in go_programs.NAMES:
        return _of_go(name)
    with debian.locked(PACKAGED[name].package):
        for source in _sources(name):
            if (found := here(name)) is not None:
                return found
            try:
                source()
            except debian.CannotFetch as error:
                reasons.append(str(error))
    if (found := here(name)) is not None:
        return found
    raise _missing(name, FOLDER / name, "; ".join(reasons))


def _of_go(name: str) -> Path:
    try:
        go_programs.fetch(name)
    except debian.CannotFetch as error:
        raise _missing(name, go_programs.cached(name), str(error)) from error
    return go_programs.cached(name)


def _missing(name: str, place: Path, reasons: str) -> NotToBeHad:
    return NotToBeHad(f"no {name} for the tests: put `{name}` on PATH or at {place} ({reasons})")


def here(name: str) -> Path | None:
    """Also in the folders of administrators' programs, which are not on everybody's PATH."""
    if name in go_programs.NAMES:
        return go_programs.here(name)
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    cached = FOLDER / name
    return Path(found) if found else cached if cached.exists() else None


def _sources(name: str) -> list[Callable[[], None]]:
    package = PACKAGED[name].package
    return [*([_from_image] if name == "consul" else []), lambda: _from_debian(package)]


def _from_image() -> None:
    from tests import containers

    with tempfile.TemporaryDirectory(prefix="farmd-image-") as folder:
        _install("consul", containers.copy_out(IMAGE, "/bin/consul", Path(folder)))


def _from_debian(package: str) -> None:
    """All programs of the package that anybody here asks for."""
    programs = {name: each for name, each in PACKAGED.items() if each.package == package}
    suite = next(iter(programs.values())).suite or debian.codename()
    with tempfile.TemporaryDirectory(prefix=f"farmd-{package}-") as folder:
        debian.unpack([package], suite, Path(folder))
        for name, each in programs.items():
            if each.share:
                shutil.copytree(Path(folder, "usr/share", each.share), SHARE / each.share, dirs_exist_ok=True)
            _install(name, Path(folder) / each.path)


def _install(name: str, source: Path) -> None:
    """Into place by rename, so that nobody ever sees half of it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = FOLDER / f"{name}.{os.getpid()}.part"
    shutil.copyfile(source, part)
    part.chmod(0o755)
    try:
        subprocess.run([part, PACKAGED[name].proof], check=True, capture_output=True, timeout=180)
    except (OSError, subprocess.SubprocessError) as error:
        part.unlink()
        raise debian.CannotFetch(f"the fetched {name} does not run: {error}") from error
    part.rename(FOLDER / name)


def _main(names: list[str]) -> int:
    known = [*PACKAGED, *go_programs.NAMES]
    if not names or set(names) - set(known):
        print(f"usage: python -m tests.binaries {{{'|'.join(known)}}}...", file=sys.stderr)
        return 2
    try:
        for name in names:
            print(binary(name))
    except NotToBeHad as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
