"""``farmctl manifest keygen | sign | revoke | restore | verify``: keys of people, and signatures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farmd import kinds
from farmd.cli.changes import apply, reviewed, signer_of
from farmd.cli.groups import LazyGroup
from farmd.cli.invocation import Invocation
from farmd.cli.names import checked
from farmd.cli.noun_edit import specs_of, texts_of
from farmd.cli.options import Duration, Exampled, command
from farmd.cli.output import document, emit
from farmd.cli.settings import SIGN_SECONDS
from farmd.commands import difference, signing
from farmd.commands.mutation import Mutation
from farmd.commands.signing import Start
from farmd.declaration import KindOfWork
from farmd.kinds import KINDS
from store import manifests, revocations, signatures
from store.errors import InputInvalid
from store.registration import cluster_id
from store.signatures import Signature
from store.times import rfc3339

if TYPE_CHECKING:
    from farmd.signing.trust import Trust


@click.group("manifest", cls=LazyGroup)
def manifest() -> None:
    """Signed manifests: nodes can refuse unsigned ones."""


@click.command("keygen", cls=Exampled)
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
def keygen(path: Path) -> None:
    """Create a key: the private one in a new FILE, the public one on stdout.

    The public key goes into the trust file of the nodes, in a line of its own: NAME KEY OWNERS NODES.
    """
    from farmd.signing import keys

    click.echo(keys.generate(path))


@command("sign", mutates=True)
@click.argument("target", metavar="NOUN/NAME|NOUN", callback=checked)
@click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    type=click.Path(),
    help="Sign what these files declare; - is stdin.",
)
@click.option(
    "--digest",
    "digests",
    multiple=True,
    metavar="DIGEST",
    help="With NOUN/NAME: sign exactly this manifest, without asking.",
)
@click.option("--key", required=True, type=click.Path(), help="The key file that keygen created.")
@click.option(
    "--for", "seconds", type=Duration(), default=SIGN_SECONDS, help="How long it is valid.  [default: 90d]"
)
async def sign(
    invocation: Invocation,
    target: str,
    paths: tuple[str, ...],
    digests: tuple[str, ...],
    key: str,
    seconds: float,
) -> None:
    """Sign the manifests of all documents of files, or those of an object such as rc/hello.

    With -f the object need not exist: sign rc -f hello.yaml. Its manifest is stored for a day,
    and longer if an object refers to it by then. Signing again replaces this key's signature.

    Without -f the manifests come from the store, where an intruder may have put them. farmctl shows the
    differences from the manifest that this key signed last, values of the environment included, and asks
    even with -y. A script passes the manifest's 64 digits with --digest.
    """
    signer, call = await signer_of(invocation, key, seconds), invocation.call
    noun, _, name = target.partition("/")
    mutations: list[Mutation] = []
    if paths:
        if name:
            raise InputInvalid(f"-f: found {target!r} beside it, expected {noun} alone", field="file")
        if digests:
            raise InputInvalid("--digest: found -f beside it, expected one of them", field="digest")
        asked = kinds.asked(_kind(noun).family)
        for spec in await specs_of(call, asked, paths):
            there, _ = await asked.records(call.client, call.keys).named(spec.name)
            stored = await difference.ensured(call, spec, there.record if there is not None else None)
            for each in stored.writes:
                start = Start(f"{asked.kind}/{spec.name}", call.keys.last_part(each.key))
                mutations.append(signer.signed(start, [each]))
    else:
        starts = await _of(invocation, target)
        if digests:
            starts = await _followed(invocation, target, starts, digests)
            _require_same(target, {start.digest for start in starts}, set(digests))
        else:
            await reviewed(invocation, signer, starts)
        mutations += [signer.signed(start) for start in starts]
    await apply(invocation, mutations)


async def _followed(
    invocation: Invocation, target: str, starts: list[Start], digests: Sequence[str]
) -> list[Start]:
    """The manifests to sign: those that an object has, or those that a farm would roll out to an owner which
    follows config keys.
    """
    noun, _, name = target.partition("/")
    call, here = invocation.call, {start.digest for start in starts}
    if noun == "service" or here.issuperset(digests):
        return starts
    record = (await kinds.asked(_kind(noun).family).find(call, name)).record
    for digest in digests:
        signatures.valid_digest(digest)
    if not getattr(record, "follow", False) or not here.isdisjoint(digests):
        return starts
    found = [await manifests.read(call.client, call.keys, digest) for digest in digests]
    if any(each.id != record.pod_id for each in found):
        return starts
    return [Start(starts[0].owner, digest) for digest in digests]


def _require_same(target: str, found: set[str], named: set[str]) -> None:
    """Refuse to sign anything else than what was named.

    Raises:
        InputInvalid: the object has other manifests.
    """
    if found != named:
        said, expected = ", ".join(sorted(named)), ", ".join(sorted(found))
        raise InputInvalid(f"--digest: found {said}, expected what {target} has: {expected}", field="digest")


@command("revoke", mutates=True)
@click.argument("target", metavar="NOUN/NAME", callback=checked)
@click.option(
    "--digest",
    "digests",
    multiple=True,
    metavar="DIGEST",
    help="Files with the manifests; default: those that the object has now.",
)
async def revoke(invocation: Invocation, target: str, digests: tuple[str, ...]) -> None:
    """Revoke the signatures of an object's manifests: nodes no longer start or restart them.

    Running pods continue until they end. Later signatures count again. With --digest the object need not
    exist.
    """
    for digest in digests:
        signatures.valid_digest(digest)
    starts = _revocable(target, digests) if digests else await _of(invocation, target)
    await apply(invocation, await signing.revoke(invocation.call, starts))


def _revocable(target: str, digests: tuple[str, ...]) -> list[Start]:
    """Manifests by their digests, for the owner of a name, or for those that a service of it has."""
    noun, _, name = target.partition("/")
    if not name:
        raise InputInvalid(f"{target!r}: expected NOUN/NAME, such as rc/hello", field="target")
    from farmd.deploy import goals

    owners = goals.owners_of(name) if noun == "service" else [f"{_kind(noun).family}/{name}"]
    return [Start(signatures.valid_owner(owner), digest) for digest in digests for owner in owners]


@command("restore", mutates=True)
@click.argument("path", metavar="FILE", type=click.Path())
async def restore(invocation: Invocation, path: str) -> None:
    """Write the signatures of a file that farmctl export wrote (signatures.txt); needs no key.

    A signature is valid for the same manifest and the same owner's name, until it ends, in the cluster that
    it names. Signatures of version 1 name no cluster and are valid in every one.
    """
    [(text, source)] = texts_of((path,))
    await apply(invocation, signing.restored(invocation.call, text, source))


@command("verify")
@click.argument("target", metavar="NOUN/NAME", callback=checked)
@click.option("--trust", type=click.Path(), help="Check the key against this trust file of a node.")
@click.option("--node", default="", help="Check whether this node would start it; needs --trust.")
async def verify(invocation: Invocation, target: str, trust: str | None, node: str) -> None:
    """The signatures of an object's manifests; exits with 1 if a manifest has no valid one."""
    from farmd.signing import keys
    from farmd.signing.trust import read

    keys.require()
    if node and trust is None:
        raise InputInvalid("--node: found no --trust beside it, expected the node's trust file", field="node")
    lines = list(read(trust, own=False)) if trust is not None else None
    rows, missing = [], 0
    cluster = await cluster_id(invocation.client, invocation.keys)
    revoked = revocations.revoked(await revocations.stored(invocation.client, invocation.keys))
    now = invocation.call.clock.now()
    for start in await _of(invocation, target):
        found, broken = await signatures.of(invocation.client, invocation.keys, start.digest)
        good = 0
        for each in sorted(found, key=lambda one: one.statement.ends):
            if signatures.covers(each.statement.owner, start.owner):
                flaw = signing.flaw(each, now, cluster, revoked)
                holds, word = (False, flaw) if flaw else _worth(each, lines, node)
                good += holds
                rows.append((start, each.key_id, each.statement.ends, each.by, word))
        if not good:
            missing += 1
            what = "; ".join(error.message for error in broken) or "no valid signature"
            rows.append((start, "", 0, "", what))
    _show(invocation, rows)
    if missing:
        raise click.exceptions.Exit(1)


