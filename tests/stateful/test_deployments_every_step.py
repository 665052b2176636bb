"""A farm that falls away after any transaction of a deployment, both ways: another one comes to the same end.

The deployment makes a volume and a service that mounts it, runs a hook, replaces pods beside the old ones and
where they stand, and takes a service away; its way back follows from a version that fails.
"""

from __future__ import annotations

import pytest

from farmd.deploy.spec import VolumeMount, VolumeSpec
from farmd.housekeeping.facts import DEFAULTS
from store.deployments import KIND
from store.services import Hook
from tests.effort import shares, until_over
from tests.stateful.deploying import BAD, SECOND, Deploying, spec
from tests.stateful.falling import FATES, Fall
from tests.stateful.scene import Scene

STOP_FIRST = {"order": "stop-first"}
MOUNTS = {"mounts": [VolumeMount(volume="data", path="/data")]}
BEFORE = (
    spec(replicas=2),
    spec("api", replicas=2, update=STOP_FIRST),
    spec("old", replicas=1),
)
DB = spec("db", replicas=1, container=MOUNTS, volumes=[VolumeSpec(name="data")])
WEB = spec(image=SECOND, replicas=2, pre_deploy=Hook(command=["migrate"]))
AFTER = {"api": {"after": {"web": "healthy", "db": "healthy"}}}


def turned(deploying: Deploying, ident: str) -> bool:
    """Whether a deployment goes back."""
    return any(goal.back for goal in deploying.state(ident).goals.values())


def fallen(fate: str, back: bool, k: int) -> bool:
    """One case; False if the deployment ended before its k-th transaction."""
    made = Scene(DEFAULTS)
    try:
        deploying = Deploying(made)
        deploying.ended(deploying.deploy(*BEFORE))
        deploying.ends(deploying.hook(WEB), 0)
        api = spec("api", BAD if back else SECOND, replicas=2, update=STOP_FIRST)
        if back:
            deploying.break_(api)
        ident = deploying.deploy(DB, WEB, api, gone=["old"], goals=AFTER, atomic=True)
        if back:
            deploying.until(
                lambda: any(goal.back for goal in deploying.state(ident).goals.values()), step=0.05
            )
        fall = Fall(made, KIND, fate, k)
        deploying.until(lambda: deploying.endings(ident) or fall(), step=0.05)
        deploying.ended(ident, "reverted" if back else "done")
        services = BEFORE if back else (DB, WEB, api)
        assert made.sight.services.keys() == {each.name for each in services}
        for each in services:
            deploying.whole(each)
        assert deploying.runs(deploying.hook(WEB)) == 1
        assert [name for node in made.sight.nodes.values() for name in node.volumes] == ["data"]
    except AssertionError as error:
        raise AssertionError(f"{fate}, k={k}: {error}") from error
    finally:
        made.close()
    return fall.came


@shares
@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
def test_r12_a_worker_that_falls_away_after_any_transaction_changes_nothing_about_the_end(
    back: bool, share: int
) -> None:
    """Every transaction; the fates take turns."""
    cases = until_over(share, lambda k: fallen(FATES[(back + k) % len(FATES)], back, k))
    assert cases or share, "no transaction"
