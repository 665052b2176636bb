"""References of images, names that are made of them, and digests that registries serve."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy.images import ImageDigestResolver
from farmd.deploy.names import generate_service_name
from store import images
from store.errors import InputInvalid
from store.keys import valid_name

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "registry", "path", "tag"),
    [
        ("nginx", "docker.io", "library/nginx", ""),
        ("nginx:1.27", "docker.io", "library/nginx", "1.27"),
        ("docker.io/nginx", "docker.io", "library/nginx", ""),
        ("index.docker.io/a/b", "docker.io", "a/b", ""),
        ("bitnami/nginx:1", "docker.io", "bitnami/nginx", "1"),
        ("localhost/nginx", "localhost", "nginx", ""),
        ("localhost:5000/nginx:x", "localhost:5000", "nginx", "x"),
        ("[::1]:5000/a", "[::1]:5000", "a", ""),
        ("registry.example/team/web-app__x:1.4", "registry.example", "team/web-app__x", "1.4"),
    ],
)
def test_a_reference_is_read(text: str, registry: str, path: str, tag: str) -> None:
    found = images.parse(f"{text}@{DIGEST}")
    assert (found.registry, found.path, found.tag, found.digest) == (registry, path, tag, DIGEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPPER",
        "a//b",
        "/a",
        "a/",
        "a:",
        "a:b:c",
        "a@sha256:12",
        f"1@{DIGEST[:-1]}",
        "a b",
        "-a",
        "a\n",
        "a:" + "t" * 129,
        "https://a/b",
        "a" * 400,
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InputInvalid, match=r"^image: found .*, expected an image"):
        images.parse(text)


@given(st.text(max_size=60))
def test_a_reference_is_written_as_it_is_read(text: str) -> None:
    try:
        found = images.parse(text)
    except InputInvalid:
        return
    assert images.parse(str(found)) == found


@pytest.mark.parametrize(
    ("image", "start"),
    [
        ("bitnami/nginx:1.27", "nginx-"),
        ("a/my_app.web", "my-app-web-"),
        (f"x@{DIGEST}", "x-"),
        ("b" * 70, "b"),
    ],
)
def test_a_generated_name_is_one_that_a_service_may_have(image: str, start: str) -> None:
    name = generate_service_name(image, random.Random(1))
    assert valid_name(name) == name
    assert name.startswith(start)
    assert name != generate_service_name(image, random.Random(2))


class Registry:
    def __init__(self, digest: str | None) -> None:
        self.answer = digest

    async def digest(self, image: str) -> str | None:
        return self.answer


@pytest.mark.parametrize(
    ("image", "policy", "served", "expected"),
    [
        ("web:1", "always", DIGEST, (f"web:1@{DIGEST}", "missing")),
        ("web:1", "missing", DIGEST, (f"web:1@{DIGEST}", "missing")),
        ("web:1", "never", DIGEST, ("web:1", "never")),
        ("web:1", "always", None, ("web:1", "always")),
        (f"web@{DIGEST}", "always", None, (f"web@{DIGEST}", "missing")),
    ],
)
async def test_a_tag_is_pinned_to_what_its_registry_serves(
    image: str, policy: str, served: str | None, expected: tuple[str, str]
) -> None:
    resolver = ImageDigestResolver(Registry(served))
    assert await resolver.resolve(image, policy) == expected  # type: ignore[arg-type]