def _worth(signature: Signature, lines: Trust | None, node: str) -> tuple[bool, str]:
    """Whether a signature without a flaw holds, and the word for it; with ``lines`` of trust: there."""
    said = signature.statement
    if lines is None:
        return True, "good"
    for line in lines:
        if line.key == signature.key and line.may_deploy(said.owner) and (not node or line.may_reach(node)):
            if line.bound and not said.cluster:
                return False, "names no cluster"
            return True, f"trusted as {line.name}"
    return False, "not trusted"


def _show(invocation: Invocation, rows: list[tuple[Start, str, int, str, str]]) -> None:
    if invocation.settings.output in {"json", "yaml"}:
        items = [
            {
                "manifest": start.digest,
                "owner": start.owner,
                "key": key,
                "ends": ends,
                "by": by,
                "result": word,
            }
            for start, key, ends, by, word in rows
        ]
        emit(invocation, document("SignatureList", {"items": items}))
        return
    for start, key, ends, by, word in rows:
        until = f" by key {key} ({by}) until {rfc3339(ends)}" if key else ""
        family, _, name = start.owner.partition("/")
        click.echo(f"{start.digest[:12]} {kinds.title(family, name)}: {word}{until}")


async def _of(invocation: Invocation, target: str) -> list[Start]:
    """What the object of a name may start."""
    noun, _, name = target.partition("/")
    if not name:
        raise InputInvalid(f"{target!r}: expected NOUN/NAME, such as rc/hello", field="target")
    if noun == "service":
        from farmd.deploy import goals

        return await goals.of_service(invocation.call, name)
    kind = _kind(noun)
    record = (await kinds.asked(kind.family).find(invocation.call, name)).record
    return [Start(f"{kind.family}/{record.name}", sha) for sha in record.manifests]


def _kind(noun: str) -> KindOfWork:
    for kind in KINDS.values():
        if noun in (kind.noun, *kind.aliases) and kind.owns_pods and kind.asked:
            return kind
    expected = ", ".join(kind.noun for kind in KINDS.values() if kind.owns_pods and kind.asked)
    raise InputInvalid(
        f"{noun!r}: found no noun with pods, expected {expected} or service/NAME", field="target"
    )


for each in (keygen, sign, revoke, restore, verify):
    manifest.add_command(each)
