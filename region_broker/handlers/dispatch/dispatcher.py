"""From a frame to its answer: look the API up, decode, handle or forward, encode.

INV-HD4  produce requests of one connection take effect in order; those behind a failed one, not at all
INV-HD5  a node that does not lead its region's logs executes nothing that the leader must (`not_led_here`), and a Produce behind
         one that was refused so is not executed on that connection, though this node may lead by then
INV-HW1  while a request of a connection is decoded in pieces, none behind it on that connection is begun; the handler
         of the one is begun before the next is decoded, and one that writes is answered before
INV-HD7  what comes to a node that was elected and loads what it needs before it takes writes waits for that, for a while, in the
         order of its connection: a client that is refused, or whose connection is closed, backs off for longer than that lasts
INV-HD8  a node that gave up a leadership for which its metadata still name it (INV-GUP3) answers Metadata, and ends that connection: a client with no
         other one would ask it again and again, and never hear of the next leader
INV-HD9  where there are quotas each request is charged when it is answered, or ends its connection, and a Produce when it comes; the answer
         says for how long its connection is left unread. Without quotas nothing is measured
INV-HD10 of answers that list all that there is, or what a large request names, LISTINGS_AT_ONCE_MAX are made at once, while there is room in the
         memory budget: from before a large request is decoded, or a small one executed, until its answer is written. On each connection it
         is one (`wire.connection`)
INV-HD11 while a request waits on other clients nothing is kept of it but what its answer is judged and made by (`Api.kept`), and of its client's
         name as much as groups remember: it would be counted for nobody, as its bytes are handed back (INV-WQ4)
INV-HD6  what waits for a leader has been executed nowhere: who carried it out, or may have, answers it
A request is decoded and its handler begun without an await in between, so that the order in which requests start is the
order in which they take effect (C7). A request that this region, or this node of it, must not execute is forwarded whole,
once it is known to be sound. What cannot be answered closes the connection, with a text that says why and what to do. A request is served
without a task, or it was not begun: then `answer` serves it.
Not here: sockets and order of answers (`wire.server`), the APIs (their own files).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch import audited_requests
from region_broker.handlers.dispatch.answered_errors import error_names
from region_broker.handlers.dispatch.api_versions import KEY as API_VERSIONS_KEY
from region_broker.handlers.dispatch.api_versions import answer_fields, api_rows
from region_broker.handlers.dispatch.authorizing import refusal
from region_broker.handlers.dispatch.error_log import ErrorLog
from region_broker.handlers.dispatch.large_requests import decoded, decoded_in_turn
from region_broker.handlers.dispatch.listing_places import ListingPlaces
from region_broker.handlers.dispatch.not_led_here import (
    OF_PARTITIONS,
    RULES,
    Elsewhere,
    Rule,
    rule_of,
)
from region_broker.handlers.dispatch.registry import (
    Api,
    ApiTable,
    Begin,
    Fields,
    Finish,
    Written,
)
from region_broker.handlers.dispatch.request_places import RequestPlace
from region_broker.handlers.dispatch.services import (
    ForwardingFailed,
    RequestContext,
    Services,
)
from region_broker.handlers.dispatch.throttling import metered, settled
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.limits import FREE_HELD_BYTES, GROUP_NAME_BYTES_MAX, SMALL_LISTING_BYTES
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, host_of
from region_broker.security.sasl.login import BEFORE_LOGIN
from region_broker.wire.codec.answers import (
    AnswerTooLarge,
    encode_response,
    has_many_rows,
    response_pieces,
    top_level_error,
)
from region_broker.wire.codec.bounded import DecodeRefused, ManyElements
from region_broker.wire.codec.entities import request_schema
from region_broker.wire.codec.gathered import AnswerBytes
from region_broker.wire.codec.requests import decode_request
from region_broker.wire.codec.schemas import has_schema
from region_broker.wire.codec.throttle_times import parted
from region_broker.wire.connection import Incoming
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.cooperative_yield import run_yielding
from region_broker.wire.headers import HeaderError, RequestHeader, read_header
from region_broker.wire.loop_time import by_steps
from region_broker.wire.request_trace import trace_of
from region_broker.wire.server import CloseConnection
from region_broker.wire.server import Finish as FinishSlot

_PRODUCE_KEY: Final = 0
_METADATA_KEY: Final = 3
_RECORDS: Final = frozenset({_PRODUCE_KEY, 1})
"""APIs that carry records, and change nothing else: there is nothing to say of them to an audit trail."""
NO_FRAME: Final = memoryview(b"")
"""What the context of a request has that hands its bytes back while it waits: what it kept would be counted for nobody (INV-WQ4)."""
# How often who waits for a leader looks again.
ASK_AGAIN_S: Final = 0.05


@dataclass(slots=True)
class _Begun:
    """A decoded request, None once it was handed back, what is kept of it once it waits (INV-HD11).

    `held`: the order of its connection, which it keeps until it is answered.
    """

    forwards: bool
    request: Any
    rule: Rule | None
    """What becomes of it because this node does not lead; None where it does."""
    held: asyncio.Lock | None = None
    waits_until_s: float = 0.0
    """Until when it waits for somebody who can execute it, by the loop's clock; 0: not at all."""

    @property
    def is_led_elsewhere(self) -> bool:
        """Return whether only another node of the region may execute it."""
        return self.rule is not None and self.rule.what is not Elsewhere.HERE

    @property
    def is_for_here(self) -> bool:
        """Return whether this node executes it."""
        return not (self.is_led_elsewhere or self.forwards)


