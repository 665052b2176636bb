"""Identities, recipients and sealed values for tests, made as people make them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from farmd.commands import sealing
from store import secrets
from store.containers import Secret
from store.manifests import Manifest
from store.secrets import Sealed, SecretVersion
from tests.agents import shell
from tests.binaries import binary


def identity(path: Path) -> str:
    """Write a new identity; its recipient."""
    body, recipient = sealing.keygen()
    sealing.written(str(path), body)
    return recipient


def decrypted(ciphertext: str, key: Path) -> bytes:
    """What Debian's ``age`` makes of a ciphertext."""
    command = [str(binary("age")), "--decrypt", "--identity", str(key)]
    return subprocess.run(command, input=ciphertext.encode(), check=True, capture_output=True).stdout


def sealed(value: bytes, recipients: Sequence[str], *, version: int = 1, group: str = "prod") -> Sealed:
    body = sealing.sealed(value, recipients)
    record = SecretVersion(
        path="any", version=version, at=0, by="", group=group, recipients=list(recipients), body=body
    )
    return secrets.sealed(record, pinned=False)


def secretive(script: str, secret: Sealed, **fields: object) -> Manifest:
    """A pod that gets a secret in the variable PASSWORD and in a file."""
    name = f"shop/db@{secret.version}"
    file = Secret(name="db", secret=name, mode=0o400)
    given = {"secret_env": {"PASSWORD": name}, "secrets": [file], "sealed": {name: secret}}
    return shell(script, **(given | fields))


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder on tmpfs, which is removed with all that is in it."""
    folder = Path("/dev/shm") / f"farmd-test-{uuid4().hex[:12]}"
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if folder.exists():
        folder.rmdir()


def files(memory: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in memory.rglob("*") if path.is_file())
