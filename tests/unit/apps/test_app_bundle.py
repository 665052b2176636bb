"""Bundle files: what documents of people and of other tools mean, and one line for each that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farmd.apps import bundle, objects
from farmd.apps.bundle import AppSpec, Bundle, parse, render
from store.apps import MAX_ENTRIES, Entry, TypedReference
from store.errors import InputInvalid

RC = """\
apiVersion: farmd/v1
kind: rc
name: {name}
replicas: 2
pod: {{id: {name}, command: [/srv/{name}]}}
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: proxy
  namespace: shop
  annotations: {annotations}
spec: {{replicas: 2}}
"""
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n"


def rc(name: str, more: str = "") -> str:
    return RC.format(name=name) + more


def of(*texts: str, **settings: Any) -> Bundle:
    files = [(text, f"f{number}.yaml") for number, text in enumerate(texts, 1)]
    return parse(files, AppSpec(**settings))


def one(text: str, **settings: Any) -> Entry:
    (entry,) = of(text, **settings).entries
    return entry


def test_a_document_of_farmd_is_the_nouns_file_with_how_its_app_treats_it() -> None:
    more = "wave: 2\nafter: [rc/db]\non_remove: keep\napply: once\nignore: [replicas]\n"
    db, web = of(rc("db", "wave: 2\n"), rc("web", more)).entries
    assert web == Entry(
        ref=TypedReference(kind="rc", name="web"),
        wave=2,
        after=["rc/db"],
        on_remove="keep",
        apply="once",
        ignore=["replicas"],
        document={"name": "web", "replicas": 2, "pod": {"id": "web", "command": ["/srv/web"]}},
    )
    assert (str(db.ref), db.wave) == ("rc/db", 2)


def test_annotations_of_an_object_say_the_same_in_kubernetes() -> None:
    said = (
        '{farmd.io/wave: "-3", farmd.io/after: "configmap.core/shop/settings", farmd.io/on-remove: keep,'
        ' farmd.io/apply: once, farmd.io/ignore: "spec.replicas, spec.template",'
        ' farmd.io/replace: "true", a: b}'
    )
    config = CONFIG.replace("{name: settings}", '{name: settings, annotations: {farmd.io/wave: "-3"}}')
    _, entry = of(config, DEPLOYMENT.format(annotations=said), namespace="shop").entries
    assert str(entry.ref) == "deployment.apps/shop/proxy"
    assert (entry.wave, entry.after) == (-3, ["configmap.core/shop/settings"])
    assert (entry.on_remove, entry.apply, entry.replace) == ("keep", "once", True)
    assert entry.ignore == ["spec.replicas", "spec.template"]
    assert entry.document is not None
    assert entry.document["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize(
    ("annotations", "wave", "on_remove"),
    [
        ("{helm.sh/resource-policy: keep}", 0, "keep"),
        ('{argocd.argoproj.io/sync-wave: "5"}', 5, "delete"),
        ('{argocd.argoproj.io/sync-wave: "5", farmd.io/wave: "1"}', 1, "delete"),
        ('{argocd.argoproj.io/sync-options: "Validate=false, Prune=false"}', 0, "keep"),
        ('{app.oam.dev/skipGC: ""}', 0, "keep"),
        ("{helm.sh/resource-policy: keep, farmd.io/on-remove: delete}", 0, "delete"),
    ],
)
def test_annotations_of_other_tools_mean_what_they_mean_there(
    annotations: str, wave: int, on_remove: str
) -> None:
    entry = one(DEPLOYMENT.format(annotations=annotations))
    assert (entry.wave, entry.on_remove) == (wave, on_remove)


@pytest.mark.parametrize(
    ("api", "kind", "ref"),
    [
        ("v1", "Namespace", "namespace.core/x"),
        ("v1", "PersistentVolumeClaim", "persistentvolumeclaim.core/shop/x"),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinition.apiextensions.k8s.io/x",
        ),
    ],
)
def test_what_takes_data_or_other_objects_along_stays_unless_told(api: str, kind: str, ref: str) -> None:
    text = f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: x}}\n"
    entry = one(text, namespace="shop")
    assert (str(entry.ref), entry.on_remove) == (ref, "keep")
    told = text.replace("{name: x}", "{name: x, annotations: {farmd.io/on-remove: delete}}")
    assert one(told, namespace="shop").on_remove == "delete"


@pytest.mark.parametrize(
    ("api", "kind", "spec", "apply"),
    [
        ("batch/v1", "Job", {"ttlSecondsAfterFinished": 100}, "once"),
        ("batch/v1", "Job", {"ttlSecondsAfterFinished": 0}, "once"),
        ("batch/v1", "Job", {"template": {}}, "always"),
        ("farmd.io/v1", "FarmJob", {"runPolicy": {"ttlSecondsAfterFinished": 100}}, "once"),
        ("kubeflow.org/v1", "PyTorchJob", {"runPolicy": {"ttlSecondsAfterFinished": 100}}, "once"),
        ("batch/v1", "CronJob", {"jobTemplate": {"spec": {"ttlSecondsAfterFinished": 100}}}, "always"),
        ("x.io/v1", "Row", {"runPolicy": "none"}, "always"),
    ],
)
def test_a_job_that_goes_by_itself_after_its_end_is_not_made_again(
    api: str, kind: str, spec: dict[str, Any], apply: str
) -> None:
    job = {"apiVersion": api, "kind": kind, "metadata": {"name": "a", "namespace": "n"}, "spec": spec}
    entry = one(json.dumps(job))
    assert entry.apply == apply
    assert render(entry) == job
    job["metadata"]["annotations"] = {"farmd.io/apply": "always"}  # type: ignore[index]
    assert one(json.dumps(job)).apply == "always"
    assert one(json.dumps(render(one(json.dumps(job))))).apply == "always"


def test_the_scope_of_a_kind_is_that_of_its_definition_in_the_bundle_or_of_the_server() -> None:
    crd = (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: rows.x.io}\n"
        "spec: {group: x.io, scope: Cluster, names: {kind: Row, plural: rows}}\n"
    )
    row = "apiVersion: x.io/v1\nkind: Row\nmetadata: {name: a}\n"
    entries = of(crd, row, namespace="shop").entries
    assert str(entries[1].ref) == "row.x.io/a"
    (alone,) = parse([(row, "f.yaml")], AppSpec(namespace="shop"), {("x.io", "Row"): False}).entries
    assert str(alone.ref) == "row.x.io/a"
    assert str(one(row, namespace="shop").ref) == "row.x.io/shop/a"


def test_what_a_server_wrote_into_an_object_is_left_out() -> None:
    printed = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "a",
            "namespace": "b",
            "uid": "1",
            "resourceVersion": "2",
            "creationTimestamp": None,
        },
        "spec": {"replicas": 1},
        "status": {"replicas": 1},
    }
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [printed]})
    assert one(listed).document == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"replicas": 1},
    }


def test_a_list_of_one_kind_is_its_objects_as_kubectl_takes_it() -> None:
    maps = [{"metadata": {"name": name, "namespace": "n"}} for name in "ab"]
    listed = {"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": maps}
    assert [str(entry.ref) for entry in of(json.dumps(listed)).entries] == [
        "configmap.core/n/a",
        "configmap.core/n/b",
    ]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "a", "namespace": "n"},
    }
    roles = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleList", "items": [role]}
    assert one(json.dumps(roles)).document == role
    with pytest.raises(InputInvalid, match=r"items\[0\]: document: found 'a'"):
        of(json.dumps({**listed, "items": ["a"]}))


def test_the_apps_document_has_its_settings_and_the_command_line_wins() -> None:
    app = "apiVersion: farmd/v1\nkind: app\nname: shop\nnamespace: shop\ndeadline: 2m\nprune: true\n"
    found = of(CONFIG, app, prune=False)
    assert (found.app.name, found.app.namespace, found.app.deadline, found.app.prune) == (
        "shop",
        "shop",
        120.0,
        False,
    )
    assert [str(entry.ref) for entry in found.entries] == ["configmap.core/shop/settings"]


CIRCLE = rc("a", "after: [rc/b]\n") + "---\n" + rc("b", "after: [rc/a]\n")
TWO_APPS = "apiVersion: farmd/v1\nkind: app\n---\napiVersion: farmd/v1\nkind: app\n"
REFUSED = {
    "no apiVersion": ("kind: rc\n", "f1.yaml:1: apiVersion: missing, expected farmd/v1, or that of a Kub"),
    "later api": ("apiVersion: farmd/v2\nkind: rc\n", "f1.yaml:1: apiVersion: found 'farmd/v2', expected"),
    "no kind": ("apiVersion: farmd/v1\n", "f1.yaml:1: kind: found nothing, expected the kind of the object"),
    "text": ("hello\n", "f1.yaml:1: document: found 'hello', expected a mapping"),
    "unknown kind": (
        "apiVersion: farmd/v1\nkind: rcs\nname: a\n",
        "f1.yaml:1: kind: found 'rcs', did you mean 'rc'",
    ),
    "a rollout": (
        "apiVersion: farmd/v1\nkind: rollout\n",
        "kind: found 'rollout', expected no rollout: write rollout:",
    ),
    "no name": ("apiVersion: farmd/v1\nkind: rc\n", "f1.yaml:1: name: missing, expected the name of the rc"),
    "bad field": (rc("a", "replica: 3\n"), "f1.yaml:1: replica: unknown key, did you mean 'replicas'"),
    "second document": (rc("a") + "---\n" + rc("b", "x: 1\n"), "f1.yaml:7: x: unknown key"),
    "bad wave": (
        rc("a", "wave: 101\n"),
        "f1.yaml:1: wave: found 101, expected a whole number from -100 to 100",
    ),
    "word as wave": (rc("a", "wave: soon\n"), "f1.yaml:1: wave: found 'soon', expected a whole number"),
    "bad on_remove": (rc("a", "on_remove: stay\n"), "f1.yaml:1: on_remove: found 'stay', expected"),
    "ignored name": (
        rc("a", "ignore: [name]\n"),
        "f1.yaml:1: ignore: found 'name', expected a field of the file",
    ),
    "ignored unknown": (rc("a", "ignore: [replica]\n"), "ignore: found 'replica', did you mean 'replicas'"),
    "twice": (
        rc("a") + "---\n" + rc("a"),
        "f1.yaml:7: name: found rc/a again, expected each object once; f1.yaml:1",
    ),
    "circle": (CIRCLE, "after: found the circle rc/"),
    "after nothing": (
        rc("web", "after: [rc/wen]\n"),
        "f1.yaml:1: rc/web: after: found 'rc/wen', did you mean",
    ),
    "after a later wave": (
        rc("a", "after: [rc/b]\n") + "---\n" + rc("b", "wave: 1\n"),
        "f1.yaml:1: rc/a: after: found rc/b, which is in wave 1, expected an object of wave 0 or earlier",
    ),
    "two apps": (TWO_APPS, "f1.yaml:4: kind: found a second app, expected one app; f1.yaml:1 has one"),
    "an app of another name": (
        "apiVersion: farmd/v1\nkind: app\nname: other\n",
        "f1.yaml:1: name: found 'other', expected 'shop', which --app says",
    ),
    "hook": (
        DEPLOYMENT.format(annotations="{helm.sh/hook: pre-install}"),
        "f1.yaml:1: metadata.annotations.helm.sh/hook: found 'pre-install', expected none: render",
    ),
    "no namespace": (CONFIG, "f1.yaml:1: metadata.namespace: found none, expected one, or -n NAMESPACE"),
    "generateName": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n",
        "f1.yaml:1: metadata.name: found generateName, expected a fixed name",
    ),
    "no metadata": (
        "apiVersion: v1\nkind: ConfigMap\n",
        "f1.yaml:1: metadata: found nothing, expected a mapping",
    ),
    "secret": (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: b}\n",
        "f1.yaml:1: kind: found a Secret, expected none, or allow_secrets: true",
    ),
    "a kustomization": (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
        "f1.yaml:1: kind: found a kustomization, expected the output of kustomize build",
    ),
    "unknown annotation": (
        DEPLOYMENT.format(annotations='{farmd.io/waves: "1"}'),
        "metadata.annotations.farmd.io/waves: no such annotation, did you mean 'farmd.io/wave'",
    ),
    "bad annotation": (
        DEPLOYMENT.format(annotations='{farmd.io/wave: "x"}'),
        "f1.yaml:1: metadata.annotations.farmd.io/wave: found 'x', expected a whole number",
    ),
    "bad on-remove": (
        DEPLOYMENT.format(annotations="{farmd.io/on-remove: stay}"),
        "f1.yaml:1: metadata.annotations.farmd.io/on-remove: found 'stay', expected",
    ),
    "bad replace": (
        DEPLOYMENT.format(annotations='{farmd.io/replace: "yes"}'),
        "metadata.annotations.farmd.io/replace: found 'yes', expected true or false",
    ),
    "labels that are no mapping": (
        CONFIG.replace("{name: settings}", "{name: settings, labels: [a]}"),
        "f1.yaml:1: metadata.labels: found a list, expected a mapping",
    ),
    "label that is no text": (
        CONFIG.replace("{name: settings}", "{name: settings, labels: {a: 1}}"),
        "f1.yaml:1: metadata.labels.a: found 1, expected text",
    ),
    "a label of farmd's": (
        CONFIG.replace("{name: settings}", "{name: settings, labels: {farmd.io/app: other}}"),
        "f1.yaml:1: metadata.labels.farmd.io/app: found 'other', expected none: farmd writes it",
    ),
    "a name that leads elsewhere": (
        CONFIG.replace("{name: settings}", "{name: a/status, namespace: n}"),
        "f1.yaml:1: metadata.name: found 'a/status', expected a name without / and %",
    ),
    "a namespace that leads elsewhere": (
        CONFIG.replace("{name: settings}", "{name: a, namespace: ..}"),
        "f1.yaml:1: metadata.namespace: found '..', expected a name without / and %",
    ),
    "an api that leads elsewhere": (
        "apiVersion: ../../v1\nkind: ConfigMap\n",
        "f1.yaml:1: apiVersion: found '../../v1', expected farmd/v1, or that of a Kubernetes object",
    ),
    "a key that is nothing": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\ndata: {null: x}\n",
        "f1.yaml:1: data: found the key nothing, expected text",
    ),
    "a value that JSON has not": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\ndata: {a: {b: [.inf]}}\n",
        "f1.yaml:1: data.a.b[0]: found inf, expected a value of JSON",
    ),
    "a set": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\ndata: !!set {a}\n",
        "f1.yaml:1: data: found ",
    ),
    "an ignored item of a list": (
        DEPLOYMENT.format(annotations='{farmd.io/ignore: "spec.containers[0].image"}'),
        "annotations.farmd.io/ignore: found 'spec.containers[0].image', expected the path of a field",
    ),
    "an ignored identity": (
        DEPLOYMENT.format(annotations='{farmd.io/ignore: "spec.replicas, metadata"}'),
        "f1.yaml:1: metadata.annotations.farmd.io/ignore: found 'metadata', expected the path",
    ),
    "annotation that is no text": (
        DEPLOYMENT.format(annotations="{a: 1}"),
        "f1.yaml:1: metadata.annotations.a: found 1, expected text",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line_with_file_line_and_field(case: str) -> None:
    text, told = REFUSED[case]
    with pytest.raises(InputInvalid) as refused:
        of(text, name="shop")
    assert told in refused.value.message
    assert "\n" not in refused.value.message


def test_names_that_are_numbers_are_text_as_kubectl_has_them_and_empty_labels_are_none() -> None:
    """As in ingress-nginx's map of TCP ports to services."""
    text = CONFIG.replace("{name: settings}", "{name: settings, namespace: n, labels: }")
    entry = one(text.replace("{a: b}", '{9000: "shop/web:80", true: x, 1.5: [{2: y}]}'))
    assert entry.document == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": "n"},
        "data": {"9000": "shop/web:80", "true": "x", "1.5": [{"2": "y"}]},
    }


