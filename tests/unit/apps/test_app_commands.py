"""What people ask of apps: revisions are shown as farms will carry them out, and recorded first (D1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from farmd.apps import changes, commands
from farmd.apps.bundle import AppSpec, Bundle, parse
from farmd.apps.changes import noun_of, speaking
from farmd.apps.commands import Application
from farmd.apps.facts import Act, Live, Rehearsal
from farmd.apps.plan import Preview
from farmd.apps.revision import wanted
from farmd.apps.scene import naming, standing
from farmd.cli import apply_flow
from farmd.commands.mutation import Call, commit
from farmd.replication.commands import RC
from farmd.rollout.noun import ROLLOUT
from store import codec
from store.apps import KIND, MAX_ADOPTED, App, AppStore, DispatchState, Entry, TypedReference, tracker
from store.audit import AuditReader, Filter
from store.errors import Conflict, InputInvalid, Locked, NotFound
from store.locks import Holder
from store.work import Work
from tests.people import KEYS, hello, person, snapshot


def document(name: str, **fields: Any) -> str:
    return codec.encode({"apiVersion": "farmd/v1", "kind": "rc", **hello(name=name), **fields}).decode()


def bundle(*texts: str, **settings: Any) -> Bundle:
    files = [(text, f"f{number}.json") for number, text in enumerate(texts, 1)]
    return parse(files, AppSpec(**{"name": "shop", **settings}))


async def applied(
    call: Call, *texts: str, adopt: tuple[str, ...] = (), force: bool = False, **settings: Any
) -> Application:
    found = await commands.apply(call, bundle(*texts, **settings), adopt=adopt, force=force)
    found.refuse()
    await commit(call, found.mutation)
    return found


async def reach(call: Call, *entries: Any) -> None:
    """A farm reaches the wanted revision."""
    store = AppStore(call.client, KEYS)
    app = wanted(await standing(call, "shop"))
    for entry in await store.entries("shop", app.revision):
        part = noun_of(entry)
        if entry.document is None:
            continue
        wish = part.wish(entry.document, entry.ignore)
        asking = speaking(call, "apps/shop", wish)
        found = await part.find(asking, entry.ref.name)
        await commit(
            asking, await (part.create(asking, wish) if found is None else part.update(asking, wish))
        )
    state = DispatchState(
        seq=app.revision, effective=app.revision, reached=app.revision, swept=app.revision, wave=9
    )
    await call.client.put(KEYS.work(KIND, "shop"), codec.encode(Work(dispatch=state)))


def verbs(found: Application) -> list[tuple[int, str, str]]:
    return [(step, act.verb, str(act.ref)) for step, act in found.preview.acts]


def together(call: Call, keys: set[str]) -> None:
    """From now on answer for none of these keys before all are asked for."""
    asked, read = set[str](), call.client.read

    async def answer(key: str, **more: Any) -> Any:
        asked.update({key} & keys)
        while key in keys and asked != keys:
            await asyncio.sleep(0)
        return await read(key, **more)

    call.client.read = answer  # type: ignore[method-assign]


async def test_the_changes_of_many_records_are_prepared_side_by_side() -> None:
    async with person() as call:
        entries = bundle(document("web"), document("db")).entries
        await applied(call, document("web"), document("db"))
        await reach(call)
        together(call, {KEYS.name("rcs", entry.ref.name) for entry in entries})
        preview = Preview(acts=[(1, Act("remove", entry.ref, entry)) for entry in entries])
        async with asyncio.timeout(30):
            found = await changes.prepared(call, "shop", preview, {})
        assert found.keys() == {"rc/web", "rc/db"}


async def test_of_each_new_record_only_its_name_is_read_and_the_cluster_once() -> None:
    async with person() as call:
        asked, get = list[str](), call.client.get

        async def counted(key: str, **more: Any) -> Any:
            asked.append(key)
            return await get(key, **more)

        call.client.get = counted  # type: ignore[method-assign]
        names = [f"c{number}" for number in range(20)]
        found = await commands.apply(call, bundle(*map(document, names)))
        assert found.changes.keys() == {f"rc/{name}" for name in names}
        of_names = [key for key in asked if key in {KEYS.name("rcs", name) for name in names}]
        assert len(of_names) == len(names)
        assert asked.count(KEYS.cluster) <= 2


async def test_whose_files_name_an_object_is_read_of_all_apps_side_by_side() -> None:
    async with person() as call:
        await applied(call, document("web"))
        await applied(call, document("db"), name="next")
        await applied(call, document("old"), name="last")
        await call.client.delete(KEYS.tracker("last", 1))
        together(call, {KEYS.tracker(app, 1) for app in ("shop", "next", "last")})
        async with asyncio.timeout(30):
            found, unread = await naming(call, "rc/db")
        assert [(app, str(entry.ref)) for app, _, entry in found] == [("next", "rc/db")]
        assert unread == ["app 'last' has no revision 1"]


async def test_d1_a_revision_is_recorded_with_its_tracker_before_any_object_is_touched() -> None:
    async with person(reason="first") as call:
        await applied(call, document("web"), document("db"), prune=True)
        app = wanted(await standing(call, "shop"))
        assert (app.revision, app.prune) == (1, True)
        made = await AppStore(call.client, KEYS).tracker("shop", 1)
        assert (made.count, made.by, made.reason) == (2, call.actor, "first")
        assert not (await RC.records(call.client, KEYS).list()).items
        (told,) = await AuditReader(call.client, KEYS).read(Filter(kind=KIND), 5)
        assert told.action == "app.apply"
        assert told.after is not None
        assert told.after["revision"] == 1


async def test_the_preview_names_each_object_in_its_step() -> None:
    async with person() as call:
        found = await commands.apply(call, bundle(document("web", wave=1, after=["rc/db"]), document("db")))
        assert verbs(found) == [(1, "create", "rc/db"), (2, "create", "rc/web")]


async def test_the_same_files_again_write_nothing() -> None:
    async with person() as call:
        await applied(call, document("web"))
        await reach(call)
        before = await snapshot(call)
        again = await applied(call, document("web"))
        assert not again.due
        assert again.preview.same == ["rc/web"]
        assert await snapshot(call) == before


async def test_a_changed_field_is_an_update_that_says_which() -> None:
    async with person() as call:
        await applied(call, document("web"))
        await reach(call)
        found = await commands.apply(call, bundle(document("web", replicas=5)))
        assert verbs(found) == [(1, "update", "rc/web")]
        assert found.changes["rc/web"].change.after == {"replicas": 5}


async def test_a_version_of_the_files_takes_the_place_of_one_that_is_coming() -> None:
    def web(command: str, **fields: Any) -> str:
        return document("web", replicas=4, pod={"id": "web", "command": [command]}, **fields)

    async with person() as call:
        await applied(call, web("first"))
        await reach(call)
        await applied(call, web("second"))
        await reach(call)  # begins a rollout
        waits = await commands.apply(call, bundle(web("third")))
        assert (waits.superseding, list(waits.preview.waits)) == ({}, ["rc/web"])
        assert waits.preview.waits["rc/web"].endswith("puts this version in place of the one that is coming")
        found = await commands.apply(call, bundle(web("third")), supersede=True)
        assert (list(found.superseding), found.preview.waits) == (["rc/web"], {})
        assert 'pod.command: ["second"] -> ["third"]' in "\n".join(apply_flow.lines(found))
        await found.commit(call)
        rollout, _ = await ROLLOUT.records(call.client, KEYS).named("web")
        assert rollout is not None
        assert [rollout.record.to_manifest] == [found.superseding["rc/web"].change.manifest]
        new = (await RC.records(call.client, KEYS).get(rollout.record.new)).record
        assert new.manifest == rollout.record.to_manifest
        again = await commands.apply(call, bundle(web("third")), supersede=True)
        assert not again.needed
        refused = await commands.apply(
            call, bundle(web("fourth", rollout={"strategy": "availability"})), supersede=True
        )
        with pytest.raises(Conflict, match="expected rolling until the rollout is over"):
            refused.refuse()


@pytest.mark.parametrize("way", ["apply", "rollback"])
async def test_the_version_of_before_is_a_way_back_for_the_rollout(way: str) -> None:
    def web(command: str) -> str:
        return document("web", replicas=4, pod={"id": "web", "command": [command]})

    async with person() as call:

        async def back(**asked: bool) -> commands.Application:
            if way == "apply":
                return await commands.apply(call, bundle(web("first")), **asked)
            return await commands.rollback(call, "shop", 1, **asked)

        await applied(call, web("first"))
        await reach(call)
        await applied(call, web("second"))
        await reach(call)  # begins a rollout
        waits = await back()
        assert waits.superseding == {}
        assert waits.preview.waits["rc/web"].endswith("puts this version in place of the one that is coming")
        found = await back(supersede=True)
        assert "all pods go back to version" in "\n".join(apply_flow.lines(found))
        await found.commit(call)
        rollout, _ = await ROLLOUT.records(call.client, KEYS).named("web")
        assert rollout is not None
        assert rollout.record.wish == "revert"
        again = await back(supersede=True)
        assert (again.superseding, list(again.preview.waits)) == ({}, ["rc/web"])


async def test_what_left_the_files_is_carried_without_prune_and_goes_with_it() -> None:
    async with person() as call:
        await applied(call, document("web"), document("db"))
        await reach(call)
        kept = await applied(call, document("web"))
        assert kept.preview.left == ["rc/db"]
        await reach(call)
        gone = await commands.apply(call, bundle(document("web"), prune=True))
        assert verbs(gone) == [(2, "remove", "rc/db")]


async def test_an_object_of_an_app_that_is_gone_is_refused_by_that_name() -> None:
    async with person() as call:
        asking = replace(call, part_of="apps/other")
        await commit(asking, await RC.create(asking, RC.file.parse(hello(name="db"), "x")))
        found = await commands.apply(call, bundle(document("db")))
        assert found.preview.refused == {"rc/db": "belongs to app other"}


@pytest.mark.parametrize("broken", [KEYS.record("apps", "other"), KEYS.tracker("other", 1)])
async def test_an_object_of_an_app_whose_record_does_not_decode_is_refused_by_its_name(broken: str) -> None:
    async with person() as call:
        asking = replace(call, part_of="apps/other")
        await applied(call, document("db"), name="other")
        await commit(asking, await RC.create(asking, RC.file.parse(hello(name="db"), "x")))
        await call.client.put(broken, b"{")
        found = await commands.apply(call, bundle(document("db")))
        assert found.preview.refused["rc/db"].startswith("belongs to app other")


async def test_all_refusals_are_told_at_once_before_anything_is_written() -> None:
    async with person() as call:
        await commit(call, await RC.create(call, RC.file.parse(hello(name="web"), "x")))
        asking = replace(call, part_of="apps/other")
        await applied(call, document("db"), name="other")
        await commit(asking, await RC.create(asking, RC.file.parse(hello(name="db"), "x")))
        found = await commands.apply(call, bundle(document("web", replicas=9), document("db")))
        before = await snapshot(call)
        with pytest.raises(Conflict) as refused:
            found.refuse()
        assert (
            "rc/db: belongs to app other (revision 1, applied by user/ada@desk at 20" in refused.value.message
        )
        assert "rc/web: exists and differs: replicas; --adopt rc/web adopts it" in refused.value.message
        assert "\n" not in refused.value.message
        assert await snapshot(call) == before


async def test_adopt_takes_what_differs_and_what_is_equal_needs_no_word() -> None:
    async with person() as call:
        await commit(call, await RC.create(call, RC.file.parse(hello(name="web"), "x")))
        equal = await commands.apply(call, bundle(document("web")))
        assert verbs(equal) == [(1, "adopt", "rc/web")]
        differs = await commands.apply(call, bundle(document("web", replicas=9)), adopt=["rc/web"])
        assert not differs.preview.refused
        assert verbs(differs)[0] == (1, "adopt", "rc/web")
        with pytest.raises(InputInvalid, match=r"--adopt: found 'rc/wen', did you mean 'rc/web'"):
            await commands.apply(call, bundle(document("web")), adopt=["rc/wen"])


async def test_a_node_that_another_app_has_is_waited_for_by_a_persons_word_and_else_refused() -> None:
    async with person() as call:
        node = '{"apiVersion":"farmd/v1","kind":"node","name":"n1","labels":{"rack":"r1"}}'
        await applied(call, node)
        await reach(call)
        with pytest.raises(Conflict, match=r"node/n1: belongs to app shop \(revision 1, applied by"):
            await applied(call, node, name="next")
        found = await applied(call, node, name="next", adopt=("node/n1",))
        assert found.preview.waits == {
            "node/n1": "belongs to app shop: waiting until that app has released it"
        }


async def test_more_objects_are_not_adopted_by_name_than_a_record_holds() -> None:
    names = [f"a{number}" for number in range(MAX_ADOPTED + 1)]
    refs = tuple(f"rc/{name}" for name in names)
    async with person() as call:
        with pytest.raises(InputInvalid, match="--adopt: found 101 objects, expected at most 100, or all"):
            await applied(call, *map(document, names), adopt=refs)
        await applied(call, *map(document, names), adopt=refs[:MAX_ADOPTED])
        assert wanted(await standing(call, "shop")).adopt == list(refs[:MAX_ADOPTED])


async def test_a_word_that_lets_a_refused_revision_go_on_is_recorded_with_the_same_documents() -> None:
    async with person() as call:
        await applied(call, document("web"))
        assert not (await commands.apply(call, bundle(document("web")))).mutation.needed
        again = await applied(call, document("web"), adopt=("rc/web",), force=True)
        assert (again.app.revision, again.app.adopt, again.app.force) == (2, ["rc/web"], True)
        await reach(call)
        assert not (await commands.apply(call, bundle(document("web")))).mutation.needed


@pytest.mark.parametrize("prune", [True, False])
async def test_a8_an_empty_bundle_is_refused_and_nothing_is_recorded(prune: bool) -> None:
    async with person() as call:
        await applied(call, document("web"))
        await reach(call)
        before = await snapshot(call)
        with pytest.raises(
            InputInvalid,
            match="app 'shop': found no object in the files; --mass-removal --prune removes rc/web",
        ):
            await commands.apply(call, bundle(prune=prune))
        assert await snapshot(call) == before
        assert verbs(await commands.apply(call, bundle(prune=True), mass=True)) == [(1, "remove", "rc/web")]


async def test_a8_more_than_half_goes_by_a_persons_word_alone() -> None:
    async with person() as call:
        await applied(call, *(document(name) for name in ("a", "b", "c")))
        await reach(call)
        with pytest.raises(
            InputInvalid, match=r"would remove 2 objects of 3: rc/a, rc/b; farmctl apply --mass-removal"
        ):
            await commands.apply(call, bundle(document("c"), prune=True))
        found = await commands.apply(call, bundle(document("c"), prune=True), mass=True)
        assert [verb for _, verb, _ in verbs(found)] == ["remove", "remove"]


async def test_atomic_refuses_what_needs_more_than_one_transaction() -> None:
    async with person() as call:
        with pytest.raises(InputInvalid, match=r"--atomic: found changes in 2 steps, expected one step"):
            await commands.apply(call, bundle(document("a"), document("b", wave=1), atomic=True))
        many = [document(f"a{number}") for number in range(25)]
        with pytest.raises(
            InputInvalid, match=r"--atomic: found \d+ operations of \d+ bytes, expected at most 64"
        ):
            await commands.apply(call, bundle(*many, atomic=True))
        assert (await commands.apply(call, bundle(*many[:9], atomic=True))).app.atomic


async def test_atomic_refuses_as_many_objects_as_farms_do() -> None:
    many = [document(f"a{number}") for number in range(19)]  # each a manifest, a record and a name
    async with person() as call:
        with pytest.raises(InputInvalid, match=r"--atomic: found 65 operations of \d+ bytes, expected"):
            await commands.apply(call, bundle(*many, atomic=True))
        assert (await commands.apply(call, bundle(*many[:18], atomic=True))).app.atomic


async def test_atomic_refuses_more_bytes_than_farms_write_at_once() -> None:
    large = [document(f"a{number}", pod={"id": "a", "command": ["z" * 9000]}) for number in range(8)]
    async with person() as call:
        found = r"--atomic: found \d\d operations of 10\d{4} bytes, expected at most 64 of 61440 bytes"
        with pytest.raises(InputInvalid, match=found):
            await commands.apply(call, bundle(*large, atomic=True))
        assert (await commands.apply(call, bundle(*large[:4], atomic=True))).app.atomic


async def test_of_two_people_who_apply_at_once_the_second_is_told() -> None:
    async with person() as call:
        first = await commands.apply(call, bundle(document("web")))
        second = await commands.apply(call, bundle(document("db")))
        await commit(call, first.mutation)
        with pytest.raises(Conflict, match="changed since it was read; nothing was written"):
            await commit(call, second.mutation)
        assert len(await AppStore(call.client, KEYS).revisions("shop")) == 1


async def test_a_rollback_is_a_new_revision_with_the_documents_of_an_old_one() -> None:
    async with person() as call:
        await applied(call, document("web"))
        await reach(call)
        await applied(call, document("web", replicas=7))
        await reach(call)
        back = await commands.rollback(call, "shop")
        assert verbs(back) == [(1, "update", "rc/web")]
        await commit(call, back.mutation)
        store = AppStore(call.client, KEYS)
        assert (await store.tracker("shop", 3)).of == 1
        assert await store.entries("shop", 3) == await store.entries("shop", 1)
        with pytest.raises(NotFound, match="app 'shop' has no revision 9"):
            await commands.rollback(call, "shop", 9)


async def test_a_first_revision_has_none_to_go_back_to() -> None:
    async with person() as call:
        await applied(call, document("web"))
        with pytest.raises(NotFound, match="app 'shop' has no revision before 1"):
            await commands.rollback(call, "shop")


async def test_what_failed_is_recorded_anew_when_the_same_files_are_applied_again() -> None:
    async with person() as call:
        await applied(call, document("web"))
        state = DispatchState(seq=1, effective=1, refused=1, failure="no image")
        await call.client.put(KEYS.work(KIND, "shop"), codec.encode(Work(dispatch=state)))
        assert (await applied(call, document("web"))).app.revision == 2


async def test_pause_and_resume_are_words_in_the_record() -> None:
    async with person() as call:
        await applied(call, document("web"))
        await commit(call, await commands.pause(call, "shop"))
        assert wanted(await standing(call, "shop")).paused
        assert (await applied(call, document("web", replicas=4))).app.paused
        await commit(call, await commands.resume(call, "shop"))
        assert not wanted(await standing(call, "shop")).paused
        assert not (await commands.resume(call, "shop")).needed


class Seen:
    """Objects in Kubernetes as a person's login sees them, with the mark of one target."""

    async def look(self, entry: Entry) -> Live:
        return Live(ref=entry.ref, owner="apps/shop", seq=41)

    async def rehearse(self, act: Act) -> Rehearsal:
        raise AssertionError(act)


