"""``farmd init``: a host's configuration, units and folders, from an installed package alone.

It must never change a file that exists: a person may have edited it. So it may be run again, after an upgrade
too, and says what differs from what it would have written.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from farmd.config import shipped, sources
from farmd.config.fields import shown
from farmd.config.sections import Config
from farmd.config.sources import ConfigInvalid, Values, checked, load
from store.credentials import is_token
from store.credentials import token as token_of
from store.errors import CredentialInvalid, InputInvalid, refuse

Role = Literal["server", "node"]
UNITS: dict[Role, str] = {"server": "farmd", "node": "farmd-agent"}
TOKENS: dict[Role, str] = {"server": "farmd-token", "node": "farmd-agent-token"}
CONFIG = "etc/farmd/farmd.toml"
EXIT_CONFIG = 78
NOTIFY_RELOAD = 253
"""The first version of systemd that knows this type of service."""
_FOLDERS = {"etc/farmd": 0o755, "etc/farmd/conf.d": 0o755, "etc/credstore": 0o700}
_PROGRAM = "/opt/farmd/bin/farmd"
# Where a package or `make install-systemd` puts what this command otherwise puts below /etc.
_PACKAGED = "usr/lib"
PACKAGED: dict[Role, tuple[str, ...]] = {
    role: (f"systemd/system/{unit}.service", "sysusers.d/farmd.conf", "tmpfiles.d/farmd.conf")
    for role, unit in UNITS.items()
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for: ``values`` for the configuration; ``systemd``: its version, 0 unknown."""

    role: Role
    root: Path
    program: str
    values: Values = field(default_factory=dict)
    token: bool = False
    systemd: int = 0


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file below the root folder."""

    path: str
    text: str
    mode: int = 0o644
    note: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that init does, or leaves as it is; ``file`` is what it writes."""

    verb: Literal["create", "write", "replace", "keep"]
    path: Path
    note: str = ""
    file: HostFile | None = None

    @property
    def line(self) -> str:
        return f"{self.verb:<8}{self.path}{f': {self.note}' if self.note else ''}"


def planned(wish: Wish) -> list[Step]:
    """What to do for a role: folders and files that are missing, and what exists and stays.

    Raises:
        ConfigInvalid: a value is wrong, or the configuration that exists has another one. OSError: of a file.
    """
    _agree(wish)
    return [*_steps(wish)]


def _steps(wish: Wish) -> Iterator[Step]:
    for folder in _FOLDERS:
        if not (path := wish.root / folder).is_dir():
            yield Step("create", path, "folder")
    for file in files(wish):
        path = wish.root / file.path
        yield Step("keep", path, _kept(path, file)) if path.exists() else Step("write", path, file.note, file)
    for name in PACKAGED[wish.role]:
        if packaged(wish, name):
            yield Step("keep", wish.root / _PACKAGED / name, "the package installed it")
    if wish.token:
        path = wish.root / "etc/credstore" / TOKENS[wish.role]
        yield Step("replace" if path.exists() else "write", path, "the token, mode 0600")


def write(wish: Wish, steps: list[Step], token: str) -> None:
    """Do what was planned.

    Raises:
        OSError: of a file.
    """
    for folder, mode in _FOLDERS.items():
        if not (path := wish.root / folder).is_dir():
            path.mkdir(mode=mode, parents=True)
    for step in steps:
        if step.file is not None:
            _put(step.path, step.file)
    if wish.token:
        _put_token(wish.root / "etc/credstore" / TOKENS[wish.role], token)


def files(wish: Wish) -> Iterator[HostFile]:
    """What a host of this role needs, except for what a package has installed."""
    unit = UNITS[wish.role]
    yield HostFile(CONFIG, sources.template(wish.values), note=_settings(wish.values))
    yield HostFile(
        f"etc/default/{unit}", shipped.text(f"systemd/{unit}.default"), 0o600, "environment of the unit"
    )
    if not packaged(wish, service := f"systemd/system/{unit}.service"):
        text = shipped.text(f"systemd/{unit}.service").replace(_PROGRAM, wish.program)
        yield HostFile(f"etc/{service}", text, note="unit")
        if wish.systemd >= NOTIFY_RELOAD:
            reload = shipped.text("systemd/notify-reload.conf")
            yield HostFile(f"etc/{service}.d/notify-reload.conf", reload, note="part of the unit")
    for kind, note in (("sysusers", "user farmd-pods"), ("tmpfiles", "folders of farmd")):
        if not packaged(wish, name := f"{kind}.d/farmd.conf"):
            yield HostFile(f"etc/{name}", shipped.text(f"systemd/{kind}.conf"), note=note)


def _settings(values: Values) -> str:
    """The settings of a new configuration that are not comments."""
    told = [
        f"{section}.{key} = {shown(value)}" for section, keys in values.items() for key, value in keys.items()
    ]
    return ", ".join(told) or "every setting is a comment with its default"


def packaged(wish: Wish, name: str) -> bool:
    """Whether a package brings this file."""
    return (wish.root / _PACKAGED / name).exists()


