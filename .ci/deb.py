"""Make a Debian package of a wheel, beside it: ``python .ci/deb.py dist/farmd-*.whl``.

The package is a virtual environment in ``/usr/lib/farmd`` with the versions of ``locks/deploy.txt`` and all
extras, so it is for the Python that builds it. Two builds of one commit are equal, byte for byte: what pip
notes about this machine is left out, and times and modes are fixed.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = "usr/lib/farmd"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# What hatchling gives the files of a wheel.
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1580601600"))
PROGRAMS = ("farmd", "farmctl")
OF_THIS_MACHINE = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
START = """\
#!/{home}/bin/python3
from farmd.entry import {program}

if __name__ == "__main__":
    {program}()
"""
CONTROL = """\
Package: farmd
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Depends: python3 (>= {lowest}), python3 (<< {above})
Recommends: systemd
Section: admin
Priority: optional
Description: runs and supervises workloads on a fleet of Linux hosts
 farmd needs Consul alone. This package has the farm, the node agent and
 farmctl, with all that they import.
"""
COPYRIGHT = """\
Copyright: The farmd authors
License: Apache-2.0, see /usr/share/common-licenses/Apache-2.0

The licences of the packages in /usr/lib/farmd/lib are in their folders *.dist-info.
"""
# The code is compiled once, because the farm's user may not write here. dpkg writes over the code of a
# running process, so an upgrade stops both units first and starts them afterwards; no workload notices.
# Bytecode goes with its version: files have one time in all versions, so Python would not see that it is old.
SCRIPTS = {
    "preinst": """\
#!/bin/sh
set -e
if [ "$1" = upgrade ] && [ -d /run/systemd/system ]; then
    for unit in farmd farmd-agent; do
        if systemctl --quiet is-active $unit; then touch /run/$unit.upgraded; systemctl stop $unit; fi
    done
fi
""",
    "postinst": """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    /usr/bin/python3 -m compileall -q /{home}/lib
    if [ -d /run/systemd/system ]; then
        systemd-sysusers farmd.conf
        systemd-tmpfiles --create farmd.conf
        systemctl daemon-reload
        for unit in farmd farmd-agent; do
            if [ -e /run/$unit.upgraded ]; then rm /run/$unit.upgraded; systemctl start $unit; fi
        done
    fi
fi
""",
    "prerm": """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now farmd farmd-agent; fi
find /{home}/lib -name __pycache__ -prune -exec rm -r {{}} +
""",
    "postrm": """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
""",
}


def main(wheel: Path) -> None:
    """Build the package beside the wheel."""
    if shutil.which("dpkg-deb") is None:
        sys.stderr.write("dpkg-deb is missing, so no .deb was built: apt-get install dpkg\n")
        return
    version, architecture = wheel.name.split("-")[1], _said("dpkg", "--print-architecture")
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made)
        _environment(tree, wheel)
        _documents(tree)
        _systemd(tree)
        _control(tree, version, architecture)
        for path in [*tree.rglob("*"), tree]:
            _settle(path, tree)
        target = wheel.with_name(f"farmd_{version}_{architecture}.deb")
        words = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", made, str(target)]
        _run(*words, SOURCE_DATE_EPOCH=str(EPOCH))


def _environment(tree: Path, wheel: Path) -> None:
    """The virtual environment, its programs, and the manual pages and completions of the wheel."""
    home = tree / HOME
    site = home / "lib" / PYTHON / "site-packages"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile")
    to = ("--target", str(site), "--upgrade")
    _run(*pip, *to, "--require-hashes", "-r", str(ROOT / "locks/deploy.txt"))
    _run(*pip, *to, "--no-deps", str(wheel))
    (site / "share").rename(tree / "usr/share")
    for page in list((tree / "usr/share/man").rglob("*.1")):
        page.with_suffix(".1.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    shutil.rmtree(site / "bin")
    for path in [each for name in OF_THIS_MACHINE for each in site.glob(f"*.dist-info/{name}")]:
        path.unlink()
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (tree / "usr/bin").mkdir()
    for program in PROGRAMS:
        script = home / "bin" / program
        script.write_text(START.format(home=HOME, program=program))
        script.chmod(0o755)
        (tree / "usr/bin" / program).symlink_to(f"../lib/farmd/bin/{program}")


def _documents(tree: Path) -> None:
    """What people read, and the examples."""
    folder = tree / "usr/share/doc/farmd"
    folder.mkdir(parents=True)
    for name in ("README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "copyright").write_text(COPYRIGHT)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "docs").glob("*.md"):
        shutil.copy(path, folder)


def _systemd(tree: Path) -> None:
    """Units, users, folders and environment files, as ``make install-systemd`` puts them in place."""
    _run(
        "make", "-s", "-C", str(ROOT), "install-systemd", f"DESTDIR={tree}", "LIBDIR=/usr/lib", "SYSTEMD=252"
    )
    for unit in (tree / "usr/lib/systemd/system").glob("*.service"):
        unit.write_text(unit.read_text().replace("/opt/farmd/bin/farmd", "/usr/bin/farmd"))


def _control(tree: Path, version: str, architecture: str) -> None:
    folder = tree / "DEBIAN"
    folder.mkdir()
    major, minor = sys.version_info[:2]
    known = {"lowest": f"{major}.{minor}", "above": f"{major}.{minor + 1}"}
    stated = {"version": version, "architecture": architecture, "maintainer": _maintainer()}
    (folder / "control").write_text(CONTROL.format(**known, **stated))
    (folder / "conffiles").write_text("".join(f"/{path}\n" for path in _settings(tree)))
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text.format(home=HOME))
        (folder / name).chmod(0o755)


def _maintainer() -> str:
    """The first author of ``pyproject.toml``."""
    author = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["authors"][0]
    return f"{author['name']} <{author['email']}>"


def _settings(tree: Path) -> Iterator[str]:
    return (str(each.relative_to(tree)) for each in sorted((tree / "etc").rglob("*")) if each.is_file())


def _settle(path: Path, tree: Path) -> None:
    """Give a file the time and the mode that it has in every build."""
    if not path.is_symlink():
        secret = path.is_relative_to(tree / "etc/default") and path.is_file()
        runs = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o600 if secret else 0o755 if runs else 0o644)
    os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def _run(*words: str, **more: str) -> None:
    subprocess.run(words, check=True, env={**os.environ, **more})


def _said(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
