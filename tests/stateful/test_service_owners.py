"""An owner that services name is deleted, whoever falls away meanwhile: those that others serve forget it."""

from __future__ import annotations

from itertools import cycle

from farmd.housekeeping.facts import DEFAULTS
from farmd.replication.commands import RC
from farmd.services import commands
from store.services import reference
from tests.stateful.falling import FATES, Fall
from tests.stateful.rolling import Rolling
from tests.stateful.scene import Scene

PORTS = {"http": {"port": 0}}


def fallen(fate: str, k: int) -> bool:
    """One case; False if the controller was gone before the k-th transaction of its kind."""
    scene = Scene(DEFAULTS)
    try:
        rolling = Rolling(scene, replicas=1, pod_ports=PORTS)
        other = scene.rc(name="other", replicas=1, pod_id="other", pod_ports=PORTS)
        for name, owners in (("both", ["web", "other"]), ("alone", ["web"])):
            assert scene.ask(lambda n=name, o=owners: commands.create(scene.call, n, "http", o))
        scene.advance(10.0)
        assert scene.ask(lambda: RC.delete(scene.call, "web", cascade=True))
        fall = Fall(scene, "rcs", fate, k)
        rolling.until(lambda: rolling.old not in scene.sight.rcs or fall(), step=0.05)
        rolling.until(lambda: rolling.old not in scene.sight.rcs)
        active = {name: service.active for name, service in scene.sight.services.items()}
        assert active == {"both": [reference("rcs", other)], "alone": [reference("rcs", rolling.old)]}
        (deleted,) = [audit for _, audit in scene.sight.dump.audits if audit.action == "rc.delete"]
        assert (deleted.before["services"], deleted.after["services"]) == ("both", "")
    except AssertionError as error:
        raise AssertionError(f"{fate}, k={k}: {error}") from error
    finally:
        scene.close()
    return fall.came


def test_r14_an_owner_that_goes_leaves_the_services_that_others_serve_whoever_falls_away() -> None:
    """Each transaction of its end. The service that nobody else serves keeps naming it, for the doctor."""
    fates = cycle(FATES)
    tried = next(k for k, fate in enumerate(fates) if not fallen(fate, k))
    assert tried >= 2
