"""References to config keys in a person's file become values of the manifest, and come back for people."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from farmd.commands import config_keys
from farmd.commands.mutation import Call, commit
from farmd.commands.resolving import referring, renewed, resolver
from farmd.replication.commands import RC
from farmd.rollout.spec import pod_of
from store import manifests
from store.containers import File
from store.errors import InputInvalid
from store.manifests import Manifest, Reference
from tests.people import hello, person

KEYS = {
    "shop/db_url": "postgres://db1",
    "shop/env/LEVEL": "debug",
    "shop/env/REGION": "eu",
    "shop/env/deeper/X": "not taken",
    "shop/nginx.conf": "listen 80;\n",
    "shop/up.tmpl": "{{ env.LEVEL }}\n",
}
POD: dict[str, Any] = {
    "runtime": "container",
    "container": {"image": "nginx:1.27"},
    "env": {"DB_URL": {"kv": "config/shop/db_url"}, "PLAIN": "p"},
    "env_from": [{"kv": "shop/env/"}],
    "files": [
        {"path": "/etc/nginx.conf", "kv": "shop/nginx.conf", "mode": 0o400},
        {"path": "/etc/up.conf", "template": {"kv": "shop/up.tmpl"}},
    ],
}


async def put(call: Call, **values: str) -> None:
    for path, value in values.items():
        await commit(call, await config_keys.set_value(call, path, value))


async def spec_of(call: Call, pod: dict[str, Any]) -> Any:
    text = yaml.safe_dump(hello(**{f"pod_{name}": value for name, value in pod.items()}))
    (spec,) = RC.file.parse_all((text, "web.yaml"), resolve=await resolver(call, [(text, "web.yaml")]))
    return spec


async def apply(call: Call, pod: dict[str, Any], *, update: bool = False) -> Manifest:
    spec = await spec_of(call, pod)
    await commit(call, await (RC.update(call, spec, now=True) if update else RC.create(call, spec)))
    found = (await RC.find(call, "hello")).record
    return await manifests.read(call.client, call.keys, found.manifest)


async def test_values_and_their_sources_are_in_the_manifest_and_the_file_comes_back_with_references() -> None:
    async with person() as call:
        await put(call, **KEYS)
        made = await apply(call, POD)
        assert made.env == {"DB_URL": "postgres://db1", "PLAIN": "p", "LEVEL": "debug", "REGION": "eu"}
        assert made.files[0].content == "listen 80;\n"
        entry = await call.client.read("farmd/config/shop/db_url")
        assert entry is not None
        assert [(each.field, each.kv, each.below) for each in made.sources] == [
            ("env.DB_URL", "shop/db_url", ""),
            ("env.LEVEL", "shop/env/LEVEL", "shop/env/"),
            ("env.REGION", "shop/env/REGION", "shop/env/"),
            ("files[0]", "shop/nginx.conf", ""),
            ("files[1].template", "shop/up.tmpl", ""),
        ]
        assert made.sources[0].version == entry.modify_index
        back = referring(await RC.as_file(call, (await RC.find(call, "hello")).record))["pod"]
        assert back["env"] == {"DB_URL": {"kv": "shop/db_url"}, "PLAIN": "p"}
        assert back["env_from"] == [{"kv": "shop/env/"}]
        assert back["files"] == POD["files"]
        assert await renewed(call, made) == made
        await put(call, **{"shop/up.tmpl": "{{ env.REGION }}\n", "shop/env/NEW": "1"})
        again = await renewed(call, made)
        assert (again.files[1].template, again.env["NEW"]) == ("{{ env.REGION }}\n", "1")
        assert again.sources[0] == made.sources[0]
        assert "sources" not in back


async def test_a_new_value_is_a_new_version_and_an_equal_one_under_a_newer_index_is_none() -> None:
    async with person() as call:
        await put(call, **KEYS)
        first = await apply(call, POD)
        await put(call, **{"shop/db_url": "other"})
        await put(call, **{"shop/db_url": KEYS["shop/db_url"]})
        mutation = await RC.update(call, await spec_of(call, POD), now=True)
        assert not mutation.needed
        await put(call, **{"shop/db_url": "postgres://db2"})
        mutation = await RC.update(call, await spec_of(call, POD), now=True)
        entry = await call.client.read("farmd/config/shop/db_url")
        assert entry is not None
        was = first.sources[0].version
        assert mutation.change.details == (
            "pod.env: changes DB_URL",
            f"pod.env.DB_URL: from config/shop/db_url version {was} -> {entry.modify_index}",
        )
        await commit(call, mutation)
        assert await apply(call, POD, update=True) == await apply(call, POD, update=True) != first


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        ({"env": {"A": {"kv": "no/such"}}}, "pod.env.A: config/no/such does not exist"),
        ({"env": {"A": {"kv": "shop/../x"}}}, "pod.env.A.kv: found 'shop/../x', expected names"),
        ({"env": {"A": {"kv": "/shop/../x"}}}, "pod.env.A.kv: found '/shop/../x', expected a key of Consul"),
        ({"env": {"A": {"key": "x"}}}, "pod.env.A: found"),
        ({"env": {"LEVEL": "x"}, "env_from": [{"kv": "shop/env/"}]}, "pod.env: found LEVEL a second time"),
        ({"env_from": [{"kv": "shop"}]}, "pod.env_from[0]: config/shop/nginx.conf: found 'nginx.conf'"),
        ({"env_from": [{"kv": "none/"}]}, "pod.env_from[0]: config/none/ has no keys"),
        ({"env_from": {"kv": "shop/env"}}, "pod.env_from: found"),
        ({"files": [{"path": "/x", "kv": "shop/db_url", "content": "y"}]}, "pod.files[0]: found kv beside"),
    ],
)
async def test_what_cannot_be_resolved_is_one_line_that_names_field_and_key(
    pod: dict[str, Any], told: str
) -> None:
    async with person() as call:
        await put(call, **KEYS)
        with pytest.raises(InputInvalid) as refused:
            await spec_of(call, pod)
        assert refused.value.message.startswith("web.yaml")
        assert told in refused.value.message


@pytest.mark.parametrize("whole", [False, True])
async def test_the_manifest_of_a_rollout_is_resolved_alone_and_in_the_file_of_a_controller(
    whole: bool,
) -> None:
    async with person() as call:
        await put(call, a="1")
        file = hello(pod_env={"A": {"kv": "a"}})
        text = yaml.safe_dump(file if whole else file["pod"])
        made = pod_of(text, "pod.yaml", await resolver(call, [(text, "pod.yaml")]))
        assert (made.env, [each.kv for each in made.sources]) == ({"A": "1"}, ["a"])


async def test_the_pods_of_all_types_of_a_job_are_resolved_and_other_systems_objects_are_not() -> None:
    async with person() as call:
        await put(call, a="1")
        job = {"name": "bert", "types": [{"name": "w", "pod": {"id": "w", "env": {"A": {"kv": "a"}}}}]}
        foreign = {"apiVersion": "v1", "kind": "ConfigMap", "pod": {"env": {"A": {"kv": "none"}}}}
        text = yaml.safe_dump_all([job, foreign])
        resolve = await resolver(call, [(text, "x.yaml")])
        assert resolve(job, "x.yaml")["types"][0]["pod"]["env"] == {"A": "1"}
        assert resolve(foreign, "x.yaml") == foreign


@pytest.mark.parametrize("path", ["/farmd/secrets/db", "/farmd/"])
async def test_r41_no_source_of_a_stored_manifest_leads_into_records(path: str) -> None:
    source = Reference(field="files[0]", kv=path, version=1)
    made = Manifest(id="web", command=["x"], files=[File(path="x", content="")], sources=[source])
    async with person() as call:
        with pytest.raises(InputInvalid, match="outside of farmd's prefix"):
            await renewed(call, made)
