"""Seals secrets to the recipients of a group, on the person's machine; one transaction per version (R40).

A value is encrypted before anything of it leaves this process. The audit says which version was written for
which group and how many recipients, and nothing that tells a value from another, such as a hash.
"""

from __future__ import annotations

import base64
import os
import secrets as random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from farmd.commands.config_keys import kept_numbers, room
from farmd.commands.mutation import Call, Change, Mutation, Scalar, registered
from store import codec, operations, secrets
from store.credentials import guarded
from store.entry import Stored
from store.errors import InputInvalid, NotFound, refuse
from store.named import records
from store.operations import Operation
from store.secrets import SecretGroup, SecretVersion
from store.times import rfc3339

PRIVATE = 0o077
_MISSING = "secrets need pyrage, farmd's extra [secrets]"


def age() -> Any:
    """The library of the age format.

    Raises:
        InputInvalid: it is not installed.
    """
    try:
        import pyrage
    except ImportError as error:
        raise InputInvalid(
            _MISSING, hint="pip install 'farmd[secrets]' (docs/operations.md#install)"
        ) from error
    return pyrage


# Identities: files as age-keygen writes them.


def keygen() -> tuple[str, str]:
    """A new identity: its file, and its recipient."""
    identity = age().x25519.Identity.generate()
    recipient = str(identity.to_public())
    return f"# public key: {recipient}\n{identity}\n", recipient


def identities(paths: Sequence[str]) -> list[Any]:
    """The identities in files.

    Raises:
        InputInvalid: a file has none, or something else. CredentialInvalid: others may read it.
    """
    found = []
    for path in paths:
        body = guarded("identity", path, PRIVATE, "a file that only you may read (mode 0600)")
        for line in body.decode("ascii", "replace").splitlines():
            if line.strip() and not line.startswith("#"):
                try:
                    found.append(age().x25519.Identity.from_str(line.strip()))
                except age().IdentityError:  # its text may have the line
                    refuse("identity", f"a line in {path!r} that is no identity", "AGE-SECRET-KEY-1…")
    if not found:
        refuse("identity", "no identity", "a file of farmctl secret keygen or age-keygen")
    return found


