"""The job of a start: a starter chooses declared values and nothing else."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.commands.difference import fields
from farmd.jobs.commands import JobSpec
from farmd.jobtemplates.commands import FILE, job_of
from store.errors import InputInvalid, RecordInvalid
from store.jobtemplates import MAX_NAME, JobStart, JobTemplate, Parameter, StartKey, place
from store.keys import Keys

KEYS = Keys()
POD: dict[str, Any] = {
    "id": "resize",
    "command": ["resize"],
    "env": {"WIDTH": "${param.width}", "MODE": "x-${param.mode}"},
}
PARAMETERS: dict[str, Any] = {
    "width": {"type": "integer", "required": True},
    "mode": {"default": "fit", "choices": ["fit", "fill"]},
}


def document(pod: Any = None, **fields: Any) -> dict[str, Any]:
    job = {"types": [{"name": "w", "restart": "never", "pod": pod or POD}]}
    return {"name": "resize", "parameters": PARAMETERS, "job": job, **fields}


def template(pod: Any = None, **fields: Any) -> JobTemplate:
    return FILE.build(FILE.parse(document(pod, **fields), "t.yaml"), "01")


def made(of: JobTemplate, start: JobStart) -> JobSpec:
    found: JobSpec = job_of(of, "resize-0", "job", start)
    return found


def container(**fields: Any) -> dict[str, Any]:
    return {"id": "resize", "runtime": "container", "container": {"image": "resize:1"}, **fields}


def test_values_and_defaults_stand_where_the_template_uses_them() -> None:
    env = made(template(), JobStart(params={"width": "320"})).types[0].pod.env
    assert env == {"WIDTH": "320", "MODE": "x-fit"}


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, "params.width: found no value, expected one: --param width=VALUE"),
        ({"width": "wide"}, "params.width: found 'wide', expected a whole number"),
        ({"width": "1e3"}, "params.width: found '1e3', expected a whole number"),
        ({"width": "٣"}, "params.width: found '٣', expected a whole number"),
        ({"width": "1", "mode": "crop"}, "params.mode: found 'crop', expected one of fit, fill"),
        ({"width": "1", "mode": ""}, "params.mode: found '', expected one of fit, fill"),
        (
            {"width": "1", "command": "reboot"},
            "params: found unknown parameter 'command', expected one of the template's: mode, width",
        ),
        ({"width": "9" * 5000}, "params.width: found 5000 bytes, expected at most 4096"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(params: dict[str, str], told: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        made(template(), JobStart(params=params))
    assert caught.value.message == told


FREE = template({**POD, "env": {"TEXT": "${param.text}"}}, parameters={"text": {}})


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_a_value_reaches_one_variable_as_it_is_or_is_refused(value: str) -> None:
    """No value becomes a field, a reference, one of farmd's variables, or another parameter."""
    plain = made(FREE, JobStart(params={"text": "x"}))
    try:
        found = made(FREE, JobStart(params={"text": value}))
    except InputInvalid:
        assert "\0" in value or "${FARMD_" in value
        return
    assert found.types[0].pod.env == {"TEXT": value}
    pod = msgspec.structs.replace(found.types[0].pod, env=plain.types[0].pod.env)
    assert msgspec.structs.replace(found, types=[msgspec.structs.replace(found.types[0], pod=pod)]) == plain


@pytest.mark.parametrize(
    "value",
    [
        "${param.mode}",
        "${input}",
        "$(reboot)",
        "`id`",
        "a\nb: c",
        "{secret: prod/key}",
        "${{x}}",
        "%s",
        "'\"",
    ],
)
def test_what_looks_like_a_use_a_shell_or_yaml_is_text(value: str) -> None:
    assert made(FREE, JobStart(params={"text": value})).types[0].pod.env == {"TEXT": value}


@pytest.mark.parametrize("value", ["${FARMD_NODE}", "a\0b"])
def test_farmds_variables_and_nul_are_refused(value: str) -> None:
    with pytest.raises(InputInvalid, match=r"params\.text"):
        made(FREE, JobStart(params={"text": value}))


def test_values_do_not_make_one_of_farmds_variables_together() -> None:
    two: dict[str, Any] = {"a": {}, "b": {}}
    of = template({**POD, "env": {"TEXT": "${FARMD_NODE} ${param.a}${param.b}"}}, parameters=two)
    params = {"a": "${FARM", "b": "D_POD}"}
    with pytest.raises(InputInvalid, match=r"params: .* expected values that do not make"):
        made(of, JobStart(params=params))
    found = made(of, JobStart(params={**params, "b": "x"}))
    assert found.types[0].pod.env == {"TEXT": "${FARMD_NODE} ${FARMx"}


# -- input -----------------------------------------------------------------------------------------------
FILES = [{"path": "/in/data", "content": "${input}"}, {"path": "/in/mode", "content": "mode=${param.mode}\n"}]
TAKES = template(
    container(files=FILES), input={"max_bytes": 8, "required": True}, parameters={"mode": {"default": "a"}}
)


@pytest.mark.parametrize("body", [b"text", b"\x00\xff\x80", "ä".encode()])
def test_the_input_is_a_file_byte_for_byte(body: bytes) -> None:
    encoded = JobStart(input=base64.b64encode(body).decode(), encoding="base64")
    data, mode = made(TAKES, encoded).types[0].pod.files
    assert (data.body, mode.body) == (body, b"mode=a\n")
    if body == b"text":
        assert made(TAKES, JobStart(input="text")) == made(TAKES, encoded)


