"""What people see of a change of an object in Kubernetes before it is made."""

from __future__ import annotations

from farmd.kubernetes.apps.marks import values


def test_each_field_is_shown_with_what_it_is_and_will_be() -> None:
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "data": {"x": "2", "new": "1"},
        "spec": {"list": [1, 2]},
    }
    found = {"data": {"x": "1", "theirs": "3"}, "spec": {"list": [1]}}
    assert values(document, found) == [
        'data.x: "1" -> "2"',
        'data.new: none -> "1"',
        "spec.list: [1] -> [1, 2]",
    ]


def test_a_long_value_is_cut() -> None:
    (line,) = values({"kind": "ConfigMap", "data": {"x": "y" * 500}}, {"data": {"x": "z"}})
    assert len(line) < 100
    assert line.endswith("…")


def test_the_content_of_a_secret_is_never_shown() -> None:
    document = {"apiVersion": "v1", "kind": "Secret", "data": {"token": "c2Vj"}, "type": "Opaque"}
    told = values(document, {"data": {"token": "b2xk"}, "type": "other"})
    assert told == ["data.token: hidden, because it is a Secret's", 'type: "other" -> "Opaque"']
