"""What a farm, an agent and a command import: each of these starts thousands of times, and pays for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farmd.dev.plan import environment
from farmd.kinds import KINDS
from tests.farmctl import Farmctl

KEPT_OUT = {
    "run": {
        *("consul", "dbus_fast", "aiodocker", "pydantic", "rich.console", "yaml"),
        *("farmd.agent", "farmd.cli", "farmd.compose", "farmd.dev", "farmd.doctor", "store.embedded"),
        *("jinja2", "farmd.web.site", "farmd.web.pages", "farmd.tables"),
        *("farmd.commands.documents", "farmd.deploy.plan", "farmd.jobs.plan", "farmd.rollout.plan"),
    },
    "agent": {
        *("consul", "dbus_fast", "aiodocker", "pydantic", "rich.console", "yaml"),
        *("farmd.cli", "farmd.compose", "farmd.dev", "farmd.doctor", "store.embedded"),
        *("farmd.farm", "farmd.work", "farmd.cache", "farmd.services", "farmd.replication", "scheduler"),
    },
    "list": {
        *(
            "aiohttp",
            "consul",
            "importlib.metadata",
            "prometheus_client",
            "pydantic",
            "pygments",
            "yaml",
        ),
        *("farmd.agent", "farmd.compose", "farmd.config", "farmd.dev", "farmd.doctor", "store.embedded"),
        *("farmd.farm", "farmd.work", "farmd.cache", "farmd.deploy", "farmd.rollout", "scheduler.decide"),
        *("farmd.commands.difference", "farmd.commands.documents", "farmd.commands.parts"),
        *("farmd.commands.signing", "store.images", "store.manifest_check"),
    },
}
"""Packages and modules that are not needed before the first pod, deployment, rollout, file, finding or look
at the page."""

DECLARING = {kind.runs().__module__.removesuffix(".kind") for kind in KINDS.values()} | {"farmd.kubernetes"}
LATER = {"farmd.agent", "farmd.agent.errors"} | DECLARING
"""Small modules of such packages that name them to the others."""


def imported(text: str) -> set[str]:
    """The modules that a process with PYTHONPROFILEIMPORTTIME reported."""
    return set(re.findall(r"^import time:.*\| +([\w.]+)$", text, re.MULTILINE))


def needless(role: str, modules: set[str]) -> set[str]:
    """Modules of what is kept out."""
    packages = tuple(f"{name}." for name in KEPT_OUT[role])
    return {name for name in modules - LATER if f"{name}.".startswith(packages)}


def said_until(event: str, role: str, address: str, folder: Path) -> str:
    """What a process says up to an event; one of its own, since forked ones have imported everything."""
    variables = {
        "CONSUL_HTTP_ADDR": address,
        "FARMD_STORE__PREFIX": f"{role}/",
        "FARMD_AGENT__STATE_DIR": str(folder / "state"),
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    command = [sys.executable, "-m", "farmd", role, "--port", "0"]
    with subprocess.Popen(
        command,
        env=environment(dict(os.environ)) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        while f'"event":"{event}"' not in said and (line := process.stdout.readline()):
            said += line
        process.kill()
    return said


@pytest.mark.parametrize(("role", "event"), [("run", "farm.ready"), ("agent", "agent.started")])
def test_a_process_imports_only_what_its_role_needs(
    role: str, event: str, address: str, tmp_path: Path
) -> None:
    modules = imported(said_until(event, role, address, tmp_path))
    assert f"farmd.process.{'farm' if role == 'run' else 'agent'}_service" in modules
    assert needless(role, modules) == set()


def test_a_list_imports_only_what_it_shows(address: str) -> None:
    farmctl = Farmctl(address, "list/", variables={"PYTHONPROFILEIMPORTTIME": "1"})
    modules = imported(farmctl.start("rc", "list").communicate()[1])
    assert "farmd.tables.nouns" in modules
    assert needless("list", modules) == set()


@pytest.mark.parametrize("noun", ["pod", "node", "service", "app"])
def test_lists_of_nothing_import_neither_rich_nor_aiohttp(noun: str, address: str) -> None:
    farmctl = Farmctl(address, "list/", variables={"PYTHONPROFILEIMPORTTIME": "1"})
    modules = imported(farmctl.start(noun, "list").communicate()[1])
    assert "farmd.overview" in modules
    assert not modules & {"aiohttp", "pygments", "rich.console"}


def test_jobs_are_listed_without_kubernetes_where_no_cluster_is_configured(
    address: str, tmp_path: Path
) -> None:
    variables = {"PYTHONPROFILEIMPORTTIME": "1", "HOME": str(tmp_path), "KUBECONFIG": ""}
    farmctl = Farmctl(address, "list/", variables=variables)
    modules = imported(farmctl.start("job", "list").communicate()[1])
    assert "farmd.jobs.commands" in modules
    assert not {name for name in modules - LATER if name.startswith("farmd.kubernetes")}
