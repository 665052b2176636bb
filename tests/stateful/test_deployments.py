"""Deployments on virtual time with real farms: what becomes of services, owners, pods and records."""

from __future__ import annotations

import pytest

from farmd.deploy.spec import Placement
from store.services import Hook
from tests.stateful.deploying import BAD, SECOND, Deploying, spec
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene


@pytest.fixture
def deploying(scene: Scene) -> Deploying:
    return Deploying(scene)


def test_a_new_service_comes_and_its_owner_keeps_it_afterwards(deploying: Deploying, scene: Scene) -> None:
    ident = deploying.deploy(spec())
    deploying.ended(ident)
    deploying.whole(spec())
    service = deploying.service()
    assert (service.revision, [each.result for each in service.history]) == (1, ["done"])
    assert {pod.labels["deployment"] for pod in deploying.pods().values()} == {ident}
    assert {pod.labels["service_id"] for pod in deploying.pods().values()} == {service.id}
    assert deploying.owner().needs == ["numbered.1", "deploy.1"]
    (gone, *_) = deploying.pods()
    scene.run(scene.agents[gone[0]].die(at_once=True))
    deploying.until(lambda: deploying.serving() == 3 and gone not in deploying.pods())


@pytest.fixture
def standing(deploying: Deploying) -> Deploying:
    """The service stands in its first version."""
    deploying.ended(deploying.deploy(spec()))
    return deploying


def placed(deploying: Deploying, ident: str) -> list[tuple[int, int, int]]:
    """How many pods came, went and were changed in each transaction of a deployment."""
    found = [audit for _, audit in deploying.scene.sight.dump.audits if audit.id == ident]
    return [
        (len(audit.placed), len(audit.removed), len(audit.relabelled))
        for audit in found
        if audit.placed or audit.removed or audit.relabelled
    ]


def test_pods_are_replaced_one_by_one_beside_the_old_ones_and_none_is_missed(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND))
    least = []
    standing.until(lambda: least.append(standing.serving()) or standing.endings(ident))
    standing.ended(ident)
    standing.whole(spec(image=SECOND))
    assert min(least) == 3
    assert placed(standing, ident) == [(1, 0, 0), (1, 1, 0), (1, 1, 0), (0, 1, 0)]
    service = standing.service()
    assert (service.revision, [each.number for each in service.history]) == (2, [2, 1])


def test_an_old_pod_that_no_farm_saw_for_long_goes_only_once_a_new_one_has_proven_itself(
    standing: Deploying,
) -> None:
    """As after the start of a farm: it has not seen the old pods for as long as the new version asks."""
    slow, least = spec(image=SECOND, update={"monitor": 60.0}), list[int]()
    ident = standing.deploy(slow)
    standing.until(lambda: least.append(standing.serving()) or standing.endings(ident), seconds=400.0)
    standing.ended(ident)
    standing.whole(slow)
    assert min(least) == 3
    assert placed(standing, ident) == [(1, 0, 0), (1, 1, 0), (1, 1, 0), (0, 1, 0)]


def test_stop_first_replaces_as_many_as_may_be_missed_where_they_stand(standing: Deploying) -> None:
    wanted = spec(image=SECOND, update={"order": "stop-first", "parallelism": 2})
    before = standing.pods().keys()
    ident = standing.deploy(wanted)
    standing.ended(ident)
    standing.whole(wanted)
    assert standing.pods().keys() == before
    assert placed(standing, ident) == [(0, 0, 2), (0, 0, 1)]


def test_more_and_fewer_replicas_change_no_pod_that_stays(standing: Deploying) -> None:
    before = standing.pods()
    standing.ended(standing.deploy(spec(replicas=5)))
    standing.whole(spec(replicas=5))
    assert before.items() <= standing.pods().items()
    standing.ended(standing.deploy(spec(replicas=1)))
    standing.whole(spec(replicas=1))


def test_a_version_that_fails_goes_back_and_costs_nothing(standing: Deploying) -> None:
    bad = spec(image=BAD)
    standing.break_(bad)
    ident = standing.deploy(bad)
    least = []
    standing.until(lambda: least.append(standing.serving()) or standing.endings(ident))
    standing.ended(ident, "reverted")
    standing.whole(spec())
    assert min(least) == 3
    service = standing.service()
    assert (service.revision, [(each.number, each.result) for each in service.history]) == (
        1,
        [(2, "reverted"), (1, "done")],
    )
    assert "ended 2 times" in service.history[0].reason
    standing.ended(standing.deploy(spec(image=SECOND)))
    assert standing.service().revision == 3


