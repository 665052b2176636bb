"""Write the lock files: ``make lock`` after ``pyproject.toml`` changed, ``UPGRADE=1`` for newer versions.

``locks/deploy.txt`` has what runs in production with all extras, ``locks/test.txt`` also what tests and
linters need: each package with its version and the hashes of all its files, for every Python and platform.
No file names an index; pip and uv ask the one that the machine is configured for.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
DEPLOY, TEST = "locks/deploy.txt", "locks/test.txt"
COMMON = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--all-extras")
HEAD = "# Made by `make lock` from pyproject.toml; see .ci/lock.py.\n"


def main():
    """Resolve both; what is deployed is tested in the very same versions."""
    more = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    compiled(DEPLOY, more)
    compiled(TEST, [*more, "--group", "test", "--group", "lint", "--constraint", DEPLOY])


def compiled(path, more):
    """One lock file."""
    environment = dict(os.environ)
    if index := configured():
        environment.setdefault("UV_DEFAULT_INDEX", index)
    command = [str(BIN / "uv"), "pip", "compile", "--quiet", "--no-header", *COMMON, *more, "pyproject.toml"]
    subprocess.run([*command, "--output-file", path], check=True, cwd=ROOT, env=environment)
    file = ROOT / path
    file.write_text(HEAD + file.read_text().replace(HEAD, ""))


def configured():
    """The index that pip is configured for, where uv does not look; empty: the default one."""
    for name in (":env:.index-url", "global.index-url"):
        command = [str(BIN / "pip"), "config", "get", name]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return ""


if __name__ == "__main__":
    main()
