"""What hatchling does besides: the version from git, and in a wheel runbooks, units, policies, manual pages
and completions.

The last two come from the commands themselves, so a wheel of a commit has always its own. An editable install
gets none of them: there the version is ``store.version.VERSION`` of a source tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

DESCRIBED = re.compile(r"(?:v(?P<tag>\d.*)-(?P<behind>\d+)-g)?(?P<commit>[0-9a-f]+)(?P<dirty>-dirty)?")


def version(root: Path) -> str:
    """The version of the sources in ``root``.

    ``v1.2.0`` tagged: 1.2.0; three commits later 1.2.0.post3+g<commit>; without any tag 0.0.0+g<commit>. An
    sdist keeps the version that it was made with. Without git it is FARMD_BUILD_VERSION, or 0.0.0.
    """
    if (stated := os.environ.get("FARMD_BUILD_VERSION")) is not None:
        return stated
    if (made := root / "PKG-INFO").exists():
        return str(HeaderParser().parsestr(made.read_text())["Version"])
    if not (root / ".git").exists() or shutil.which("git") is None:
        return "0.0.0"
    command = ["git", "describe", "--always", "--long", "--dirty", "--tags", "--match", "v[0-9]*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"git describe failed, and FARMD_BUILD_VERSION is not set: {done.stderr.strip()}")
    said = done.stdout.strip()
    found = DESCRIBED.fullmatch(said)
    if found is None:
        raise ValueError(f"git describe: found {said!r}, expected a tag such as v1.2.0 and a commit")
    tag, behind = found["tag"] or "0.0.0", int(found["behind"] or 0)
    if found["tag"] and not behind and not found["dirty"]:
        return tag
    number = f"{tag}.post{behind}" if behind else tag
    return f"{number}+g{found['commit']}{'.dirty' if found['dirty'] else ''}"


class Version(MetadataHookInterface):
    """Gives the package its version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the version."""
        metadata["version"] = version(Path(self.root))


class Extras(BuildHookInterface[Any]):
    """Adds to a wheel what is made from its code."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files, and name them."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        from farmd.__main__ import main
        from farmd.cli.main import farmctl
        from farmd.cli.manual import completions, pages
        from farmd.config.shipped import FOLDERS

        programs = {"farmd": main, "farmctl": farmctl}
        self._folder = tempfile.TemporaryDirectory()
        built = self._written(
            "built.py", f'"""Written by the build."""\n\nVERSION = "{self.metadata.version}"\n'
        )
        build_data["force_include"][built] = "store/built.py"
        build_data["force_include"][str(Path(self.root, "docs/runbooks"))] = "farmd/web/runbooks"
        for folder in FOLDERS:
            for path in sorted(Path(self.root, folder).iterdir()):
                if path.suffix not in {".md", ".py"}:
                    place = f"farmd/config/files/{folder}/{path.name}"
                    build_data["force_include"][str(path)] = place
        for path, text in {**pages(programs, self.metadata.version), **completions(programs)}.items():
            build_data["shared_data"][self._written(path, text)] = f"share/{path}"

    def finalize(self, *_: object) -> None:
        """Remove the files."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _written(self, name: str, text: str) -> str:
        path = Path(self._folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)