def test_a_version_that_fails_where_it_stands_goes_back_in_place(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"order": "stop-first"})
    standing.break_(bad)
    ident = standing.deploy(bad)
    standing.ended(ident, "reverted")
    standing.whole(spec())


def test_a_new_service_that_fails_leaves_nothing(deploying: Deploying) -> None:
    bad = spec(image=BAD)
    deploying.break_(bad)
    ident = deploying.deploy(bad)
    deploying.ended(ident, "reverted")
    for left in ("services", "names/services", "rcs", "names/rcs", "pods", "intent"):
        assert deploying.scene.sight.under(left) == []


def test_a_failure_waits_for_a_person_where_that_is_asked_for(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    ident = standing.deploy(bad)
    standing.until(lambda: standing.state(ident).halted)
    standing.scene.advance(30.0)
    assert "ended 2 times" in standing.state(ident).halted
    assert standing.status(ident).state == "blocked"
    before = standing.pods()
    standing.scene.advance(60.0)
    assert (standing.pods(), standing.serving()) == (before, 3)
    standing.say(ident, ask="rollback")
    standing.ended(ident, "reverted")
    standing.whole(spec())


def test_what_waits_for_a_person_names_the_pod_that_failed(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    ident = standing.deploy(bad)
    standing.until(lambda: standing.state(ident).halted)
    state = standing.state(ident)
    assert state.halted.startswith(f"web: {state.failed}: ended 2 times")


def test_a_resume_gives_a_failed_pod_another_chance(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    ident = standing.deploy(bad)
    standing.until(lambda: standing.state(ident).halted)
    for agent in standing.scene.agents.values():
        agent.lives.clear()
    standing.say(ident, resumed=1)
    standing.ended(ident)
    standing.whole(bad)


def test_a_failed_way_back_waits_for_a_person(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"order": "stop-first"})
    standing.break_(bad, spec())
    ident = standing.deploy(bad)
    standing.until(lambda: standing.state(ident).halted)
    (goal,) = standing.state(ident).goals.values()
    assert goal.back
    standing.scene.advance(30.0)
    for agent in standing.scene.agents.values():
        agent.lives.clear()
    standing.say(ident, resumed=1)
    standing.ended(ident, "reverted")
    standing.whole(spec())


def test_while_it_is_paused_no_pod_comes_or_goes_and_intents_are_mended(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND), ask="run")
    standing.until(lambda: standing.state(ident).goals)
    standing.say(ident, ask="pause")
    standing.scene.advance(10.0)
    before = standing.pods()
    (place, *_) = before
    standing.scene.delete(KEYS.intent(*place))
    standing.until(lambda: place in standing.scene.sight.intents)
    standing.scene.advance(60.0)
    assert standing.pods() == before
    assert standing.status(ident).phase == "paused"
    standing.say(ident, ask="run")
    standing.ended(ident)
    standing.whole(spec(image=SECOND))


def test_a_rollback_by_hand_goes_back_and_says_who_asked(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND))
    standing.until(
        lambda: any(pod.manifest != standing.service().version.manifest for pod in standing.pods().values())
    )
    standing.say(ident, ask="rollback")
    standing.ended(ident, "reverted")
    standing.whole(spec())


def test_recreate_replaces_pods_that_fit(standing: Deploying) -> None:
    before = standing.pods()
    ident = standing.deploy(spec(), goals={"web": {"recreate": True}})
    standing.ended(ident)
    standing.whole(spec())
    assert {pod.labels["deployment"] for pod in standing.pods().values()} == {ident}
    assert all(pod.at > max(each.at for each in before.values()) for pod in standing.pods().values())


def test_a_service_that_goes_takes_all_of_its_records_along(standing: Deploying) -> None:
    ident = standing.deploy(gone=["web"])
    standing.ended(ident)
    for left in ("services", "names/services", "rcs", "names/rcs", "pods", "intent", "work/rcs"):
        assert standing.scene.sight.under(left) == []


def test_a_deployment_goes_on_when_its_farm_dies(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND))
    standing.until(lambda: placed(standing, ident))
    for name in ("ash", "birch"):
        standing.scene.run(standing.scene.farms[name].kill())
        standing.scene.advance(5.0)
        standing.scene.farm(name)
    standing.ended(ident)
    standing.whole(spec(image=SECOND))


