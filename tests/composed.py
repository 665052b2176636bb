"""The services of ``docker-compose.yml`` under podman's API, from images that are made of this machine.

No image is pulled: each is busybox with the folders that the real one has, under the real one's name. It
sees this machine's ``/usr``, this code and the programs of others. Podman checks health by timers of systemd,
which tests do not have: a thread does it.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests import debian
from tests.binaries import SHARE, binary
from tests.debian import ROOT
from tests.engine import PodmanEngine, busybox
from tests.ports import free_ports

LEFT_OUT = {"grafana": "it cannot be had here"}
SECONDS = 300
TEMPLATES = "prometheus/alertmanager"
# The image of each service, its user, and the folders that belong to this user.
IMAGES = {
    "hashicorp/consul:1.14.11": ("100:1000", ["consul/data"], ""),
    "library/farmd:local": (
        "10001:10001",
        [
            "var/lib/farmd-agent",
            "run/tokens/admin",
            "run/tokens/farm",
            *(f"run/tokens/node-{n}" for n in "123"),
        ],
        "farmd",
    ),
    "prom/prometheus:v3.0.1": ("65534:65534", ["prometheus"], "prometheus"),
    "prom/alertmanager:v0.27.0": ("65534:65534", ["alertmanager"], "prometheus-alertmanager"),
}


def tool() -> Path:
    """Compose, as Debian packages it; it runs without the docker program."""
    folder = debian.tree("docker-compose-sid", ["docker-compose"], "sid")
    return folder / "usr/libexec/docker/cli-plugins/docker-compose"


def image(user: str, folders: list[str]) -> bytes:
    """A root folder of busybox, with links to the libraries of ``/usr``."""
    archive = io.BytesIO(busybox())
    with tarfile.open(fileobj=archive, mode="a") as packed:
        for name in ("lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            packed.addfile(link)
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.uid, entry.gid = map(int, user.split(":"))
            packed.addfile(entry)
    return archive.getvalue()


class Composed:
    """The running project; ``ports`` are the published ones by service."""

    def __init__(self, engine: PodmanEngine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.project = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        published = [name for name, service in self.project.items() if "ports" in service]
        self.ports = dict(zip(published, free_ports(len(published)), strict=True))
        self._over = threading.Event()
        self._health = threading.Thread(target=self._check, daemon=True)

    def begin(self) -> None:
        """Make the images and start every service that can be had; returns when all are healthy."""
        for name, (user, folders, program) in IMAGES.items():
            changes = ["--change", f"USER {user}"]
            changes += ["--change", f'ENTRYPOINT ["{program}"]'] if program else []
            self.engine.run("import", "-q", *changes, "-", f"docker.io/{name}", given=image(user, folders))
        programs = self.folder / "programs"
        programs.mkdir()
        for name in ("consul", "prometheus", "prometheus-alertmanager"):
            shutil.copy(binary(name), programs / name)
        (self.folder / "override.yml").write_text(self._override(programs))
        self._health.start()
        wanted = [
            name for name, each in self.project.items() if name not in LEFT_OUT and "profiles" not in each
        ]
        self.run("up", "--detach", "--no-build", "--pull", "never", "--wait", *wanted)

    def _override(self, programs: Path) -> str:
        path = f"{ROOT}/.venv/bin:{programs}:/bin:/usr/bin"
        libraries = ("/usr/lib", "/usr/lib64", str(programs))
        everything = ("/usr", str(ROOT), sys.base_prefix, str(programs))
        unpacked = SHARE / TEMPLATES
        templates = (
            f"{unpacked if unpacked.exists() else Path('/usr/share', TEMPLATES)}:/usr/share/{TEMPLATES}:ro"
        )
        lines = ["services:"]
        for name, service in self.project.items():
            folders = libraries if name == "alertmanager" else everything
            shared = [f"{each}:{each}:ro" for each in folders if Path(each).exists()]
            shared += [templates] if name == "alertmanager" else []
            lines += [f"  {name}:", f"    environment: {{PATH: '{path}', PYTHONDONTWRITEBYTECODE: '1'}}"]
            lines += [f"    volumes: {json.dumps(shared)}"]
            for port in service.get("ports", ()):
                inner = port.rpartition(":")[2]
                lines.append(f'    ports: !override ["127.0.0.1:{self.ports[name]}:{inner}"]')
        return "\n".join(lines) + "\n"

    def run(self, *words: str) -> str:
        """Run compose; its output."""
        files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(self.folder / "override.yml")]
        done = subprocess.run(
            [tool(), "--project-name", "farmd", "--project-directory", ROOT, *files, *words],
            env=self.engine.environment | {"DOCKER_HOST": self.engine.url, "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}\n{self.story()}"
        return done.stdout

    def farmctl(self, *words: str) -> str:
        """Run the service ``farmctl`` once; its output."""
        return self.run("run", "--rm", "--no-deps", "-T", "farmctl", *words)

    def url(self, service: str) -> str:
        """Where a service is published on this machine."""
        return f"http://127.0.0.1:{self.ports[service]}"

    def story(self) -> str:
        """The last lines of every container's log."""
        tails = []
        for name in self.engine.names():
            done = subprocess.run(
                self.engine.command("logs", "--tail", "8", name), env=self.engine.environment,
                capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
            tails.append(f"--- {name}\n{done.stdout}{done.stderr}")
        return "".join(tails)

    def _check(self) -> None:
        while not self._over.wait(1.0):
            for name in self.engine.run(
                "ps", "--filter", "health=starting", "--format", "{{.Names}}"
            ).split():
                subprocess.run(
                    self.engine.command("healthcheck", "run", name),
                    env=self.engine.environment,
                    capture_output=True,
                    timeout=180,
                    check=False,
                )

    def end(self) -> None:
        """No more checks; the engine ends the containers."""
        self._over.set()
        if self._health.is_alive():
            self._health.join()


@contextmanager
def composed() -> Iterator[Composed]:
    """The project, up and healthy."""
    with tempfile.TemporaryDirectory(prefix="farmd-compose-") as name, PodmanEngine() as engine:
        made = Composed(engine, Path(name))
        try:
            made.begin()
            yield made
        finally:
            made.end()
