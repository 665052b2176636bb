"""Sealed secrets on a real node: opened at the start, in memory, and told to nobody but their pod."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from farmd.agent.secrets import SecretConfig
from store.manifests import Manifest
from store.secrets import Sealed
from tests.age import files, identity, memory_folder, sealed, secretive
from tests.agents import AgentProcess, Agents, alive, kill, logged
from tests.fleet import eventually

CANARY = "canarynode4x7q9z"
TELL = (
    'echo "$PASSWORD" | sha256sum; sha256sum < "$FARMD_SECRETS/db"; stat -c "%a %u" "$FARMD_SECRETS/db";'
    ' stat -f -c %T "$FARMD_SECRETS"; echo told; exec sleep 1000'
)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on tmpfs of the test's own."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "node.key"


@pytest.fixture
def recipient(key: Path) -> str:
    return identity(key)


def config(memory: Path, root: Path, *keys: Path) -> SecretConfig:
    return SecretConfig(identities=tuple(map(str, keys)), folder=str(memory), state_dir=root / "n1")


def told_on_disk(root: Path, value: str) -> list[Path]:
    """The files below a folder that have a value, plain or in base64."""
    forms = [value.encode(), base64.b64encode(value.encode())]
    found = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in found if any(form in path.read_bytes() for form in forms)]


async def test_a_process_gets_a_secret_in_a_variable_and_a_file_and_nothing_else_has_it(
    rig: Agents, memory: Path, key: Path, recipient: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = await rig.agent(secrets=config(memory, rig.root, key))
    presence = await rig.presence()
    assert presence is not None
    assert {"secrets.1", f"identity.{recipient}"} <= set(presence[0].features)

    pod = secretive(TELL, sealed(CANARY.encode(), [recipient]))
    await rig.want(pod)
    told = await rig.until_running(pod)
    lines = (await logged(running, "told")).splitlines()
    sums = [hashlib.sha256(body).hexdigest() for body in (f"{CANARY}\n".encode(), CANARY.encode())]
    assert lines[:2] == [f"{each}  -" for each in sums]
    assert lines[2:4] == [f"400 {os.geteuid()}", "tmpfs"]
    (file,) = files(memory)
    assert file.read_text() == CANARY
    environ = Path(f"/proc/{told.pid}/environ").read_bytes()
    assert f"PASSWORD={CANARY}".encode() in environ.split(b"\0")
    assert CANARY.encode() not in Path(f"/proc/{told.pid}/cmdline").read_bytes()
    assert [_core_limit(pid) for pid in (told.pid, _parent(told.pid))] == [1, 1]

    records = await rig.client.list(rig.keys.prefix, mode="consistent")
    assert not [raw.key for raw in records.items if CANARY.encode() in raw.decoded()]
    assert told_on_disk(tmp_path, CANARY) == []
    assert CANARY not in caplog.text

    kill(told)
    again = await rig.until(lambda reality: reality.phase == "running" and reality.restarts == 1)
    (other,) = files(memory)
    assert other.parent != file.parent  # each start has its own
    assert alive(again)
    await rig.unwant()
    await rig.until_gone()
    assert files(memory) == []


async def test_a_new_version_that_the_node_cannot_open_leaves_the_former_pod_running(
    rig: Agents, memory: Path, key: Path, recipient: str, tmp_path: Path
) -> None:
    await rig.agent(secrets=config(memory, rig.root, key))
    pod = secretive("exec sleep 1000", sealed(b"one", [recipient]))
    await rig.want(pod)
    before = await rig.until_running(pod)
    other, unable = identity(tmp_path / "other.key"), "no identity of this node opens it: "
    for secret, why in (
        (
            sealed(b"two", [other], version=2),
            f"{unable}expected one of group 'prod'",
        ),
        (
            damaged(sealed(b"two", [recipient], version=3)),
            f"{unable}its ciphertext is damaged",
        ),
        (sealed(b"\xff\x00", [recipient], version=4), "found no text, expected some for PASSWORD"),
        (sealed(b"", [recipient], version=5), "found 0 bytes, expected 1 to 65536"),
    ):
        await rig.want(secretive("exec sleep 1000", secret))
        told = await rig.until(lambda reality, why=why: why in reality.reason)
        assert f"secrets: shop/db@{secret.version}: " in told.reason
        assert told.pid == before.pid
        assert alive(before)


def damaged(secret: Sealed) -> Sealed:
    body = bytearray(base64.b64decode(secret.body))
    body[-1] ^= 1
    return replace(secret, body=base64.b64encode(body).decode())


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (None, 0o600, "No such file"),
        ("", 0o600, "found nothing"),
        ("hushhush\n", 0o600, "that is no identity"),
        ("# only a comment\n", 0o600, "no identity in"),
        ("AGE", 0o644, "found mode 0644"),
    ],
)
async def test_an_identity_that_cannot_be_used_is_told_with_the_pod_and_never_shown(
    rig: Agents, memory: Path, tmp_path: Path, content: str | None, mode: int, why: str
) -> None:
    path = tmp_path / "bad.key"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    await rig.agent(secrets=config(memory, rig.root, path))
    await rig.want(secretive("exec sleep 1000", sealed(b"one", [identity(tmp_path / "own.key")])))
    told = await rig.until(lambda reality: why in reality.reason)
    assert "this node has no identity of group 'prod'" in told.reason
    assert "hushhush" not in told.reason
    identity_file = tmp_path / "own.key"
    path.unlink(missing_ok=True)
    identity_file.rename(path)  # it is read again without a restart
    await rig.until(lambda reality: reality.phase == "running")


async def test_secrets_are_written_to_no_disk(rig: Agents, key: Path, recipient: str, tmp_path: Path) -> None:
    await rig.agent(secrets=config(tmp_path / "disk", rig.root, key))
    await rig.want(secretive("exec sleep 1000", sealed(CANARY.encode(), [recipient])))
    told = await rig.until(lambda reality: "expected tmpfs" in reality.reason)
    assert "agent.secret_folder" in told.reason
    assert told_on_disk(tmp_path, CANARY) == []


async def test_an_agent_that_is_killed_leaves_no_value_behind_and_the_next_one_goes_on(
    rig: Agents, memory: Path, key: Path, recipient: str, tmp_path: Path
) -> None:
    settings = {"FARMD_AGENT__SECRET_IDENTITIES": f'["{key}"]', "FARMD_AGENT__SECRET_FOLDER": str(memory)}
    pod: Manifest = secretive("exec sleep 1000", sealed(CANARY.encode(), [recipient]))
    async with AgentProcess(rig, **settings) as agent:
        await rig.want(pod)
        await eventually(lambda: _has(memory), what="the file of the secret")
        await agent.end(signal.SIGKILL)
    (folder,) = memory.iterdir()
    left = folder / "gone" / "0123"
    left.mkdir(parents=True)
    (left / "db").write_text(CANARY)  # as of a start that an agent did not live to finish
    log = tmp_path / "log"
    async with AgentProcess(rig, stdout=str(log), **settings) as agent:
        told = await rig.until_running(pod)
        await eventually(lambda: _is_gone(left), what="removal of what is left")
        assert [file.parent.parent.name for file in files(memory)] == ["web"]
        assert f"PASSWORD={CANARY}".encode() in Path(f"/proc/{told.pid}/environ").read_bytes()
        await rig.unwant()
        await rig.until_gone()
    assert files(memory) == []
    key.unlink()
    assert told_on_disk(tmp_path, CANARY) == []


async def test_without_the_store_a_pod_starts_again_with_its_secret(
    rig: Agents, memory: Path, key: Path, recipient: str
) -> None:
    running = await rig.agent(secrets=config(memory, rig.root, key))
    pod = secretive("exec sleep 1000", sealed(CANARY.encode(), [recipient]))
    await rig.want(pod)
    told = await rig.until_running(pod)
    await running.crash()
    kill(told)
    again = await rig.agent(wait=False, consul="127.0.0.1:1", secrets=config(memory, rig.root, key))

    async def runs() -> int:
        identity = again.state.identity("web")
        return identity.pid if identity is not None and identity.pid != told.pid else 0

    pid = await eventually(runs, what="a start without the store")

    async def knows() -> bool:  # once it is the command, and not the agent's child any more
        return f"PASSWORD={CANARY}".encode() in Path(f"/proc/{pid}/environ").read_bytes()

    await eventually(knows, what="the variable")
    assert [file.read_text() for file in files(memory)] == [CANARY]


async def test_agents_that_are_killed_again_and_again_leave_one_start_and_no_value(
    rig: Agents, memory: Path, key: Path, recipient: str, tmp_path: Path
) -> None:
    """The pod ends all the time, so that some of the agents die in the middle of a start."""
    settings = {"FARMD_AGENT__SECRET_IDENTITIES": f'["{key}"]', "FARMD_AGENT__SECRET_FOLDER": str(memory)}
    await rig.want(
        secretive('test "$(cat "$FARMD_SECRETS/db")" = "$PASSWORD"', sealed(CANARY.encode(), [recipient]))
    )
    for restarts in (1, 2, 3, 4):
        async with AgentProcess(rig, **settings) as agent:
            await rig.until(lambda reality, n=restarts: reality.restarts >= n)
            await agent.end(signal.SIGKILL)
        assert told_on_disk(tmp_path, CANARY) == []
    async with AgentProcess(rig, **settings):
        pod = secretive("exec sleep 1000", sealed(CANARY.encode(), [recipient], version=2))
        await rig.want(pod)
        told = await rig.until_running(pod)
        assert all(end.code == 0 for end in told.exits), told.exits
        await eventually(lambda: _one(memory), what="the files of one start alone")
        await rig.unwant()
        await rig.until_gone()
    assert files(memory) == []


async def _one(memory: Path) -> bool:
    return len(files(memory)) == 1


async def _has(memory: Path) -> bool:
    return bool(files(memory))


async def _is_gone(path: Path) -> bool:
    return not path.exists()


def _core_limit(pid: int) -> int | str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (soft,) = (line.split()[4] for line in lines if line.startswith("Max core file size"))
    return int(soft) if soft.isdecimal() else soft


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
