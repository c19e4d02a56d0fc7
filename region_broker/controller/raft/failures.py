"""What can go wrong with a member of a quorum, one class per thing that a caller must tell apart.

Not here: Kafka's error numbers (`region_broker.handlers`).
"""

from pathlib import Path

from region_broker.controller.raft.entries import Member


class RaftStoreError(Exception):
    """Base of what goes wrong with a member's folder."""


class RaftStoreDamaged(RaftStoreError):
    """What was durable is missing or wrong, and is not mended by guessing; the text names file, byte and way out."""

    def __init__(self, path: Path, position: int, what: str) -> None:
        """Say what is wrong in a file, and from which byte on."""
        super().__init__(
            f"{path}: {what}, from byte {position} on. A member that forgot a vote or an entry could break the quorum, so it"
            " is not mended by guessing, and an older copy of this folder must not be put in its place while other voters are"
            " there. If most of the other voters run: move the node's whole data folder away, and start it with an empty one. It"
            " joins as a new member, which takes this one's place, and copies everything. If it was the only voter: restore the node's whole data folder from its newest copy."
        )


class RaftStoreForeign(RaftStoreError):
    """The folder is another member's: it was exchanged or copied, or the node's id was changed."""


class RaftStoreFailed(RaftStoreError):
    """A write or a sync failed, or did so before: this store does nothing any more. The member must be started again."""


class RaftStoreFull(RaftStoreError):
    """The disk is full. Nothing was changed, and the store goes on; less is asked of it, or room is made."""


class WishFailed(Exception):
    """Base of what a caller of a group is told in place of an index."""


class NotLeader(WishFailed):
    """This member does not lead: nothing was appended. `leader`: who does, if that is known."""

    def __init__(self, leader: Member | None) -> None:
        """Name whom to ask instead."""
        super().__init__(f"the leader is {leader or 'not known'}")
        self.leader = leader


class Lost(WishFailed):
    """This member led and does no more, has ended, or waited for long enough: it may have been committed, or be yet, or not."""


class Busy(WishFailed):
    """Too much waits, or another change of the kind is under way: nothing was appended."""


class Refused(WishFailed):
    """It is too large, not one step from the present membership, or not for that member: nothing was appended."""
