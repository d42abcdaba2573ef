"""Which addresses may be visited: public ones, and those local ones that the user names.

What is judged is the address that a connection is made to, never how it was written: a name, `127.0.0.1`,
`2130706433`, `0x7f.1` and `[::ffff:7f00:1]` all end in the same place.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from unify_agent.errors import UserError
from unify_agent.search.base import SearchError

Network = IPv4Network | IPv6Network

_EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32",  # assignments, relays, a cloud's machine service
            "2001::/23", "3fff::/20",  # assignments (Teredo among them), documentation
        ),
    )
)  # fmt: skip
"""Ranges that Python's tables lack, or lack in some of its versions."""


def parse_allowed(names: str | Iterable[str]) -> tuple[Network, ...]:
    """Networks that may be visited although they are not public: `127.0.0.1`, `10.0.0.0/8`, ..., or `all`.

    Several in one text are separated by commas. Raises UserError for anything else.
    """
    names = names.split(",") if isinstance(names, str) else names
    found: list[Network] = []
    for name in (each.strip() for each in names):
        if name == "all":
            found += _EVERYTHING
        elif name:
            try:
                found.append(ip_network(name, strict=False))
            except ValueError:
                raise UserError(
                    f"allowed local address {name!r}: expected an address such as 127.0.0.1, a network such as "
                    "10.0.0.0/8, or all"
                ) from None
    return tuple(found)


def public(address: str) -> bool:
    """Whether a numeric address is that of a machine on the open internet.

    False for private, shared, loopback, link-local, multicast, documentation and reserved ones, whether written as
    IPv4, as IPv6, or as an IPv4 address inside an IPv6 one (mapped, NAT64, 6to4).
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or _nat64(found)
        if inner is not None:
            found = inner
        elif found not in _UNICAST:
            return False
    listed = any(found.version == network.version and found in network for network in _NOT_PUBLIC)
    return found.is_global and not found.is_multicast and not found.is_reserved and not listed


def _nat64(address: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


def permitted(address: str, allowed: Sequence[Network]) -> bool:
    """Whether a numeric address may be visited: public, or in one of the `allowed` networks."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return public(address) or any(found.version == network.version and found in network for network in allowed)


def resolve(host: str, port: int) -> list[str]:
    """The numeric addresses of a host, in the order in which to try them. Raises OSError when there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("not the name of a host") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check(host: str, addresses: Sequence[str], allowed: Sequence[Network]) -> None:
    """Raises SearchError (`refused`) when any address of a host may not be visited."""
    for address in addresses:
        if not permitted(address, allowed):
            shown = "" if address == host else f" ({address})"
            raise SearchError(
                "refused", f"{host}{shown} is not a public address; allow it by name if it is a service of yours"
            )