async def test_r16_a_person_goes_on_above_marks_of_which_the_apps_status_does_not_tell() -> None:
    async with person() as call:
        ref = TypedReference(api_version="v1", kind="ConfigMap", namespace="shop", name="a")
        store, made = AppStore(call.client, KEYS), tracker(1, [Entry(ref=ref, document={})])
        app = App(revision=1, needs=["kubernetes.prod"])
        await call.client.transaction([store.record("shop", made), store.want("shop", None, app)])
        with pytest.raises(Conflict, match="no farm has reported its marks, and no kubeconfig to read"):
            await commands.resume(call, "shop")
        with pytest.raises(InputInvalid, match="expected why objects with later marks belong to this app"):
            await commands.resume(call, "shop", Seen())
        await commit(call, await commands.resume(replace(call, reason="restored"), "shop", Seen()))
        assert wanted(await standing(call, "shop")).resumed == 41


async def test_release_takes_only_what_is_left() -> None:
    async with person() as call:
        await applied(call, document("web"), document("db"))
        await reach(call)
        await applied(call, document("web"))
        with pytest.raises(
            InputInvalid, match="release: found rc/web, which is in the files, expected an object that"
        ):
            await commands.release(call, "shop", ["rc/web"])
        await commit(call, await commands.release(call, "shop", ["rc/db"]))
        entries = await AppStore(call.client, KEYS).entries("shop", 3)
        assert {str(entry.ref): entry.release for entry in entries} == {"rc/web": False, "rc/db": True}


