"""Ed25519 keys (RFC 8032): made, read from files, used to sign and to check.

A private key is a file of its own, in PEM, which only its person can read. A public key is 64 hex digits. No
private key is ever in a message.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from store import signatures
from store.credentials import guarded, invalid
from store.errors import InputInvalid, refuse
from store.mistakes import shown
from store.signatures import Signature, Statement

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PUBLIC = re.compile(r"[0-9a-f]{64}")
_FORBIDDEN = stat.S_IRWXG | stat.S_IRWXO
LIBRARY = "install farmd's extra [signing] (docs/operations.md#install)"


def missing() -> str:
    """Why signatures can be neither made nor checked here; empty if they can."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError:
        return f"signatures need the library cryptography: {LIBRARY}"
    return ""


def generate(path: Path) -> str:
    """Write a new private key into a new file; returns the public key.

    Raises:
        InputInvalid: the file exists, or cannot be written; the library is missing.
    """
    require()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
    except FileExistsError as error:
        raise InputInvalid(f"{path}: found a file, expected a new one", field="file") from error
    except OSError as error:
        raise InputInvalid(f"{path}: cannot be written: {error.strerror}", field="file") from error
    return public_of(key)


def load(path: Path) -> Ed25519PrivateKey:
    """A private key from its file.

    Raises:
        CredentialInvalid: the file cannot be read, others may read it, or it holds no Ed25519 key.
        InputInvalid: the library is missing.
    """
    require()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = guarded("key", str(path), _FORBIDDEN, "0600 or less: only its person reads it")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise invalid("key", f"no key in {str(path)!r}", "one that farmctl manifest keygen made") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise invalid("key", f"another sort of key in {str(path)!r}", "an Ed25519 key")
    return key


def public_of(key: Ed25519PrivateKey) -> str:
    """The public key, in hex."""
    return key.public_key().public_bytes_raw().hex()


def valid_public(text: str) -> str:
    """Return a public key.

    Raises:
        InputInvalid: it is not 64 hex digits.
    """
    if not _PUBLIC.fullmatch(text):
        refuse("public key", shown(text), "64 hex digits")
    return text


def sign(key: Ed25519PrivateKey, statement: Statement, by: str = "") -> Signature:
    """Sign a statement.

    Raises:
        InputInvalid: the statement cannot be one.
    """
    made = key.sign(signatures.payload(statement)).hex()
    return Signature(statement=statement, key=public_of(key), signature=made, by=by)


def genuine(signature: Signature) -> bool:
    """Whether the key that a signature names made it over just this statement."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        valid_public(signature.key)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key))
        key.verify(bytes.fromhex(signature.signature), signatures.payload(signature.statement))
    except (InvalidSignature, InputInvalid, ValueError):
        return False
    return True


def require() -> None:
    """Refuse to go on without the library.

    Raises:
        InputInvalid: it is missing.
    """
    if text := missing():
        raise InputInvalid(text, field="signing")
