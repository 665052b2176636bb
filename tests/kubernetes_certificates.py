"""Certificates of a test's API server and of its administrator, made by openssl."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def certificates() -> Path:
    """A folder with an authority, a server's and an administrator's certificate, a key for accounts."""
    folder = Path(tempfile.mkdtemp(prefix="farmd-certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    def signed(name: str, subject: str, extension: str) -> None:
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            subject,
        )
        (folder / f"{name}.ext").write_text(extension)
        serial = str(int.from_bytes(os.urandom(8), "big"))
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", serial,
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip

    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
        "-subj", "/CN=test-ca", "-days", "2",
    )  # fmt: skip
    signed("server", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:kubernetes.test")
    signed("admin", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth")
    openssl("genrsa", "-out", "accounts.key", "2048")
    return folder
