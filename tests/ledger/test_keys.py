"""Keys, tenants and wire keys: only well-formed ones pass, and no two calls ever share one."""

from __future__ import annotations

import re
from enum import Enum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tollhouse.errors import InvalidKey, InvalidSetting
from tollhouse.ledger.keys import (
    DEFAULT_TENANT,
    WIRE_KEY_LENGTH_MAX,
    check_key,
    check_tenant,
    subkey,
    wire_key,
)

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}\Z", re.ASCII)
KEYS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}", fullmatch=True)
TENANTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,53}", fullmatch=True)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}", fullmatch=True)


@pytest.mark.parametrize("key", ["a", "0", "order-7:refund", "run_1:3.0", "a@b.c", "A" * 200])
def test_well_formed_keys_pass_unchanged(key: str) -> None:
    """A key is used exactly as given: no trimming, no case folding."""
    assert check_key(key) == key


def test_a_key_that_is_a_string_enum_becomes_its_text() -> None:
    """What is stored is plain text, whatever ``str()`` of the object would say."""

    class Named(str, Enum):  # noqa: UP042 - its str() is not its text, which is the point
        REFUND = "refund"

    key = check_key(Named.REFUND)
    assert type(key) is str
    assert key == "refund"


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (None, "is missing"),
        ("", "is empty"),
        (7, "of type int"),
        (b"order-7", "of type bytes"),
        ("order-7\n", "not allowed"),
        ("\norder-7", "not allowed"),
        ("order 7", "not allowed"),
        ("-order", "not allowed"),
        (":a", "not allowed"),
        ("ordér", "not allowed"),
        ("order\u0661", "not allowed"),  # a digit, but not an ASCII one
        ("\uff41", "not allowed"),
        ("a/b", "not allowed"),
        ("a\x00", "not allowed"),
        ("\ud800", "not allowed"),
        ("A" * 201, "has 201 characters"),
        ("k" * 10_240, "has 10240 characters"),
    ],
)
def test_ill_formed_keys_are_refused_with_their_fault(key: object, fault: str) -> None:
    """The error says what is wrong in one short printable sentence, however long the key was."""
    with pytest.raises(InvalidKey, match=re.escape(fault)) as caught:
        check_key(key)
    assert len(caught.value.cause) < 120
    assert caught.value.cause.isascii()
    assert caught.value.cause.isprintable()
    assert caught.value.sent == "no"


@given(st.text(max_size=210))
@example("a\n")
def test_exactly_the_documented_alphabet_passes(text: str) -> None:
    """The check and the documented pattern agree on every string."""
    if KEY.match(text):
        assert check_key(text) == text
    else:
        with pytest.raises(InvalidKey):
            check_key(text)


@pytest.mark.parametrize("tenant", [DEFAULT_TENANT, "acme", "a.b-c_d", "t" * 54])
def test_well_formed_tenants_pass(tenant: str) -> None:
    """A tenant is used exactly as given."""
    assert check_tenant(tenant) == tenant


@pytest.mark.parametrize("tenant", [None, "", 1, "a:b", "a/b", "a\n", ".a", "t" * 55, "\u00e9"])
def test_ill_formed_tenants_are_refused(tenant: object) -> None:
    """A colon most of all: it would make two tenants' wire keys meet."""
    with pytest.raises(InvalidSetting, match="tenant"):
        check_tenant(tenant)


def test_the_wire_key_is_tenant_colon_key() -> None:
    """The receiver sees the key under which the caller knows the call, after the tenant."""
    assert wire_key("default", "order-7:refund") == "default:order-7:refund"


@given(TENANTS, KEYS, TENANTS, KEYS)
@example("a", "b:c", "a.b", "c")
def test_different_calls_have_different_wire_keys(tenant: str, key: str, other: str, other_key: str) -> None:
    """Joining loses nothing, so one tenant's call can never answer for another's."""
    assert (wire_key(tenant, key) == wire_key(other, other_key)) == ((tenant, key) == (other, other_key))


@given(TENANTS, KEYS, st.lists(NAMES, min_size=2, max_size=2, unique=True))
@example("t" * 54, "k" * 200, ["a", "b"])
@example("t" * 54, "k" * 190, ["n" * 64, "n" * 63])
def test_subkeys_fit_a_header_and_stay_apart(tenant: str, key: str, names: list[str]) -> None:
    """Same wire key and name: same subkey. Another name, or no name: another key. Never more than 255 characters."""
    whole = wire_key(tenant, key)
    first, second = (subkey(whole, name) for name in names)
    assert len({whole, first, second}) == 3
    assert subkey(whole, names[0]) == first
    for sent in (whole, first, second):
        assert len(sent) <= WIRE_KEY_LENGTH_MAX
        assert re.fullmatch(r"[!-~]+", sent)


def test_a_subkey_is_never_the_wire_key_of_another_call() -> None:
    """``order-7`` with the subkey ``refund`` is not the call ``order-7:refund``."""
    assert subkey(wire_key("default", "order-7"), "refund") == "default:order-7/refund"
    with pytest.raises(InvalidKey):
        check_key("order-7/refund")


def test_a_shortened_subkey_cannot_be_written_out_by_another_call() -> None:
    """Whatever a caller names its subkeys, none equals the digest form of a longer pair."""
    shortened = subkey(wire_key("t" * 54, "k" * 200), "name")
    stem, digest = shortened.split("//")
    assert subkey(stem, digest) != shortened
    with pytest.raises(InvalidKey):
        subkey(stem, f"/{digest}")


@pytest.mark.parametrize("name", [None, "", "a/b", "a b", "a\n", "n" * 65, 3])
def test_ill_formed_subkey_names_are_refused(name: object) -> None:
    """A name is one to 64 characters of a key's alphabet."""
    with pytest.raises(InvalidKey, match="subkey"):
        subkey("default:a", name)  # type: ignore[arg-type]
