"""What ``docs/trust.md`` says of a node's secrets, which keeps people from relying on more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farmd.agent.errors import StartFailed
from farmd.agent.runtimes import container_files
from store.containers import Secret
from store.manifests import Manifest


def test_each_pod_of_a_node_reads_each_secret_that_it_names(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "shop-key").write_text("hush")
    for pod in ("shop", "stranger"):
        secret = Secret(name="shop-key", uid=os.geteuid(), gid=os.getegid())
        manifest = Manifest(id=pod, runtime="systemd", command=["x"], secrets=[secret])
        ((here, _),) = container_files.lay_out(tmp_path / pod, manifest, secrets)
        assert Path(here).read_text() == "hush"


def test_a_secret_is_a_file_of_that_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    manifest = Manifest(id="web", runtime="systemd", command=["x"], secrets=[Secret(name="token")])
    with pytest.raises(StartFailed, match="token"):
        container_files.lay_out(tmp_path / "web", manifest, tmp_path / "secrets")
