"""R40: whose the files of sealed secrets are, and what of them is kept when."""

from __future__ import annotations

import base64
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from farmd.agent.errors import StartFailed
from farmd.agent.secrets import SecretConfig, Secrets
from farmd.agent.users import Account
from store.containers import Container
from store.manifests import Manifest
from store.secrets import Sealed
from tests.age import files, identity, memory_folder, sealed, secretive
from tests.binaries import binary
from tests.farmctl import ROOT

NOBODY = Account("nobody", 65534, 65534, ())


@pytest.fixture
def memory() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "key"


def node(memory: Path, key: Path, state: str = "/state") -> Secrets:
    return Secrets(SecretConfig(identities=(str(key),), folder=str(memory), state_dir=Path(state)))


def pod(key: Path) -> Manifest:
    return secretive("true", sealed(b"hush", [identity(key)]))


def readable(path: Path, uid: int) -> bool:
    words = ["setpriv", "--reuid", str(uid), "--clear-groups", "cat", str(path)]
    return subprocess.run(words, check=False, capture_output=True).stdout == b"hush"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts pods as another user")
def test_only_the_user_of_the_pod_reads_its_files(memory: Path, key: Path) -> None:
    manifest = pod(key)
    secrets = node(memory, key)
    before = os.umask(0o077)
    try:
        secrets.open(manifest, "web", "s1").lay_out(manifest, NOBODY)
    finally:
        os.umask(before)
    (path,) = files(memory)
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (65534, 0o400)
    assert readable(path, 65534)
    assert not readable(path, 65533)


def test_the_agent_opens_with_an_identity_of_age_keygen_what_age_itself_sealed(
    memory: Path, key: Path
) -> None:
    run = partial(subprocess.run, check=True, capture_output=True)
    run([str(binary("age-keygen")), "-o", str(key)])
    recipient = run([str(binary("age-keygen")), "-y", str(key)]).stdout.decode().strip()
    body = base64.b64encode(
        run([str(binary("age")), "--recipient", recipient], input=b"hush").stdout
    ).decode()
    secret = Sealed(version=1, group="prod", recipients=[recipient], body=body)
    secrets = node(memory, key)
    assert secrets.features() == ["secrets.1", f"identity.{recipient}"]
    assert secrets.open(secretive("true", secret), "web", "s1").variables == {"PASSWORD": "hush"}


def test_the_files_of_other_starts_go_and_those_of_another_agent_stay(memory: Path, key: Path) -> None:
    manifest = pod(key)
    mine, other = node(memory, key), node(memory, key, "/other")
    own = Account("me", os.geteuid(), os.getegid(), ())
    for secrets, place in ((mine, "web s1"), (mine, "web s2"), (mine, "db s3"), (other, "web s1")):
        secrets.open(manifest, *place.split()).lay_out(manifest, own)
    mine.keep_only({"web": "s2", "db": ""})
    assert [path.parent.name for path in files(memory)] in (["s1", "s2"], ["s2", "s1"])
    mine.close("web", "s2")
    mine.close("web", "s2")
    other.keep_only({})
    assert files(memory) == []


def test_a_folder_that_somebody_else_may_change_is_refused(memory: Path, key: Path) -> None:
    memory.mkdir()
    memory.chmod(0o777)
    with pytest.raises(StartFailed, match="found a folder that others may change"):
        node(memory, key).preflight(pod(key))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_an_identity_that_another_user_owns_is_refused_until_it_is_the_agents(
    memory: Path, key: Path
) -> None:
    manifest, secrets = pod(key), node(memory, key)
    os.chown(key, 65534, 65534)
    for _ in range(2):
        with pytest.raises(StartFailed, match="found owner 65534 of "):
            secrets.preflight(manifest)
    os.chown(key, 0, 0)
    secrets.preflight(manifest)


def test_an_identity_that_is_a_pipe_is_refused_at_once(memory: Path, key: Path) -> None:
    manifest = pod(key)
    key.unlink()
    os.mkfifo(key, 0o600)
    with pytest.raises(StartFailed, match="which is no file"):
        node(memory, key).preflight(manifest)


def test_what_a_workload_left_beside_its_secrets_keeps_none_of_them(memory: Path, key: Path) -> None:
    manifest, secrets = pod(key), node(memory, key)
    secrets.open(manifest, "web", "s1").lay_out(manifest, Account("me", os.geteuid(), os.getegid(), ()))
    (path,) = files(memory)
    (path.parent / "a").mkdir()
    (path.parent.parent.parent / "file").touch()
    secrets.keep_only({})
    secrets.close("web", "s1")
    assert [each.name for each in files(memory)] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_container_gets_the_file_of_its_numeric_user(memory: Path, key: Path) -> None:
    from msgspec.structs import replace

    manifest = replace(
        pod(key), runtime="container", container=Container(image="x"), user="0:0", secret_env={}
    )
    ((here, there),) = node(memory, key).open(manifest, "web", "s1").lay_out(manifest, None)
    assert there == "/run/secrets/db"
    assert stat.S_IMODE(Path(here).parent.stat().st_mode) == 0o700
    assert "hush" not in repr(node(memory, key).open(manifest, "web", "s2"))


DIES = (
    "import os, resource, sys\n"
    "from farmd.agent import secrets\n"
    "resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)[1:] * 2)\n"
    "sys.argv[1:] and secrets.hide_memory()\n"
    "os.abort()\n"
)


@pytest.mark.skipif(
    Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core", reason="dumps go elsewhere"
)
@pytest.mark.parametrize(("words", "dumps"), [([], True), (["hidden"], False)])
def test_a_process_that_hides_its_memory_dumps_no_core(tmp_path: Path, words: list[str], dumps: bool) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DIES, *words], cwd=tmp_path, env=environ, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGABRT, done.stderr
    assert bool(list(tmp_path.glob("core*"))) is dumps
