"""``farmctl secret set | list | history | describe | get | rotate | reseal | delete | keygen | group``."""

from __future__ import annotations

import click

from farmd.cli import noun_show
from farmd.cli.asking import interruptible, on_terminal
from farmd.cli.changes import apply
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import below, checked_prefix, target, targets
from farmd.cli.noun_edit import bytes_of
from farmd.cli.options import Exampled, Whole, command
from farmd.cli.output import document, emit, show
from farmd.commands import sealing, secret_views
from farmd.commands.mutation import Mutation
from farmd.tables.model import Column, Described, Table
from store import secrets
from store.errors import InputInvalid
from store.times import plain, rfc3339

_VERSION = Whole(1, 10**8 - 1)
_NOUN = "secret"


@click.group("secret", cls=LazyGroup)
def secret() -> None:
    """Secrets: sealed values that only the nodes of a secret group can open.

    farmctl encrypts each value in the age format before it writes it: nobody who reads Consul sees it.
    """


@click.group("group", cls=LazyGroup)
def group() -> None:
    """Secret groups: the recipients that secrets are sealed to."""


_paths, _groups = below(secrets.FAMILY), below(secrets.GROUPS)


@click.command("keygen", cls=Exampled)
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The new file.")
def keygen(output: str) -> None:
    """Create an identity in a new file, as age-keygen does; its recipient goes to stdout.

    A node reads such files where agent.secret_identities names them. A person keeps one for secret reseal.
    """
    body, recipient = sealing.keygen()
    sealing.written(output, body)
    click.echo(recipient)


@command("set", mutates=True)
@target(_NOUN, _paths)
@click.argument("given", nargs=-1, metavar="[-]")
@click.option("--from-file", "path", type=click.Path(), help="Read the value from this file; - is stdin.")
@click.option("--group", "to", default="", help="The secret group; default: the one that the secret has.")
async def set_(invocation: Invocation, name: str, given: tuple[str, ...], path: str | None, to: str) -> None:
    """Write a new version of a secret, byte for byte from a file, stdin (-) or the terminal.

    The value has 1 byte to 64 KiB, and is encrypted on this machine. The ten newest versions are kept.
    Running pods keep the version that their manifests have.
    """
    if given not in ((), ("-",)):  # it is never repeated
        text = "value: found one on the command line, which others see, expected --from-file FILE, or -"
        raise InputInvalid(text, field="value")
    if given and path is not None:
        raise InputInvalid("value: found both - and --from-file, expected one of them", field="value")
    body = _read("-" if given else path)
    await apply(invocation, [await sealing.set_value(invocation.call, name, body, to)])


def _read(path: str | None) -> bytes:
    """The value; no more of it is read than a secret may have.

    Raises:
        InputInvalid: the file cannot be read, or there is neither a file nor a terminal.
    """
    if path is None:
        if not on_terminal():
            raise InputInvalid("value: found nothing, expected --from-file FILE, or -", field="value")
        with interruptible():
            typed: str = click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True)
        return typed.encode(errors="surrogateescape")  # byte for byte, also what is no text
    return bytes_of(path, secrets.MAX_BYTES)


@command("rotate", mutates=True)
@target(_NOUN, _paths)
@click.option("--bytes", "length", type=Whole(16, 1024), default=32, help="Its random bytes.  [default: 32]")
async def rotate(invocation: Invocation, name: str, length: int) -> None:
    """Write a random value as the new version of a secret: base64 text, which is never shown."""
    await apply(invocation, [await sealing.rotate(invocation.call, name, length)])


@command("list", lists=True)
@click.argument("prefix", default="", callback=checked_prefix)
async def list_(invocation: Invocation, prefix: str) -> None:
    """All secrets, or those that begin with PREFIX.

    STALE counts the recipients that can open the newest version but are no longer in its group.
    """

    async def read() -> Table:
        rows, broken = await secret_views.rows(invocation.call, prefix)
        return Table(
            kind="Secret",
            rows=rows,
            columns=(
                Column("NAME", lambda row: row.name),
                Column("VERSION", lambda row: str(row.version)),
                Column("GROUP", lambda row: row.group),
                Column("RECIPIENTS", lambda row: str(row.recipients)),
                Column("STALE", lambda row: str(row.stale)),
            ),
            name=lambda row: f"{_NOUN}/{row.name}",
            plain=plain,
            broken=broken,
            empty="no secrets: farmctl secret set NAME --from-file FILE --group GROUP",
        )

    await show(invocation, read)


@command("history", lists=True)
@target(_NOUN, _paths)
async def history(invocation: Invocation, name: str) -> None:
    """The versions of a secret that are kept, newest first: who set each, when and why."""
    path = secrets.valid_path(name)

    async def read() -> Table:
        rows, broken = await secret_views.history(invocation.call, path)
        return Table(
            kind="SecretVersion",
            rows=rows,
            columns=(
                Column("VERSION", lambda row: str(row.version)),
                Column("STATE", lambda row: row.state),
                Column("SET", lambda row: rfc3339(row.at)),
                Column("BY", lambda row: row.by),
                Column("GROUP", lambda row: row.group or "-"),
                Column("STALE", lambda row: str(row.stale)),
                Column("REASON", lambda row: row.reason or "-"),
            ),
            name=lambda row: f"{_NOUN}/{path}@{row.version}",
            plain=plain,
            broken=broken,
        )

    await show(invocation, read)


