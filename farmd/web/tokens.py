"""Tokens of people and programs for the farm's HTTP: a file with one line ``name role hash`` each.

A token is ``<name>.<secret>``: its name chooses the line, and the line holds only a scrypt hash of the whole.
Neither a token nor a hash is ever in a message.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from store.credentials import content, invalid
from store.errors import InputInvalid
from store.keys import valid_name
from store.mistakes import shown

Role = Literal["viewer", "operator"]
FIELD = "web.tokens"
SALT_BYTES, SECRET_BYTES = 16, 32
_COST, _BLOCK, _LANES = 2**14, 8, 1
_FORBIDDEN = stat.S_IWGRP | stat.S_IRWXO


class Person(NamedTuple):
    """Who asks, and what that one may do: a viewer reads, an operator also acts on rollouts."""

    name: str
    role: Role


class Line(NamedTuple):
    """One line of the file."""

    person: Person
    salt: bytes
    digest: bytes


Tokens = Mapping[str, Line]
"""The lines by name."""


def made(name: str, role: Role) -> tuple[str, str]:
    """A new token, and its line for the file.

    Raises:
        InputInvalid: the name cannot be one.
    """
    valid_name(name)
    secret = base64.urlsafe_b64encode(os.urandom(SECRET_BYTES)).rstrip(b"=").decode()
    token = f"{name}.{secret}"
    salt = os.urandom(SALT_BYTES)
    return token, f"{name} {role} scrypt:{salt.hex()}:{_digest(token, salt).hex()}"


def read(path: str) -> Tokens:
    """The lines of a file.

    Raises:
        CredentialInvalid: naming the line, what was found and what was expected; or the file's mode.
    """
    text = content(FIELD, path)
    mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116 - the path is a text everywhere else
    if mode & _FORBIDDEN:
        expected = "0640 or less: others must not read it, nor the group write it"
        raise invalid(FIELD, f"mode {mode:04o} of {path!r}", expected)
    found: dict[str, Line] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            one = _line(f"{FIELD}: {path}: line {number}", line.split())
            if one.person.name in found:
                raise invalid(
                    f"{FIELD}: {path}: line {number}", f"{one.person.name!r} again", "each name once"
                )
            found[one.person.name] = one
    return found


def fits(tokens: Tokens, token: str) -> Person | None:
    """Whose token it is; None: nobody's. Takes some 50 ms of a processor, also for a name that is unknown."""
    line = tokens.get(token.partition(".")[0])
    salt, digest = (line.salt, line.digest) if line is not None else (b"", b"")
    same = hmac.compare_digest(_digest(token, salt), digest)
    return line.person if same and line is not None else None


def _line(where: str, words: list[str]) -> Line:
    if len(words) != 3:
        raise invalid(where, f"{len(words)} words", "name, role and hash (farmctl token create)")
    name, role, text = words
    try:
        valid_name(name)
    except InputInvalid as error:
        raise invalid(where, shown(name), "a name of a-z, 0-9 and '-'") from error
    if role not in get_args(Role):
        raise invalid(where, f"role {shown(role)}", " or ".join(get_args(Role)))
    kind, _, rest = text.partition(":")
    try:
        salt, digest = map(bytes.fromhex, rest.split(":"))
    except ValueError:
        salt = digest = b""
    if kind != "scrypt" or len(salt) != SALT_BYTES or len(digest) != SECRET_BYTES:
        raise invalid(where, "no such hash", "one that farmctl token create made")
    return Line(Person(name, "operator" if role == "operator" else "viewer"), salt, digest)


def _digest(token: str, salt: bytes) -> bytes:
    return hashlib.scrypt(token.encode(), salt=salt, n=_COST, r=_BLOCK, p=_LANES, dklen=SECRET_BYTES)
