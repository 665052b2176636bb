"""R32 on a real engine: machines that enforce signatures run a service and its hook by a person's word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from farmd.agent.model import SigningConfig
from farmd.signing import keys
from tests.engine import IMAGE
from tests.farmctl import Result
from tests.fleet import eventually
from tests.projects import Sites

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.slow]

FILE = """
name: shop
services:
  web:
    image: {image}
    command: [sleep, "{version}"]
    stop_grace_period: 1s
    volumes: ["{shared}:/srv"]
    x-pre_deploy: [sh, -c, "echo {version} >> /srv/notes"]
    deploy: {{update_config: {{monitor: 0.2s}}}}
    x-farmd: {{min_healthy_time: 0.2}}
"""


@dataclass(frozen=True)
class Person:
    """Somebody with a key whom the machines trust, and a service whose hook notes each version."""

    sites: Sites
    folder: Path

    def trusts(self, owners: str) -> None:
        public = keys.public_of(keys.load(self.folder / "alice.key"))
        (self.folder / "trust").write_text(f"alice {public} {owners} *\n")

    async def deploy(self, version: int, *words: str) -> Result:
        path = self.folder / "compose.yaml"
        path.write_text(FILE.format(image=IMAGE, version=version, shared=self.folder / "shared"))
        return await self.sites.run("deploy", "-f", str(path), "-y", *words)

    async def signs(self, version: int, *words: str) -> Result:
        return await self.deploy(version, "--sign", str(self.folder / "alice.key"), *words)

    async def placed_hook(self) -> list[tuple[str, str]]:
        """Where the hook is."""
        return [place for place in await self.sites.rig.intents() if place[1].startswith("web-hook")]

    @property
    def noted(self) -> list[str]:
        """The versions whose hook ran."""
        notes = self.folder / "shared" / "notes"
        return notes.read_text().split() if notes.exists() else []

    async def runs(self) -> set[str]:
        """The manifests that run."""
        found = [await self.sites.rig.realities(node) for node in ("n1", "n2")]
        return {each.manifest for node in found for each in node.values() if each.phase == "running"}


@pytest.fixture
def signing(tmp_path: Path) -> SigningConfig:
    keys.generate(tmp_path / "alice.key")
    return SigningConfig(policy="enforce", trust=str(tmp_path / "trust"))


@pytest.fixture
def person(sites: Sites, tmp_path: Path) -> Person:
    made = Person(sites, tmp_path)
    made.trusts("rcs/svc-*,services/*")
    return made


async def test_a_service_and_its_hook_run_where_both_are_signed_for_them(person: Person) -> None:
    rig = person.sites.rig
    refused = await person.deploy(1001)
    assert refused.code == 5, refused
    assert (await rig.intents(), person.noted) == ({}, [])
    signed = await person.signs(1001)
    assert signed.code == 0, signed
    [before] = await person.runs()
    assert person.noted == ["1001"]
    person.trusts("rcs/svc-*")  # whose hooks this person may not sign
    assert (await person.signs(1002, "--no-wait")).code == 0
    [(node, hook)] = await eventually(person.placed_hook, what="the hook")
    told = await rig.until(lambda r: r.phase == "failed", node=node, instance=hook)
    assert "may not sign for services/web" in told.reason
    assert (await person.runs(), person.noted) == ({before}, ["1001"])
    person.trusts("rcs/svc-*,services/*")

    async def replaced() -> bool:
        found = await person.runs()
        return len(found) == 1 and before not in found

    await eventually(replaced, what="the next version")
    assert person.noted == ["1001", "1002"]
