"""Config keys in manifests: references in a person's file become values, with where each came from.

A file may say ``env: {DB_URL: {kv: KEY}}``, ``env_from: [{kv: FOLDER/}]`` and ``files: [{path, kv: KEY}]``.
The command of a person resolves them with that person's token, before anything is checked or compared. The
manifest holds the values as if the file had them, and in ``sources`` the key and version of each, so farms
and agents read no config key, and what runs is known and can be reverted. Secrets are referred to in the same
way (``secret_references``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from farmd.commands import secret_references
from farmd.commands.mutation import Call
from store import codec, config
from store.canonical import builtins
from store.entry import Entry, RawEntry
from store.errors import InputInvalid, refuse
from store.features import SECRETS, needed_to_read
from store.manifests import Manifest, Reference
from store.mistakes import shown
from store.several import several

Resolve = Callable[[Any, str], Any]
"""A parsed document and its place, to the document without references."""

MOST_REFERENCES = 64
_REFER = ("pod", secret_references.CONTAINER)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"files\[(\d+)\](\.template)?")
CONTENT, TEMPLATE = "content", "template"
KV, ENV, ENV_FROM, FILES, SOURCES = "kv", "env", "env_from", "files", "sources"


def unresolved(data: Any, _: str) -> Any:
    """A document as it is: what resolves one that refers to nothing."""
    return data


async def resolver(call: Call, files: Sequence[tuple[str, str]]) -> Resolve:
    """What resolves the references of some files, each (text, source), by one read per key and folder.

    Raises:
        InputInvalid: a file cannot be parsed, or a reference is no key. AccessDenied: the person may not
            read one.
    """
    from farmd.commands import documents  # farms and lists need no YAML

    found = [
        each
        for text, source in files
        if KV in text or secret_references.SECRET in text
        for each in documents.located(text, source)
    ]
    pods = [(pod, f"{where}: {at}") for where, data in found for pod, at in _pods(_document(data))]
    references = [each for pod, at in pods for each in _named(pod, at)]
    wanted = sorted({each for pod, at in pods for each in secret_references.named(pod, at)})
    if not (references or wanted):
        return unresolved
    values, below = await _read(call, references)
    sealed = dict(zip(wanted, await several(partial(secret_references.read, call), wanted), strict=True))

    def resolve(pod: dict[str, Any], at: str) -> dict[str, Any]:
        return secret_references.resolved(sealed, _resolved(values, below, pod, at), at)

    return lambda data, where: _rewritten(data, resolve, f"{where}: ")


def _refuse_own(call: Call, path: str) -> None:
    """Refuse keys of the cluster itself but config keys: records are no values.

    Raises:
        InputInvalid: it is one, or a folder with some.
    """
    key, own = path[1:], call.keys.prefix
    if path.startswith("/") and (key.startswith(own) or own.startswith(key)):
        refuse(KV, shown(key), "a config key, or a key outside of farmd's prefix", field=KV)


async def _read(
    call: Call, references: Collection[str]
) -> tuple[dict[str, Entry | None], dict[str, Mapping[str, Entry]]]:
    """The values of keys, and those below folders, each read once.

    Raises:
        InputInvalid: one is a key of the cluster itself.
    """
    for path in references:
        _refuse_own(call, path)
    keys = sorted({path for path in references if not path.endswith("/")})
    folders = sorted({path for path in references if path.endswith("/")})
    values = dict(zip(keys, await several(partial(_value, call), keys), strict=True))
    return values, dict(zip(folders, await several(partial(_below, call), folders), strict=True))


async def _value(call: Call, path: str) -> Entry | None:
    return await call.client.read(config.key_of(call.keys, path), mode="consistent")


async def _below(call: Call, folder: str) -> Mapping[str, Entry]:
    """The keys right below a folder, by their last part."""
    tree = config.key_of(call.keys, folder)
    page = await call.client.list(tree, mode="consistent")
    entries: list[RawEntry] = page.items
    names = ((raw.key.removeprefix(tree), raw) for raw in entries)
    return {name: Entry.of(raw) for name, raw in names if name and "/" not in name}


def _pods(data: Any, at: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """The manifests in a document of farmd's own, each with its place; a job has one per type, and the
    container of a service refers to secrets as a manifest does.
    """
    if isinstance(data, dict):
        if not _ours(data):
            if str(data.get("kind", "")).endswith("List"):
                yield from _pods(data.get("items"), "items")
            return
        for name, value in data.items():
            if name in _REFER and isinstance(value, dict):
                yield value, f"{at}{name}"
            else:
                yield from _pods(value, f"{at}{name}.")
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _pods(value, f"{at.removesuffix('.')}[{number}].")


def _document(data: Any) -> Any:
    """A document; the file of ``rollout create --manifest`` may be a manifest alone."""
    alone = isinstance(data, dict) and data.keys().isdisjoint(("pod", "name", "kind", "apiVersion"))
    return {"pod": data} if alone else data


def _ours(data: Mapping[str, Any]) -> bool:
    """Whether a mapping may be a document of farmd's, or a part of one."""
    return str(data.get("apiVersion", "farmd/")).startswith("farmd/")


