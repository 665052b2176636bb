"""Make ``.venv`` from nothing but a Python and the package index: ``python3 .ci/venv.py``.

It gets the versions of ``locks/test.txt``, and no file whose hash is not there. Arguments are groups of
packages to add to a ``.venv`` that is there.
Runs before anything is installed, so it uses the standard library only, and so old a syntax that an
unfit Python still reaches the line that says so. Each missing tool is one line that names it and how
to get it. On Debian-like hosts without ``ensurepip`` (package python3-venv) pip comes out of the
package python3-pip-whl, unpacked into ``.cache`` without root.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / ".ready"
PROJECT = ROOT / "pyproject.toml"
OLDEST = (3, 11)
LOCK = ROOT / "locks" / "test.txt"
NO_ENSUREPIP = "this python has no ensurepip: apt-get install python3-venv (or your system's name for it)"


def main():
    """Bring ``.venv`` up to date; do nothing when it is."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:2]))
        stop(f"python >= 3.11 is needed, this is {found}: install one and run make PYTHON=python3.11")
    if sys.argv[1:]:
        pip(*requirements(sys.argv[1:]))
        return
    wanted = (
        hashlib.sha256(PROJECT.read_bytes() + LOCK.read_bytes()).hexdigest() + " " + sys.version.split()[0]
    )
    if READY.exists() and READY.read_text() == wanted:
        return
    sys.stdout.write("setting up .venv (once)\n")
    sys.stdout.flush()
    create()
    pip("--upgrade", "pip>=23.1")
    pip("--require-hashes", "-r", str(LOCK))
    pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    READY.write_text(wanted)


def create():
    """A virtual environment that has pip."""
    if PYTHON.exists() and works(str(PYTHON), "-m", "pip", "--version"):
        return
    shutil.rmtree(str(VENV), ignore_errors=True)
    if works(sys.executable, "-c", "import ensurepip"):
        run("python3-venv", sys.executable, "-m", "venv", str(VENV))
        return
    run("python3-venv", sys.executable, "-m", "venv", "--without-pip", str(VENV))
    wheel = pip_wheel()
    run("pip", str(PYTHON), str(wheel / "pip"), "install", "--quiet", str(wheel))


def pip_wheel():
    """pip's own wheel, unpacked from a Debian package."""
    sys.path.insert(0, str(ROOT))
    from tests import debian

    try:
        folder = debian.tree("pip", ["python3-pip-whl"], release())
    except debian.CannotFetch as error:
        stop(f"{NO_ENSUREPIP}; fetching it failed: {error}")
    wheels = sorted((folder / "usr/share/python-wheels").glob("pip-*.whl"))
    if not wheels:
        stop(NO_ENSUREPIP)
    return wheels[-1]


def release():
    """The code name of this Debian, for its package mirror."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return "stable"
    named = [line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")]
    return named[0] if named else "stable"


def requirements(chosen):
    """What the project and these groups ask for; read here since old versions of pip know no groups."""
    import tomllib

    project = tomllib.loads(PROJECT.read_text())
    groups = [name for group in chosen for name in project["dependency-groups"][group]]
    return project["project"]["dependencies"] + groups


def pip(*arguments):
    """Install quietly; pip's own words tell what failed."""
    python = str(PYTHON)
    run("pip", python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def works(*command):
    """Whether a command succeeds."""
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def run(what, *command):
    """Run a command or stop with one line."""
    environment = dict(os.environ)
    # With an empty HOME pip would write into the current folder.
    if not environment.get("HOME"):
        home = ROOT / ".cache" / "home"
        home.mkdir(parents=True, exist_ok=True)
        environment["HOME"] = str(home)
    if subprocess.run(command, check=False, env=environment).returncode != 0:
        stop(f"{what} failed: {' '.join(command[:6])} …")


def stop(line):
    """End with one line."""
    sys.stderr.write("make: " + line + "\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
