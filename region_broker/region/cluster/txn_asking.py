"""The leader of a data group asks the coordinator, which is at the leader of the main group, about transactional batches (ADR 53).

INV-AVT1 a verdict counts only while the leader of the main group that gave it leads it under the leader epoch under which it was asked: one
         that comes later is as none
         1. A batch is verified, and the answer is on its way. 2. Another node leads the main group, and decides to abort what was open.
         3. The answer comes: it speaks of a transaction that is no more.
INV-AVT2 who waits for a verdict of a leader that is deposed hears so in the step that says it: nobody waits for an answer that cannot count
INV-AVT3 what was asked in one turn of the loop without adding anything is one message, in order; what adds partitions, which may be
         held back by the transaction before it, keeps nobody else waiting
INV-AVT4 that a producer is of a transactional id is known from verdicts that said so: it stays true, since no producer id is given out twice. Of
         `OWNERS_KNOWN_MAX` producers it is known, those who were asked for last
Without an answer the verdict is `LOADING`: clients send the batch again, as they do while a coordinator loads (C28).
Not here: what waits meanwhile (`handlers.produce.asking`), the answer (`txn_answering`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from idempotency.identity import LeaderEpoch, LogKey, Member, ProducerEpoch, ProducerId
from region_broker.controller.metadata_image import MetadataImage
from region_broker.handlers.dispatch.led_apart import OpenHere, Question
from region_broker.region.cluster.leader_lines import LeaderLines
from region_broker.region.cluster.leader_messages import (
    AbortedOpen,
    AbortOpen,
    LedLog,
    SentBatch,
    SentOpen,
    SentQuestion,
    VerifiedTransactions,
    VerifyTransactions,
    verdict_named,
)
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from txn_coordinator.verdicts import TxnVerdict

_log: Final = logging.getLogger("tidemark.cluster")
Verdicts = Sequence[TxnVerdict]
OWNERS_KNOWN_MAX: Final = 20_000
"""With names of `NEW_ID_BYTES_MAX` they are 42 MB."""


class _Asked:
    """One question that waits for its answer."""

    def __init__(self, question: Question, main_epoch: LeaderEpoch) -> None:
        self.question = question
        self.main_epoch = main_epoch
        self.answer: asyncio.Future[Verdicts] = asyncio.get_running_loop().create_future()

    def tell(self, verdicts: Verdicts) -> None:
        if not self.answer.done():
            self.answer.set_result(verdicts)

    def nobody_answers(self) -> None:
        self.tell([TxnVerdict.LOADING] * len(self.question.batches))


class TransactionsAsked:
    """`handlers.dispatch.led_apart.TransactionsElsewhere`; `take_image` hears of each image in the step in which it is there."""

    def __init__(
        self, image: Callable[[], MetadataImage], lines: LeaderLines, listener_origin: int
    ) -> None:
        """Ask over `lines`. `listener_origin`: numbers of connections of this node's own listener are compared under it (INV-TO3)."""
        assert listener_origin != 0, "0 is the origin of the coordinator's own listener"
        self._image = image
        self._lines = lines
        self._origin = listener_origin
        self._gathered: list[_Asked] = []
        self._under_way: dict[_Asked, None] = {}
        self._owners: dict[ProducerId, str] = {}

    def take_image(self, _image: MetadataImage) -> None:
        """Hear of an image (INV-AVT2)."""
        main = self._main()
        for asked in [
            each for each in self._under_way if main is None or each.main_epoch != main[1]
        ]:
            self._end(asked)

    def _main(self) -> tuple[Member, LeaderEpoch] | None:
        """Return who leads the main group, and under which leader epoch, while leaders are spread."""
        image = self._image()
        leadership = image.leadership
        if image.spread is None or leadership is None or leadership.leader is None:
            return None
        return leadership.leader, leadership.leader_epoch

    def verify(self, question: Question) -> Awaitable[Verdicts]:
        """See `TransactionsElsewhere`."""
        main = self._main()
        asked = _Asked(question, LeaderEpoch(-1) if main is None else main[1])
        if main is None:
            asked.nobody_answers()
            return asked.answer
        self._under_way[asked] = None
        if question.adds:
            self._send([asked])
            return asked.answer
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        self._gathered.append(asked)
        return asked.answer

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._send([asked for asked in gathered if asked in self._under_way])

    def _send(self, asked: Sequence[_Asked]) -> None:
        main = self._main()
        if main is None or not asked:
            assert not asked, "INV-AVT2: nobody is asked, and nobody waits"
            return
        leader, main_epoch = main
        message = VerifyTransactions(
            main_epoch=main_epoch, questions=tuple(self._sent(each.question) for each in asked)
        )

        def done(answer: VerifiedTransactions | PeerRefused | PeerUnreachable) -> None:
            self._answered(asked, answer)

        self._lines.begin(leader, message, VerifiedTransactions, done)

    def _answered(
        self, asked: Sequence[_Asked], answer: VerifiedTransactions | PeerRefused | PeerUnreachable
    ) -> None:
        if isinstance(answer, VerifiedTransactions) and len(answer.verdicts) == len(asked):
            for each, names in zip(asked, answer.verdicts, strict=True):
                # Who waited for a leader that is deposed was told already, and is told once (INV-AVT1, INV-AVT2).
                if len(names) == len(each.question.batches):
                    verdicts = [verdict_named(name) for name in names]
                    self._note(each.question, verdicts)
                    each.tell(verdicts)
        else:
            _log.info("transactions are not verified now: %s", answer)
        for each in asked:
            self._end(each)

    def _note(self, question: Question, verdicts: Verdicts) -> None:
        """Note whose producer it is that a question was answered for (INV-AVT4)."""
        if question.transactional_id is None or TxnVerdict.OK not in verdicts:
            return
        self._owners.pop(question.producer_id, None)
        self._owners[question.producer_id] = question.transactional_id
        if len(self._owners) > OWNERS_KNOWN_MAX:
            del self._owners[next(iter(self._owners))]

    def is_of(self, transactional_id: str, producer_id: ProducerId) -> bool:
        """See `TransactionsElsewhere`."""
        return self._owners.get(producer_id) == transactional_id

    def _end(self, asked: _Asked) -> None:
        self._under_way.pop(asked, None)
        asked.nobody_answers()

    def _sent(self, question: Question) -> SentQuestion:
        sender = question.sender
        return SentQuestion(
            question.transactional_id, question.producer_id, question.producer_epoch, question.adds,
            sender.origin or self._origin, sender.number, sender.newest,
            tuple(
                SentBatch(_led(each.key, each.leader_epoch), each.base_sequence) for each in question.batches
            ),
        )  # fmt: skip

    async def abort_producer(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        still_open: Sequence[OpenHere],
    ) -> TxnVerdict:
        """See `TransactionsElsewhere`."""
        main = self._main()
        if main is None:
            return TxnVerdict.NOT_COORDINATOR
        leader, main_epoch = main
        message = AbortOpen(
            main_epoch=main_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            still_open=tuple(
                SentOpen(_led(each.key, each.leader_epoch), each.first_offset, each.log_end)
                for each in still_open
            ),
        )
        try:
            answer = await self._lines.call(leader, message, AbortedOpen)
        except (PeerRefused, PeerUnreachable) as error:
            _log.info("an abort is not decided now: %s", error)
            return TxnVerdict.NOT_COORDINATOR
        return verdict_named(answer.verdict)


def _led(key: LogKey, leader_epoch: LeaderEpoch) -> LedLog:
    return LedLog(key.topic_id, key.partition, leader_epoch)