def _rewritten(data: Any, rewrite: Callable[[dict[str, Any], str], dict[str, Any]], at: str = "") -> Any:
    """A document whose manifests are rewritten; the places are those of ``_pods``."""
    if isinstance(data, dict):
        if not _ours(data):
            return data
        return {
            name: rewrite(value, f"{at}{name}")
            if name in _REFER and isinstance(value, dict)
            else _rewritten(value, rewrite, f"{at}{name}.")
            for name, value in data.items()
        }
    if isinstance(data, list):
        return [
            _rewritten(value, rewrite, f"{at.removesuffix('.')}[{number}].")
            for number, value in enumerate(data)
        ]
    return data


# What a manifest refers to: a path of a key, or of a folder with a slash at its end.


def _named(pod: Mapping[str, Any], at: str) -> Iterator[str]:
    if secret_references.is_container(at):
        return
    for _, path in _variables(pod, at):
        yield path
    for _, _, path in _contents(pod, at):
        yield path
    for _, folder in _folders(pod, at):
        yield folder


def _variables(pod: Mapping[str, Any], at: str) -> list[tuple[str, str]]:
    env = pod.get(ENV)
    said = env if isinstance(env, dict) else {}
    return [
        (name, _path(value, f"{at}.{ENV}.{name}"))
        for name, value in said.items()
        if isinstance(value, dict) and not secret_references.is_variable(value)
    ]


def _contents(pod: Mapping[str, Any], at: str) -> list[tuple[int, str, str]]:
    """The files with a reference: which field of which file has it, and to which key."""
    files = pod.get(FILES)
    said = files if isinstance(files, list) else []
    found = []
    for number, file in enumerate(said):
        if isinstance(file, dict) and KV in file:
            where = f"{at}.{FILES}[{number}]"
            if not file.keys().isdisjoint(("content", "encoding", TEMPLATE)):
                refuse(
                    where,
                    f"{KV} beside content, encoding or template",
                    f"one of them: {KV} names the content",
                )
            found.append((number, CONTENT, _path({KV: file[KV]}, where)))
        elif isinstance(file, dict) and isinstance(file.get(TEMPLATE), dict):
            where = f"{at}.{FILES}[{number}].{TEMPLATE}"
            found.append((number, TEMPLATE, _path(file[TEMPLATE], where)))
    return found


def _folders(pod: Mapping[str, Any], at: str) -> list[tuple[str, str]]:
    said = pod.get(ENV_FROM, [])
    if not isinstance(said, list):
        refuse(f"{at}.{ENV_FROM}", shown(said), f"a list such as [{{{KV}: shop/env/}}]")
    places = [(f"{at}.{ENV_FROM}[{number}]", value) for number, value in enumerate(said)]
    return [(where, f"{_path(value, where, folder=True)}/") for where, value in places]


