"""Checks of what no single key shows, which every command makes that reads the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from farmd.config.sources import load
from farmd.process.checks import refused


@pytest.mark.parametrize(
    ("section", "url", "file"),
    [
        ("scheduler", "url", "token_file"),
        ("rollouts", "prometheus_url", "prometheus_token_file"),
    ],
)
def test_an_address_with_credentials_has_no_token_beside_it(
    tmp_path: Path, section: str, url: str, file: str
) -> None:
    """Such a request cannot be made, and would crash every worker that makes it."""
    config = tmp_path / "farmd.toml"

    def said(address: str) -> list[str]:
        config.write_text(f'[{section}]\n{url} = "{address}"\n{file} = "/run/token"\n')
        return refused(load(config, {}), {})

    assert said("http://10.0.0.1:80/") == []
    assert said("http://me:s3cret@10.0.0.1:80/") == [
        f"{section}.{file}: found a file beside credentials in the address, expected one of them"
    ]


def test_an_identity_is_no_file_that_any_pod_of_the_node_may_name(tmp_path: Path) -> None:
    config, secrets, apart = tmp_path / "farmd.toml", tmp_path / "secrets", tmp_path / "prod.key"
    secrets.mkdir()
    (secrets / "prod.key").touch()
    apart.touch()
    (tmp_path / "led.key").symlink_to(secrets / "prod.key")

    def said(identity: Path) -> list[str]:
        text = f'[agent]\nsecrets_dir = "{secrets}"\nsecret_identities = ["{identity}"]\n'
        config.write_text(text)
        return refused(load(config, {}), {})

    assert said(apart) == []
    for found in (secrets / "prod.key", tmp_path / "led.key", secrets / "sub/../prod.key"):
        (line,) = said(found)
        assert line.startswith(f"agent.secret_identities: found '{found}', expected a file outside")