def test_a_secret_comes_in_by_a_persons_word_alone() -> None:
    (entry,) = of(REFUSED["secret"][0], name="shop", allow_secrets=True).entries
    assert str(entry.ref) == "secret.core/b/a"


def test_a_bundle_has_no_more_objects_than_an_app_may_have() -> None:
    one = {"apiVersion": "v1", "kind": "ConfigMap"}
    items = [{**one, "metadata": {"name": f"a{at}", "namespace": "n"}} for at in range(MAX_ENTRIES + 1)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    with pytest.raises(InputInvalid, match="bundle: found 2001 objects, expected at most 2000"):
        of(text, name="shop")


def test_one_object_in_two_files_names_both() -> None:
    with pytest.raises(InputInvalid, match=r"^f2\.yaml:1: name: found rc/a again.*; f1\.yaml:1 has it, too"):
        of(rc("a"), rc("a"))


def test_a_file_of_comments_alone_is_no_bundle_by_itself_and_no_error() -> None:
    assert of("# nothing\n").entries == ()


LABELS = st.text("abc-", min_size=1, max_size=5)
TREATED = {
    "wave": st.integers(-100, 100),
    "after": st.lists(st.sampled_from(["rc/a", "configmap.core/shop/x"]), unique=True),
    "on_remove": st.sampled_from(["delete", "keep"]),
    "apply": st.sampled_from(["always", "once"]),
    "replace": st.booleans(),
}
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        ["helm.sh/resource-policy", "app.oam.dev/skipGC", "a", "argocd.argoproj.io/sync-options"]
    ),
    st.sampled_from(["keep", "", "Prune=false"]),
)
OBJECTS = st.builds(
    lambda kind, annotations, treated, ignore: Entry(
        ref=TypedReference(api_version="apps/v1", kind=kind, namespace="shop", name="web"),
        document={
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {
                "name": "web",
                "namespace": "shop",
                **({"annotations": annotations} if annotations else {}),
            },
            "spec": {"replicas": 1},
        },
        ignore=ignore,
        **treated,
    ),
    st.sampled_from(["Deployment", "StatefulSet"]),
    ANNOTATIONS,
    st.fixed_dictionaries(TREATED),
    st.lists(st.sampled_from(["spec.replicas", "spec.template"]), unique=True),
)
RECORDS = st.builds(
    lambda treated, ignore: Entry(
        ref=TypedReference(kind="rc", name="web"),
        document={"name": "web", "replicas": 2, "pod": {"id": "web", "command": ["a"]}},
        ignore=ignore,
        **treated,
    ),
    st.fixed_dictionaries(TREATED),
    st.lists(st.sampled_from(["replicas", "pod"]), unique=True),
)