def test_a_hook_runs_once_before_the_first_pod_and_is_taken_away(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"], timeout=30.0))
    hook = standing.hook(wanted)
    standing.ends(hook, 0)
    before = standing.pods()
    ident = standing.deploy(wanted)
    standing.until(lambda: hook in {pod.manifest for pod in standing.scene.sight.pods.values()})
    assert standing.pods() == before
    standing.ended(ident)
    standing.whole(wanted)
    assert standing.runs(hook) == 1
    assert {pod.manifest for pod in standing.scene.sight.pods.values()} == {
        standing.service().version.manifest
    }


def test_a_hook_that_fails_turns_back_before_any_pod_changed(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"], timeout=30.0))
    standing.ends(standing.hook(wanted), 3)
    before = standing.pods()
    ident = standing.deploy(wanted)
    standing.ended(ident, "reverted")
    assert standing.pods() == before
    assert standing.service().history[0].reason == "its hook failed: exited with code 3"


def test_the_end_names_the_hook_that_failed(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"]))
    standing.ends(standing.hook(wanted), 1)
    ident = standing.deploy(wanted)
    standing.ended(ident, "reverted")
    (end,) = (audit for _, audit in standing.scene.sight.dump.audits if audit.action == "deployment.reverted")
    assert str(end.after["failed"]).endswith("/web-hook~0")


def test_a_hook_that_never_ends_fails_at_its_time(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"], timeout=30.0))
    ident = standing.deploy(wanted)
    standing.ended(ident, "reverted")
    assert standing.service().history[0].reason == "its hook failed: it did not end within 30 s"


def test_a_hook_that_no_agent_starts_fails_long_before_its_time(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"], timeout=3600.0))
    for agent in standing.scene.agents.values():
        agent.refuses.add(standing.hook(wanted))
    ident = standing.deploy(wanted)
    standing.ended(ident, "reverted")
    assert standing.service().history[0].reason == (
        "its hook failed: its agent refuses it: its image cannot be pulled"
    )


def test_a_farm_that_takes_over_waits_for_the_very_run_of_the_hook(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"], timeout=60.0))
    hook = standing.hook(wanted)
    ident = standing.deploy(wanted)
    standing.until(lambda: standing.runs(hook))
    for name in ("ash", "birch"):
        standing.scene.run(standing.scene.farms[name].kill())
        standing.scene.advance(20.0)
        standing.scene.farm(name)
    standing.ends(hook, 0)
    standing.ended(ident)
    standing.whole(wanted)
    assert standing.runs(hook) == 1


def test_a_hook_whose_node_is_lost_has_failed_and_never_runs_again(standing: Deploying) -> None:
    wanted = spec(image=SECOND, pre_deploy=Hook(command=["migrate"], timeout=60.0))
    hook = standing.hook(wanted)
    ident = standing.deploy(wanted)
    standing.until(lambda: standing.runs(hook))
    ((_, node, _),) = [at for at, pod in standing.scene.sight.pods.items() if pod.manifest == hook]
    standing.scene.run(standing.scene.agents[node].die(at_once=True))
    standing.ended(ident, "reverted")
    assert f"how it ended is unknown: {node} is lost" in standing.service().history[0].reason
    assert standing.runs(hook) == 1


def firing(deploying: Deploying) -> dict[str, str]:
    """The alerts that are open, with their urgency."""
    farms = deploying.scene.farms.values()
    return {key: alert.urgency for farm in farms for key, alert in farm.inbox.firing.items()}


def test_people_are_told_of_a_version_that_failed_until_the_next_release(standing: Deploying) -> None:
    bad = spec(image=BAD)
    standing.break_(bad)
    standing.ended(standing.deploy(bad), "reverted")
    assert firing(standing) == {"deployment_web": "low"}
    standing.ended(standing.deploy(spec(image=SECOND)))
    ended = [farm.inbox.resolved for farm in standing.scene.farms.values()]
    assert ["deployment_web"] in ended  # whichever farm did it: receivers know incidents by their keys


def test_people_are_called_where_only_they_can_go_on(standing: Deploying) -> None:
    bad = spec(image=BAD, update={"on_failure": "pause"})
    standing.break_(bad)
    ident = standing.deploy(bad)
    standing.until(lambda: firing(standing))
    assert firing(standing) == {"deployment_web": "high"}
    standing.say(ident, ask="rollback")
    standing.until(lambda: not firing(standing))
    standing.ended(ident, "reverted")
    assert firing(standing) == {}


def test_people_are_told_where_nothing_comes_nearer_for_a_quarter_of_an_hour(standing: Deploying) -> None:
    ident = standing.deploy(spec(image=SECOND, placement=Placement(machines=["elsewhere"])))
    standing.scene.advance(880.0)
    assert firing(standing) == {}
    standing.scene.advance(60.0)
    assert firing(standing) == {"deployment_web": "low"}
    standing.say(ident, ask="rollback")
    standing.ended(ident, "reverted")
    assert firing(standing) == {}
