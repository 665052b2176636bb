"""``farmd init``: from its options to what ``init`` writes, and what a person does next."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from farmd.config.sources import ConfigInvalid, Values
from farmd.process import init
from store.credentials import is_token
from store.credentials import token as token_of
from store.errors import CredentialInvalid, InputInvalid, refuse

EXIT_CONFIG = 78


def run_init(
    role: init.Role,
    root: Path,
    token_file: str | None,
    *,
    name: str | None,
    address: str | None,
    consul: str | None,
) -> None:
    """Write the files of a role, and say each of them and the next command.

    Raises:
        Exit: 78, because a value is wrong; 1, because a file cannot be written.
    """
    own: dict[init.Role, Values] = {"server": {"farm": {"name": name}}, "node": {"agent": {"node": name}}}
    web = {"bind": "0.0.0.0", "advertise": address} if address else {}
    values = _given({**own[role], "store": {"address": consul}, "web": web})
    program = init.program_of(sys.argv[0], sys.executable)
    try:
        token = "" if token_file is None else _token(token_file)
        wish = init.Wish(role, root, program, values, token, _systemd())
        init.init(wish, click.echo)
    except ConfigInvalid as error:
        _end(error.lines, EXIT_CONFIG)
    except (CredentialInvalid, InputInvalid) as error:
        _end([error.message], EXIT_CONFIG)
    except OSError as error:
        _end([f"{error.filename}: {error.strerror}; run it as root, or with --root FOLDER"], 1)
    else:
        click.echo("\n".join(init.following(wish)))


def _given(values: dict[str, dict[str, Any]]) -> Values:
    kept = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in values.items()}
    return {section: keys for section, keys in kept.items() if keys}


def _token(path: str) -> str:
    """The token of a file; for ``-`` what a person types, unseen, or one line of stdin.

    Raises:
        CredentialInvalid, InputInvalid: it is no token.
    """
    if path != "-":
        return token_of("--token-file", path)
    if sys.stdin.isatty():
        found = str(click.prompt("token", hide_input=True, err=True)).strip()
    else:
        found = sys.stdin.read().strip()
    if not is_token(found.encode(errors="surrogateescape")):
        refuse("--token-file", f"{len(found.splitlines())} lines on stdin", "a token alone on one line")
    return found


def _systemd() -> int:
    """The version of this machine's systemd; 0 where there is none."""
    try:
        said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    found = re.match(r"systemd (\d+)", said)
    return int(found[1]) if found else 0


def _end(lines: list[str], code: int) -> None:
    for line in lines:
        click.echo(f"farmd: {line}", err=True)
    raise click.exceptions.Exit(code)