@pytest.mark.parametrize(
    ("keep", "verb", "why"),
    [(False, "remove", "its app is deleted"), (True, "release", "it stays, as set by --keep-objects")],
)
async def test_delete_marks_the_app_and_shows_what_becomes_of_its_objects(
    keep: bool, verb: str, why: str
) -> None:
    async with person() as call:
        await applied(call, document("web"))
        await reach(call)
        mutation, preview = await commands.delete(call, "shop", keep=keep)
        assert [(act.verb, str(act.ref), act.why) for _, act in preview.acts] == [(verb, "rc/web", why)]
        assert mutation.change.destructive
        await commit(call, mutation)
        assert wanted(await standing(call, "shop")).deleting == ("keep" if keep else "objects")
        for ask in (commands.pause(call, "shop"), commands.apply(call, bundle(document("web")))):
            with pytest.raises(Conflict, match="app 'shop' is being deleted"):
                await ask


async def test_r13_an_app_whose_mutation_lock_is_held_is_left_alone() -> None:
    async with person() as call:
        await applied(call, document("web"))
        holder = Holder("user", "bob@desk", "n")
        await call.client.put(KEYS.mutation_lock(KIND, "shop"), holder.value())
        for ask in (commands.pause(call, "shop"), commands.apply(call, bundle(document("web", replicas=5)))):
            with pytest.raises(Locked, match="app 'shop' is locked by user/bob@desk"):
                await ask


