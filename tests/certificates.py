"""Authorities and certificates of tests, made by openssl."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def openssl(*args: str) -> None:
    """Run openssl; it must succeed."""
    subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=180)


def authority(folder: Path, name: str = "ca") -> None:
    """``NAME.pem`` and ``NAME.key`` of an authority."""
    openssl(
        *("req", "-x509", *EC, "-nodes", "-days", "2", "-subj", f"/CN=test authority {name}"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")),
    )


def issue(folder: Path, name: str, alternative: str, authority: str = "ca", *, days: int = 2) -> None:
    """A key and a certificate for ``name``, signed by the authority; it ended if ``days`` are negative."""
    extension = folder / f"{name}.ext"
    extension.write_text(f"subjectAltName={alternative}\n")
    key, request, certificate = (str(folder / f"{name}.{end}") for end in ("key", "csr", "pem"))
    openssl("req", "-new", *EC, "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    serial = str(int.from_bytes(os.urandom(8), "big"))
    openssl(
        *("x509", "-req", "-in", request, "-days", str(days), "-out", certificate),
        *("-extfile", str(extension), "-set_serial", serial),
        *("-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key")),
    )


def caller(folder: Path, name: str = "", *, trusts: str = "ca") -> ssl.SSLContext:
    """What somebody calls with who trusts an authority, and who shows the certificate for ``name`` if any."""
    context = ssl.create_default_context(cafile=str(folder / f"{trusts}.pem"))
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context
