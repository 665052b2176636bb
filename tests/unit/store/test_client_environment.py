"""``CONSUL_*`` as Consul's own tools read them; what cannot be meant is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from store.consul.environment import Address, token_source
from store.consul.transport import connect
from store.errors import CredentialInvalid, InputInvalid
from tests.credentials import BAD, mend, spoil
from tests.virtual import VirtualClock


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:8500"),
        ("10.0.0.1:8501", "http://10.0.0.1:8501"),
        ("consul.service", "http://consul.service:80"),
        ("http://consul.service", "http://consul.service:80"),
        ("https://consul.service", "https://consul.service:443"),
        ("https://consul.service:8501/", "https://consul.service:8501"),
        ("https://gate/consul/", "https://gate:443/consul"),
        ("[::1]:8500", "http://[::1]:8500"),
        ("::1", "http://[::1]:80"),
        ("http://[fe80::2]:9", "http://[fe80::2]:9"),
    ],
)
def test_addresses_that_consuls_own_tools_accept(text: str, url: str) -> None:
    assert Address.from_environment({"CONSUL_HTTP_ADDR": text}).url == url


def test_unix_socket() -> None:
    address = Address.from_environment({"CONSUL_HTTP_ADDR": "unix:///run/consul.sock"})
    assert address.unix_path == "/run/consul.sock"
    assert str(address) == "unix:///run/consul.sock"


def test_tls_over_a_unix_socket_is_refused_and_not_dropped() -> None:
    env = {"CONSUL_HTTP_ADDR": "unix:///run/consul.sock", "CONSUL_HTTP_SSL": "true"}
    with pytest.raises(InputInvalid, match=r"^CONSUL_HTTP_SSL: "):
        Address.from_environment(env)


def test_a_flag_wins_over_the_environment() -> None:
    assert Address.from_environment({"CONSUL_HTTP_ADDR": "a:1"}, "b:2").url == "http://b:2"


@pytest.mark.parametrize("found", ["1", "true", "TRUE"])
def test_tls_asked_for_is_never_dropped(found: str) -> None:
    env = {"CONSUL_HTTP_ADDR": "http://a:1", "CONSUL_HTTP_SSL": found}
    assert Address.from_environment(env).url == "https://a:1"


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ("CONSUL_HTTP_ADDR", "ftp://a"),
        ("CONSUL_HTTP_ADDR", "a:port"),
        ("CONSUL_HTTP_ADDR", "a:70000"),
        ("CONSUL_HTTP_ADDR", "http://"),
        ("CONSUL_HTTP_ADDR", "unix://relative"),
        ("CONSUL_HTTP_ADDR", "two words:1"),
        ("CONSUL_HTTP_ADDR", "[::1"),
        ("CONSUL_HTTP_SSL", "yes"),
        ("CONSUL_HTTP_SSL_VERIFY", "no"),
    ],
)
def test_bad_values_are_one_line_with_variable_found_and_expected(variable: str, found: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        Address.from_environment({variable: found})
    assert caught.value.message.startswith(f"{variable}: found ")
    assert ", expected " in caught.value.message
    assert "\n" not in caught.value.message


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(InputInvalid) as caught:
        Address.from_environment({"CONSUL_HTTP_ADDR": "http://ann:hunter2@host:8500"})
    assert "hunter2" not in f"{caught.value.message} {caught.value.fields}"


@pytest.mark.parametrize("half", ["CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY"])
def test_half_a_client_certificate_names_the_missing_half(half: str) -> None:
    other = ({"CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY"} - {half}).pop()
    with pytest.raises(InputInvalid, match=f"^{other}: "):
        Address.from_environment({half: "/x.pem"})


# -- tokens ------------------------------------------------------------------------------------
def test_no_token_and_a_plain_one() -> None:
    assert token_source({}) is None
    source = token_source({"CONSUL_HTTP_TOKEN": "t-1"})
    assert source is not None
    assert source() == "t-1"


def test_a_token_file_wins_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    source = token_source({"CONSUL_HTTP_TOKEN": "other", "CONSUL_HTTP_TOKEN_FILE": str(path)})
    assert source is not None
    assert source() == "first"
    replacement = tmp_path / "new"
    replacement.write_text("second\n")
    replacement.replace(path)
    assert source() == "second"


@pytest.mark.parametrize("how", BAD)
def test_whatever_stands_in_a_token_file_its_holder_waits_or_keeps_the_last_good_one(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "token"
    source = token_source({"CONSUL_HTTP_TOKEN_FILE": str(path)})
    assert source is not None
    spoil(path, how)
    with capture_logs() as told:
        for _ in range(3):
            with pytest.raises(
                CredentialInvalid, match=r"^CONSUL_HTTP_TOKEN_FILE: found .*token.*, expected a "
            ) as bad:
                source()
        assert "\n" not in bad.value.message
        mend(path, "first\n")
        assert source() == "first"
        spoil(path, how)
        assert [source(), source()] == ["first", "first"]
        mend(path, "second")
        assert source() == "second"
    events = [line["event"] for line in told]
    assert events == ["credential.invalid", "credential.good_again"] * 2, "each trouble is told once"
    assert "s3cret" not in str(told)


@pytest.mark.parametrize("variable", ["CONSUL_HTTP_TOKEN", "CONSUL_NAMESPACE", "CONSUL_PARTITION"])
@pytest.mark.parametrize("found", ["one\nanother", "one\0", "\u20ac", "\udcff"])
def test_what_cannot_go_into_a_header_is_refused_at_the_start(variable: str, found: str) -> None:
    with pytest.raises(InputInvalid, match=f"^{variable}: found "):
        connect({variable: found}, VirtualClock())
