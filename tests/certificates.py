"""Authorities and certificates of tests."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def authority(folder: Path, name: str = "ca") -> None:
    """``NAME.pem`` and ``NAME.key`` of an authority."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), named(f"test authority {name}")
    write_key(folder / f"{name}.key", key)
    write_signed(folder / f"{name}.pem", subject, key, subject, key, *of_authority(key))


def issue(folder: Path, name: str, alternative: str, authority: str = "ca", *, days: int = 2) -> None:
    """A key and a certificate for ``name``, signed by the authority; it ended if ``days`` are negative.

    ``alternative`` are the names that it is valid for, such as ``DNS:localhost,IP:127.0.0.1``.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    write_key(folder / f"{name}.key", key)
    signer = load_pem_private_key((folder / f"{authority}.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate((folder / f"{authority}.pem").read_bytes()).subject
    path = folder / f"{name}.pem"
    write_signed(path, named(name), key, issuer, signer, alternatives(alternative), days=days)


def encrypt(path: Path, encrypted: Path) -> None:
    """Write the key of a file into another one, with a passphrase."""
    key = load_pem_private_key(path.read_bytes(), None)
    how = BestAvailableEncryption(b"x")
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, how))


def hashed(certificate: bytes) -> str:
    """The name by which OpenSSL finds an authority in a folder; the subject is short, in small letters."""
    subject = x509.load_pem_x509_certificate(certificate).subject.public_bytes()
    header = 2
    short = hashlib.sha1(subject[header:], usedforsecurity=False).digest()[:4]
    return f"{int.from_bytes(short, 'little'):08x}.0"


def named(common: str, organization: str = "") -> x509.Name:
    """A subject."""
    parts = [(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([x509.NameAttribute(*part) for part in [*parts, (NameOID.COMMON_NAME, common)]])


def alternatives(text: str) -> x509.SubjectAlternativeName:
    """The names that a certificate is valid for, from ``DNS:localhost,IP:127.0.0.1``."""
    pairs = [each.split(":", 1) for each in text.split(",")]
    return x509.SubjectAlternativeName(
        [
            x509.IPAddress(ipaddress.ip_address(value)) if kind == "IP" else x509.DNSName(value)
            for kind, value in pairs
        ]
    )


def of_authority(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> list[x509.ExtensionType]:
    """What makes a certificate that of an authority."""
    off = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return [
        x509.BasicConstraints(ca=True, path_length=None),
        x509.KeyUsage(key_cert_sign=True, crl_sign=True, **off),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
    ]


def write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    """Write a key that only its owner may read."""
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def write_signed(
    path: Path,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    *extensions: x509.ExtensionType,
    days: int = 2,
) -> None:
    """Write a certificate; it began now, or the day before it ended."""
    now = datetime.datetime.now(datetime.UTC)
    end = now + days * DAY
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end - DAY))
        .not_valid_after(end)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        made = made.add_extension(extension, critical=critical)
    path.write_bytes(made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))


def caller(folder: Path, name: str = "", *, trusts: str = "ca") -> ssl.SSLContext:
    """What somebody calls with who trusts an authority, and who shows the certificate for ``name`` if any."""
    context = ssl.create_default_context(cafile=str(folder / f"{trusts}.pem"))
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context
