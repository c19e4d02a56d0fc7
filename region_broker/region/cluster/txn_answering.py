"""The leader of the main group answers those of data groups: for its coordinator, whether batches are in their transactions (ADR 53).

INV-ATA1 it answers only while it takes writes under the leader epoch of the main group that the question names, and about a log only to
         whom the metadata name as the leader of its group, under the leader epoch that the question names: another one is no leader of it
INV-ATA2 a partition joins a transaction durably before that is answered (B2)
INV-ATA3 an abort ends what was open when it was ordered, never a later transaction: it is decided by this node's copy, once that holds what
         the order speaks of (`region.transaction_desk`)
INV-ATA4 a question may name one log for as many batches as a Produce has: it is looked for, and what adds is judged by it, once
Not here: the questions (`txn_asking`), the verdicts (`txn_coordinator`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from idempotency.identity import Member, TopicName, TopicPartition
from region_broker.controller.metadata_image import MetadataImage
from region_broker.handlers.dispatch.services import TransactionService
from region_broker.region.cluster.leader_messages import (
    AbortedOpen,
    AbortOpen,
    LedLog,
    SentQuestion,
    VerifiedTransactions,
    VerifyTransactions,
    leads_apart,
    main_epoch_of,
)
from region_broker.region.peers.protocol import NOT_LEADING, PeerRefused
from region_broker.region.peers.sessions import Handlers, NodeSession
from region_broker.region.transaction_desk import OpenAt, TransactionDesk
from region_broker.wire.cooperative_yield import CooperativeYield
from txn_coordinator.connection_order import Arrival, Sender
from txn_coordinator.verdicts import TxnVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringParts:
    """What it is joined with. `acts`: whether this node takes writes for its region."""

    me: Member
    image: Callable[[], MetadataImage]
    acts: Callable[[], bool]
    clients: TransactionService
    desk: TransactionDesk


class TransactionsAnswered:
    """`serve_on` before the port is bound."""

    def __init__(self, parts: AnsweringParts) -> None:
        """Answer nobody yet."""
        self._parts = parts

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Answer leaders of data groups."""
        handlers.register(VerifyTransactions, self._on_verify)
        handlers.register(AbortOpen, self._on_abort)

    def _check(self, main_epoch: int) -> None:
        """Raise `PeerRefused` unless this node leads the main group under that leader epoch, and acts (INV-ATA1)."""
        parts = self._parts
        present = main_epoch_of(parts.image(), parts.me)
        if present != main_epoch or not parts.acts():
            raise PeerRefused(
                NOT_LEADING,
                f"node {parts.me} was asked as the leader of the main group under leader epoch {main_epoch}: its own is {present}",
            )

    async def _on_verify(
        self, session: NodeSession, message: VerifyTransactions, _attachment: memoryview
    ) -> VerifiedTransactions:
        self._check(message.main_epoch)
        asker = session.member
        verdicts: list[Sequence[TxnVerdict]] = []
        for question in message.questions:
            if question.adds and question.transactional_id is None:
                raise PeerRefused(
                    "malformed", "what adds partitions names its transaction: this names none"
                )
            if question.adds:
                verdicts.append(await self._added(asker, question))
                self._check(message.main_epoch)
            else:
                verdicts.append(self._judged(asker, question))
        named = tuple(tuple(each.name for each in found) for found in verdicts)
        return VerifiedTransactions(verdicts=named)

    def _judged(self, asker: Member, question: SentQuestion) -> list[TxnVerdict]:
        sender = Sender(question.origin, question.connection, question.newest_connection)
        places = self._places(asker, question)
        verdicts: list[TxnVerdict] = []
        for batch in question.batches:
            tp = places[batch.log]
            if tp is None:
                verdicts.append(TxnVerdict.LOADING)
                continue
            # A TV2 client's epoch says of itself what is late; only one that has no transactional id comes here.
            arrival = Arrival(sender, batch.base_sequence)
            verdicts.append(
                self._parts.clients.verify(
                    question.transactional_id, question.producer_id, question.producer_epoch, tp, arrival
                )
            )  # fmt: skip
        return verdicts

    async def _added(self, asker: Member, question: SentQuestion) -> list[TxnVerdict]:
        """Let partitions that are not in the transaction join it, together (INV-ATA2)."""
        assert question.transactional_id is not None, "INV-HPA1: what adds names its transaction"
        clients = self._parts.clients
        asked = (question.transactional_id, question.producer_id, question.producer_epoch)
        places, yielding = self._places(asker, question), CooperativeYield()
        missing: list[TopicPartition] = []
        for tp in places.values():
            await yielding.row()
            if tp is not None and clients.verify(*asked, tp) is not TxnVerdict.OK:
                missing.append(tp)
        refused: dict[TopicPartition, TxnVerdict] = {}
        if missing:
            verdict = await clients.add_partitions(*asked, missing, implicit=True)
            if verdict is not TxnVerdict.OK:
                refused = dict.fromkeys(missing, verdict)
        # All in one step: a verdict says what is so when it is told.
        verdicts = {
            log: TxnVerdict.LOADING if tp is None else refused.get(tp) or clients.verify(*asked, tp)
            for log, tp in places.items()
        }
        return [verdicts[batch.log] for batch in question.batches]

    def _places(self, asker: Member, question: SentQuestion) -> dict[LedLog, TopicPartition | None]:
        """Return `_tp_of` each log of a question, which may name one of them for very many batches, looked for once."""
        logs = dict.fromkeys(batch.log for batch in question.batches)
        return {log: self._tp_of(asker, log) for log in logs}

    def _tp_of(self, asker: Member, log: LedLog) -> TopicPartition | None:
        """Return the partition of a log that the asker leads, None where it does not, or nobody knows it."""
        image = self._parts.image()
        topic = image.topic_by_id(log.topic_id)
        if topic is None or not leads_apart(image, asker, log):
            return None
        return TopicPartition(TopicName(topic.name), log.partition)

    async def _on_abort(
        self, session: NodeSession, message: AbortOpen, _attachment: memoryview
    ) -> AbortedOpen:
        self._check(message.main_epoch)
        found: list[OpenAt] = []
        for each in message.still_open:
            tp = self._tp_of(session.member, each.log)
            if tp is None:
                return AbortedOpen(verdict=TxnVerdict.NOT_COORDINATOR.name)
            found.append(OpenAt(tp, each.first_offset, each.log_end))
        verdict = await self._parts.desk.abort_open(
            message.producer_id, message.producer_epoch, found
        )
        return AbortedOpen(verdict=verdict.name)