async def test_a_document_that_a_new_record_cannot_be_made_of_names_its_place() -> None:
    async with person() as call:
        text = document("web").replace('"replicas":3', '"labels":{}')
        with pytest.raises(InputInvalid, match=r"f1\.json:1: web: replicas: missing, expected"):
            await commands.apply(call, bundle(text))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"name": ""}, "app: missing, expected --app NAME"),
        ({"name": "A b"}, "--app: found 'A b', expected"),
        ({"history": 0}, "history: found 0, expected 1 to 100 revisions"),
        ({"deadline": 0.0}, "deadline: found 0 s, expected a time above 0"),
    ],
)
async def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], told: str) -> None:
    async with person() as call:
        with pytest.raises(InputInvalid, match=told):
            await commands.apply(call, bundle(document("web"), **settings))


def test_the_settings_of_a_bundle_are_fields_of_the_record() -> None:
    assert set(AppSpec.__struct_fields__) - {"name"} <= set(App.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, []),
        ({"artifacts": [{"source": "https://a.example/x", "sha256": "0" * 64, "to": "x"}]}, ["artifacts.1"]),
        ({"init": [{"command": ["x"]}], "after_stop": [{"command": ["x"]}]}, ["after-stop.1", "init.1"]),
        ({"limits": {"memory": "1Gi"}}, ["runtime.limits"]),
        ({"files": [{"path": "a", "template": "{{ env.A }}"}]}, ["files.process", "templates.1"]),
    ],
)
async def test_r11_an_app_needs_farms_that_know_what_the_pods_in_its_documents_need(
    fields: dict[str, Any], needs: list[str]
) -> None:
    async with person() as call:
        pod = hello()["pod"] | fields
        await applied(call, document("a", pod=pod))
        assert wanted(await standing(call, "shop")).needs == needs
        back = await commands.rollback(call, "shop", 1)
        assert back.app.needs == needs