class _NobodyYet(Exception):
    """Nobody can execute a request now, and it may wait until somebody can (INV-HD6)."""


class Dispatcher:
    """Serves requests of all connections; hand `answer` to `wire.server.KafkaServer`."""

    def __init__(self, services: Services, table: ApiTable) -> None:
        """Serve the APIs of `table` with `services`."""
        self._services = services
        self._table = table
        self._error_log = ErrorLog(services.clock)
        self._listings = ListingPlaces(services.memory, services.clock)
        self._clock: Callable[[], float] | None = None
        self._without_task = {key: api for key, api in table.by_key.items() if api.begin}

    async def answer(self, incoming: Incoming) -> AnswerBytes | None:
        """Return header and body of the answer, or None when none is due (Produce with acks=0).

        Raises `CloseConnection` when the protocol has no other answer.
        """
        if incoming.peer.state.must_log_in and incoming.api_key not in BEFORE_LOGIN:
            raise self._not_logged_in(incoming)
        api = self._table.by_key.get(incoming.api_key)
        if api is None:
            raise CloseConnection(
                f"API {incoming.api_key} (version {incoming.version}) is not served; "
                "ApiVersions lists what is"
            )
        metrics = self._services.metrics.api(api.name)
        clock = asyncio.get_running_loop().time
        started_s = clock()
        request_bytes = len(incoming.frame)
        finished = False
        try:
            if self._services.quotas is None:
                answer = await self._serve(api, incoming)
            else:
                answer = await self._serve_metered(api, incoming)
            finished = True
        finally:
            if not finished:
                metrics.failed()
        metrics.answered(clock() - started_s, request_bytes, 0 if answer is None else len(answer))
        return answer

    async def _serve_metered(self, api: Api, incoming: Incoming) -> AnswerBytes | None:
        """Serve a request that is charged for the time that the loop works for it (INV-HD9)."""
        clock = asyncio.get_running_loop().time

        def begin() -> None:
            if incoming.meter is not None:
                incoming.meter.start(clock())

        def end() -> None:
            if incoming.meter is not None:
                incoming.meter.stop(clock())

        answered = False
        try:
            answer = await by_steps(self._serve(api, incoming), begin, end)
            answered = True
        finally:
            if not answered:
                _charge_unanswered(incoming)
        return settled(api, incoming, answer, clock())

    def _not_logged_in(self, incoming: Incoming) -> CloseConnection:
        """Return what ends a connection that asks for something before it has logged in (INV-LGI1), and record that (INV-LGI4)."""
        before, host = incoming.peer.state.login.identity, host_of(incoming.peer.address)
        who = Identity(ANONYMOUS_PRINCIPAL, host) if before is None else before
        ended = "has not logged in" if before is None else f"was {who.principal}, and its session ended"  # fmt: skip
        api = self._table.by_key.get(incoming.api_key)
        self._services.audit.refused(
            who, "request" if api is None or before is None else api.name,  # whoever has no name has one place in the trail
            reason="not-logged-in" if before is None else "session-ended",
        )  # fmt: skip
        mend = (
            "set security.protocol and sasl.mechanism in the client"
            if before is None
            else "its token, or sasl_max_reauth_ms, has ended, and a client logs in again before that, or connects anew (KIP-368)"
        )
        return CloseConnection(f"API {incoming.api_key} came from who {ended}: {mend}")

    def begin(self, incoming: Incoming, finish: FinishSlot) -> bool:
        """Serve a request without a task; `finish` gets the answer, perhaps before this returns.

        False: it is of another kind, nothing was done, use `answer`. Raises `CloseConnection`.
        """
        api = self._without_task.get(incoming.api_key)
        if api is None or incoming.version not in api.versions or incoming.peer.state.must_log_in:
            return False
        is_of_leader = not self._services.leads and RULES[api.key].what is not Elsewhere.HERE
        if is_of_leader and self._is_led_apart(api):
            is_of_leader = False  # by partition (INV-HLA1)
        elif self._goes_elsewhere(api):
            return False
        if is_of_leader and api.at_followers is None:
            return False
        if incoming.peer.state.starts is not None:
            return False
        if api.waits and len(incoming.frame) > FREE_HELD_BYTES:
            return False  # `answer` hands its bytes back (INV-WQ4)
        assert api.begin is not None
        done = self._finishing(api, incoming, finish)
        try:
            return self._begin(api, api.begin, incoming, done, is_of_leader=is_of_leader)
        except BaseException:
            self._services.metrics.api(api.name).failed()
            _charge_unanswered(incoming)
            raise
        finally:
            if incoming.meter is not None:
                incoming.meter.stop(asyncio.get_running_loop().time())

    def _begin(
        self, api: Api, begin: Begin, incoming: Incoming, finish: Finish, *, is_of_leader: bool
    ) -> bool:
        ctx, body_start = self._addressed(incoming)
        try:
            request = decode_request(api.key, incoming.version, incoming.frame[body_start:])
        except ManyElements:
            return False
        except DecodeRefused as error:
            raise _malformed(api, incoming, error) from error
        if is_of_leader and not self._serves_as_follower(api, request):
            return False
        if refusal(ctx, request, tells=False) is not None:
            return False  # INV-HAZ3: `answer` says so
        if api.key != _PRODUCE_KEY:
            return begin(ctx, request, finish)
        return _begin_in_order(begin, ctx, request, finish)

    def _finishing(self, api: Api, incoming: Incoming, finish: FinishSlot) -> Finish:
        """Return what counts a request when it is answered, then hands the answer on."""
        metrics = self._services.metrics.api(api.name)
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        clock = self._clock
        started_s = clock()
        request_bytes = len(incoming.frame)

        def done(written: Written | Exception | None) -> None:
            if written is None:
                metrics.answered(clock() - started_s, request_bytes, 0)
                if incoming.meter is not None:
                    settled(api, incoming, None, clock())
                finish(None)
                return
            if isinstance(written, Exception):
                metrics.failed()
                _charge_unanswered(incoming)
                finish(written)
                return
            if written.errors:
                self._note_errors(api, incoming, written.errors)
            answer = written.answer
            metrics.answered(clock() - started_s, request_bytes, len(answer))
            if incoming.meter is not None:
                finish(settled(api, incoming, answer, clock()))
                return
            finish(answer)

        return done

    async def _serve(self, api: Api, incoming: Incoming) -> AnswerBytes | None:
        if incoming.version not in api.versions:
            return await self._unsupported(api, incoming)
        if api.lists is None and not api.describes:
            return await self._served(api, incoming, None)
        with self._listings.of(api.name, _asker(incoming)) as place:
            return await self._served(api, incoming, place)

    async def _served(
        self, api: Api, incoming: Incoming, place: RequestPlace | None
    ) -> AnswerBytes | None:
        ctx, body_start = self._addressed(incoming)
        ctx.listing = place
        try:
            return await self._served_in(ctx, api, incoming, place, body_start)
        finally:
            ctx.leave_large()

    async def _served_in(
        self, ctx: RequestContext, api: Api, incoming: Incoming, place: RequestPlace | None, body_start: int,
    ) -> AnswerBytes | None:  # fmt: skip
        try:
            begun = await self._begun(api, ctx, incoming.frame, body_start)
        except DecodeRefused as error:
            raise _malformed(api, incoming, error) from error
        try:
            while True:
                try:
                    if place is not None and api.lists is not None:
                        begun = await self._placed(api, incoming, begun, place)
                    return await self._executed(api, ctx, incoming, begun, body_start)
                except _NobodyYet:
                    pass
                await asyncio.sleep(ASK_AGAIN_S)
                begun = self._judged(api, begun.request, begun.held, begun.waits_until_s)
        finally:
            if begun.held is not None:
                _let_begin(ctx.connection_state, begun.held)

    async def _placed(
        self, api: Api, incoming: Incoming, begun: "_Begun", place: RequestPlace
    ) -> "_Begun":
        """Have a request that is executed here, and lists much, take its place, and no other one keep it (INV-HLP1).

        Behind a wait it is judged anew: this node may not lead any more.
        """
        assert api.lists is not None, "only what lists has a place"
        lists_much = _is_large(incoming.frame) or api.lists(begun.request)
        while lists_much and begun.is_for_here:
            if place.is_taken:
                return begun
            await place.take()
            begun = self._judged(api, begun.request, begun.held, begun.waits_until_s)
        place.leave()
        return begun

    async def _executed(
        self, api: Api, ctx: RequestContext, incoming: Incoming, begun: "_Begun", body_start: int
    ) -> AnswerBytes | None:
        """Answer a request, by whoever must execute it; raises `_NobodyYet`."""
        if begun.is_led_elsewhere:
            return await self._led_elsewhere(api, ctx, incoming, begun, body_start)
        if begun.forwards:
            if self._begins_to_act():
                _may_wait(begun)
            with _in_order(api, ctx, forwards=True):
                return await self._forward(api, ctx, incoming, begun, body_start)
        if api.waits:
            incoming.hand_back()
        return await self._answered(api, ctx, incoming, begun)

    async def _answered(
        self, api: Api, ctx: RequestContext, incoming: Incoming, begun: "_Begun"
    ) -> AnswerBytes | None:
        """Execute a request here, and write its answer."""
        with _in_order(api, ctx, forwards=False):
            fields = await self._handled(api, ctx, begun)
        if fields is None:
            return None
        if isinstance(fields, Written):
            self._note_errors(api, incoming, fields.errors)
            return fields.answer
        if not isinstance(fields, bytes):
            self._note_errors(api, incoming, error_names(fields))
        answer = await _encoded(incoming, fields)
        if api.key == _METADATA_KEY and self._services.gave_up():  # INV-HD8
            raise CloseConnection(
                "this node is cut off from its region: ask another one", answer=answer
            )
        return answer

    async def _handled(
        self, api: Api, ctx: RequestContext, begun: "_Begun"
    ) -> Fields | bytes | Written | None:
        """Return the handler's answer; a disk that fails under it is an answer too, where the API has a place for it."""
        handle = partial(_handled_while_allowed, api, ctx, begun)
        try:
            if not self._services.audit.is_on or api.key in _RECORDS:
                return await handle()
            denied = refusal(ctx, begun.request)
            if denied is not None:
                return await _refused(api, ctx, begun.request, denied)
            return await audited_requests.handled(api, ctx, begun.request, handle)
        except TimeoutError:
            raise  # which Python counts among the OSErrors
        except OSError:
            code = ErrorCode.kafka_storage_error
            if api.on_error is None:
                fields = top_level_error(api.key, ctx.version, code)
            else:
                fields = await error_for_all(ctx, begun.request, code, api.on_error)
            if fields is None:
                raise
            self._error_log.disk(api.name, ctx.peer)
            return fields

    async def _begun(
        self, api: Api, ctx: RequestContext, frame: memoryview, body_start: int
    ) -> "_Begun":
        """Decode a request in the order of its connection.

        Between the return and the first await of what follows nothing else of that connection begins:
        whoever waits for the lock runs after that.
        """
        state = ctx.connection_state
        order = await _in_turn(state)
        held = None
        try:
            lists = ctx.listing is not None and api.lists is not None
            if lists and _is_large(frame) and not self._goes_elsewhere(api):
                assert ctx.listing is not None
                # What comes behind it waits as well, or this one might be decoded while that is (INV-HW1).
                order = order or await _order_of(state)
                await ctx.listing.take()
            try:
                request = decode_request(api.key, ctx.version, frame[body_start:])
                if not (api.forward and self._begins_to_act()):
                    return self._judged(api, request, None)
                order = order or await _order_of(state)
            except ManyElements:
                order = order or await _order_of(state)
                request = await decoded_in_turn(ctx, api.name, frame[body_start:])
            held = order if api.forward else None
            return self._judged(api, request, held)
        finally:
            if order is not None and held is None:
                _let_begin(state, order)

    def _goes_elsewhere(self, api: Api) -> bool:
        """Return whether requests of that kind go to another region, but for those that are this node's own."""
        return api.forward and not self._services.region.acting

    def _begins_to_act(self) -> bool:
        """Return whether this node is about to take writes (INV-HD7)."""
        services = self._services
        return not services.region.acting and services.leads and services.begins_to_act()

    def _is_led_apart(self, api: Api) -> bool:
        """Return whether an API is executed here by partition, as this node leads data groups: its gate is theirs (INV-HLA1)."""
        return self._services.leads_apart and api.key in OF_PARTITIONS

    def _judged(
        self, api: Api, request: Any, held: asyncio.Lock | None, waits_until_s: float | None = None
    ) -> "_Begun":
        """Say whose a request is that is sound: the primary region's, where this is another one, or the leading node's."""
        is_own = api.is_own is not None and api.is_own(request)
        is_own = is_own or self._is_led_apart(api)
        forwards = self._goes_elsewhere(api) and not is_own
        rule = None
        if not (self._services.leads or is_own or self._serves_as_follower(api, request)):
            rule = rule_of(api.key, request)
        if waits_until_s is None:
            waits_until_s = self._waits_until_s(api, request, is_own=is_own)
        return _Begun(forwards, request, rule, held, waits_until_s)

    def _serves_as_follower(self, api: Api, request: Any) -> bool:
        """Return whether this node, which does not lead, serves a request itself (INV-HRD2)."""
        return api.at_followers is not None and api.at_followers(self._services, request)

    def _waits_until_s(self, api: Api, request: Any, *, is_own: bool) -> float:
        """Return until when a request waits for a leader: a change does, where one of several nodes is elected."""
        if is_own or self._services.nodes.is_alone:
            return 0.0
        is_for_later = api.forward and self._begins_to_act()
        if not is_for_later and rule_of(api.key, request).what is not Elsewhere.FORWARDED:
            return 0.0
        return asyncio.get_running_loop().time() + self._services.leader_wait_s

    async def _led_elsewhere(
        self, api: Api, ctx: RequestContext, incoming: Incoming, begun: "_Begun", body_start: int
    ) -> AnswerBytes | None:
        """Answer a request while another node leads, or nobody does (INV-HD5)."""
        rule, leader = begun.rule, self._services.nodes.leader
        assert rule is not None
        if rule.what is Elsewhere.FORWARDED and leader is not None and not ctx.is_forwarded:
            return await self._forward(api, ctx, incoming, begun, body_start)
        if leader is None:
            _may_wait(begun)
        error = rule.error
        if rule.what is Elsewhere.LISTED and leader is not None:
            error = ErrorCode.none
        if api.key == _PRODUCE_KEY:
            # Before the answer is made, which gives way: this node may lead by then (INV-HD5).
            ctx.connection_state.produce_broken = True
            if begun.request.acks == 0:
                raise CloseConnection("a Produce without acks came to a node that does not lead")
        answer = await _answer_elsewhere(api, ctx, begun.request, error)
        if isinstance(answer, Written):
            self._note_errors(api, incoming, answer.errors)
            return answer.answer
        self._note_errors(api, incoming, error_names(answer))
        return await _encoded(incoming, answer)

    def _note_errors(self, api: Api, incoming: Incoming, names: Sequence[str]) -> None:
        counts = Counter(names)
        for name, count in counts.items():
            self._services.metrics.error(api.name, name, count)
        if counts:
            self._error_log.answered(api.name, counts, lambda: trace_of(incoming))

    def _addressed(self, incoming: Incoming) -> tuple[RequestContext, int]:
        """Return the context of a request, and where its body begins."""
        header = _header(incoming)
        return self._context(incoming, header.client_id), header.body_start

    def _context(self, incoming: Incoming, client_id: str | None) -> RequestContext:
        peer, waits = incoming.peer, self._table.by_key[incoming.api_key].waits
        quotas = self._services.quotas
        if quotas is not None and incoming.meter is None:
            metered(quotas, incoming, client_id, asyncio.get_running_loop().time())
        if waits and client_id is not None:
            client_id = client_id[:GROUP_NAME_BYTES_MAX]  # INV-HD11
        return RequestContext(
            services=self._services,
            connection_id=peer.connection_id,
            origin=peer.numbering.origin,
            newest_connection_id=peer.numbering.newest,
            api_key=incoming.api_key,
            version=incoming.version,
            correlation_id=incoming.correlation_id,
            client_id=client_id,
            peer=peer.address,
            connection_state=peer.state,
            waiting=peer.waiting,
            frame=NO_FRAME if waits else incoming.frame,
            meter=incoming.meter,
        )

    async def _forward(
        self, api: Api, ctx: RequestContext, incoming: Incoming, begun: "_Begun", body_start: int
    ) -> AnswerBytes | None:
        lost: Fields | None = None
        if api.waits:
            lost = await _fields_of_error(
                api, ctx, begun.request, ErrorCode.coordinator_not_available
            )
        frame_bytes = len(incoming.frame)
        _let_go_of_large(ctx, begun)

        def on_sent() -> None:
            # Not before: it waits for the connection to who executes it, and for that one to take it (INV-WQ4).
            if api.waits:
                incoming.hand_back()
            if len(incoming.frame) < frame_bytes:
                begun.request = None

        try:
            return await self._services.forward.forward(ctx, incoming.frame, on_sent)
        except ForwardingFailed as error:
            if not error.may_have_happened and begun.request is not None:
                _may_wait(begun)  # what was handed back cannot be sent again
            self._error_log.failed(api.name, f"not forwarded: {error}", lambda: trace_of(incoming))
            if api.key == _PRODUCE_KEY:
                ctx.connection_state.produce_broken = True
            body = incoming.frame[body_start:]
            fields = lost or await _forwarding_error(api, ctx, body, error)
            if fields is None:
                raise CloseConnection(f"{api.name} could not be forwarded: {error}") from error
            answer = await _encoded(ctx, fields)
            if api.key != _PRODUCE_KEY:
                return answer
            raise CloseConnection(f"a produce request failed: {error}", answer=answer) from error

    async def _unsupported(self, api: Api, incoming: Incoming) -> AnswerBytes:
        if api.key == API_VERSIONS_KEY:
            # KIP-511: version 0, so that a client from the future can read it and ask again.
            fields = answer_fields(api_rows((api,)), ErrorCode.unsupported_version)
            return encode_response(api.key, 0, incoming.correlation_id, fields)
        refusal = CloseConnection(
            f"{api.name} version {incoming.version} is not served, only "
            f"{api.versions.start} to {api.versions.stop - 1}; the client ignores ApiVersions"
        )
        if not has_schema(api.key, incoming.version):
            raise refusal
        ctx, body_start = self._addressed(incoming)
        body = incoming.frame[body_start:]
        try:
            fields_or_none = await _error_fields(api, ctx, body, ErrorCode.unsupported_version)
        except DecodeRefused as error:
            raise _malformed(api, incoming, error) from error
        finally:
            ctx.leave_large()
        if fields_or_none is None:
            raise refusal
        return await _encoded(incoming, fields_or_none)


