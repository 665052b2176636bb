"""What may be said of artifacts in a manifest, and what it needs of a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from store import features, manifests
from store.artifacts import Artifact, is_local, without_query
from store.errors import InputInvalid
from store.manifest_check import check
from store.manifests import Manifest

SHA = "0f" * 32
GOOD: dict[str, Any] = {"source": "https://host/app.tar.gz", "sha256": SHA, "to": "app"}


def pod(*artifacts: dict[str, Any], **fields: Any) -> Manifest:
    listed = [msgspec.convert(GOOD | each, Artifact) for each in artifacts]
    return Manifest(id="web", command=["app/run"], artifacts=listed, **fields)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": "ftp://host/x"}, "https://, http://, file:/// or registry://NAME/"),
        ({"source": "https:host/x"}, "https://, http://"),
        ({"source": "https:///x"}, "a host"),
        ({"source": "https://host:99999/x"}, "https://"),
        ({"source": "https://user:secret@host/x"}, "no user and no password"),
        ({"source": "https://host/x#part"}, "no fragment"),
        ({"source": "https://host/a b"}, "printable ASCII"),
        ({"source": "https://host\\@other/x"}, "printable ASCII"),
        ({"source": "file://host/x"}, "https://, http://, file:///"),
        ({"source": "file:///srv/../etc/shadow"}, "an absolute path without '..'"),
        ({"source": "file:///srv/%2e%2e/etc/shadow"}, "an absolute path without '..'"),
        ({"source": "file:///"}, "an absolute path"),
        ({"source": "registry://Main/x"}, "registry://NAME/PATH"),
        ({"source": "registry://main/../x"}, "a path without '..'"),
        ({"source": "registry://main/%2e%2e/x"}, "a path without '..'"),
        ({"source": "registry://main"}, "a path without '..'"),
        ({"sha256": ""}, "64 hex digits"),
        ({"sha256": SHA.upper()}, "64 hex digits"),
        ({"sha256": f"md5:{SHA}"}, "64 hex digits"),
        ({"to": "/app"}, "a path relative to the instance's directory"),
        ({"to": "../app"}, "a path without '.', '..'"),
        ({"to": ""}, "a path without '.', '..'"),
        ({"to": "a//b"}, "a path without '.', '..'"),
        ({"mode": 0o400}, "lets everybody read"),
        ({"mode": 0o4555}, "a mode up to 0o777"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        check(pod(given), "web.yaml")
    assert words in caught.value.message
    assert "artifacts[0]." in caught.value.message
    assert "secret" not in caught.value.message
    assert "\n" not in caught.value.message


def test_the_types_of_archives_are_named_where_another_is_asked_for() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value"):
        pod({"unpack": "rar"})


@pytest.mark.parametrize("others", [["app"], ["app/bin"], ["app", "other"]])
def test_no_artifact_lies_over_or_in_another(others: list[str]) -> None:
    with pytest.raises(InputInvalid, match=r"artifacts\[1\].to: .* a path of its own: 'app' is there"):
        check(pod({}, *({"to": each} for each in others)), "web.yaml")


def test_a_container_has_absolute_paths_that_nothing_else_has() -> None:
    container = {"runtime": "container", "container": {"image": "web"}, "mounts": [{"target": "/data"}]}
    made = {**msgspec.to_builtins(pod({"to": "/opt/app"})), **container}
    made["mounts"][0]["source"] = "data"
    check(msgspec.convert(made, Manifest), "web.yaml")
    for to, words in (
        ("app", "an absolute path in the container"),
        ("/data/app", "'/data' is there already"),
    ):
        made["artifacts"][0]["to"] = to
        with pytest.raises(InputInvalid, match=words):
            check(msgspec.convert(made, Manifest), "web.yaml")


def test_a_pod_needs_an_agent_that_fetches_and_what_its_sources_need() -> None:
    sources = ["file:///srv/builds/app", "registry://main/app", "http://127.0.0.1/app", "https://host/app"]
    wanted = pod(*({"source": each, "to": f"a{at}"} for at, each in enumerate(sources)))
    needs = set(features.needed(wanted))
    expected = {"artifacts.1", "registry.main", "allow.local-sources", "allow./srv/builds/app"}
    assert needs == {"process", *expected}
    has = ["process", "artifacts.1", "registry.main", "allow.local-sources", "allow./srv"]
    assert features.lacking(sorted(needs), has) == []
    assert set(features.lacking(sorted(needs), ["process", "leaving.1"])) == expected
    assert features.ARTIFACTS in features.needed_of_farm(wanted)
    assert features.ARTIFACTS not in features.needed(pod())
    zstd = pod({"unpack": "tar.zst"})
    assert features.ZSTD in features.needed(zstd)
    assert features.ZSTD in features.needed_of_farm(zstd)
    assert features.ZSTD not in features.needed(wanted)


@pytest.mark.parametrize("field", ["source", "sha256", "unpack", "to", "mode"])
def test_the_digest_that_people_sign_covers_each_field_of_an_artifact(field: str) -> None:
    other = {"source": "https://evil/x", "sha256": "00" * 32, "unpack": "tar.gz", "to": "b", "mode": 0o555}
    digests = {manifests.digest(manifests.canonical(each)) for each in (pod({}), pod({field: other[field]}))}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "source", ["http://localhost/x", "https://127.0.0.1:8500/x", "http://[::1]/x", "http://169.254.169.254/x"]
)
def test_a_source_on_the_node_itself_is_known_as_such(source: str) -> None:
    assert is_local(source)
    assert not is_local("https://10.0.0.1/x")


def test_a_source_is_shown_without_what_may_be_secret() -> None:
    assert without_query("https://u:p@host/a/b?token=1#x") == "https://host/a/b"
    assert without_query("file:///srv/x") == "file:///srv/x"
