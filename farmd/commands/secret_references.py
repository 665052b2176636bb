"""References to secrets in manifests, and back: ``{secret: NAME}`` or ``{secret: NAME@VERSION}``.

A file may say ``env: {PASSWORD: {secret: shop/db}}`` and ``secrets: [{secret: shop/db}]``. What is stored has
the ciphertext of that version in ``sealed``; ``resolving`` reads it for the person who writes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from farmd.commands.mutation import Call
from store import secrets
from store.errors import InputInvalid, refuse
from store.mistakes import shown
from store.secrets import IN_A_FILE, SecretVersion

CONTAINER = "container"
SECRET, SECRETS, SECRET_ENV, SEALED = "secret", "secrets", "secret_env", "sealed"
_ENV = "env"
FILE_MODE = 0o400
Found = Mapping[tuple[str, int], SecretVersion | None]


async def read(call: Call, wanted: tuple[str, int]) -> SecretVersion | None:
    """A version of a secret."""
    return await secrets.version_of(call.client, call.keys, *wanted)


def is_variable(value: Any) -> bool:
    """Whether a variable's value is a reference to a secret."""
    return isinstance(value, dict) and SECRET in value


def named(pod: Mapping[str, Any], at: str) -> Iterator[tuple[str, int]]:
    """The secrets that a manifest refers to, as (path, version); version 0 is the newest.

    Raises:
        InputInvalid: a reference is none.
    """
    for _, path, version in [*_variables(pod, at), *_files(pod, at)]:
        yield path, version


def _variables(pod: Mapping[str, Any], at: str) -> list[tuple[str, str, int]]:
    env = pod.get(_ENV)
    said = env if isinstance(env, dict) else {}
    found = []
    for name, value in said.items():
        if is_variable(value):
            where = f"{at}.{_ENV}.{name}"
            if value.keys() != {SECRET}:
                refuse(where, shown(value), f"{{{SECRET}: NAME}}, the name of a secret")
            found.append((name, *_parsed(value[SECRET], f"{where}.{SECRET}")))
    return found


def _files(pod: Mapping[str, Any], at: str) -> list[tuple[int, str, int]]:
    said = pod.get(SECRETS)
    found = []
    for number, each in enumerate(said if isinstance(said, list) else []):
        # A stored manifest has the reference beside what it refers to.
        if isinstance(each, dict) and SECRET in each and each[SECRET] not in _stored(pod):
            found.append((number, *_parsed(each[SECRET], f"{at}.{SECRETS}[{number}].{SECRET}")))
    return found