def _asker(incoming: Incoming) -> str:
    """Return whose turn among lists a request takes: its principal's, or its network's where nobody has logged in."""
    return incoming.peer.state.identity.counted_as(host_of(incoming.peer.address))


def _is_large(frame: memoryview) -> bool:
    """Return whether a request that may list names so much that it lists, whatever it asks for: known before it is decoded."""
    return len(frame) > SMALL_LISTING_BYTES


def _charge_unanswered(incoming: Incoming) -> None:
    """Charge a request that ends its connection: who is limited may come back, and owes what it took (INV-HD9)."""
    if incoming.meter is not None:
        incoming.meter.settle(asyncio.get_running_loop().time())


async def _in_turn(state: ConnectionState) -> asyncio.Lock | None:
    """Return the order of a connection, once it is this request's turn; None where nothing is kept in order."""
    order = state.starts
    if order is not None:
        state.starts_waiting += 1
        try:
            await order.acquire()
        finally:
            state.starts_waiting -= 1
    return order


async def _order_of(state: ConnectionState) -> asyncio.Lock:
    """Let what comes on a connection from this step on wait behind this request, which holds the order that is returned."""
    assert state.starts is None, "whoever finds an order takes its turn in it"
    order = state.starts = asyncio.Lock()
    await order.acquire()  # nobody else has it: this is taken without giving way
    return order