@given(st.one_of(RECORDS, OBJECTS))
def test_an_entry_that_is_printed_and_read_again_is_the_same_entry(entry: Entry) -> None:
    text = yaml.safe_dump(render(entry))
    data = yaml.safe_load(text)
    if entry.ref.own:
        assert bundle.parse_native(data, "f") == entry
    else:
        assert objects.parse(data, "f", namespace="", scopes={}, secrets=False) == entry


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(path: str) -> str:
    return Path(path).read_text()


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, b_yaml="b", a_yaml="a", sub__c_yaml="c", README="no")
    names = [Path(name).name for _, name in bundle.texts([str(tmp_path)], read)]
    assert names == ["a.yaml", "b.yaml"]
    names = [Path(name).name for _, name in bundle.texts([str(tmp_path)], read, recursive=True)]
    assert names == ["a.yaml", "b.yaml", "c.yaml"]
    with pytest.raises(InputInvalid, match=r"twice, expected each file once"):
        bundle.texts([str(tmp_path), str(tmp_path / "a.yaml")], read)


@pytest.mark.parametrize(
    ("name", "pipe"),
    [
        ("kustomization_yaml", "kustomize build {folder} | farmctl apply -f - --app APP"),
        ("Chart_yaml", "helm template --no-hooks shop {folder} | farmctl apply -f - --app APP"),
    ],
)
def test_a_folder_that_another_tool_renders_prints_the_pipe(tmp_path: Path, name: str, pipe: str) -> None:
    folder = tmp_path / "shop"
    write(folder, **{name: "x", "a_yaml": "a"})
    with pytest.raises(InputInvalid) as refused:
        bundle.texts([str(folder)], read)
    assert refused.value.fields["hint"] == pipe.format(folder=folder)
