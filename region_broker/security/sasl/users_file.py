"""Users that one node knows by a file (`sasl_users_file`): the first ones of a cluster, and the way back in.

INV-SUF1  a user who has keys in the metadata is known by those alone, whatever the file says: a password that was changed is changed
INV-SUF2  a file that is there and not right keeps the node from starting: nobody is to find out later that the way back in is shut
A line is what `tidemark user keys NAME` prints (`scram_keys`); empty lines, and those that begin with `#`, count for nothing.
Not here: who asks for keys (`desk`).
"""

from collections.abc import Mapping
from typing import Final

from region_broker.security.access import ScramKeys
from region_broker.security.sasl.scram_keys import UnfitKeys, keys_in

FILE_USERS_MAX: Final = 1_000
Users = Mapping[tuple[str, str], ScramKeys]


class UnfitFile(ValueError):
    """A file that cannot be used; the text says where, and what to do."""


def users_in(content: bytes, name: str) -> Users:
    """Return keys by (user, mechanism); raises `UnfitFile`."""
    try:
        lines = content.decode(
            "utf-8-sig"
        ).splitlines()  # some editors begin a file with a mark that nobody sees
    except UnicodeDecodeError as error:
        raise UnfitFile(f"{name} is no UTF-8 text") from error
    users: dict[tuple[str, str], ScramKeys] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            keys = keys_in(line)
        except UnfitKeys as error:
            raise UnfitFile(
                f"line {number} of {name}: {error}: make it by tidemark user keys NAME"
            ) from error
        if (keys.user, keys.mechanism) in users:
            raise UnfitFile(f"line {number} of {name} is for a user and mechanism that a line above it is for: remove one")  # fmt: skip
        users[keys.user, keys.mechanism] = keys
    if len(users) > FILE_USERS_MAX:
        raise UnfitFile(f"{name} has {len(users)} lines of keys, over {FILE_USERS_MAX}: keep users in the metadata (tidemark user create)")  # fmt: skip
    return users
