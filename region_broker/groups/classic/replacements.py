"""Static members that came back in a stable group: they are told once the record that has them is durable (KIP-345).

INV-GSR1 of these records one of a group is written at a time, of all who came meanwhile: each has what the whole group brought and was given, and a
         JoinGroup of a hundred bytes asks for one
INV-GSR2 who still waits for such a record when a rebalance begins takes part in it, as its join would have been answered by it a moment later
Not here: who may come back, and what the record holds (`group`).
"""

from dataclasses import dataclass, field

from region_broker.groups.messages import AnswerJoin


@dataclass(slots=True)
class Replacements:
    """Answers by the record that they wait for: the one that is being written, or the next one."""

    _ticket: int | None = None
    _storing: list[AnswerJoin] = field(default_factory=list)
    _waiting: dict[str, AnswerJoin] = field(default_factory=dict)

    @property
    def is_due(self) -> bool:
        """Return whether a record is to be written now."""
        return self._ticket is None and bool(self._waiting)

    def add(self, answer: AnswerJoin) -> None:
        """Wait for the next record."""
        self._waiting[answer.outcome.member_id] = answer

    def begin(self, ticket: int) -> None:
        """Note that the record of this ticket is being written, with all who waited for it."""
        assert self._ticket is None, ticket
        self._ticket = ticket
        self._storing, self._waiting = list(self._waiting.values()), {}

    def stored(self, ticket: int) -> list[AnswerJoin]:
        """Return the answers that this record was waited for by."""
        if ticket != self._ticket:
            return []
        told, self._storing, self._ticket = self._storing, [], None
        return told

    def take(self, member_id: str) -> AnswerJoin | None:
        """Return the answer of one who still waits for the next record, and forget it."""
        return self._waiting.pop(member_id, None)

    def take_waiting(self) -> list[AnswerJoin]:
        """Return the answers of all who still wait for the next record, and forget them."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting

    def take_all(self) -> list[AnswerJoin]:
        """Return the answers of all who wait, and forget them."""
        told = [*self._storing, *self.take_waiting()]
        self._storing, self._ticket = [], None
        return told
