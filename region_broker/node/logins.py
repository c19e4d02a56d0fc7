"""Where connections log in, made of what the configuration of a node says; nothing is made where no listener asks for logins.

Not here: what a login is (`security.sasl`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from geo_replicator.folder_life import FolderIdentity
from region_broker.config.login_relations import SASL_PROTOCOLS
from region_broker.config.node_config import NodeConfig
from region_broker.config.rules import Problem, listed
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.ports.disk import Disk
from region_broker.security.access import Access
from region_broker.security.sasl.desk import BEARER, BeginsBearers, LoginDesk, LoginSettings
from region_broker.security.sasl.tokens import SECRET_BYTES_MIN, TokenRules, TokenSecret
from region_broker.security.sasl.users_file import UnfitFile, Users, users_in

SECRET_BYTES_MAX: Final = 1 << 20


def no_folder() -> FolderIdentity | None:
    """Return None: nobody says whose folder it is."""
    return None


def logs_in(config: NodeConfig) -> bool:
    """Return whether who connects to some listener of the Kafka port must log in."""
    protocols = {config.security_protocol, *(each.security_protocol for each in config.listeners)}
    return bool(protocols & SASL_PROTOCOLS)


def login_problems(config: NodeConfig, disk: Disk) -> Iterator[Problem]:
    """Yield what a start would refuse of the files of logins."""
    for key, read in (("sasl_users_file", _file_users), ("sasl_token_secret_file", _token_secret)):
        try:
            if logs_in(config):
                read(config, disk)
        except NodeRefused as refused:
            named = f"{key} = {getattr(config, key)!r}"
            yield Problem(named, "cannot be used", str(refused).removeprefix(named).lstrip(": "))


def login_remarks(config: NodeConfig, disk: Disk) -> Iterator[str]:
    """Yield what refuses no start, and lets nobody in: a file of an issuer's keys in which there are none (an address is not asked)."""
    if not logs_in(config) or BEARER not in listed(config.sasl_mechanisms):
        return
    from region_broker.security.sasl.jwks import HTTPS, NotFetched, keys_in  # noqa: PLC0415 -- INV-LEAN3

    name = config.sasl_oauth_jwks
    if name.startswith(HTTPS):
        return
    try:
        keys_in(_read(disk, name, "sasl_oauth_jwks"))
    except (NotFetched, NodeRefused) as error:
        why = str(error).removeprefix(f"sasl_oauth_jwks = {name!r}").lstrip(": ")
        yield (
            f"sasl_oauth_jwks = {name!r} holds no keys that can be used ({why}): the node starts, and nobody logs in by OAUTHBEARER until a JSON Web"
            " Key Set of the issuer is in its place"
        )


def compose_logins(
    config: NodeConfig, ports: Ports, access: Callable[[], Access],
    identity: Callable[[], FolderIdentity | None] = no_folder,
) -> LoginDesk | None:  # fmt: skip
    """Return the desk; raises `NodeRefused` where a file that it needs cannot be used. `identity`: of this node's folder, as it is then."""
    if not logs_in(config):
        return None
    settings = LoginSettings(
        mechanisms=listed(config.sasl_mechanisms),
        max_reauth_ms=config.sasl_max_reauth_ms,
        failed_delay_ms=config.sasl_failed_delay_ms,
        file_users=_file_users(config, ports.disk),
        bearers=_bearers(config, ports),
        token_secret=_token_secret(config, ports.disk),
        token_rules=TokenRules(config.sasl_token_lifetime_max_ms, config.sasl_token_expiry_ms),
    )
    return LoginDesk(settings, access, ports.clock, ports.chance, shared=lambda: _birth(identity()))


def _birth(identity: FolderIdentity | None) -> str:
    """Return the number that was drawn when the cluster was born: its nodes know it, clients are not told (INV-SDK4)."""
    history = None if identity is None else identity.history
    return "" if history is None else history.birth_id


def _file_users(config: NodeConfig, disk: Disk) -> Users:
    """Return who is in the file of users (INV-SUF2)."""
    name = config.sasl_users_file
    if not name:
        return {}
    try:
        return users_in(_read(disk, name, "sasl_users_file"), name)
    except UnfitFile as error:
        raise NodeRefused(f"sasl_users_file = {name!r}: {error}") from error


def _bearers(config: NodeConfig, ports: Ports) -> BeginsBearers | None:
    """Return what judges tokens of OAUTHBEARER, where that is offered."""
    if BEARER not in listed(config.sasl_mechanisms):
        return None
    from region_broker.security.sasl.bearer import BearerRules  # noqa: PLC0415 -- INV-LEAN3
    from region_broker.security.sasl.bearer_login import BearerJudge  # noqa: PLC0415
    from region_broker.security.sasl.jwks import KeySource, source_of  # noqa: PLC0415

    rules = BearerRules(
        issuer=config.sasl_oauth_issuer,
        audience=config.sasl_oauth_audience,
        algorithms=listed(config.sasl_oauth_algorithms),
        principal_claim=config.sasl_oauth_principal_claim,
        skew_ms=config.sasl_oauth_clock_skew_ms,
    )
    fetch = source_of(config.sasl_oauth_jwks, config.sasl_oauth_jwks_ca, ports.disk)
    keys = KeySource(fetch, ports.clock, config.sasl_oauth_jwks_refresh_ms)
    return BearerJudge(rules, keys, ports.clock)


def _token_secret(config: NodeConfig, disk: Disk) -> TokenSecret | None:
    """Return what tokens are derived from; white space around it counts for nothing, as editors leave some."""
    name = config.sasl_token_secret_file
    if not name:
        return None
    secret = _read(disk, name, "sasl_token_secret_file").strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise NodeRefused(
            f"sasl_token_secret_file = {name!r} has {len(secret)} bytes, and {SECRET_BYTES_MIN} are the fewest that nobody guesses:"
            " openssl rand -base64 48 makes some; all nodes of all regions need the same"
        )
    return TokenSecret(secret)


def _read(disk: Disk, name: str, key: str) -> bytes:
    """Return what a file holds that a key names; raises `NodeRefused`."""
    path = Path(name)
    try:
        if disk.file_size(path) > SECRET_BYTES_MAX:
            raise NodeRefused(f"{key} = {name!r} has over {SECRET_BYTES_MAX} bytes: is it the right file?")  # fmt: skip
        return disk.read_file(path)
    except OSError as error:
        raise NodeRefused(
            f"{key} = {name!r} cannot be read ({error.strerror}): see that it is there, and that the user of this node may read it"
        ) from error
