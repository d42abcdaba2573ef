"""Which addresses may be visited, however they are written."""

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unify_agent.errors import UserError
from unify_agent.search.addresses import check, parse_allowed, permitted, public, resolve
from unify_agent.search.base import SearchError

LOCAL = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:0a00:1::1", "3fff::1", "5f00::1", "100::1", "fc00::1",
    "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
]  # fmt: skip
OPEN = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001:81b::200e", "64:ff9b::8.8.8.8",
        "2002:0808:0808::1", "::ffff:8.8.8.8"]  # fmt: skip
BLOCKS = [ip_network(text) for text in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
                                        "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4")]  # fmt: skip


@pytest.mark.parametrize("address", LOCAL)
def test_what_is_not_on_the_open_internet_is_not_public(address):
    assert not public(address)


@pytest.mark.parametrize("address", OPEN)
def test_what_is_on_the_open_internet_is_public(address):
    assert public(address)


inside = st.sampled_from(BLOCKS).flatmap(
    lambda block: st.integers(int(block.network_address), int(block.broadcast_address)).map(IPv4Address)
)


@given(inside)
def test_no_spelling_of_a_local_address_is_public(address):
    number = int(address)
    mapped, nat, relay = (
        IPv6Address((0xFFFF << 32) + number),
        IPv6Address((0x64FF9B << 96) + number),
        IPv6Address((0x2002 << 112) + (number << 80) + 1),
    )
    for spelling in (address, mapped, nat, relay):
        assert not public(str(spelling)), spelling


@given(st.integers(0, 2**128 - 1))
@example(1 << 125)
def test_only_unicast_or_an_inner_public_address_is_public(number):
    address = IPv6Address(number)
    if public(str(address)):
        inner = address.ipv4_mapped or address.sixtofour
        nat = IPv4Address(number & 0xFFFFFFFF) if number >> 32 == 0x64FF9B << 64 else None
        assert number >> 125 == 1 or (inner or nat) is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "127.1", "localhost",
                                  "::1", "::ffff:7f00:1"])  # fmt: skip
def test_every_form_of_this_machine_resolves_to_an_address_that_is_refused(host):
    addresses = resolve(host, 80)
    assert addresses
    with pytest.raises(SearchError, match="not a public address") as caught:
        check(host, addresses, ())
    assert caught.value.kind == "refused"


def test_one_local_address_among_public_ones_refuses_the_host():
    with pytest.raises(SearchError, match=r"mixed\.example \(10\.0\.0\.1\)"):
        check("mixed.example", ["8.8.8.8", "10.0.0.1"], ())
    check("fine.example", ["8.8.8.8", "2606:4700::1111"], ())


def test_the_user_allows_local_addresses_by_name():
    allowed = parse_allowed("127.0.0.1, 10.0.0.0/8,fd00::/8")
    assert permitted("127.0.0.1", allowed) and permitted("::ffff:10.2.3.4", allowed) and permitted("fd00::7", allowed)
    assert not permitted("127.0.0.2", allowed) and not permitted("192.168.0.1", allowed)
    assert all(permitted(address, parse_allowed("all")) for address in LOCAL)
    assert parse_allowed("") == ()
    with pytest.raises(UserError, match=r"'localhost': expected an address"):
        parse_allowed("localhost")


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "nothing.invalid", "..."])
def test_what_is_no_host_is_an_os_error(host):
    with pytest.raises(OSError):
        resolve(host, 80)
