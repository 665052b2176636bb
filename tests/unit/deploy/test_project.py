"""The plan of a project: what stands together stays, what is bound waits; and its fingerprint."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as changed

from farmd.deploy.operations import (
    RemoveContainerOperation,
    RunContainerOperation,
    ServicePod,
    StandingService,
)
from farmd.deploy.project import ProjectPlan, ResolvedServices, fingerprint, plan_project
from farmd.deploy.spec import ContainerSpec, ServiceSpec, VolumeMount, VolumeSpec
from farmd.deploy.strategy import RollingStrategy
from tests.unit.deploy.worlds import cluster


def spec(name: str, image: str = "x:1", volume: str = "", **fields: object) -> ServiceSpec:
    mounts = [VolumeMount(volume=volume, path="/data")] if volume else []
    container = ContainerSpec(image=image, mounts=mounts)
    volumes = [VolumeSpec(name=volume)] if volume else []
    return changed(ServiceSpec(container=container, name=name, volumes=volumes), **fields)


def standing(spec: ServiceSpec, *machines: str) -> StandingService:
    pods = tuple(ServicePod(place=(machine, f"{spec.name}~0"), spec=spec) for machine in machines)
    return StandingService(id=f"1{spec.name}", name=spec.name, mode=spec.mode, containers=pods)


def planned(wanted: ResolvedServices, *services: StandingService, machines: str = "A B C") -> ProjectPlan:
    there = {each.name: each for each in services}
    return plan_project(cluster(machines), wanted, there, RollingStrategy())


def wants(*specs: ServiceSpec, together: str = "") -> ResolvedServices:
    return ResolvedServices(services={each.name: each for each in specs}, together=together)


def runs(plan: ProjectPlan) -> list[str]:
    operations = [each for service in plan.services for each in service.operations]
    return [each.machine for each in operations if isinstance(each, RunContainerOperation)]


def test_a_project_that_stays_together_comes_to_one_machine_and_is_bound_to_none() -> None:
    plan = planned(wants(spec("db"), spec("web"), together="shop"))
    assert len(runs(plan)) == 2
    assert len(set(runs(plan))) == 1
    assert {each.on_lost for each in plan.specs.values()} == {"replace"}
    assert [each.placement.machines for each in plan.specs.values()] == [[], []]
    assert {each.placement.pod_affinity[0].selector for each in plan.specs.values()} == {"project=shop"}


def test_a_project_with_a_volume_waits_for_its_machine_unless_its_files_say_otherwise() -> None:
    db, web = spec("db", volume="data"), spec("web")
    plan = planned(wants(db, web, changed(web, name="api", on_lost="replace"), together="shop"))
    assert {name: each.on_lost for name, each in plan.specs.items()} == {
        "api": "replace", "db": "wait", "web": "wait",
    }  # fmt: skip


def test_a_project_that_stands_together_is_up_to_date_the_next_time() -> None:
    wanted = wants(spec("db"), spec("web"), together="shop")
    first = planned(wanted)
    there = [standing(each, *set(runs(first))) for each in first.specs.values()]
    assert planned(wanted, *there).empty


def test_a_project_whose_machine_is_lost_is_given_another_one() -> None:
    wanted = wants(spec("db"), spec("web"), together="shop")
    there = [standing(each, "C") for each in planned(wanted, standing(spec("db"), "C")).specs.values()]
    plan = planned(wanted, *there, machines="A B C!")
    (machine,) = set(runs(plan))
    assert machine in {"A", "B"}
    steps = [[str(each) for each in service.operations] for service in plan.services]
    assert steps == [[f"run 1{name} on {machine}", f"remove C/{name}~0"] for name in ("db", "web")]


def test_one_service_of_a_project_follows_those_that_are_not_deployed_now() -> None:
    wanted = wants(spec("web"), together="shop")
    plan = planned(wanted, standing(spec("db"), "C"))
    assert runs(plan) == ["C"]
    assert "db" not in plan.standing


def test_a_service_with_a_named_volume_waits_for_its_machine() -> None:
    plan = planned(wants(spec("db", volume="data"), spec("web")))
    assert {name: each.on_lost for name, each in plan.specs.items()} == {"db": "wait", "web": "replace"}


def test_what_is_to_go_is_planned_pod_by_pod_behind_the_others() -> None:
    wanted = replace(wants(spec("web")), removed={"old"})
    plan = planned(wanted, standing(spec("old"), "B", "A"))
    assert [type(each) for each in plan.services[-1].operations] == [RemoveContainerOperation] * 2
    assert plan.services[-1].service_name == "old"
    assert "old" in plan.standing


def test_a_fingerprint_names_what_costs_and_counts_what_comes() -> None:
    wanted = wants(spec("web", replicas=2))
    plan = planned(wanted)
    runs = [each for each in plan.services[0].operations if isinstance(each, RunContainerOperation)]
    elsewhere = tuple(replace(each, machine="C") for each in runs)
    moved = replace(plan, services=(replace(plan.services[0], operations=elsewhere),))
    assert fingerprint(moved) == fingerprint(plan) != ""
    fewer = replace(plan, services=(replace(plan.services[0], operations=elsewhere[:1]),))
    assert fingerprint(fewer) != fingerprint(plan)


def test_a_fingerprint_changes_with_the_place_and_the_order_of_a_replacement() -> None:
    before, after = spec("web"), spec("web", image="x:2")
    known = {fingerprint(planned(wants(after), standing(before, machine))) for machine in ("A", "B")}
    stop = changed(after, update=changed(after.update, order="stop-first"))
    known.add(fingerprint(planned(wants(stop), standing(before, "A"))))
    assert len(known) == 3


def test_what_does_not_change_has_no_part_in_a_fingerprint() -> None:
    web, db = spec("web", image="x:2"), spec("db")
    there = [standing(spec("web"), "A"), standing(db, "B")]
    assert fingerprint(planned(wants(web, db), *there)) == fingerprint(planned(wants(web), there[0]))
    assert fingerprint(planned(wants(db), there[1])) == ""


def test_a_volume_that_is_made_is_a_part_of_the_fingerprint() -> None:
    with_volume, without = planned(wants(spec("db", volume="data"))), planned(wants(spec("db")))
    assert fingerprint(with_volume) != fingerprint(without)
