"""``farmctl token create``: tokens for the farm's page and its API. It needs no Consul.

``farmctl token consul`` (``access_token``) makes those of Consul.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Literal, get_args

import click

from farmd import cli
from farmd.cli.groups import Commands, LazyGroup
from farmd.cli.options import Exampled
from farmd.web import tokens
from store.errors import Conflict, InputInvalid


def _commands() -> Commands:
    line = "Create Consul's policies and a token for a role."
    return {"consul": (lambda: cli.access_token.role_token, line)}


@click.group("token", cls=LazyGroup, lazy=_commands)
def token() -> None:
    """Tokens of people and programs: for the farm's page and API, and for Consul."""


@click.command("create", cls=Exampled)
@click.argument("name")
@click.option(
    "--role", required=True, type=click.Choice(get_args(tokens.Role)), help="An operator may also act."
)
@click.option(
    "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="Add the line to this file."
)
def create(name: str, role: Literal["viewer", "operator"], path: Path | None) -> None:
    """Create a token for NAME; it is shown once, and only its hash is kept.

    The line goes into the file that web.tokens names; with --file it is added there.
    """
    made, line = tokens.made(name, role)
    if path is not None:
        _add(path, name, line)
        click.echo(made)
        return
    click.echo(f"token: {made}")
    click.echo(f"line:  {line}")


def _add(path: Path, name: str, line: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another create must not add the name in between
            if name in tokens.read(str(path)):
                hint = "delete its line first to replace the token"
                raise Conflict(f"{path} has a token of {name!r} already", hint=hint)
            unended = file.read()[-1:] not in {b"", b"\n"}
            file.write(b"\n" * unended + line.encode() + b"\n")
    except OSError as error:
        raise InputInvalid(f"--file: {path}: {error.strerror or error}", field="file") from error


token.add_command(create)
