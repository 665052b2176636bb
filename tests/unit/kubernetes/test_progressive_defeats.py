"""What the doctor says of Knative's settings that defeat a stage, and of services that no farm has."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farmd.kubernetes.commands import ClusterFarm, knative_namespace
from farmd.kubernetes.knative import faults
from farmd.kubernetes.knative.objects import ENABLED, ServiceSpec, Template, TemplateMeta
from store.farms import ClusterReport, Member
from tests.knative_worlds import service

DEADLINE = 600.0


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("enable-scale-to-zero", "False", "true"),
        ("min-scale", "1", "0"),
        ("initial-scale", "2", "1"),
        ("scale-to-zero-pod-retention-period", "10m", "9m59s"),
        ("rollout-duration", "60s", "0"),
    ],
)
def test_a_setting_that_defeats_a_stage_is_named_and_a_harmless_value_is_not(
    key: str, bad: str, good: str
) -> None:
    def found(text: str) -> list[tuple[str, str]]:
        data = {key: text, "_example": "enable-scale-to-zero: false"}
        autoscaler, network = (data, {}) if key != "rollout-duration" else ({}, data)
        return [(config, each.key) for config, each in faults.of_cluster(autoscaler, network, DEADLINE)]

    config = "config-network" if key == "rollout-duration" else "config-autoscaler"
    assert (found(bad), found(good)) == ([(config, key)], [])


def test_a_service_s_own_annotations_may_defeat_its_stages() -> None:
    plain = service(annotations={"serving.knative.dev/rollout-duration": "380s"})
    (found,) = faults.of_service(plain, DEADLINE)
    assert faults.told(found).startswith("serving.knative.dev/rollout-duration: found '380s', expected 0: ")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h30m", 5400.0), ("600s", 600.0), ("500ms", 0.5), ("0", 0.0), ("soon", 0.0), ("1..5s", 0.0)],
)
def test_durations_are_read_as_knative_writes_them(text: str, seconds: float) -> None:
    assert faults.seconds(text) == seconds


@pytest.mark.parametrize(
    ("said", "namespace"),
    [
        ([], "knative-serving"),
        (["", ""], "knative-serving"),
        (["", "knative"], "knative"),
        (["a", "knative", "knative"], "knative"),
    ],
)
def test_people_read_knative_s_settings_where_most_farms_do(said: list[str], namespace: str) -> None:
    farms = [
        ClusterFarm(Member(id=f"f{number}", version="1"), "default", ClusterReport(knative_namespace=each))
        for number, each in enumerate(said)
    ]
    assert knative_namespace(farms) == namespace


@pytest.mark.parametrize(
    ("kinds", "namespaces", "why"),
    [
        (["rcs"], None, "no live farm claims progressive: farm.kinds"),
        (["progressive"], None, "no farm has claimed it yet"),
        (["progressive"], ["other"], "no farm works in namespace shop: [kubernetes] namespaces"),
        (["rcs"], [], "no live farm claims progressive: farm.kinds"),
    ],
)
def test_why_a_service_has_no_farm_is_said_of_the_farms_that_are_alive(
    kinds: list[str], namespaces: list[str] | None, why: str
) -> None:
    """Without ``namespaces`` no farm says that it works in a cluster."""
    farm = Member(id="one", version="1", kinds=kinds, features=["kubernetes.here"])
    there = [] if namespaces is None else [ClusterFarm(farm, "here", ClusterReport(namespaces=namespaces))]
    assert faults.why_free(service(), there, [farm]) == why


def test_the_label_on_the_template_opts_no_service_in() -> None:
    labelled = Template(metadata=TemplateMeta(labels={ENABLED: "true"}))
    half = replace(service(labels={}), spec=ServiceSpec(template=labelled))
    (found,) = faults._half([half, replace(half, metadata=service().metadata)])
    assert (
        found.explanation
        == f"label {ENABLED} on the template without the label {ENABLED}: no farm rolls it out"
    )


@pytest.mark.parametrize("text", ["1" * 300_000, "1m" * 150_000 + "x", "." * 300_000])
def test_a_setting_of_any_length_is_read_at_once(text: str) -> None:
    assert faults.seconds(text) == 0.0
    retention = {"scale-to-zero-pod-retention-period": text, "min-scale": text, "initial-scale": text}
    assert list(faults.of_cluster(retention, {}, DEADLINE)) == []
    assert faults.seconds("1h30m0.5s") == 5400.5