def _path(value: Any, where: str, *, folder: bool = False) -> str:
    if not isinstance(value, dict) or value.keys() != {KV} or not isinstance(value[KV], str):
        refuse(where, shown(value), f"{{{KV}: KEY}}, the name of a config key")
    path: str = value[KV]
    return config.valid_path(path.removesuffix("/") if folder else path, f"{where}.{KV}", foreign=True)


# References to values, and back.


def _resolved(
    values: Mapping[str, Entry | None], below: Mapping[str, Mapping[str, Entry]], pod: dict[str, Any], at: str
) -> dict[str, Any]:
    """A manifest with values in place of its references."""
    if secret_references.is_container(at):
        return pod
    variables, contents, folders = _variables(pod, at), _contents(pod, at), _folders(pod, at)
    if not (variables or contents or folders):
        return {name: value for name, value in pod.items() if name != ENV_FROM}
    env, files = dict(pod.get(ENV) or {}), list(pod.get(FILES) or [])
    sources: list[dict[str, Any]] = []
    for name, path in variables:
        env[name] = _taken(sources, f"{ENV}.{name}", path, values[path], at)
    for number, name, path in contents:
        kept = {other: value for other, value in files[number].items() if other != KV}
        field = f"{FILES}[{number}]" + (f".{TEMPLATE}" if name == TEMPLATE else "")
        files[number] = {**kept, name: _taken(sources, field, path, values[path], at)}
    for where, folder in folders:
        for name, entry in sorted(_all_of(below[folder], folder, where).items()):
            if name in env:
                refuse(f"{at}.{ENV}", f"{name} a second time, from {where.rpartition('.')[2]}", "it once")
            env[name] = _taken(sources, f"{ENV}.{name}", f"{folder}{name}", entry, at)
            sources[-1]["below"] = folder
    if len(sources) > MOST_REFERENCES:
        refuse(at, f"{len(sources)} values of config keys", f"at most {MOST_REFERENCES}")
    kept = {name: value for name, value in pod.items() if name != ENV_FROM}
    written: dict[str, Any] = {ENV: env} if env else {}
    written |= {FILES: files} if files else {}
    return {**kept, **written, SOURCES: sorted(sources, key=lambda each: str(each["field"]))}


def _all_of(found: Mapping[str, Entry], folder: str, where: str) -> Mapping[str, Entry]:
    if not found:
        text = f"{where}: {config.told(folder)} has no keys"
        raise InputInvalid(text, field=where, hint=f"farmctl config set {folder}NAME VALUE")
    for name in found:
        if not _VARIABLE.fullmatch(name):
            text = f"{where}: {config.told(folder)}{name}: found {name!r}, expected a variable's name"
            raise InputInvalid(text, field=where)
    return found


def _taken(sources: list[dict[str, Any]], field: str, path: str, entry: Entry | None, at: str) -> str:
    """The value of a key, which is noted as the source of a field."""
    if entry is None:
        text = f"{at}.{field}: {config.told(path)} does not exist"
        way = "consul kv put" if path.startswith("/") else "farmctl config set"
        raise InputInvalid(text, field=f"{at}.{field}", hint=f"{way} {path.removeprefix('/')} VALUE")
    sources.append({"field": field, KV: path, "version": entry.modify_index})
    return config.valid_value(config.text_of(entry), f"{at}.{field}: {config.told(path)}")


async def contents(call: Call, named: Sequence[tuple[str, str]]) -> list[str]:
    """The values of config keys, each with the field that refers to it.

    Raises:
        InputInvalid: one is missing, is no text, or is a key of the cluster itself.
    """
    paths = [(config.valid_path(path, field, foreign=True), field) for path, field in named]
    values, _ = await _read(call, [path for path, _ in paths])
    return [
        _taken([], field.rpartition(": ")[2], path, values[path], field.rpartition(": ")[0])
        for path, field in paths
    ]


