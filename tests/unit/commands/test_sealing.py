"""R40: a secret is sealed to the recipients that its group has then, and its newest versions are kept."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from farmd.commands import sealing, secret_views
from farmd.commands.mutation import Call, commit
from farmd.commands.resolving import needed, referring, resolver
from farmd.deploy import resolver as services
from farmd.deploy.manifest import manifest_of
from farmd.deploy.spec import ServiceSpec
from store import codec, operations, secrets
from store.audit import AuditReader, Filter
from store.canonical import builtins
from store.errors import Conflict, InputInvalid, RecordInvalid
from store.secrets import MAGIC, MOST_RECIPIENTS, MOST_VERSIONS, Sealed
from tests.people import person


async def grouped(call: Call) -> str:
    _, recipient = sealing.keygen()
    await commit(call, await sealing.create_group(call, "prod", [recipient]))
    return recipient


async def test_the_newest_versions_are_kept_and_numbers_never_come_again() -> None:
    async with person() as call:
        await grouped(call)
        for number in range(MOST_VERSIONS + 3):
            await commit(call, await sealing.set_value(call, "a", b"%d" % number, "prod"))
        rows, broken = await secret_views.history(call, "a")
        assert [row.version for row in rows] == list(range(MOST_VERSIONS + 3, 3, -1))
        assert broken == []
        await commit(call, await sealing.delete(call, "a"))
        await commit(call, await sealing.set_value(call, "a", b"x", "prod"))
        rows, _ = await secret_views.history(call, "a")
        assert [(row.version, row.state) for row in rows] == [(15, "current"), (14, "deleted")]


async def test_a_group_that_changes_meanwhile_refuses_the_write_and_so_does_another_version() -> None:
    async with person() as call:
        first = await grouped(call)
        _, second = sealing.keygen()
        late = await sealing.set_value(call, "a", b"x", "prod")
        await commit(call, await sealing.change_group(call, "prod", [second], [first]))
        with pytest.raises(Conflict):
            await commit(call, late)
        one, other = [await sealing.set_value(call, "a", value, "prod") for value in (b"one", b"other")]
        await commit(call, one)
        with pytest.raises(Conflict):
            await commit(call, other)
        (row,), _ = await secret_views.history(call, "a")
        assert (row.recipients, row.stale) == (1, 0)


async def test_the_audit_tells_of_equal_values_as_of_any_others() -> None:
    async with person() as call:
        await grouped(call)
        for _ in range(2):
            await commit(call, await sealing.set_value(call, "a", b"same", "prod"))
        records = await AuditReader(call.client, call.keys).read(Filter(kind="secrets"), 10)
        told = [record.after for record in records]
        assert told == [{"version": n, "group": "prod", "recipients": 1} for n in (2, 1)]


async def test_a_group_has_so_many_recipients_and_at_least_one() -> None:
    async with person() as call:
        own = await grouped(call)
        many = [sealing.keygen()[1] for _ in range(MOST_RECIPIENTS)]
        with pytest.raises(InputInvalid, match="65 recipients"):
            await sealing.change_group(call, "prod", many, [])
        with pytest.raises(InputInvalid, match="0 recipients"):
            await sealing.change_group(call, "prod", [], [own])


async def test_the_record_of_another_version_or_another_secret_is_not_taken_for_the_one_asked_for() -> None:
    async with person() as call:
        await grouped(call)
        for path, value in (("a", b"one"), ("a", b"two"), ("b", b"other")):
            await commit(call, await sealing.set_value(call, path, value, "prod"))
        first, second = [await secrets.version_of(call.client, call.keys, "a", each) for each in (1, 2)]
        assert first is not None
        assert second is not None
        older = f"{secrets.versions_of(call.keys, 'a')}00000002"
        await call.client.transaction([operations.put(older, codec.encode(first))])
        with pytest.raises(RecordInvalid, match=r"00000002: found 'a@1', expected a@2$"):
            await secrets.version_of(call.client, call.keys, "a", 2)
        key = secrets.key_of(call.keys, "b")
        await call.client.transaction([operations.put(key, codec.encode(second))])
        with pytest.raises(RecordInvalid, match=r"secrets/b: found 'a@2', expected a version of b$"):
            await secrets.version_of(call.client, call.keys, "b", 0)


def flaws(ciphertext: bytes, recipient: str) -> list[str]:
    """What is wrong with a manifest's ciphertext."""
    body = base64.b64encode(ciphertext).decode()
    found = {"a@1": Sealed(version=1, group="prod", recipients=[recipient], body=body)}
    return [str(what) for field, what, _ in secrets.mistakes(found, [("secret_env.A", "a@1")])]


def test_a_header_that_the_library_would_read_for_minutes_is_refused_before() -> None:
    recipients = [sealing.keygen()[1] for _ in range(MOST_RECIPIENTS)]
    good = base64.b64decode(sealing.sealed(b"x" * secrets.MAX_BYTES, recipients))
    assert flaws(good, recipients[0]) == []
    end = b"\n--- " + b"A" * 43 + b"\n"
    long = "a header for more than 64 recipients"
    assert flaws(MAGIC + b"-> x\n\n" * 1000 + end, recipients[0]) == [long]
    assert flaws(MAGIC + b"-> " + b"x " * 10_000 + b"\n" + end, recipients[0]) == [long]
    assert flaws(MAGIC + b"-> x\n\n" * 1000, recipients[0]) == ["no age ciphertext"]


SERVICE = """
kind: service
name: web
container:
  image: nginx
  secrets: [{secret: shop/db}, {secret: shop/tls@1, path: /tls, mode: 0400}, {name: of-the-node}]
"""


async def test_r40_the_container_of_a_service_refers_to_secrets_and_comes_back_with_its_references() -> None:
    async with person() as call:
        await grouped(call)
        for path in ("shop/db", "shop/tls"):
            await commit(call, await sealing.set_value(call, path, b"x", "prod"))
        (document,) = yaml.safe_load_all(SERVICE)
        found = (await resolver(call, [(SERVICE, "web.yaml")]))(document, "web.yaml")
        assert list(needed(found)) == ["secrets.1"]
        spec = services.resolved(made(found))
        manifest = manifest_of(spec)
        files = {each.name: (each.secret, each.path, each.mode) for each in manifest.secrets}
        assert files == {
            "db": ("shop/db@1", "/run/secrets/db", 0o444),
            "tls": ("shop/tls@1", "/tls", 0o400),
            "of-the-node": ("", "/run/secrets/of-the-node", 0o444),
        }
        assert manifest.sealed.keys() == {"shop/db@1", "shop/tls@1"}
        back = referring(builtins(spec))["container"]
        assert "sealed" not in back
        assert sorted(each.get("secret", "") for each in back["secrets"]) == ["", "shop/db", "shop/tls@1"]
        again = made(
            (await resolver(call, [(SERVICE, "web.yaml")]))({"name": "web", "container": back}, "web")
        )
        assert services.resolved(again) == spec
        variable = SERVICE + "  env: {PASSWORD: {secret: shop/db}}"
        (document,) = yaml.safe_load_all(variable)
        with pytest.raises(InputInvalid, match=r"container\.env\.PASSWORD: found a secret, expected a file"):
            (await resolver(call, [(variable, "web.yaml")]))(document, "web.yaml")


def made(document: dict[str, Any]) -> ServiceSpec:
    return services.service({name: each for name, each in document.items() if name != "kind"}, "web")
