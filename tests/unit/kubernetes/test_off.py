"""Without a configured cluster farms, agents and farmctl import nothing of Kubernetes but declarations."""

from __future__ import annotations

import subprocess
import sys

import pytest

from farmd.config.kubernetes import KubernetesSection

_FARM = """
import asyncio, sys
from farmd.config.sections import Config
from farmd.process import farm_service
from types import SimpleNamespace

async def main():
    dependencies = SimpleNamespace(config=Config(), env={"HOME": "/root"})
    async with farm_service._outside(dependencies) as outside:
        assert outside == {}

asyncio.run(main())
"""
_REST = "import sys, farmd.cli.main, farmd.process.agent_service\n"
_TOLD = "print(*sorted(name for name in sys.modules if name.startswith('farmd.kubernetes')))"
DECLARATIONS = ["farmd.kubernetes", "farmd.kubernetes.jobs", "farmd.kubernetes.knative"]
"""The packages by themselves, in which kinds of work declare what they are."""


@pytest.mark.parametrize("code", [_FARM, _REST])
def test_nothing_of_kubernetes_is_imported_where_it_is_not_configured(code):
    done = subprocess.run([sys.executable, "-c", code + _TOLD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == DECLARATIONS


@pytest.mark.parametrize(
    ("section", "env", "expected"),
    [
        ({}, {}, False),
        ({}, {"HOME": "/root"}, False),
        ({"kubeconfig": "/etc/farmd/kubeconfig"}, {}, True),
        ({}, {"KUBECONFIG": "/etc/kube"}, True),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
    ],
)
def test_it_is_on_by_the_section_by_kubeconfig_and_in_a_pod(section, env, expected):
    assert KubernetesSection(**section).configured(env) is expected
