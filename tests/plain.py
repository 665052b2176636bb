"""``python -m tests.plain [GOAL…]``: make's goals as a stranger meets them, on a plain Debian.

That machine has Python, python3-venv and make, an empty home and no git, and the stranger is not root. Its
root folder is made once, by debootstrap, in ``.cache/plain``; the clone of this checkout's commit is fresh
each time. Must be run as root, on a Debian. Only ``make servers``, which comes first, may use the network;
the goals have loopback alone. What reaches a package index from here (certificates, pip's and apt's settings)
is lent to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import debian

USER = "1000"
PACKAGES = "python3,python3-venv,make"
PATH = "/usr/local/bin:/usr/bin:/bin"
LENT = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs", "/etc/apt")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# In namespaces of its own: mounts, processes, and the network if it is asked for.
_INSIDE = """\
set -e
mount --make-rprivate /
mount --bind "$ROOTFS" "$ROOTFS" && cd "$ROOTFS"
mount --bind "$HOMES" home
mount -t proc proc proc
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm && chmod 1777 dev/shm
for each in $DEVICES; do touch dev/$each && mount --bind /dev/$each dev/$each; done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts && ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for each in $LENT; do if [ -e $each ]; then mount --bind $each .$each; fi; done
ip link set lo up
exec chroot . setpriv --reuid $USER --regid $USER --clear-groups --no-new-privs env -i "$@"
"""


def machine() -> Path:
    """The root folder of a Debian of this release with PACKAGES, made once."""
    final = debian.CACHE / "plain"
    with debian.locked("plain"):
        if not final.is_dir():
            tool = debian.tree("debootstrap", ["debootstrap"], debian.codename())
            part = final.with_name("plain.part")
            shutil.rmtree(part, ignore_errors=True)
            words = ["--variant=minbase", f"--include={PACKAGES}", debian.codename(), part, debian.mirror()]
            folder = {"DEBOOTSTRAP_DIR": str(tool / "usr/share/debootstrap")}
            program = tool / "usr/sbin/debootstrap"
            subprocess.run(["sh", program, *words], check=True, env=os.environ | folder, stdout=sys.stderr)
            for path in LENT:
                within = part / path.removeprefix("/")
                if Path(path).is_file():
                    within.touch()
                elif Path(path).is_dir():
                    within.mkdir(parents=True, exist_ok=True)
            with (part / "etc/passwd").open("a") as users:
                users.write(f"dev:x:{USER}:{USER}::/home/dev:/bin/sh\n")
            part.rename(final)
    return final


def run(homes: Path, goal: str, network: bool) -> int:
    """Make a goal in the clone, as a user; make's exit code."""
    known = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    inside = known | {"HOME": "/home/dev", "PATH": PATH, "LANG": "C.UTF-8"}
    words = [*(f"{name}={value}" for name, value in inside.items()), "make", "-C", "/home/dev/farmd", goal]
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
    said = {
        "ROOTFS": str(machine()), "HOMES": str(homes), "USER": USER, "LENT": " ".join(LENT),
        "DEVICES": " ".join(DEVICES),
    }  # fmt: skip
    command = [*apart, "sh", "-c", _INSIDE, "sh", *words]
    return subprocess.run(command, check=False, env=os.environ | said, stdin=subprocess.DEVNULL).returncode


def main(goals: list[str]) -> int:
    """Make these goals one after the other; the first code that is not 0."""
    if os.geteuid() != 0:
        sys.stderr.write("tests.plain: must be run as root: it makes a machine, in which it is not root\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="farmd-plain-") as folder:
        homes = Path(folder)
        homes.chmod(0o755)
        (homes / "dev").mkdir()
        clone = ["git", "clone", "--quiet", "--no-hardlinks", str(debian.ROOT), str(homes / "dev/farmd")]
        subprocess.run(clone, check=True)
        subprocess.run(["chown", "-R", f"{USER}:{USER}", homes / "dev"], check=True)
        for at, goal in enumerate(["servers", *goals]):
            if code := run(homes, goal, network=at == 0):
                return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or ["demo", "test"]))