@pytest.mark.parametrize(
    ("of", "start", "told"),
    [
        (TAKES, JobStart(), "input: found nothing, expected some: --input FILE"),
        (TAKES, JobStart(input="123456789"), "input: found 9 bytes, expected at most 8"),
        (TAKES, JobStart(input="%", encoding="base64"), "input: found another encoding, expected base64"),
        (FREE, JobStart(input="x"), "input: found 1 bytes, expected none: the template takes no input"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(of: JobTemplate, start: JobStart, told: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        made(of, start)
    assert caught.value.message.startswith(told)


def test_a_process_gets_the_input_as_a_file_byte_for_byte() -> None:
    pod = {**POD, "env": {}, "files": [{"path": "letter", "content": "${input}"}]}
    of = template(pod, parameters={}, input={})
    (file,) = made(of, JobStart(input="/wA=", encoding="base64")).types[0].pod.files
    assert file.body == b"\xff\0"
    assert "files.process" in of.needs


def test_a_process_gets_the_input_as_a_variable_if_it_is_text() -> None:
    of = template({**POD, "env": {"LETTER": "${input}"}}, parameters={}, input={})
    assert made(of, JobStart(input="dear\n")).types[0].pod.env == {"LETTER": "dear\n"}
    with pytest.raises(InputInvalid, match="expected UTF-8 text"):
        made(of, JobStart(input="/w==", encoding="base64"))


# -- templates -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (document({**POD, "command": ["${param.width}"]}), "job.types[0].pod.command[0]"),
        (document({**POD, "user": "${param.mode}"}), "job.types[0].pod.user"),
        (
            document(container(env=POD["env"]) | {"container": {"image": "x:${param.mode}"}}),
            "container.image",
        ),
        (document(container(files=[{"path": "/${param.mode}"}], env=POD["env"])), "files[0].path"),
        (
            document(container(files=[{"path": "/x", "template": "${param.mode}"}], env=POD["env"])),
            "files[0].template",
        ),
        (document({**POD, "env": {"${param.mode}": "x"}}), "job.types[0].pod.env (a name in it)"),
        (document({**POD, "env": {**POD["env"], "MORE": "${param.other}"}}), "param.other"),
        (document({**POD, "env": {"WIDTH": "${param.width}"}}), "parameters.mode: found no use"),
        (
            document({**POD, "env": {**POD["env"], "IN": "a ${input}"}}, input={}),
            "expected ${input} and nothing",
        ),
        (document({**POD, "env": {**POD["env"], "IN": "${input}"}}), "input: found nothing"),
        (document(input={}), "input: found an input that the job does not use"),
        (document(name="x" * (MAX_NAME + 1)), "at most 29"),
        (document(parameters={**PARAMETERS, "W": {}}), "1 to 40 of a-z"),
        (document(parameters={**PARAMETERS, "width": {"type": "integer", "default": "x"}}), "width.default"),
        (
            document(parameters={**PARAMETERS, "width": {"required": True, "default": 1}}),
            "expected none beside required",
        ),
        (document(job={"name": "x", "types": []}), "job.name"),
        (document(job={"parameters": {}, "types": []}), "job.parameters"),
        (document(job={"types": [{"name": "w", "pod": {"id": "x"}}]}, parameters={}), "command"),
    ],
)
def test_a_template_that_would_let_starters_choose_more_is_refused(given: Any, told: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        FILE.parse(given, "t.yaml")
    assert told in caught.value.message


def test_a_template_comes_back_as_the_file_that_made_it() -> None:
    assert FILE.parse(FILE.as_file(template()), "t.yaml") == FILE.parse(document(), "t.yaml")


# -- keys ------------------------------------------------------------------------------------------------
def test_no_two_starts_have_one_job() -> None:
    assert StartKey("a", "b-c").job != StartKey("a-b", "c").job
    assert len(StartKey("x" * MAX_NAME, "k").job) <= 40


@pytest.mark.parametrize(
    "key", ["", "a/b", "../x", ".present", "x.present", "a b", "ä", "a\n", "x" * 64, "-a", "a-", "%2e", "a\0"]
)
def test_odd_keys_are_no_starts(key: str) -> None:
    with pytest.raises(InputInvalid):
        StartKey("resize", key).checked()
    with pytest.raises(RecordInvalid):
        place(KEYS, f"{KEYS.tree('starts')}resize/{key}")


def test_a_start_is_told_from_one_that_asks_for_something_else() -> None:
    one = JobStart(params={"a": "1", "b": "2"}, by="x", at=1.0)
    assert one.digest == JobStart(params={"b": "2", "a": "1"}, by="y").digest
    assert one.digest != JobStart(params={"a": "1", "b": "3"}).digest
    assert one.digest != JobStart(params={"a": "1", "b": "2"}, input="x").digest


def test_a_changed_parameter_is_shown_as_files_have_it() -> None:
    after = msgspec.structs.replace(template(), parameters={"width": Parameter(type="number")})
    _, shown = fields(template(), after, {})
    assert shown == {"parameters": 'width={"type":"number"}'}