def written(path: str, body: str) -> None:
    """Write a new file that only its owner may read.

    Raises:
        InputInvalid: it exists, or cannot be written.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(body)
    except OSError as error:
        raise InputInvalid(f"output: {Path(path)}: {error.strerror}", field="output") from error


# Groups.


async def group(call: Call, name: str) -> Stored[SecretGroup]:
    """A secret group.

    Raises:
        NotFound: there is none of that name.
    """
    entry = await call.client.read(secrets.group_key(call.keys, name), mode="consistent")
    if entry is None:
        raise NotFound(
            f"secret group {name} does not exist",
            kind=secrets.GROUPS,
            id=name,
            hint=f"make it: farmctl secret group create {name} --recipient age1…",
        )
    return codec.stored(SecretGroup, entry)


async def groups(call: Call) -> tuple[list[SecretGroup], list[str]]:
    """All groups, and a line for each that does not decode."""
    found = await records(call.client, call.keys.tree(secrets.GROUPS), SecretGroup, mode="consistent")
    return [each.record for each in found.items], found.mistakes


async def create_group(call: Call, name: str, recipients: Sequence[str]) -> Mutation:
    """Make a group.

    Raises:
        InputInvalid: its name or a recipient cannot be. NotRegistered: there is no cluster.
    """
    record = SecretGroup(name=name, recipients=secrets.valid_recipients(recipients))
    key = secrets.group_key(call.keys, name)
    change = _group_change("create", name, {}, {"recipients": len(record.recipients)})
    return Mutation(change, (await registered(call), operations.create(key, codec.encode(record))))


async def change_group(call: Call, name: str, add: Sequence[str], remove: Sequence[str]) -> Mutation:
    """Add recipients to a group, and remove some; secrets are sealed to them when they are written next.

    Raises:
        NotFound: there is no such group. InputInvalid: a recipient cannot be, or it has none of those to
            remove.
    """
    stored = await group(call, name)
    before = stored.record.recipients
    if remove:
        secrets.valid_recipients(remove, "remove")  # what is an identity is not repeated
    for each in remove:
        if each not in before:
            refuse("remove", each, f"a recipient of group {name}: farmctl secret group list -o json")
    wanted = secrets.valid_recipients([*(each for each in before if each not in remove), *add])
    told: dict[str, Scalar] = {"recipients": len(wanted)}
    told |= {f"added.{at}": each for at, each in enumerate(sorted(set(wanted) - set(before)))}
    told |= {f"removed.{at}": each for at, each in enumerate(sorted(set(before) - set(wanted)))}
    change = _group_change("change", name, {"recipients": len(before)}, told)
    if wanted == before:
        return Mutation(change)
    record = msgspec.structs.replace(stored.record, recipients=wanted)
    write = operations.cas(stored.key, codec.encode(record), stored.index)
    return Mutation(change, (await registered(call), write))


async def delete_group(call: Call, name: str) -> Mutation:
    """Delete a group; its secrets stay as they are.

    Raises:
        NotFound: there is no such group.
    """
    stored = await group(call, name)
    change = _group_change(
        "delete", name, {"recipients": len(stored.record.recipients)}, {}, destructive=True
    )
    check = operations.check_index(stored.key, stored.index)
    return Mutation(change, (await registered(call), check, operations.delete_cas(stored.key, stored.index)))


def _group_change(
    verb: str, name: str, before: dict[str, Scalar], after: dict[str, Scalar], *, destructive: bool = False
) -> Change:
    return Change(
        secrets.GROUPS, name, name, f"secret-group.{verb}", before, after, destructive=destructive,
        object=f"secret-group/{name}",
    )  # fmt: skip


# Secrets.


async def set_value(call: Call, path: str, value: bytes, group_name: str = "") -> Mutation:
    """Write a new version of a secret, sealed to the recipients of its group.

    Raises:
        InputInvalid: the path or the value cannot be, or a new secret has no group. NotFound: there is no
            such group. NotRegistered: there is no cluster.
    """
    path = secrets.valid_path(path)
    if not 1 <= len(value) <= secrets.MAX_BYTES:
        refuse("value", f"{len(value)} bytes" if value else "nothing", f"1 to {secrets.MAX_BYTES} bytes")
    before = await secrets.newest(call.client, call.keys, path)
    if not (group_name or before):
        refuse("group", "nothing", "--group GROUP: whose recipients can open a new secret")
    to = await group(call, group_name or (before.record.group if before else ""))
    prefix, index = secrets.versions_of(call.keys, path), before.index if before else 0
    numbers = await kept_numbers(call, prefix)
    record = SecretVersion(
        path=path,
        version=(numbers[-1] if numbers else 0) + 1,
        at=call.clock.now(),
        by=call.actor,
        group=to.record.name,
        recipients=to.record.recipients,
        body=sealed(value, to.record.recipients),
        reason=call.reason,
    )
    writes = (
        await registered(call),
        operations.check_index(to.key, to.index),
        operations.cas(secrets.key_of(call.keys, path), codec.encode(record), index),
        operations.create(f"{prefix}{record.version:08}", codec.encode(record)),
        *room(prefix, numbers, secrets.MOST_VERSIONS),
    )
    return Mutation(_change(path, "set", before.record if before else None, record), writes)


async def rotate(call: Call, path: str, length: int) -> Mutation:
    """Write a random value as the new version of a secret; nobody sees it.

    Raises:
        NotFound: there is no such secret.
    """
    path = secrets.valid_path(path)
    await secrets.existing(call.client, call.keys, path)
    value = base64.urlsafe_b64encode(random.token_bytes(length)).rstrip(b"=")
    return await set_value(call, path, value)


async def reseal(call: Call, path: str, held: Sequence[Any]) -> tuple[list[Mutation], list[str]]:
    """Encrypt the versions of a secret again, to the recipients that its group has now.

    Returns the changes, one per version, and a line for each version that none of the identities opens.

    Raises:
        NotFound: there is no such secret, or its group is gone.
    """
    path = secrets.valid_path(path)
    current = await secrets.newest(call.client, call.keys, path)
    if current is None:
        raise secrets.missing(path)
    changes, lines = list[Mutation](), list[str]()
    kept = await secrets.versions(call.client, call.keys, path)
    for stored in kept.items:
        record = stored.record
        if record.deleted:
            continue
        to = await group(call, record.group)
        if record.recipients == to.record.recipients:
            continue
        try:
            value = age().decrypt(base64.b64decode(record.body), list(held))
        except age().DecryptError:
            lines.append(f"{secrets.PREFIX}{path}@{record.version}: not resealed: no identity given opens it")
            continue
        new = msgspec.structs.replace(
            record,
            recipients=to.record.recipients,
            body=sealed(value, to.record.recipients),
            resealed=call.clock.now(),
        )
        body = codec.encode(new)
        writes = [
            await registered(call),
            operations.check_index(to.key, to.index),
            operations.cas(stored.key, body, stored.index),
        ]
        if record.version == current.record.version:
            writes.append(operations.cas(current.key, body, current.index))
        changes.append(Mutation(_change(path, "reseal", record, new), tuple(writes)))
    return changes, [*lines, *kept.mistakes]


async def delete(call: Call, path: str) -> Mutation:
    """Delete a secret with all its versions. Manifests keep the ciphertext that they have.

    Raises:
        NotFound: it does not exist.
    """
    path = secrets.valid_path(path)
    stored = await secrets.existing(call.client, call.keys, path)
    prefix = secrets.versions_of(call.keys, path)
    numbers = await kept_numbers(call, prefix)
    mark = SecretVersion(
        path=path, version=numbers[-1] + 1 if numbers else 1, at=call.clock.now(), by=call.actor,
        reason=call.reason, deleted=True,
    )  # fmt: skip
    writes: tuple[Operation, ...] = (
        await registered(call),
        operations.check_index(stored.key, stored.index),
        operations.delete_cas(stored.key, stored.index),
        # Versions of a later secret of this name go on counting, so a reference never means another value.
        operations.create(f"{prefix}{mark.version:08}", codec.encode(mark)),
        *(operations.delete(f"{prefix}{each:08}") for each in numbers[-2 * secrets.MOST_VERSIONS :]),
    )
    return Mutation(_change(path, "delete", stored.record, None, destructive=True), writes)


def sealed(value: bytes, recipients: Sequence[str]) -> str:
    to = [age().x25519.Recipient.from_str(each) for each in recipients]
    return base64.b64encode(age().encrypt(value, to)).decode()


def armored(body: str) -> str:
    """Ciphertext in base64 as ``age -d`` reads it from a text."""
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join(["-----BEGIN AGE ENCRYPTED FILE-----", *lines, "-----END AGE ENCRYPTED FILE-----", ""])


def _change(
    path: str,
    verb: str,
    before: SecretVersion | None,
    after: SecretVersion | None,
    *,
    destructive: bool = False,
) -> Change:
    return Change(
        secrets.FAMILY, path, path, f"secret.{verb}", _told(before), _told(after), destructive=destructive,
        object=f"secret/{path}",
    )  # fmt: skip


def _told(version: SecretVersion | None) -> dict[str, Scalar]:
    """What people and the audit see of a version."""
    if version is None:
        return {}
    told: dict[str, Scalar] = {
        "version": version.version,
        "group": version.group,
        "recipients": len(version.recipients),
    }
    return told | ({"resealed": rfc3339(version.resealed)} if version.resealed else {})
