"""One node asked directly, over a connection of its own: what Kafka's client libraries for Python do not ask.

They send configs of brokers only where a broker is named, and none knows the resource that stands for all of them (KIP-226); and
of two regions they meet one, which nobody can choose. Nor do they know client quotas (KIP-546); and where users may not be listed (KIP-554), librdkafka 2.16 aborts the process. Requests and answers are written and read by kio's schemas.
Not here: what is asked for and how it is shown (`node`, `quota`, `cli.user`).
"""

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

from region_broker.cli.kafka import CONNECT_TIMEOUT_S, TIMEOUT_S
from region_broker.cli.kafka_connection import LoginFailed, opened, why_closed
from region_broker.cli.output import EXIT_AUTH, EXIT_FAILED, EXIT_UNKNOWN_OUTCOME, EXIT_USAGE, fail
from region_broker.workbench.credentials import presented

if TYPE_CHECKING:
    from kio.static.protocol import Entity

BROKER: Final = 4
SET: Final = 0
DELETE: Final = 1
CLUSTER_AUTHORIZATION_FAILED: Final = 31
_INVALID_REQUEST: Final = 42
_REQUEST_TIMED_OUT: Final = 7
_EXIT_CODES: Final = {
    _INVALID_REQUEST: EXIT_USAGE, _REQUEST_TIMED_OUT: EXIT_UNKNOWN_OUTCOME, CLUSTER_AUTHORIZATION_FAILED: EXIT_AUTH,
}  # fmt: skip
_EXACT: Final = 0
_DEFAULT: Final = 1
_LENGTH: Final = struct.Struct(">i")
_ANSWER_BYTES_MAX: Final = 16 << 20


EntityName: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) of a client quota's entity; None for the name: the default."""


class NodeError(Exception):
    """A node did not do what it was asked; `error_code`: Kafka's number, None where no answer came or it makes no sense."""

    def __init__(self, text: str, error_code: int | None = None) -> None:
        """Keep the number beside the text."""
        super().__init__(text)
        self.error_code = error_code


@dataclass(frozen=True, slots=True)
class NodeConfigEntry:
    """A config as a node tells it; `synonyms`: (value, source) of all places that say something, the one that counts first."""

    name: str
    value: str
    read_only: bool
    synonyms: tuple[tuple[str, int], ...]


def _refused(answer: Any) -> NodeError:
    """Return what a node refuses; where it sends no text, by the name of its error."""
    code = answer.error_code
    text = answer.error_message or code.name.replace("_", " ")
    if code.value == CLUSTER_AUTHORIZATION_FAILED:
        text += f": {presented().user or 'who does not log in'} may not (docs/reference/security.md: what each API needs; tidemark acl add)"
    return NodeError(text, code.value)


def fail_unreached(dead: Sequence[tuple[str, OSError | NodeError]]) -> NoReturn:
    """End the command as no node could be asked; `dead`: what came of each address."""
    reasons = "; ".join(f"{address}: {error}" for address, error in dead)
    fail(f"no node answers ({reasons}). Give its address with --bootstrap")