def _let_go_of_large(ctx: RequestContext, begun: "_Begun") -> None:
    """Hold a request of many elements by its bytes only: these are sent, to one that may stand still (INV-HLR2)."""
    if ctx.is_large:
        begun.request = None
        ctx.leave_large()


def _let_begin(state: ConnectionState, order: asyncio.Lock) -> None:
    """Let the next one begin; where there is none, requests of this connection need no order any more, nor a task each."""
    order.release()
    if state.starts_waiting == 0 and state.starts is order:
        state.starts = None


def _may_wait(begun: _Begun) -> None:
    """Let a request wait that was executed nowhere, as long as it may (INV-HD6); raises `_NobodyYet`."""
    if asyncio.get_running_loop().time() < begun.waits_until_s:
        raise _NobodyYet


async def _encoded(asked: Incoming | RequestContext, fields: Fields | bytes) -> AnswerBytes:
    address = asked.api_key, asked.version, asked.correlation_id
    try:
        if isinstance(fields, bytes):
            return encode_response(*address, fields)
        if has_many_rows(fields):
            written = await run_yielding(response_pieces(*address, fields))
        else:
            written = encode_response(*address, fields)
        return parted(asked.api_key, fields, written)
    except AnswerTooLarge as error:
        raise CloseConnection(str(error)) from error


