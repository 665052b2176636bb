"""Certificates of a test's API server and of its administrator."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.certificates import alternatives, named, of_authority, write_key, write_signed


@cache
def certificates() -> Path:
    """A folder with an authority, a server's and an administrator's certificate, a key for accounts."""
    folder = Path(tempfile.mkdtemp(prefix="farmd-certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ca, issuer = _key(folder, "ca"), named("test-ca")
    write_signed(folder / "ca.crt", issuer, ca, issuer, ca, *of_authority(ca))
    names = alternatives("IP:127.0.0.1,DNS:kubernetes.test")
    client = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    server, admin = named("kube-apiserver"), named("admin", "system:masters")
    write_signed(folder / "server.crt", server, _key(folder, "server"), issuer, ca, names)
    write_signed(folder / "admin.crt", admin, _key(folder, "admin"), issuer, ca, client)
    _key(folder, "accounts")
    return folder


def _key(folder: Path, name: str) -> rsa.RSAPrivateKey:
    key = rsa.generate_private_key(65537, 2048)
    write_key(folder / f"{name}.key", key)
    return key
