"""Files with ``kind: service``, in the forms in which people write them."""

from __future__ import annotations

import pytest

from farmd.deploy.resolver import services_of

COMPOSE = "services: {kind: {image: nginx}}"


@pytest.mark.parametrize(
    "text",
    [
        "kind: service\nname: web\ncontainer: {image: nginx}\n",
        "name: web\nkind: 'service'\ncontainer: {image: nginx}\n",
        '{"name": "web", "kind": "service", "container": {"image": "nginx"}}',
        '{\n  "kind": "service",\n  "name": "web",\n  "container": {"image": "nginx"}\n}\n',
    ],
)
def test_a_service_is_recognised_in_yaml_and_in_json(text: str) -> None:
    found = services_of([(text, "web")])
    assert found is not None
    assert found["web"].container.image == "nginx"


def test_a_compose_file_is_none_of_the_house() -> None:
    assert services_of([(COMPOSE, "compose.yaml")]) is None