def _header(incoming: Incoming) -> RequestHeader:
    flexible = request_schema(incoming.api_key, incoming.version).flexible
    try:
        return read_header(incoming.frame, flexible=flexible)
    except HeaderError as error:
        raise CloseConnection(str(error)) from error


def _malformed(api: Api, incoming: Incoming, error: DecodeRefused) -> CloseConnection:
    return CloseConnection(
        f"a {api.name} request of version {incoming.version} is malformed: {error}"
    )


async def _error_fields(
    api: Api, ctx: RequestContext, body: memoryview, error: ErrorCode
) -> Fields | None:
    """Return an answer that carries `error` for everything asked, or None when there is no such."""
    if api.on_error is not None:
        request = await decoded(ctx, api.name, body)
        return await _fields_of_error(api, ctx, request, error)
    return top_level_error(api.key, ctx.version, error)


async def _fields_of_error(
    api: Api, ctx: RequestContext, request: Any, error: ErrorCode
) -> Fields | None:
    """Return the same for a request that is decoded."""
    if api.on_error is not None:
        return await error_for_all(ctx, request, error, api.on_error)
    return top_level_error(api.key, ctx.version, error)


@contextmanager
def _in_order(api: Api, ctx: RequestContext, *, forwards: bool) -> Iterator[None]:
    """Keep the produce requests of a connection in order while the primary region changes (INV-HD4).

    1. A producer has batches 1 and 2 under way on one connection. 2. Batch 1 is forwarded and fails: the
    primary region is dead. 3. This region takes over. 4. Batch 2 would be executed here: after a takeover a
    gap is accepted once (T22), so batch 1 would count as lost, be refused when it is sent again, and
    make the client send everything anew under another epoch. So what goes another way than a request
    before it, or follows one that failed, closes the connection: the client sends all again, in order.
    """
    if api.key != _PRODUCE_KEY:
        yield
        return
    state = ctx.connection_state
    if forwards:
        _check_order(state, others=state.produce_executed)
        state.produce_forwarded += 1
        try:
            yield
        finally:
            state.produce_forwarded -= 1
    else:
        _check_order(state, others=state.produce_forwarded)
        state.produce_executed += 1
        try:
            yield
        finally:
            state.produce_executed -= 1


