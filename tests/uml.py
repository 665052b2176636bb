"""A whole machine of the tests' own: User-mode Linux, a kernel that runs as a program of this machine.

Its first process is systemd, its control groups are version 2, and it reboots. It sees this machine's
``/usr``, this checkout and its Python, read-only; the rest of its root is empty and lies in its own memory.
It has no network but loopback, unless it is ``linked`` to others. Nothing in it needs privileges of this
machine, though files keep their owners only where the tests run as root.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import binaries, reaper
from tests.systemd import FILES, ROOT, seen

SECONDS = 420.0
SHARED = "/shared"
COMMON = "/common"

# The first process: it builds the root of the machine, and becomes systemd. The links are what systemd
# expects of a machine whose programs all lie below /usr.
_INIT = """\
#!/bin/sh
set -e
export PATH=/usr/sbin:/usr/bin
mount -t tmpfs -o mode=755 tmpfs /mnt
cd /mnt
mkdir -p dev etc home old proc root run sys tmp usr var .{shared}
chmod 1777 tmp
for each in bin sbin lib lib64; do ln -s usr/$each $each; done
for each in ld.so.cache alternatives dbus-1; do cp -a /etc/$each etc/; done
mount -t proc proc proc
mount -t devtmpfs dev dev
mount -t hostfs -o {folder}/shared none .{shared}
mkdir .{common} && mount -t hostfs -o {commonly} none .{common}
{opened}
cp -a {folder}/root/. .
{binds}
pivot_root . old
exec chroot . /bin/sh -c 'umount -l /old && exec /lib/systemd/systemd --unit=multi-user.target'
"""
# A folder below /usr of the machine's own, with links to what is in this machine's. Units are copied: a link
# would be a unit from elsewhere.
_OPENED = """\
mkdir -p .usr && mount --bind /usr .usr
for each in {folders}; do
  if [ -L usr/$each ]; then rm usr/$each; fi
  mkdir -p usr/$each
  case $each in
    lib/systemd/system) cp -a .usr/$each/. usr/$each ;;
    *) ls -A .usr/$each | sed "s|^|/.usr/$each/|" | xargs -r ln -s -t usr/$each ;;
  esac
done
"""
_BIND = """\
if [ -d {what} ]; then mkdir -p .{where}; else mkdir -p .{parent}; touch .{where}; fi
mount --bind {what} .{where}
"""
_UNIT = """\
[Service]
Type=oneshot
LimitNOFILE=65536
ExecStart=/bin/sh -c '/bin/sh {shared}/script >{shared}/output 2>&1; echo $? >{shared}/status; sync'
ExecStopPost=/bin/systemctl poweroff --force --force
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command inside ended: its exit code, its output and errors as one text, the kernel's words."""

    status: int
    output: str
    console: str


def linked(number: int, port: int) -> str:
    """A card ``eth0`` in a network of machines that say the same port. It needs no privileges, because it is
    made of multicast packets, which do not leave this machine.
    """
    return f"eth0=mcast,02:00:00:00:00:{number:02x},239.192.0.1,{port},0"


class UserModeMachine:
    """A machine that is switched on for one command at a time; only ``shared`` outlives the end of its power.

    ``root`` is what its root folder begins with each time, ``shared`` is its folder ``/shared``. ``mounts``:
    what else of this machine it sees, read-only, by where; programs in ``/opt/bin`` are found. ``opened``:
    the folders of ``usr`` that it may write, as packages do: parents first, ``.`` is ``usr`` itself.
    ``common``: a folder that it shares with others, as ``/common``. ``card``: its network card (``linked``).
    """

    def __init__(
        self,
        folder: Path,
        mounts: Mapping[str, Path] | None = None,
        opened: Sequence[str] = (),
        common: Path | None = None,
        card: str = "",
    ) -> None:
        self._folder, self._card = folder, card
        self._program = binaries.binary("linux.uml")
        self.root, self.shared = folder / "root", folder / "shared"
        for each in (folder, self.root, self.shared):
            each.mkdir(exist_ok=True, mode=0o755)
        for name, lines in FILES.items():
            self.put(name, "".join(f"{line}\n" for line in lines))
        self.put("etc/systemd/system/script.service", _UNIT.format(shared=SHARED))
        wanted = self.root / "etc/systemd/system/multi-user.target.wants/script.service"
        wanted.parent.mkdir()
        wanted.symlink_to("../script.service")
        bound = {path: Path(path) for path in seen() if not (opened and path == "/usr")} | dict(mounts or {})
        binds = [
            _BIND.format(what=what, where=where, parent=Path(where).parent) for where, what in bound.items()
        ]
        init = folder / "init"
        made = _OPENED.format(folders=" ".join(opened)) if opened else ""
        places = {"shared": SHARED, "common": COMMON, "commonly": common or self.shared}
        init.write_text(_INIT.format(folder=folder, binds="\n".join(binds), opened=made, **places))
        init.chmod(0o755)

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file that the root folder begins with."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def boot(self, script: str, seconds: float = SECONDS) -> Ran:
        """Switch the machine on, run a shell script as root in this checkout's folder, and switch it off."""
        variables = {
            "PATH": "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        (self.shared / "script").write_text("\n".join([*lines, f"cd {ROOT}", script, ""]))
        (self.shared / "status").unlink(missing_ok=True)
        console = self._run(seconds)
        status = self.shared / "status"
        assert status.exists(), f"the machine ended before its script did:\n{self._said()}\n{console}"
        return Ran(int(status.read_text()), self._said(), console)

    def suite(self, *files: str, seconds: float = SECONDS) -> Ran:
        """Run files of tests inside."""
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
        return self.boot(shlex.join(words), seconds)

    def _said(self) -> str:
        output = self.shared / "output"
        return output.read_text(errors="replace") if output.exists() else ""

    def _run(self, seconds: float) -> str:
        words = [
            str(self._program), "mem=1500M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
            "quiet", f"init={self._folder}/init", f"uml_dir={self._folder}/uml/", "con=null",
            "con0=fd:0,fd:1", "systemd.unified_cgroup_hierarchy=1",
            *filter(None, [self._card]),
        ]  # fmt: skip
        console = self._folder / "console"
        with console.open("wb") as out:
            machine = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={"HOME": str(self._folder)},
                start_new_session=True,
            )  # fmt: skip
        # Its processes are of one group, of which some outlive a first one that is killed.
        reaper.started(-machine.pid)
        try:
            machine.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the machine is on after {seconds:g} s:\n{self._said()}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
            reaper.reaped(-machine.pid)
        return console.read_text(errors="replace")
