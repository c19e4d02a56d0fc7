"""What counts as one host where something is bounded by address.

INV-PAD1  an IPv6 address counts by its network of 64 bits, which is what one host has; an IPv4 one by itself, also where it comes over IPv6
Pure. Not here: the bounds.
"""

from ipaddress import IPv6Address


def network_of(host: str) -> str:
    """Return what a host is counted by; a text that is no address is what it is."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return f"{int(address) >> 64:x}::/64" if mapped is None else str(mapped)