def _check_order(state: ConnectionState, others: int) -> None:
    if state.produce_broken or others:
        raise CloseConnection(
            "the primary region changed under requests of this connection, or one was refused: reconnect"
        )


def _begin_in_order(begin: Begin, ctx: RequestContext, request: Any, finish: Finish) -> bool:
    """Begin a produce request in its order (see `_in_order`), which it leaves when it is answered."""
    state = ctx.connection_state
    _check_order(state, state.produce_forwarded)
    state.produce_executed += 1
    begun = False

    def done(written: Written | Exception | None) -> None:
        state.produce_executed -= 1
        finish(written)

    try:
        begun = begin(ctx, request, done)
    finally:
        if not begun:
            state.produce_executed -= 1
    return begun


async def _forwarding_error(
    api: Api, ctx: RequestContext, body: memoryview, failure: ForwardingFailed
) -> Fields | None:
    """Choose the error: one that clients retry, and that never denies what may have happened (P18)."""
    if api.key != _PRODUCE_KEY:
        return await _error_fields(api, ctx, body, _retried_error(api, ctx, failure))
    if failure.may_have_happened:
        return await _error_fields(api, ctx, body, ErrorCode.request_timed_out)
    return await _error_fields(api, ctx, body, ErrorCode.not_leader_or_follower)