def alike(one: Any, other: Any) -> bool:
    """Whether two documents say the same but for the versions of the keys that their values came from."""
    return one == other or bool(_rewritten(one, _unversioned) == _rewritten(other, _unversioned))


def _unversioned(pod: dict[str, Any], _: str) -> dict[str, Any]:
    sources = pod.get(SOURCES, [])
    return {**pod, SOURCES: [{name: each[name] for name in each if name != "version"} for each in sources]}


def sourced(document: Any) -> bool:
    """Whether a value in a document came from a config key."""
    return any(pod.get(SOURCES) for pod, _ in _pods(document))


def needed(document: Any) -> Iterator[str]:
    """The features that a farm must have to read the manifests in a document (R11)."""
    for pod, at in _pods(document):
        if at.endswith("pod"):
            yield from needed_to_read(pod)
        elif pod.get(secret_references.SEALED):
            yield SECRETS


def referring(document: Any) -> Any:
    """A document of a record as a person would write it: with references where its manifests had them."""
    return _rewritten(document, _unresolved)


def _unresolved(pod: dict[str, Any], at: str) -> dict[str, Any]:
    return _unresolved_keys(secret_references.unresolved(pod, at))


def _unresolved_keys(pod: dict[str, Any]) -> dict[str, Any]:
    sources = pod.get(SOURCES)
    if not sources:
        return pod
    env, files, folders = dict(pod.get(ENV, {})), list(pod.get(FILES, [])), list[str]()
    for each in sources:
        field, path, folder = each["field"], each[KV], each.get("below", "")
        name = field.removeprefix(f"{ENV}.")
        if name in env and folder:
            del env[name]
            folders += [folder] if folder not in folders else []
        elif name in env:
            env[name] = {KV: path}
        elif (found := _FILE.fullmatch(field)) and int(found[1]) < len(files):
            file = files[int(found[1])]
            kept = {name: value for name, value in file.items() if name != CONTENT}
            files[int(found[1])] = {**file, TEMPLATE: {KV: path}} if found[2] else {**kept, KV: path}
    said = {ENV: env, ENV_FROM: [{KV: folder} for folder in folders], FILES: files}
    kept = {name: value for name, value in pod.items() if name not in {ENV, FILES, SOURCES}}
    return {**kept, **{name: value for name, value in said.items() if value}}


# A manifest again, with the values that its keys have now (R41).


async def renewed(call: Call, manifest: Manifest) -> Manifest:
    """A manifest with the values that its config keys have now, and with the newest versions of its secrets
    that no file pinned. An equal value keeps the version that it has.

    Raises:
        InputInvalid: one is missing, or does not fit. RecordInvalid: it does not decode.
        AccessDenied: the caller may not read one.
    """
    pod = _unresolved_keys(await secret_references.renewed(call, builtins(manifest)))
    references = list(_named(pod, "pod"))
    values, below = await _read(call, references)
    found = codec.parse_input(Manifest, _resolved(values, below, pod, "pod"), "")
    had = {(each.field, each.kv): each for each in manifest.sources}
    missing = sorted({each.kv for each in manifest.sources} - {each.kv for each in found.sources})
    # A listing leaves out what the token may not read; a read of the key tells the two apart.
    await several(partial(_value, call), missing)
    sources = [
        before
        if (before := had.get((each.field, each.kv))) is not None
        and value_in(manifest, before) == value_in(found, each)
        else each
        for each in found.sources
    ]
    return msgspec.structs.replace(found, sources=sources)


def refer_alike(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests differ in nothing but the values of what they refer to."""
    return bool(_unresolved(builtins(one), "") == _unresolved(builtins(other), ""))


def value_in(manifest: Manifest, source: Reference) -> str:
    """The value that a source gave a manifest."""
    if (found := _FILE.fullmatch(source.field)) is None:
        return manifest.env[source.field.removeprefix(f"{ENV}.")]
    file = manifest.files[int(found[1])]
    return file.template if found[2] else file.content