@command("describe")
@target(_NOUN, _paths)
async def describe(invocation: Invocation, name: str) -> None:
    """Who can open a secret: nodes and recipients; what uses it; and its latest changes.

    STALE counts removed recipients that can still open a version, or the copy of it in a manifest.
    """
    found = await secret_views.view(invocation.call, name)
    told = [
        ("Secret", found.name),
        ("Version", str(found.version)),
        ("Group", found.group),
        ("Nodes", ", ".join(found.nodes) or "none that is present has an identity"),
        *(("Recipient", f"{each}{' (removed)' if each in found.stale else ''}") for each in found.recipients),
    ]
    users = Table(
        kind="SecretUser",
        rows=found.users,
        columns=(
            Column("OBJECT", lambda row: row.object),
            Column("VERSION", lambda row: str(row.version)),
            Column("STALE", lambda row: str(row.stale)),
        ),
        name=lambda row: row.object,
        plain=plain,
        empty="nothing",
    )
    described = Described(
        *(found.name, found.name, "", "", told, {"Used by": users}, found, secrets.FAMILY),
        document=plain(found),
    )
    await noun_show.describe(invocation, "Secret", _NOUN, described)


@command("get")
@target(_NOUN, _paths)
@click.option("--version", type=_VERSION, default=None, help="This version; default: the newest.")
async def get(invocation: Invocation, name: str, version: int | None) -> None:
    """The ciphertext of a secret, for age -d -i FILE. Nothing is decrypted."""
    path = secrets.valid_path(name)
    found = await secrets.version_of(invocation.client, invocation.keys, path, version or 0)
    if found is None:
        raise secrets.missing(secrets.reference(path, version) if version else path)
    text = sealing.armored(found.body)
    if invocation.settings.output in {"json", "yaml"}:
        fields = {"name": path, "version": found.version, "group": found.group, "ciphertext": text}
        emit(invocation, document("Secret", fields))
    else:
        click.echo(text, nl=False)


@command("reseal", mutates=True)
@targets(_NOUN, _paths)
@click.option(
    "--identity",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(),
    help="A file with your identities.",
)
async def reseal(invocation: Invocation, names: tuple[str, ...], paths: tuple[str, ...]) -> None:
    """Encrypt all versions of secrets again, to the recipients that their groups have now.

    Versions that your identities cannot open stay as they are and are listed. A removed recipient may have
    kept the value, so set a new value, too. Pods get the new ciphertext when their file is applied again.
    """
    held = sealing.identities(paths)
    changes = list[Mutation]()
    for name in names:
        found, lines = await sealing.reseal(invocation.call, name, held)
        for line in lines:
            invocation.say(line)
        if not found and not lines:
            invocation.say(f"{_NOUN}/{name}: nothing to do: its group has the same recipients")
        changes += found
    await apply(invocation, changes)


@command("delete", mutates=True)
@targets(_NOUN, _paths)
async def delete(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Delete secrets with all their versions.

    Pods keep what their manifests have.
    """
    await apply(invocation, [await sealing.delete(invocation.call, name) for name in names])


@command("create", mutates=True)
@target("secret-group", _groups)
@click.option(
    "--recipient",
    multiple=True,
    required=True,
    metavar="age1…",
    help="A recipient that can open the group's secrets; may be repeated.",
)
async def create_group(invocation: Invocation, name: str, recipient: tuple[str, ...]) -> None:
    """Create a secret group of recipients.

    These are the recipients of its nodes, and of the people who reseal its secrets.
    """
    await apply(invocation, [await sealing.create_group(invocation.call, name, recipient)])


@command("change", mutates=True)
@target("secret-group", _groups)
@click.option("--add", multiple=True, metavar="age1…", help="A recipient to add; may be repeated.")
@click.option("--remove", multiple=True, metavar="age1…", help="A recipient to remove; may be repeated.")
async def change_group(
    invocation: Invocation, name: str, add: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Add recipients to a secret group, or remove some.

    Its secrets stay sealed as they are: farmctl secret reseal.
    """
    await apply(invocation, [await sealing.change_group(invocation.call, name, add, remove)])


@command("list", lists=True)
async def list_groups(invocation: Invocation) -> None:
    """All secret groups."""

    async def read() -> Table:
        rows, broken = await sealing.groups(invocation.call)
        return Table(
            kind="SecretGroup",
            rows=rows,
            columns=(
                Column("NAME", lambda row: row.name),
                Column("RECIPIENTS", lambda row: ", ".join(row.recipients)),
            ),
            name=lambda row: f"secret-group/{row.name}",
            plain=plain,
            broken=broken,
            empty="no secret groups: farmctl secret group create NAME --recipient age1…",
        )

    await show(invocation, read)


@command("delete", mutates=True)
@target("secret-group", _groups)
async def delete_group(invocation: Invocation, name: str) -> None:
    """Delete a secret group; its secrets stay, and can be set again with another group."""
    await apply(invocation, [await sealing.delete_group(invocation.call, name)])


for each in (create_group, change_group, list_groups, delete_group):
    group.add_command(each)
for each in (keygen, set_, list_, history, describe, get, rotate, reseal, delete, group):
    secret.add_command(each)
