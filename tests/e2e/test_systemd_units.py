"""The units as systemd's own checkers see them: no unknown key, no weak sandbox.

``systemd-analyze verify`` exits 0 for a key that it does not know, so its output is what counts. It comes
from the machine, or from Debian's package, unpacked into ``.cache``.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import debian

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"
# systemd and the libraries that a minimal system may lack.
PACKAGES = [
    "systemd",
    "libsystemd-shared",
    "libapparmor1",
    "libip4tc2",
    "libkmod2",
    "libseccomp2",
    "libssl3",
    "libgcrypt20",
    "libgpg-error0",
    "liblz4-1",
    "libzstd1",
    "libpcre2-8-0",
    "libselinux1",
    "libaudit1",
    "libcap-ng0",
    "libpam0g",
    "libcap2",
    "libacl1",
    "libblkid1",
    "libmount1",
    "liblzma5",
    "libcrypt1",
]
# Measured with systemd 252; the agent's workloads inherit its sandbox, so it hardly has one.
EXPOSURE = {"farmd.service": 13, "farmd-agent.service": 88}


@functools.cache
def tool(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A systemd program and the environment that it needs."""
    found = shutil.which(name)
    if found is not None:
        return found, ()
    folder = debian.tree("systemd", PACKAGES, "bookworm")
    libraries = sorted(
        {str(path.parent) for path in folder.rglob("*.so.*")}
        | set(map(str, folder.glob("usr/lib/*/systemd")))
    )
    program = next(folder / place / name for place in ("usr/bin", "bin") if (folder / place / name).exists())
    return str(program), (("LD_LIBRARY_PATH", ":".join(libraries)),)


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path, extra = tool(name)
    # Files get owners, in a root of the test's own: an ordinary user needs a name space for that.
    prefix = ["unshare", "--map-root-user"] if os.geteuid() and name != "systemd-analyze" else []
    return subprocess.run(
        [*prefix, path, *arguments],
        env={**os.environ, **dict(extra), "SYSTEMD_COLORS": "0"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def units(tmp_path) -> Path:
    """The units with an ExecStart that exists on this machine."""
    binary = tmp_path / "farmd"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    for unit in UNITS.glob("*.service"):
        text = unit.read_text()
        assert "ExecStart=/opt/farmd/bin/farmd " in text
        (tmp_path / unit.name).write_text(text.replace("/opt/farmd/bin/farmd", str(binary)))
    return tmp_path


@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_verify_has_nothing_to_say(units, unit):
    done = run("systemd-analyze", "verify", "--man=no", str(units / unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_would_name_an_unknown_key(units):
    unit = units / "farmd.service"
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nProtectEverything=yes"))
    done = run("systemd-analyze", "verify", "--man=no", str(unit))
    assert "ProtectEverything" in done.stderr


@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_the_exposure_stays_below_its_threshold(units, unit):
    arguments = (
        "security",
        "--offline=yes",
        f"--threshold={EXPOSURE[unit]}",
        "--no-pager",
        str(units / unit),
    )
    done = run("systemd-analyze", *arguments)
    assert done.returncode == 0, (done.stdout + done.stderr)[-300:]


def test_the_drop_in_is_the_same_service_for_newer_systemd(units):
    version = int(re.findall(r"systemd (\d+)", run("systemd-analyze", "--version").stdout)[0])
    folder = units / "farmd.service.d"
    folder.mkdir()
    shutil.copy(UNITS / "notify-reload.conf", folder)
    said = run("systemd-analyze", "verify", "--man=no", str(units / "farmd.service")).stderr
    # Before 253 systemd names the type that it does not know, and nothing else.
    lines = [line for line in said.splitlines() if "notify-reload" not in line or version >= 253]
    assert lines == []


def test_r27_the_agent_unit_leaves_workloads_alone():
    text = (UNITS / "farmd-agent.service").read_text()
    for line in ("KillMode=process", "Delegate=yes", "OOMPolicy=continue"):
        assert f"\n{line}\n" in text
    assert "\nPrivateTmp=" not in text


@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_a_bad_configuration_is_not_started_again(unit):
    assert "\nRestartPreventExitStatus=78\n" in (UNITS / unit).read_text()


def test_sysusers_and_tmpfiles_do_what_they_say(tmp_path):
    (tmp_path / "etc").mkdir()
    users = run("systemd-sysusers", f"--root={tmp_path}", str(UNITS / "sysusers.conf"))
    assert users.returncode == 0, users.stderr
    assert "farmd-pods" in (tmp_path / "etc/passwd").read_text()
    files = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", str(UNITS / "tmpfiles.conf"))
    assert files.returncode == 0, files.stderr
    assert (tmp_path / "etc/credstore").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "etc/farmd/conf.d").is_dir()


def made(target: str, folder: Path, **variables: str) -> set[str]:
    """The files below a folder after a target of the Makefile."""
    given = [f"{name}={value}" for name, value in {"DESTDIR": str(folder), **variables}.items()]
    subprocess.run(["make", "-s", target, *given], cwd=ROOT, check=True, timeout=180)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("library", "version"), [("/usr/lib", "252"), ("/usr/lib", "253"), ("/etc", "300")])
def test_all_that_is_put_in_place_is_taken_out_again(tmp_path, library, version):
    there = made("install-systemd", tmp_path, LIBDIR=library, SYSTEMD=version)
    library = library.removeprefix("/")
    files = {f"{library}/{kind}.d/farmd.conf" for kind in ("sysusers", "tmpfiles")}
    for unit in EXPOSURE:
        files |= {f"{library}/systemd/system/{unit}", f"etc/default/{unit.removesuffix('.service')}"}
        files |= {f"{library}/systemd/system/{unit}.d/notify-reload.conf"} if version != "252" else set()
    assert there == files
    for unit in EXPOSURE:
        assert (
            f"EnvironmentFile=-/etc/default/{unit.removesuffix('.service')}\n" in (UNITS / unit).read_text()
        )
    assert made("uninstall-systemd", tmp_path, LIBDIR=f"/{library}") == set()


def test_an_environment_file_that_a_person_changed_stays(tmp_path):
    changed = tmp_path / "etc/default/farmd"
    made("install-systemd", tmp_path)
    changed.write_text("CONSUL_HTTP_ADDR=consul:8500\n")
    made("install-systemd", tmp_path)
    assert made("uninstall-systemd", tmp_path) == {"etc/default/farmd"}
    assert changed.read_text() == "CONSUL_HTTP_ADDR=consul:8500\n"
