"""Where a farm's token means root: what an agent allows unsigned pods decides."""

from __future__ import annotations

import pytest

from store.features import ADDRESS, APART, ENFORCED, root_by_farm

TOGETHER = "it runs processes beside containers whose root is the node's"


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ([ADDRESS, "process", "allow.processes"], ""),
        ([ADDRESS, "allow.root"], "agent.allow has root, and nothing need be signed"),
        ([ADDRESS, "allow.root", ENFORCED], ""),
        ([ADDRESS, "allow.privileged", "allow.devices"],
         "agent.allow has privileged, devices, and nothing need be signed"),
        ([ADDRESS, "allow.host-pid", "allow.new-privileges"],
         "agent.allow has new-privileges, host-pid, and nothing need be signed"),
        ([ADDRESS, "allow./"], "agent.allow has /, and nothing need be signed"),
        ([ADDRESS, "allow./etc/app"], "agent.allow has /etc/app, and nothing need be signed"),
        ([ADDRESS, "allow./srv/data", "allow.host-network"], ""),
        ([ADDRESS, "allow./lib64"], "agent.allow has /lib64, and nothing need be signed"),
        ([ADDRESS, "allow./nix/store"], "agent.allow has /nix/store, and nothing need be signed"),
        ([ADDRESS, "process", "runtime.container"], f"{TOGETHER}, and nothing need be signed"),
        ([ADDRESS, "runtime.systemd", "runtime.container", "allow.root"],
         f"agent.allow has root, {TOGETHER}, and nothing need be signed"),
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