def _stored(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    sealed = pod.get(SEALED)
    return sealed if isinstance(sealed, dict) else {}


def _parsed(value: Any, where: str) -> tuple[str, int]:
    if not isinstance(value, str):
        refuse(where, shown(value), "NAME or NAME@VERSION, such as shop/db or shop/db@3")
    return secrets.parsed(value, where)


def is_container(at: str) -> bool:
    """Whether a place is that of a service's ``container``, which refers to secrets like a manifest."""
    return at.rpartition(".")[2].rpartition(" ")[2] == CONTAINER


def _mode(at: str) -> int:
    """The mode of a file that says none; that of a service's is as Compose has it."""
    return 0o444 if is_container(at) else FILE_MODE


def resolved(found: Found, pod: dict[str, Any], at: str) -> dict[str, Any]:
    """A manifest with ciphertext for its references.

    Raises:
        InputInvalid: a secret or its version does not exist.
    """
    variables, files = _variables(pod, at), _files(pod, at)
    if variables and is_container(at):
        refuse(f"{at}.{_ENV}.{variables[0][0]}", "a secret", IN_A_FILE)
    if not (variables or files):
        return pod
    sealed: dict[str, Any] = dict(_stored(pod))

    def take(path: str, version: int, field: str) -> str:
        record = found[path, version]
        if record is None:
            raise _missing(path, version, f"{at}.{field}")
        name = secrets.reference(path, record.version)
        pinned = version > 0 or bool(sealed.get(name, {}).get("pinned"))
        sealed[name] = msgspec.to_builtins(secrets.sealed(record, pinned=pinned))
        return name

    env = {name: value for name, value in (pod.get(_ENV) or {}).items() if not is_variable(value)}
    by_variable = dict(pod.get(SECRET_ENV) or {})
    for name, path, version in variables:
        by_variable[name] = take(path, version, f"{_ENV}.{name}")
    listed = list(pod.get(SECRETS) or [])
    for number, path, version in files:
        reference = take(path, version, f"{SECRETS}[{number}]")
        given = {"name": path.rpartition("/")[2], "mode": _mode(at)} | listed[number]
        listed[number] = given | {SECRET: reference}
    written = {_ENV: env, SECRETS: listed, SECRET_ENV: by_variable, SEALED: sealed}
    kept = {name: value for name, value in pod.items() if name not in written}
    return {**kept, **{name: value for name, value in written.items() if value}}


def unpinned(sealed: Mapping[str, Any]) -> dict[str, int]:
    """The secrets of a manifest that follow their newest version, by path, with the version that it has."""
    return {
        name.rpartition("@")[0]: int(name.rpartition("@")[2])
        for name, each in sealed.items()
        if not each.get("pinned")
    }


async def renewed(call: Call, pod: dict[str, Any]) -> dict[str, Any]:
    """A stored manifest with the newest versions of its secrets that no file pinned. A version that was
    encrypted again stays as it is.

    Raises:
        InputInvalid: one does not exist. AccessDenied: the caller may not read one.
    """
    found: dict[tuple[str, int], SecretVersion | None] = {}
    old = set[str]()
    for path, version in unpinned(_stored(pod)).items():
        head = await read(call, (path, 0))
        if head is None or head.version != version:
            found[path, 0] = head
            old.add(secrets.reference(path, version))
    if not old:
        return pod
    env = pod.get(_ENV, {}) | {
        name: {SECRET: each.rpartition("@")[0]} for name, each in _by_variable(pod) if each in old
    }
    listed = [
        each | {SECRET: each[SECRET].rpartition("@")[0]} if each.get(SECRET) in old else each
        for each in pod.get(SECRETS, [])
    ]
    kept = {
        _ENV: env,
        SECRETS: listed,
        SECRET_ENV: {name: each for name, each in _by_variable(pod) if each not in old},
        SEALED: {name: each for name, each in _stored(pod).items() if name not in old},
    }
    return resolved(found, pod | kept, "pod")


def _missing(path: str, version: int, where: str) -> InputInvalid:
    if version:
        text, hint = f"has no version {version}", f"farmctl secret history {path} lists those that are kept"
    else:
        text, hint = "does not exist", f"farmctl secret set {path} --from-file FILE --group GROUP"
    return InputInvalid(f"{where}: {secrets.PREFIX}{path} {text}", field=where, hint=hint)


def unresolved(pod: dict[str, Any], at: str = "") -> dict[str, Any]:
    """A stored manifest as a person would write it: references in place of ciphertext."""
    sealed = _stored(pod)
    if not sealed:
        return pod
    env = {**pod.get(_ENV, {}), **{name: {SECRET: _said(each, sealed)} for name, each in _by_variable(pod)}}
    mode = _mode(at)
    files = [_file(each, sealed, mode) if each.get(SECRET) else each for each in pod.get(SECRETS, [])]
    kept = {name: value for name, value in pod.items() if name not in {SEALED, SECRET_ENV, _ENV, SECRETS}}
    written = {_ENV: env, SECRETS: files}
    return {**kept, **{name: value for name, value in written.items() if value}}


def _by_variable(pod: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(pod.get(SECRET_ENV, {}).items())


def _said(name: str, sealed: Mapping[str, Any]) -> str:
    return name if sealed.get(name, {}).get("pinned") else name.rpartition("@")[0]


def _file(each: Mapping[str, Any], sealed: Mapping[str, Any], mode: int) -> dict[str, Any]:
    said = _said(each[SECRET], sealed)
    defaults = {"name": each[SECRET].rpartition("@")[0].rpartition("/")[2], "mode": mode}
    return {name: value for name, value in each.items() if value != defaults.get(name)} | {SECRET: said}
