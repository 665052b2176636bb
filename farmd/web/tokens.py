"""Tokens of people and programs for the farm's HTTP: a file with one line ``name role hash`` each.

A token is ``<name>.<secret>``: its name chooses the line, and the line holds only a hash of the whole. The
secret is 256 random bits, which nobody guesses, so the hash need not be slow. Neither a token nor a hash is
ever in a message.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from store.credentials import guarded, invalid
from store.errors import CredentialInvalid, InputInvalid
from store.keys import valid_name
from store.mistakes import shown

Role = Literal["viewer", "operator"]
FIELD = "web.tokens"
SECRET_BYTES = 32
_FORBIDDEN = stat.S_IWGRP | stat.S_IRWXO


class Person(NamedTuple):
    """A person or program and its role: a viewer reads, an operator also acts."""

    name: str
    role: Role


class TokenLine(NamedTuple):
    """One line of the file."""

    person: Person
    digest: bytes


Tokens = Mapping[str, TokenLine]
"""The lines by name."""


def made(name: str, role: Role) -> tuple[str, str]:
    """A new token, and its line for the file.

    Raises:
        InputInvalid: the name cannot be one.
    """
    valid_name(name)
    secret = base64.urlsafe_b64encode(os.urandom(SECRET_BYTES)).rstrip(b"=").decode()
    token = f"{name}.{secret}"
    return token, f"{name} {role} sha256:{_digest(token).hex()}"


def read(path: str) -> Tokens:
    """The lines of a file; none where there is no file.

    Raises:
        CredentialInvalid: naming the line, what was found and what was expected; or the file's mode.
    """
    try:
        expected = "0640 or less: others must not read it, nor the group write it"
        text = guarded(FIELD, path, _FORBIDDEN, expected, may_be_empty=True)
    except CredentialInvalid as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}
        raise
    found: dict[str, TokenLine] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            one = _line(f"{FIELD}: {path}: line {number}", line.split())
            if one.person.name in found:
                raise invalid(
                    f"{FIELD}: {path}: line {number}", f"{one.person.name!r} again", "each name once"
                )
            found[one.person.name] = one
    return found


def fits(tokens: Tokens, token: str) -> TokenLine | None:
    """The line of a token; None: it is nobody's."""
    line = tokens.get(token.partition(".")[0])
    return line if line is not None and hmac.compare_digest(_digest(token), line.digest) else None


def _line(where: str, words: list[str]) -> TokenLine:
    if len(words) != 3:
        raise invalid(where, f"{len(words)} words", "name, role and hash (farmctl token create)")
    name, role, text = words
    try:
        valid_name(name)
    except InputInvalid as error:
        raise invalid(where, shown(name), "a name of a-z, 0-9 and '-'") from error
    if role not in get_args(Role):
        raise invalid(where, f"role {shown(role)}", " or ".join(get_args(Role)))
    kind, _, digits = text.partition(":")
    try:
        digest = bytes.fromhex(digits)
    except ValueError:
        digest = b""
    if kind != "sha256" or len(digest) != SECRET_BYTES:
        raise invalid(where, "no such hash", "one that farmctl token create made")
    return TokenLine(Person(name, "operator" if role == "operator" else "viewer"), digest)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