def following(wish: Wish) -> list[str]:
    """What to do next, as lines."""
    unit = UNITS[wish.role]
    lines = []
    if not (wish.root / "etc/credstore" / TOKENS[wish.role]).exists():
        makes = "farmctl token consul farm" if wish.role == "server" else "farmctl node token NAME"
        lines.append(
            f"no token: if Consul has ACLs, run this again with --token-file - and the output of {makes}"
        )
    prepare = "" if packaged(wish, f"systemd/system/{unit}.service") else "systemctl daemon-reload && "
    users = "" if packaged(wish, "sysusers.d/farmd.conf") else "systemd-sysusers && "
    return [*lines, f"next: {users}{prepare}systemctl enable --now {unit}"]


def _agree(wish: Wish) -> None:
    """Refuse values that are wrong, or that the configuration that exists does not have.

    Raises:
        ConfigInvalid: one line for each.
    """
    wanted = checked("init", wish.values)
    file = wish.root / CONFIG
    if not file.exists():
        return
    found = load(file, {}, {}).config
    if wrong := [
        f"{file}: {key}: found {shown(there)}, expected {shown(value)}: change it there;"
        " init does not change existing files"
        for key, there, value in _asked(wish.values, found, wanted)
        if there != value
    ]:
        raise ConfigInvalid(wrong)


def _asked(values: Values, found: Config, wanted: Config) -> Iterator[tuple[str, object, object]]:
    """Each key that a person gave, with its value in both configurations."""
    for section, given in values.items():
        for name in given:
            both = (getattr(getattr(each, section), name) for each in (found, wanted))
            yield f"{section}.{name}", *both


def _kept(path: Path, file: HostFile) -> str:
    # A configuration belongs to a person; _agree has compared its values with those of the wish.
    same = file.path == CONFIG or path.read_text(encoding="utf-8", errors="replace") == file.text
    return "" if same else "it differs from what init would write"


def _put(path: Path, file: HostFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x", encoding="utf-8", opener=_with_mode(file.mode)) as new:
        new.write(file.text)


def _put_token(path: Path, token: str) -> None:
    """Write a token as a whole; another one that is there is replaced, since a person gave this one."""
    part = path.with_name(f".{path.name}.new")
    part.unlink(missing_ok=True)
    with open(part, "x", encoding="ascii", opener=_with_mode(0o600)) as new:
        new.write(f"{token}\n")
    part.rename(path)


def _with_mode(mode: int) -> Callable[[str, int], int]:
    def opener(path: str, flags: int) -> int:
        descriptor = os.open(path, flags, mode)
        os.fchmod(descriptor, mode)  # whatever the umask is
        return descriptor

    return opener


def program_of(argv0: str, executable: str) -> str:
    """The path of ``farmd`` for the units: what was called, else what is beside the interpreter."""
    called = Path(argv0)
    if called.name == "farmd" and os.sep in argv0:
        return shlex.quote(str(called.absolute()))
    return shlex.quote(str(Path(executable).with_name("farmd")))


def run_init(
    role: Role,
    root: Path,
    token_file: str | None,
    *,
    name: str | None,
    address: str | None,
    consul: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Show what is missing on a host of a role, ask, write it, and print the next command.

    Raises:
        Exit: 78, because a value is wrong; 1, because a file cannot be written or nobody agreed.
    """
    own: dict[Role, Values] = {"server": {"farm": {"name": name}}, "node": {"agent": {"node": name}}}
    given = {"--name": name, "--address": address, "--consul": consul, "--token-file": token_file}
    if empty := [option for option, value in given.items() if value == ""]:  # a variable that is not set
        _end(
            [f"{option}: found an empty value, expected one, or no {option}" for option in empty], EXIT_CONFIG
        )
    web = {"bind": "0.0.0.0", "advertise": address} if address else {}
    values = _given({**own[role], "store": {"address": consul}, "web": web})
    program = program_of(sys.argv[0], sys.executable)
    wish = Wish(role, root, program, values, token_file is not None, _systemd())
    try:
        unread = token_file is None or (dry_run and token_file == "-")
        token = "" if unread or token_file is None else _token(token_file)
        steps = planned(wish)
        if not _agreed(wish, steps, yes=yes, dry_run=dry_run):
            return
        write(wish, steps, token)
    except ConfigInvalid as error:
        _end(error.lines, EXIT_CONFIG)
    except (CredentialInvalid, InputInvalid) as error:
        _end([error.message], EXIT_CONFIG)
    except OSError as error:
        _end([f"{error.filename}: {error.strerror}; run it as root, or with --root FOLDER"], 1)
    else:
        click.echo("\n".join(following(wish)))


def _agreed(wish: Wish, steps: list[Step], *, yes: bool, dry_run: bool) -> bool:
    """Show the plan; whether to carry it out.

    Raises:
        Exit: a person declined, or there is nobody to ask.
    """
    writes = [step for step in steps if step.verb != "keep"]
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if writes and not (yes or dry_run or terminal):
        what = f"init {wish.role} writes {len(writes)} files and folders below {wish.root}"
        _end(
            [
                f"{what}, but there is no terminal to confirm it on:"
                " pass -y to continue, or --dry-run to preview"
            ],
            1,
        )
    for step in steps:
        click.echo(step.line)
    if dry_run:
        click.echo(f"dry run: {f'{len(writes)} to write' if writes else 'nothing to write'}")
        return False
    if writes and not yes and not click.confirm("Write these?", err=True):
        _end(["declined; nothing was written"], 1)
    return True


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
