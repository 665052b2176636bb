"""R32: what a signature says, who is trusted, and which starts follow from that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from farmd.signing import keys, trust
from farmd.signing.trust import Allowed, Question, Refused, Trusted, judge
from store import codec, revocations, signatures
from store.entry import Entry
from store.errors import CredentialInvalid, InputInvalid, RecordInvalid
from store.keys import Keys
from store.revocations import Revocation, Revoked
from store.signatures import LONGEST, Signature, Statement, covers, payload

# RFC 8032, 7.1, tests 1 and 2: seeds and public keys.
SEED, PUBLIC = (
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
)
SEED_2, PUBLIC_2 = (
    "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
    "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
)
ALICE = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SEED))
BOB = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SEED_2))
DIGEST, OTHER = "a" * 64, "b" * 64
BEGINS, ENDS, DAY = 1_000_000, 2_000_000, 86_400
SAID = Statement(DIGEST, "rcs/web", BEGINS, ENDS)
SIGNED = keys.sign(ALICE, SAID)
TRUST = [Trusted("alice", PUBLIC, ("rcs/web", "jobs/*"), ("edge-*",))]
ASKED = Question(DIGEST, "rcs/web", "edge-1", "web", "web", now=1_500_000.0)
# What a signature of test key 1 over SAID is, for as long as farmd knows signatures.
PINNED = (
    "aa4e536639c88bd1021f47855ceac5c292b8da0a70bada95eb4d94eaaa006f9b"
    "93803707f76559c12e32a65f8cb17d2386e6cb7fc8106c220e666796ea098306"
)


def test_keys_are_those_of_the_standard() -> None:
    assert (keys.public_of(ALICE), keys.public_of(BOB)) == (PUBLIC, PUBLIC_2)


def test_what_is_signed_never_changes_between_versions() -> None:
    assert payload(SAID) == f"farmd manifest 1\n{DIGEST}\nrcs/web\n1000000\n2000000\n".encode()
    assert SIGNED.signature == PINNED


BOUND = replace(SAID, cluster="3f5e")


def test_version_2_names_the_cluster_and_never_changes_either() -> None:
    assert payload(BOUND) == f"farmd manifest 2\n{DIGEST}\nrcs/web\n1000000\n2000000\n3f5e\n".encode()
    assert not keys.genuine(replace(SIGNED, statement=BOUND))
    assert not keys.genuine(replace(keys.sign(ALICE, BOUND), statement=SAID))


@pytest.mark.parametrize(
    ("said", "bound", "reason"),
    [
        (BOUND, False, ""),
        (BOUND, True, ""),
        (SAID, False, ""),
        (SAID, True, "the signature by alice names no cluster, but agent.trust requires one"),
        (replace(BOUND, cluster="77aa"), False,
         "the signature by alice is for cluster 77aa, not for this one"),
    ],
)  # fmt: skip
def test_version_2_holds_in_its_cluster_alone_and_version_1_unless_trust_says_bound(
    said: Statement, bound: bool, reason: str
) -> None:
    trusted = [Trusted("alice", PUBLIC, ("*",), ("*",), bound)]
    asked = Question(DIGEST, "rcs/web", "edge-1", "web", "web", now=1_500_000.0, cluster="3f5e")
    decision = judge(asked, [keys.sign(ALICE, said)], trusted)
    expected = Refused(f"{reason}: manifest {DIGEST[:12]} for rcs/web") if reason else Allowed("alice", ENDS)
    assert decision == expected


@pytest.mark.parametrize("again", [False, True])
def test_what_began_before_a_revocation_starts_nothing_and_what_is_signed_after_it_does(again: bool) -> None:
    revoked = Revoked({(DIGEST, "rcs/web"): BEGINS + 1})
    asked = Question(DIGEST, "rcs/web", "edge-1", "web", "web", now=1_500_000.0, again=again)
    expected = f"the signature by alice was revoked: manifest {DIGEST[:12]} for rcs/web"
    assert judge(asked, [SIGNED], TRUST, revoked) == Refused(expected)
    later = keys.sign(ALICE, replace(SAID, begins=BEGINS + 1))
    assert isinstance(judge(asked, [SIGNED, later], TRUST, revoked), Allowed)
    other = Revoked({(DIGEST, "rcs/shop"): ENDS, (OTHER, "rcs/web"): ENDS})
    assert isinstance(judge(asked, [SIGNED], TRUST, other), Allowed)


@given(st.integers(0, 2**33), st.integers(0, 2**33))
def test_a_revocation_lasts_as_long_as_any_signature_that_it_revokes(begins: int, ends: int) -> None:
    revocation = Revocation(statement=Statement(DIGEST, "rcs/web", 0, ends))
    last = begins + LONGEST  # of a signature that begins then
    covered = revocations.revoked([revocation]).covers(Statement(DIGEST, "rcs/web", begins, last))
    assert not (covered and revocation.over(last))


names = st.from_regex(r"[a-z]{1,6}/[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
statements = st.builds(
    lambda digest, owner, begins, length: Statement(digest, owner, begins, begins + length),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    names,
    st.integers(0, 2**33),
    st.integers(1, LONGEST),
)


@given(statements)
def test_no_two_statements_have_the_same_bytes(said: Statement) -> None:
    head, digest, owner, begins, ends, end = payload(said).decode().split("\n")
    assert (head, end) == ("farmd manifest 1", "")
    assert Statement(digest, owner, int(begins), int(ends)) == said


@given(statements, st.data())
def test_a_signature_of_one_statement_is_none_of_another(said: Statement, data: st.DataObject) -> None:
    signed = keys.sign(ALICE, said)
    assert keys.genuine(signed)
    other = data.draw(statements.filter(lambda each: each != said))
    assert not keys.genuine(replace(signed, statement=other))


@given(st.integers(0, 511))
def test_a_signature_with_one_changed_bit_is_false(bit: int) -> None:
    value = bytearray.fromhex(SIGNED.signature)
    value[bit // 8] ^= 1 << bit % 8
    assert not keys.genuine(replace(SIGNED, signature=value.hex()))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (replace(SAID, digest="a" * 63), "digest: found '"),
        (replace(SAID, digest="A" * 64), "digest: found '"),
        (replace(SAID, owner="web"), "owner: found 'web', expected FAMILY/NAME of an owner of pods"),
        (replace(SAID, owner="rcs/web\n1"), "owner: found "),
        (replace(SAID, owner="rcs/../x"), "owner: found "),
        (replace(SAID, ends=BEGINS), "ends: found 0 s, expected 1 to "),
        (replace(SAID, ends=BEGINS + LONGEST + 1), "ends: found "),
    ],
)
def test_what_cannot_be_a_statement_is_never_signed(said: Statement, error: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        keys.sign(ALICE, said)
    assert caught.value.message.startswith(error)


def test_a_signed_start_is_allowed_until_the_signature_ends() -> None:
    assert judge(ASKED, [SIGNED], TRUST) == Allowed("alice", ENDS)


def test_the_signature_that_lasts_longest_counts() -> None:
    longer = keys.sign(ALICE, replace(SAID, ends=ENDS + DAY))
    assert judge(ASKED, [SIGNED, longer], TRUST) == Allowed("alice", ENDS + DAY)


FALSE = replace(SIGNED, signature=SIGNED.signature[:-2] + "00")


@pytest.mark.parametrize(
    ("asked", "found", "lines", "reason"),
    [
        (ASKED, [], TRUST, "nobody signed it"),
        (ASKED, [FALSE], TRUST, "the signature by key {id} is false"),
        (ASKED, [replace(SIGNED, signature="zz")], TRUST, "the signature by key {id} is false"),
        (ASKED, [replace(SIGNED, signature="")], TRUST, "the signature by key {id} is false"),
        (
            ASKED,
            [replace(SIGNED, statement=replace(SAID, ends=ENDS + 1))],
            TRUST,
            "the signature by key {id} is false",
        ),
        (Question(OTHER, "rcs/web", "edge-1", "web", "web", 1_500_000.0), [SIGNED], TRUST,
         "it is signed for another manifest"),
        (Question(DIGEST, "rcs/shop", "edge-1", "web", "web", 1_500_000.0), [SIGNED], TRUST,
         "it is signed for rcs/web only"),
        (Question(DIGEST, "daemonsets/web", "edge-1", "web", "web", 1_500_000.0), [SIGNED], TRUST,
         "it is signed for rcs/web only"),
        (ASKED, [SIGNED], [], "key {id} is not trusted here"),
        (ASKED, [keys.sign(BOB, SAID)], TRUST, "key {other} is not trusted here"),
        (ASKED, [replace(keys.sign(BOB, SAID), key=PUBLIC)], TRUST, "the signature by key {id} is false"),
        (ASKED, [SIGNED], [Trusted("alice", PUBLIC, ("rcs/shop",), ("*",))],
         "key {id} may not sign for rcs/web"),
        (Question(DIGEST, "rcs/web", "db-1", "web", "web", 1_500_000.0), [SIGNED], TRUST,
         "alice may not deploy to db-1"),
        (Question(DIGEST, "rcs/web", "edge-1", "web", "web", float(ENDS)), [SIGNED], TRUST,
         "the signature by alice has expired"),
        (Question(DIGEST, "rcs/web", "edge-1", "web", "web", BEGINS - 301.0), [SIGNED], TRUST,
         "the signature by alice is not valid yet by this node's clock"),
    ],
)  # fmt: skip
def test_every_other_start_is_refused(
    asked: Question, found: list[Signature], lines: list[Trusted], reason: str
) -> None:
    reason = reason.format(id=signatures.key_id(PUBLIC), other=signatures.key_id(PUBLIC_2))
    expected = f"{reason}: manifest {asked.digest[:12]} for {asked.owner}"
    assert judge(asked, found, lines) == Refused(expected)


def test_a_pod_that_started_before_starts_again_after_its_signature_ended() -> None:
    late = Question(DIGEST, "rcs/web", "edge-1", "web", "web", ENDS + 1.0, again=True)
    assert isinstance(judge(late, [SIGNED], TRUST), Allowed)


@pytest.mark.parametrize(
    ("owner", "instance", "pod", "fits"),
    [
        ("rcs/web", "web", "web", True),
        ("rcs/web", "web~3", "web", True),
        ("rcs/web", "shop", "web", False),
        ("rcs/web", "web~3~4", "web", False),
        ("services/web", "web-hook~0", "web-hook", True),
        ("jobs/sum", "sum-worker-7~2", "anything", True),
        ("jobs/sum", "sum-worker-7", "anything", False),
        ("jobs/sum", "other-worker-7~2", "sum", False),
        ("jobs/sum", "web", "other", False),
    ],
)
def test_a_signed_pod_takes_no_other_instance(owner: str, instance: str, pod: str, fits: bool) -> None:
    signed = keys.sign(ALICE, replace(SAID, owner=owner))
    asked = Question(DIGEST, owner, "n1", instance, pod, now=1_500_000.0)
    decision = judge(asked, [signed], [Trusted("alice", PUBLIC, ("*",), ("*",))])
    assert isinstance(decision, Allowed) == fits


@pytest.mark.parametrize(
    ("signed", "owner", "same"),
    [
        ("rcs/web", "rcs/web", True),
        ("rcs/web", "rcs/web-0a1b2c", True),
        ("rcs/web", "rcs/web-0a1b2", False),
        ("rcs/web", "rcs/web-shop", False),
        ("rcs/web", "rcs/web-0a1b2c-0a1b2c", False),
        ("jobs/web", "rcs/web-0a1b2c", False),
        ("rcs/" + "a" * 60, "rcs/" + "a" * 56 + "-0a1b2c", True),
    ],
)
def test_the_second_controller_of_a_rollout_is_covered_by_the_name_of_the_first(
    signed: str, owner: str, same: bool
) -> None:
    assert covers(signed, owner) == same


def test_a_record_that_lies_elsewhere_than_its_content_says_is_no_signature() -> None:
    key = Keys().signature(OTHER, SIGNED.key_id, "rcs/web")
    with pytest.raises(RecordInvalid, match="found the content of"):
        signatures.decode(Keys(), Entry(key, codec.encode(SIGNED), 1))


@pytest.mark.parametrize("owner", ["rcs/../../../x", "rcs/a\0b", "rcs", "rcs/a\n"])
def test_a_record_for_no_possible_owner_is_no_signature_and_leads_to_no_reading(owner: str) -> None:
    """Its owner is part of a key that the agent reads: an error of that reading holds up the whole node."""
    forged = replace(SIGNED, statement=replace(SAID, owner=owner))
    key = Keys().signature(DIGEST, SIGNED.key_id, owner)
    with pytest.raises(RecordInvalid, match="statement: owner: found "):
        signatures.decode(Keys(), Entry(key, codec.encode(forged), 1))


# -- the trust file --------------------------------------------------------------------------------
def test_a_line_says_who_may_deploy_what_to_where(tmp_path: Path) -> None:
    path = tmp_path / "trust"
    path.write_text(f"# people\n\nalice {PUBLIC} rcs/web-*,jobs/* edge-*,db-1  # until spring\n")
    path.chmod(0o644)
    [alice] = trust.read(str(path))
    assert alice.may_deploy("rcs/web-1")
    assert alice.may_deploy("jobs/sum")
    assert not alice.may_deploy("rcs/web")
    assert alice.may_reach("edge-9")
    assert not alice.may_reach("db-10")


@pytest.mark.parametrize(
    ("text", "mode", "error"),
    [
        (f"alice {PUBLIC} *", 0o644, "line 1: found 3 words, expected name, public key, owners and nodes"),
        (
            f"alice {PUBLIC} * * later",
            0o644,
            "line 1: found 'later', expected bound or nothing behind the nodes",
        ),
        ("alice abc * *", 0o644, "line 1: found 'alice', expected public key: found 'abc', expected 64 hex"),
        (f"# a\nAlice {PUBLIC} * *", 0o644, "line 2: found 'Alice'"),
        (f"alice {PUBLIC} rcs/[a-z] *", 0o644, "line 1: found 'rcs/[a-z]', expected patterns"),
        (f"alice {PUBLIC} * *", 0o666, "found mode 0666 of"),
        (f"alice {PUBLIC} * *\n" * 1001, 0o644, "found 1001 keys, expected at most 1000"),
    ],
)
def test_a_trust_file_with_a_mistake_grants_nothing(tmp_path: Path, text: str, mode: int, error: str) -> None:
    path = tmp_path / "trust"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(CredentialInvalid) as caught:
        trust.read(str(path))
    assert error in caught.value.message


def outside(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Let something belong to somebody else; whoever may not do that becomes somebody else itself."""
    if os.geteuid():
        patch.setattr("store.own_files.os.geteuid", lambda: 54321)
    else:
        os.chown(path, 12345, -1, follow_symlinks=False)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda root, patch: outside(patch, root / "etc/trust"), "found owner "),
        (lambda root, patch: outside(patch, root / "etc"), "found owner "),
        (lambda root, _: (root / "etc").chmod(0o777), "found mode 0777 of the folder"),
        (lambda root, _: (root / "etc").chmod(0o775), "found mode 0775 of the folder"),
        (lambda root, patch: outside(patch, root / "link"), "found owner "),
        (lambda root, _: (root / "open").chmod(0o777), "found mode 0777 of the folder"),
        (lambda root, _: (root / "etc/trust").unlink(), "No such file"),
        (lambda root, _: (root / "etc/trust").rename(root / "etc/old") and os.mkfifo(root / "etc/trust"),
         "which is no file"),
    ],
)  # fmt: skip
def test_a_trust_file_that_others_may_change_or_replace_grants_nothing(
    tmp_path: Path,
    spoil: Callable[[Path, pytest.MonkeyPatch], object],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``link`` leads to ``open``, which leads to ``etc``, where the file is: each of them counts."""
    (tmp_path / "etc").mkdir(mode=0o755)
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "etc/trust").write_text(f"alice {PUBLIC} * *\n")
    (tmp_path / "open/etc").symlink_to("../etc")
    (tmp_path / "link").symlink_to(tmp_path / "open/etc")
    path = str(tmp_path / "link/trust")
    assert [line.name for line in trust.read(path)] == ["alice"]
    spoil(tmp_path, monkeypatch)
    with pytest.raises(CredentialInvalid) as caught:
        trust.read(path)
    assert error in caught.value.message


def test_a_folder_where_nobody_replaces_what_is_somebody_elses_is_good_enough(tmp_path: Path) -> None:
    (tmp_path / "trust").write_text(f"alice {PUBLIC} * * bound\n")
    tmp_path.chmod(0o1777)
    assert [line.bound for line in trust.read(str(tmp_path / "trust"))] == [True]


# -- key files -------------------------------------------------------------------------------------
def test_a_new_key_is_its_persons_alone_and_never_overwrites_one(tmp_path: Path) -> None:
    path = tmp_path / "alice.key"
    public = keys.generate(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.public_of(keys.load(path)) == public
    with pytest.raises(InputInvalid, match="expected a new one"):
        keys.generate(path)


@pytest.mark.parametrize(("mode", "text", "error"), [(0o644, None, "mode 0644"), (0o600, "x", "no key in")])
def test_a_key_file_that_others_read_or_that_holds_no_key_is_refused(
    tmp_path: Path, mode: int, text: str | None, error: str
) -> None:
    path = tmp_path / "alice.key"
    keys.generate(path)
    if text is not None:
        path.write_text(text)
    path.chmod(mode)
    with pytest.raises(CredentialInvalid, match=error):
        keys.load(path)
