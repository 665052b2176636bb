"""References of images, names that are made of them, and digests that registries serve."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy.images import ImageDigestResolver, pinned
from farmd.deploy.operations import ServicePod, StandingService
from farmd.deploy.protocols import NoDigest
from farmd.deploy.resolver import generate_service_name
from farmd.deploy.spec import ContainerSpec, ServiceSpec
from store import images
from store.errors import InputInvalid
from store.keys import valid_name

DIGEST = "sha256:" + "0a" * 32
OTHER = "sha256:" + "0b" * 32


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
    """Serves one digest for all tags, or refuses; it notes what it was asked for."""

    def __init__(self, digest: str = DIGEST, refusal: NoDigest | None = None) -> None:
        self.answer, self.refusal = digest, refusal
        self.asked: list[str] = []
        self.under_way, self.most = 0, 0

    async def digest(self, image: str) -> str:
        self.asked.append(image)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.refusal is not None:
            raise self.refusal
        return self.answer


def service(image: str, policy: str = "missing", name: str = "web") -> ServiceSpec:
    return ServiceSpec(name=name, container=ContainerSpec(image=image, pull=policy))  # type: ignore[arg-type]


def running(*images: str) -> StandingService:
    pods = (ServicePod(place=("m1", f"web~{at}"), spec=service(image)) for at, image in enumerate(images))
    return StandingService(id="s1", name="web", containers=tuple(pods))


@pytest.mark.parametrize(
    ("image", "policy", "expected"),
    [
        ("web:1", "always", (f"web:1@{DIGEST}", "missing")),
        ("web:1", "missing", (f"web:1@{DIGEST}", "missing")),
        (f"web@{DIGEST}", "always", (f"web@{DIGEST}", "missing")),
        (f"web@{DIGEST}", "never", (f"web@{DIGEST}", "never")),
    ],
)
async def test_a_tag_is_pinned_to_what_its_registry_serves(
    image: str, policy: str, expected: tuple[str, str]
) -> None:
    resolver = ImageDigestResolver(Registry())
    assert await resolver.resolve(image, policy) == expected  # type: ignore[arg-type]


async def test_with_the_policy_missing_the_digest_that_machines_run_is_used() -> None:
    registry = Registry()
    resolver = ImageDigestResolver(registry, machines=(f"x:1@{DIGEST}", f"web:1@{OTHER}", f"web:1@{DIGEST}"))
    assert await resolver.resolve("web:1", "missing") == (f"web:1@{OTHER}", "missing")
    assert registry.asked == []
    assert await resolver.resolve("web:1", "always") == (f"web:1@{DIGEST}", "missing")
    assert await resolver.resolve("web:2", "missing") == (f"web:2@{DIGEST}", "missing")
    assert registry.asked == ["web:1", "web:2"]


async def test_without_an_answer_a_new_service_gets_the_image_that_others_run_under_the_tag() -> None:
    stands = {"other": running(f"web:1@{OTHER}", f"web:1@{OTHER}"), "web": running(f"web:1@{DIGEST}")}
    specs = {name: service("web:1", name=name) for name in ("web", "new")}
    found, _ = await pinned(specs, Registry(refusal=NoDigest("r.example is away")), stands)
    images_of = {name: spec.container.image for name, spec in found.items()}
    assert images_of == {"web": f"web:1@{DIGEST}", "new": f"web:1@{OTHER}"}


async def test_each_image_is_asked_for_once_and_few_at_once() -> None:
    registry = Registry()
    specs = {f"s{at}": service(f"web:{at // 2}") for at in range(60)}
    found, warnings = await pinned(specs, registry, {})
    assert (sorted(registry.asked), warnings) == (sorted(f"web:{at}" for at in range(30)), [])
    assert registry.most == 8
    assert {name: spec.container.image for name, spec in found.items()} == {
        name: f"{spec.container.image}@{DIGEST}" for name, spec in specs.items()
    }


@pytest.mark.parametrize("policy", ["missing", "always"])
async def test_without_an_answer_an_image_stays_as_it_is_and_one_warning_says_why(policy: str) -> None:
    specs = {name: service(f"{name}:1", policy) for name in "edcba"}
    found, warnings = await pinned(specs, Registry(refusal=NoDigest("r.example is away")), {})
    assert found == specs
    assert warnings == ["a:1, b:1, c:1 and 2 more: not pinned to a digest: r.example is away"]


async def test_without_an_answer_what_runs_under_the_tag_stays_pinned() -> None:
    """Else a registry that is away would have all pods replaced."""
    registry = Registry(refusal=NoDigest("r.example is away"))
    stands = {"web": running("web:1", f"web:1@{DIGEST}", f"web:1@{DIGEST}", f"web:1@{OTHER}", f"x@{OTHER}")}
    found, warnings = await pinned({"web": service("web:1", "always")}, registry, stands)
    assert found == {"web": service(f"web:1@{DIGEST}")}
    assert warnings == ["web:1: stays at the digest that runs now: r.example is away"]
    found, _ = await pinned({"web": service("web:2")}, registry, stands)
    assert found == {"web": service("web:2")}


async def test_an_image_that_is_never_pulled_is_not_asked_for() -> None:
    registry = Registry()
    specs = {"web": service("web:1", "never")}
    found, warnings = await pinned(specs, registry, {"web": running(f"web:1@{DIGEST}")})
    assert (found, registry.asked) == (specs, [])
    assert warnings == [
        "web:1: not pinned to a digest: pull is never, so each machine runs the image that it has"
    ]


async def test_an_image_that_no_registry_has_is_refused_only_where_it_must_be_pulled() -> None:
    registry = Registry(refusal=NoDigest("r.example has no image r.example/web:1", absent=True))
    _, warnings = await pinned({"web": service("r.example/web:1")}, registry, {})
    assert warnings == ["r.example/web:1: not pinned to a digest: r.example has no image r.example/web:1"]
    with pytest.raises(InputInvalid, match=r"^services.web: container.image: r.example has no image"):
        await pinned({"web": service("r.example/web:1", "always"), "db": service("db:1")}, registry, {})
