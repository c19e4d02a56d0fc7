"""What a node speaks on its three ports, made from its configuration once: contexts of TLS, listeners, and the network between nodes.

INV-NTL1  all ports go by one set of files, and follow it together: what changes counts for the next handshake of each
INV-NTL3  who comes by a listener meets each node that the configuration says an address of by that listener, and no other (INV-CFT3)
INV-NTL2  a node that speaks TLS to others shows a certificate of its own: of its cluster, region and node id, or it does not start; while
          it runs, one of somebody else is not taken, and the former one goes on
Not here: contexts (`security.tls`), who is told of a listener (`wire.listening`), the ports themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from idempotency.ports import Clock
from region_broker.config.exposure import warning_of
from region_broker.config.listener_places import met_by
from region_broker.config.login_relations import SASL_PROTOCOLS
from region_broker.config.node_config import ClientAuth, NodeConfig
from region_broker.config.rules import Problem, split
from region_broker.config.tls_relations import ENCRYPTED
from region_broker.ports.network import Network
from region_broker.security.certificate_ends import Urgency
from region_broker.security.failed_handshakes import FailedHandshakes
from region_broker.security.node_names import NodeName
from region_broker.security.peer_network import PeerNetwork
from region_broker.security.principal_rules import PrincipalRules, RuleError
from region_broker.security.tls import (
    ClientTls,
    ServerTls,
    TlsCollector,
    TlsFiles,
    TlsRefused,
    TlsState,
    watch,
)
from region_broker.security.tls_contents import read_contents
from region_broker.wire.listening import Listening, NoIdentity
from region_broker.wire.server import KafkaServer


@dataclass(frozen=True, slots=True)
class BoundListener:
    """A further address of the Kafka port."""

    host: str
    port: int
    listening: Listening


class NodeTls:
    """Of one node, from its start to its end."""

    def __init__(self, config: NodeConfig, network: Network, clock: Clock) -> None:
        """Read the files; raises `TlsRefused`."""
        self._clock = clock
        self._is_followed = False
        self._config = config
        self._files = files_of(config)
        self._fits: Final = partial(check_own_certificate, config)
        self._servers: dict[ClientAuth, ServerTls] = {}
        self.failed: Final = FailedHandshakes(clock)
        try:
            self._rules = PrincipalRules(config.tls_principal_mapping_rules)
        except RuleError as error:
            raise TlsRefused(f"tls_principal_mapping_rules: {error}") from error
        self.kafka: Final = self._listening(
            config.security_protocol, config.security_protocol, config.tls_client_auth
        )
        self.further: Final = [
            BoundListener(
                *split(each.bind),
                self._listening(
                    each.name, each.security_protocol, each.tls_client_auth, met_by(config, each)
                ),
            )
            for each in config.listeners
        ]
        self.http: Final = (
            self._server("requested" if config.tls_ca else "none")
            if config.http_security_protocol in ENCRYPTED
            else None
        )
        self.peer_network: Final = self._between_nodes(network)
        self.state: Final = TlsState([*self._servers.values(), *self._clients()])
        self._collector = TlsCollector(self.state, clock)

    def _server(self, client_auth: ClientAuth) -> ServerTls:
        found = self._servers.get(client_auth)
        if found is None:
            found = self._servers[client_auth] = ServerTls(self._files, client_auth, self._fits)
        return found

    def _listening(
        self, name: str, protocol: str, client_auth: ClientAuth,
        met_at: Mapping[int, tuple[str, int]] | None = None,
    ) -> Listening:  # fmt: skip
        return Listening(
            name=name,
            tls=self._server(client_auth) if protocol in ENCRYPTED else None,
            must_log_in=protocol in SASL_PROTOCOLS,
            principal_of=partial(_principal, self._rules),
            met_at=met_at,
            on_failed=self.failed.on_port("kafka"),
        )

    def _between_nodes(self, network: Network) -> Network:
        self._client: ClientTls | None = None
        config = self._config
        if config.peer_security_protocol not in ENCRYPTED:
            return network
        self._client = ClientTls(self._files, check_host=False, fits=self._fits)
        return PeerNetwork(
            network, self._server("required"), self._client, config.cluster_id, self.failed.on_port("peer")
        )  # fmt: skip

    def _clients(self) -> Iterator[ClientTls]:
        if self._client is not None:
            yield self._client

    @property
    def http_scheme(self) -> str:
        """Return what HTTP addresses of the cluster begin with: all nodes speak the same there."""
        return "http" if self.http is None else "https"

    def warning(self, *, keys: str | None = None) -> str:
        """Return what `/readyz` warns of, which makes no node unready: ports that are open, files that end, have ended, do not count yet or are refused.

        `keys`: what is wrong with those of sealed topics.
        """
        judged = self.state.judgements(self._clock.wall_ms())
        said = [warning_of(self._config)]
        said += [each.text for each in judged if each.urgency is not Urgency.FAR]
        said += [f"changed files of TLS are not taken: {why}" for why in self.state.refusals]
        said += [f"keys: {keys}"] if keys else []
        return "; ".join(filter(None, said))

    def register(self, registry: CollectorRegistry) -> None:
        """Offer what is counted, and how long certificates are good for."""
        registry.register(self.failed)
        if self.state.contexts:
            registry.register(self._collector)

    async def bind_kafka(self, server: KafkaServer, host: str, port: int) -> None:
        """Bind all addresses of the Kafka port, of which this is the first; OSError, which names the listener where it is another."""
        await server.start(host, port, self.kafka)
        for each in self.further:
            try:
                await server.start(each.host, each.port, each.listening)
            except OSError as error:
                named = f"listener {each.listening.name} at {each.host}:{each.port}"
                raise OSError(error.errno, f"{named}: {error.strerror or error}") from error

    async def run(self) -> None:
        """Follow the files, where there are any and nobody does it yet, until cancelled."""
        if self.state.contexts and not self._is_followed:
            self._is_followed = True
            try:
                await watch(self.state, self._clock)
            finally:
                self._is_followed = False  # a node that goes on as one of several follows them anew


def files_of(config: NodeConfig) -> TlsFiles:
    """Return what a configuration names."""
    return TlsFiles(config.tls_certificate, config.tls_key, config.tls_ca, config.tls_crl)


def tls_problems(
    config: NodeConfig, network: Network, clock: Clock
) -> tuple[list[Problem], list[str]]:
    """Return why TLS of a configuration cannot be spoken, and what is to be remarked of it (ends that are near). Waits for the disk."""
    try:
        tls = NodeTls(config, network, clock)
    except TlsRefused as refused:
        return [Problem("TLS", "cannot be spoken", str(refused))], []
    judged = tls.state.judgements(clock.wall_ms())
    ends = [each.text for each in judged if each.urgency is not Urgency.FAR]
    return [], [*ends, *refuses_its_own(config)]


def refuses_its_own(config: NodeConfig) -> Iterator[str]:
    """Yield what makes this node refuse certificates of its own CA: nodes mostly have the same files, so they refuse each other."""
    if config.peer_security_protocol not in ENCRYPTED:
        return
    from region_broker.security.tls_files import has_list  # noqa: PLC0415 -- INV-LEAN3
    from region_broker.security.tls_identity import are_of  # noqa: PLC0415 -- INV-LEAN3

    contents = read_contents(files_of(config))
    if contents.crl and not has_list(contents.certificate, contents.crl):
        yield (
            f"{config.tls_crl} has no CRL of the CA that has issued the certificate in {config.tls_certificate}: whoever shows a certificate of"
            " that CA, a node or a client, is refused here. Put the CRL of that CA in (beside the others), or leave tls_crl out"
        )
    if not are_of(contents.certificate, contents.ca):
        yield (
            f"the certificate in {config.tls_certificate} is of no CA that is in {config.tls_ca}: other nodes whose tls_ca is the same refuse this"
            " node, and this one refuses nodes whose certificates are of the same CA as its own. Is it the right file?"
        )


def check_own_certificate(config: NodeConfig, certificate: bytes) -> None:
    """Raise `TlsRefused` where nodes go by certificates and this one, as its file holds it, is not this node's (INV-NTL2)."""
    if config.peer_security_protocol not in ENCRYPTED:
        return
    own = NodeName(config.region, config.own_node.node_id, config.cluster_id)
    proved = _name_in(config.tls_certificate, certificate)
    if proved == own:
        return
    shown = (
        "no node"
        if proved is None
        else f"node {proved.node_id} of region {proved.region} of cluster {proved.cluster_id}"
    )
    raise TlsRefused(
        f"{config.tls_certificate} is the certificate of {shown}, and this is node {own.node_id} of region {own.region} of cluster"
        f" {own.cluster_id}: other nodes go by it. Have one issued for this node (tidemark cert issue)"
    )


def _name_in(path: str, certificate: bytes) -> NodeName | None:
    from cryptography import x509  # noqa: PLC0415 -- INV-LEAN3

    from region_broker.security.tls_identity import node_in  # noqa: PLC0415

    try:
        return node_in(x509.load_pem_x509_certificates(certificate)[0])
    except ValueError as error:
        raise TlsRefused(f"{path} holds no certificate that can be read: {error}") from error


def _principal(rules: PrincipalRules, certificate: bytes) -> str:
    from region_broker.security.tls_identity import (  # noqa: PLC0415 -- INV-LEAN3: the contexts have imported it
        NoPrincipal,
        principal_of,
    )

    try:
        return principal_of(certificate, rules)
    except NoPrincipal as error:
        raise NoIdentity(str(error)) from error
