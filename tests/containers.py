"""A Docker-compatible API for the tests: the one that answers here, else a podman of their own.

Where neither docker nor podman runs, podman's packages are unpacked into ``.cache`` and its API
service is started with storage, configuration and socket in a folder that is removed afterwards. No
image is ever pulled for it: images are made from binaries that the tests have already.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import debian, reaper
from tests.debian import CannotFetch

PACKAGES = (
    "podman", "conmon", "runc", "golang-github-containers-common", "libgpgme11", "libassuan0",
    "libdevmapper1.02.1", "libsubid4", "libseccomp2", "libglib2.0-0", "libsystemd0",
)  # fmt: skip
START_SECONDS = 30.0

# Podman keeps this one place whatever its configuration says.
_BLOB_CACHE = Path("/var/lib/containers")

_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "host"
seccomp_profile = "{tree}/usr/share/containers/seccomp.json"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
conmon_path = ["{tree}/usr/bin/conmon"]
[engine.runtimes]
runc = ["{tree}/usr/sbin/runc", "{tree}/usr/bin/runc"]
"""
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'


@dataclass(frozen=True)
class Api:
    """A Docker-compatible API. ``own``: made here, so its containers share the host's network."""

    host: str
    own: bool

    def client(self, timeout: float = 60) -> Any:
        """docker's Python client."""
        import docker

        return docker.DockerClient(base_url=self.host, timeout=timeout)


def answers(host: str | None = None) -> str | None:
    """None where a Docker-compatible API answers, else the reason in one line.

    A docker binary on PATH says nothing; the API has to answer.
    """
    host = host or _host()
    kind, _, where = host.partition("://")
    try:
        with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as asking:
            asking.settimeout(60)
            name, _, port = where.rpartition(":")
            asking.connect(where if kind == "unix" else (name, int(port)))
            asking.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            status = asking.recv(64).split(b"\r\n")[0].decode("latin-1")
    except (OSError, ValueError) as error:
        return f"no Docker-compatible API answers at {host}: {_first_line(error)}"
    return None if " 200" in status else f"no Docker-compatible API answers at {host}: {status!r}"


def _host() -> str:
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


@contextmanager
def docker_api() -> Iterator[Api]:
    """The API that answers here already, else one of our own for as long as the block runs.

    Raises:
        CannotFetch: neither is to be had; the message says why, and what would help.
    """
    reason = answers()
    if reason is None:
        yield Api(_host(), own=False)
        return
    try:
        tree = debian.tree("podman", PACKAGES, debian.codename())
        with _podman(tree) as api:
            yield api
    except CannotFetch as error:
        raise CannotFetch(f"{reason}; {error}; start docker or `podman system service`") from error


@contextmanager
def _podman(tree: Path) -> Iterator[Api]:
    cache_was_there = _BLOB_CACHE.exists()
    folder = Path(tempfile.mkdtemp(prefix="farmd-podman-"))
    environment = _prepare(tree, folder)
    storage = ["--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
    command = [str(tree / "usr/bin/podman"), *storage]
    host = f"unix://{folder}/api.sock"
    with (folder / "podman.log").open("wb") as log:
        service = subprocess.Popen(
            [*command, "system", "service", "--time", "0", host],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    reaper.started(service.pid, folder)
    try:
        _await_podman(service, host, folder / "podman.log")
        yield Api(host, own=True)
    finally:
        subprocess.run(
            [*command, "rm", "--all", "--force", "--time", "2"], env=environment, check=False,
            capture_output=True, timeout=180,
        )  # fmt: skip
        # It holds no state, and a polite end would wait for idle connections.
        service.kill()
        service.wait()
        reaper.reaped(service.pid)
        shutil.rmtree(folder, ignore_errors=True)
        if not cache_was_there:
            shutil.rmtree(_BLOB_CACHE, ignore_errors=True)


def _prepare(tree: Path, folder: Path) -> dict[str, str]:
    """Configuration that names everything in the unpacked tree; the environment to run podman with."""
    containers = folder / "home/.config/containers"
    containers.mkdir(parents=True)
    (containers / "policy.json").write_text(_POLICY)
    (containers / "registries.conf").write_text("")
    (folder / "containers.conf").write_text(_CONFIG.format(tree=tree, folder=folder))
    libraries = sorted({str(each.parent) for each in tree.glob("usr/lib/**/*.so.*")})
    return {
        "PATH": f"{tree}/usr/bin:{tree}/usr/sbin:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": ":".join(libraries),
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(containers / "registries.conf"),
        "TMPDIR": str(folder),
    }


def _await_podman(service: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (reason := answers(host)) is not None:
        if service.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines() or [reason]
            raise CannotFetch(f"podman's API service does not start: {lines[-1]}")
        time.sleep(0.05)


def image_of(api: Api, binary: Path, name: str) -> str:
    """An image that holds one binary at ``/bin`` and the libraries that it loads; its reference."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        packed.add(binary, f"bin/{binary.name}")
        for library in _libraries(binary):
            packed.add(os.path.realpath(library), library.lstrip("/"))
        for folder in ("tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            packed.addfile(entry)
    import docker

    client, said = api.client(), ""
    try:
        # Podman's compatible API ignores any other tag.
        said = client.api.import_image_from_data(archive.getvalue(), repository=name, tag="latest")
        client.images.get(f"{name}:latest")
    except docker.errors.DockerException as error:
        raise CannotFetch(f"image {name} cannot be made: {_first_line(error)}: {said[-200:]}") from error
    finally:
        client.close()
    return f"{name}:latest"


def _libraries(binary: Path) -> list[str]:
    listed = subprocess.run(["ldd", binary], check=False, capture_output=True, text=True, timeout=180).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def copy_out(image: str, path: str, into: Path) -> Path:
    """One file of an image, copied into a folder; the image is pulled if need be.

    Raises:
        CannotFetch: no API answers, or the image cannot be had.
    """
    reason = answers()
    if reason is not None:
        raise CannotFetch(reason)
    import docker
    import requests

    client = docker.from_env(timeout=120)
    try:
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            client.images.pull(image)
        container = client.containers.create(image, ["true"])
        try:
            chunks, _ = container.get_archive(path)
            archive = b"".join(chunks)
        finally:
            container.remove(force=True)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise CannotFetch(f"image {image}: {_first_line(error)}") from error
    finally:
        client.close()
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        unpacked.extractall(into, filter="data")
    return into / Path(path).name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