class NodeConnection:
    """A connection to one node; raises `OSError` where nobody listens, `NodeError` where something else does."""

    def __init__(self, address: str) -> None:
        """Connect, and ask which node answers there."""
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            raise NodeError(f"{address!r} is not host:port")
        try:
            self._socket = opened(host.strip("[]"), int(port), CONNECT_TIMEOUT_S)
        except LoginFailed as error:  # so it is at every other node
            fail(f"{address}: {error}", EXIT_AUTH)
        # Who takes the connection and says nothing is skipped as a dead one: nothing was changed yet.
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        self._correlation_id = 0
        self.address = address
        self.region_node_ids: frozenset[int] = frozenset()
        """Nodes of its region that are heard, as it told when it was met."""
        try:
            self.node_id = self._node_id()
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(TIMEOUT_S)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _node_id(self) -> int:
        from kio.schema.describe_cluster.v0 import request, response

        asked = request.DescribeClusterRequest(include_cluster_authorized_operations=False)
        answer = self._ask(asked, response.DescribeClusterResponse)
        if answer.error_code.value:
            raise _refused(answer)
        node_ids = [int(broker.broker_id) for broker in answer.brokers]
        self.region_node_ids = frozenset(node_ids)
        return self._own_id(node_ids)

    def _own_id(self, node_ids: Sequence[int]) -> int:
        """Return which of the nodes of its region answers: each tells its own configs only."""
        if len(node_ids) == 1:
            return node_ids[0]
        for node_id in node_ids:
            try:
                self.configs(str(node_id))
            except NodeError as error:
                if error.error_code != _INVALID_REQUEST:
                    raise
            else:
                return node_id
        raise NodeError(f"{self.address} is none of the nodes of its region that are heard")

    def configs(self, name: str) -> dict[str, NodeConfigEntry]:
        """Return the configs of the resource `name`, which is the node's number, or empty for all nodes."""
        from kio.schema.describe_configs.v4 import request, response
        from kio.static.primitive import i8

        resource = request.DescribeConfigsResource(
            resource_type=i8(BROKER), resource_name=name, configuration_keys=None
        )
        asked = request.DescribeConfigsRequest(
            resources=(resource,), include_synonyms=True, include_documentation=False
        )
        [result] = self._ask(asked, response.DescribeConfigsResponse).results
        if result.error_code.value:
            raise _refused(result)
        return {
            row.name: NodeConfigEntry(
                row.name, str(row.value), bool(row.read_only),
                tuple((str(each.value), int(each.source)) for each in row.synonyms),
            )
            for row in result.configs
        }  # fmt: skip

    def change(
        self, name: str, values: Mapping[str, str], gone: Sequence[str], *, dry: bool
    ) -> None:
        """Set `values` and remove `gone`, or only have it checked; raises `NodeError` where that is refused."""
        from kio.schema.incremental_alter_configs.v1 import request, response
        from kio.static.primitive import i8

        orders = [(key, SET, value) for key, value in values.items()]
        orders += [(key, DELETE, None) for key in gone]  # type: ignore[misc]
        configs = tuple(
            request.AlterableConfig(name=key, config_operation=i8(how), value=value)
            for key, how, value in orders
        )
        resource = request.AlterConfigsResource(
            resource_type=i8(BROKER), resource_name=name, configs=configs
        )
        asked = request.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry)
        [result] = self._ask(asked, response.IncrementalAlterConfigsResponse).responses
        if result.error_code.value:
            raise _refused(result)

    def quotas(
        self, entity: Mapping[str, str | None], *, strict: bool
    ) -> dict[EntityName, dict[str, float]]:
        """Return the limits of entities that name these types so, None for the default; `strict`: these types and no other."""
        from kio.schema.describe_client_quotas.v1 import request, response
        from kio.static.primitive import i8

        components = tuple(
            request.ComponentData(
                entity_type=kind, match_type=i8(_DEFAULT if name is None else _EXACT), match=name
            )
            for kind, name in entity.items()
        )
        asked = request.DescribeClientQuotasRequest(components=components, strict=strict)
        answer = self._ask(asked, response.DescribeClientQuotasResponse)
        if answer.error_code.value:
            raise _refused(answer)
        return {
            tuple((part.entity_type, part.entity_name) for part in row.entity): {
                value.key: float(value.value) for value in row.values
            }
            for row in answer.entries
        }

    def users(self) -> dict[str, dict[int, int]]:
        """Return who can log in by SCRAM: iterations by Kafka's number of the mechanism, by user."""
        from kio.schema.describe_user_scram_credentials.v0 import request, response

        asked = request.DescribeUserScramCredentialsRequest(users=None)
        answer = self._ask(asked, response.DescribeUserScramCredentialsResponse)
        if answer.error_code.value:
            raise _refused(answer)
        return {
            row.user: {int(info.mechanism): int(info.iterations) for info in row.credential_infos}
            for row in answer.results
        }

    def alter_quota(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None], *, dry: bool
    ) -> None:
        """Set limits of an entity, None removes one, or only have it checked; raises `NodeError` where that is refused."""
        from kio.schema.alter_client_quotas.v1 import request, response
        from kio.static.primitive import f64

        entry = request.EntryData(
            entity=tuple(
                request.EntityData(entity_type=kind, entity_name=name)
                for kind, name in entity.items()
            ),
            ops=tuple(
                request.OpData(key=key, value=f64(float(value or 0)), remove=value is None)
                for key, value in values.items()
            ),
        )
        asked = request.AlterClientQuotasRequest(entries=(entry,), validate_only=dry)
        [result] = self._ask(asked, response.AlterClientQuotasResponse).entries
        if result.error_code.value:
            raise _refused(result)

    def _ask(self, request: "Entity", answer_type: Any) -> Any:
        from kio.schema.request_header.v2.header import RequestHeader
        from kio.serial import entity_reader, entity_writer
        from kio.static.primitive import i16, i32

        self._correlation_id += 1
        out = io.BytesIO()
        header = RequestHeader(
            request_api_key=i16(request.__api_key__),  # type: ignore[attr-defined]
            request_api_version=i16(request.__version__),
            correlation_id=i32(self._correlation_id), client_id="tidemark",
        )  # fmt: skip
        entity_writer(RequestHeader)(out, header)
        entity_writer(type(request))(out, request)
        self._socket.sendall(_LENGTH.pack(len(out.getvalue())) + out.getvalue())
        frame = self._frame()
        try:
            told, used = entity_reader(answer_type.__header_schema__)(frame, 0)
            answer, _ = entity_reader(answer_type)(frame, used)
        except Exception as error:
            raise NodeError(f"{self.address} does not answer as Kafka does ({error!r})") from error
        if int(told.correlation_id) != self._correlation_id:
            raise NodeError(f"{self.address} answers something else than was asked")
        return answer

    def _frame(self) -> bytes:
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not 0 < size <= _ANSWER_BYTES_MAX:
            raise NodeError(
                f"{self.address} does not speak Kafka; is it the HTTP or the peer port?"
            )
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise ConnectionError(f"{self.address} closed the connection: {why_closed()}")
            found += more
        return bytes(found)


@contextmanager
def asked(bootstrap: str, what: str) -> Iterator[NodeConnection]:
    """Yield a connection to the first node that answers; end the command with `what` and the reason where something fails."""
    connection: NodeConnection | None = None
    dead: list[tuple[str, OSError | NodeError]] = []
    for address in bootstrap.split(","):
        try:
            connection = NodeConnection(address)
            break
        except (OSError, NodeError) as error:
            dead.append((address, error))
    if connection is None:
        fail_unreached(dead)
    try:
        with connection:
            yield connection
    except NodeError as error:
        fail(f"{what}: {error}", _EXIT_CODES.get(error.error_code or 0, EXIT_FAILED))
    except OSError as error:
        reason = f"the node is gone, or did not answer in time ({error}), the outcome is unknown"
        fail(f"{what}: {reason}", EXIT_UNKNOWN_OUTCOME)