def _retried_error(api: Api, ctx: RequestContext, failure: ForwardingFailed) -> ErrorCode:
    """Return the error of a request, other than Produce, that could not be forwarded."""
    rule = RULES[api.key]
    if ctx.services.nodes.is_alone or rule.what is not Elsewhere.FORWARDED:
        return ErrorCode.coordinator_not_available
    return ErrorCode.request_timed_out if failure.may_have_happened else rule.error


async def _handled_while_allowed(
    api: Api, ctx: RequestContext, begun: "_Begun"
) -> Fields | bytes | Written | None:
    """Return the handler's answer, begun in the step in which it is judged (INV-HAZ3), as it may be told at its end (INV-HAZ6)."""
    denied = refusal(ctx, begun.request)
    if denied is None:
        answering = api.handle(ctx, begun.request)
        if api.kept is not None:
            begun.request = api.kept(begun.request)  # INV-HD11
            ctx.leave_large()
        answer = await answering
        denied = refusal(ctx, begun.request) if api.waits else None
        if denied is None:
            return answer
    return await _refused(api, ctx, begun.request, denied)


async def _refused(api: Api, ctx: RequestContext, request: Any, error: ErrorCode) -> Fields:
    """Return the answer to who may not ask that."""
    if api.on_error is not None:
        return await error_for_all(ctx, request, error, api.on_error)
    fields = top_level_error(api.key, ctx.version, error)
    assert fields is not None, f"INV-HAZ3: {api.name} has no answer for who may not ask"
    return fields


async def _answer_elsewhere(
    api: Api, ctx: RequestContext, request: Any, error: ErrorCode
) -> Fields | Written:
    """Return the answer that gives everything asked one error, and says who leads where it can."""
    if api.not_here is not None:
        return await api.not_here(ctx, request, error)
    if api.on_error is not None:
        return await error_for_all(ctx, request, error, api.on_error)
    fields = top_level_error(api.key, ctx.version, error)
    assert fields is not None, f"INV-HNL1: {api.name} has no answer for a node that does not lead"
    return fields
