"""Where a farm's token means root: what an agent allows unsigned pods decides."""

from __future__ import annotations

import pytest

from store.features import ADDRESS, APART, ENFORCED, root_by_farm

TOGETHER = "it runs processes beside containers that run as the node's root"


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ([ADDRESS, "process", "allow.processes"], ""),
        ([ADDRESS, "allow.root"], "agent.allow has root, and signatures are not required"),
        ([ADDRESS, "allow.root", ENFORCED], ""),
        ([ADDRESS, "allow.privileged", "allow.devices"],
         "agent.allow has privileged, devices, and signatures are not required"),
        ([ADDRESS, "allow.host-pid", "allow.new-privileges"],
         "agent.allow has new-privileges, host-pid, and signatures are not required"),
        ([ADDRESS, "allow./"], "agent.allow has /, and signatures are not required"),
        ([ADDRESS, "allow./etc/app"], "agent.allow has /etc/app, and signatures are not required"),
        ([ADDRESS, "allow./srv/data", "allow.host-network"], ""),
        ([ADDRESS, "allow./lib64"], "agent.allow has /lib64, and signatures are not required"),
        ([ADDRESS, "allow./nix/store"], "agent.allow has /nix/store, and signatures are not required"),
        ([ADDRESS, "process", "runtime.container"], f"{TOGETHER}, and signatures are not required"),
        ([ADDRESS, "runtime.systemd", "runtime.container", "allow.root"],
         f"agent.allow has root, {TOGETHER}, and signatures are not required"),
        ([ADDRESS, "process", "runtime.container", APART], ""),
        ([ADDRESS, "process", "runtime.container", ENFORCED], ""),
        ([ADDRESS, "runtime.container"], ""),
        ([ADDRESS, "process", "runtime.systemd"], ""),
        (["jobs.1"], "its agent is older than agent.user, and runs processes as root if it is root"),
        (["jobs.1", ENFORCED], ""),
    ],
)  # fmt: skip
def test_root_by_a_farms_token_is_told_of_a_node_that_gives_it(features: list[str], why: str) -> None:
    assert root_by_farm(features) == why
