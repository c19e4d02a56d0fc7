"""Whose a transactional id is now: still this producer's own, or another instance's that was given it since.

INV-CP20  a pair of producer id and epoch that came after a producer's own is another instance's, whichever region acts now. It
          is the producer's own if that one asked for it: under the region epoch that gave it, or with its own pair
INV-CP21  that nobody tells who holds the id is no word that nobody does
INV-CP38  a pair is known as the producer's own, and with it its region epoch, only where the region that tells shows that it gave it
          just now: it did not stand there before the id was asked for, nothing was begun with it, and it is of that region's own epoch.
          Who gave the id may be another one, which was cut off and does not know that this one took over

The region epoch of a pair is the one that gave it out. A planned switch changes which region epoch acts and leaves pairs in
force (INV-TC14), so it says nothing of who has been given one since; only a failover fences them all (T22).

Where no answer came, the producer may hold what it does not know of. So a pair under a region epoch that it asked under since, or
that acted by the time it looks again, counts as its own while nothing was begun with it, and so does the next epoch where the
region aborted what was open:

    asked for, and not answered             the request is carried out by whoever acts by then, and aborts what is open first
    bumped for the producer's own pair      `last_producer_epoch` names it, and `previous_producer_id` where the id is another one:
                                            by an abort of its own (KIP-360), in whichever region epoch, or by a failover
    bumped by the region, after a time-out  the transaction was open for that long; another instance would have ended it

It counts on TV1, as librdkafka speaks it: a commit leaves the pair as it is.

Not here: asking (`verdicts`), what follows from it (`transactional_producer`).
"""

from typing import Final

from idempotency.identity import ProducerPair, RegionEpoch
from region_broker.client.verdicts import Standing

_IDLE: Final = "empty"
_ABORTED_BY_REGION: Final = frozenset({"prepare_abort", "complete_abort", "prepare_epoch_fence"})


class Succession:
    """What one producer knows of its hold on its transactional id."""

    def __init__(self) -> None:
        """Nothing was asked for yet."""
        self._own: Standing | None = None
        self._stood: Standing | None = None
        """What stood right before the pair was asked for."""
        self._asked_under: set[RegionEpoch] = set()
        """Since the own pair was told: one that was given under these may be ours, without our knowing."""
        self.was_replaced = False
        """Whether another instance was seen to have been given a pair, and to have begun with it, before ours was told."""

    @property
    def is_known(self) -> bool:
        """Return whether the region has said which pair is this producer's."""
        return self._own is not None

    @property
    def pair(self) -> ProducerPair | None:
        """Return this producer's pair, where the region has said it."""
        return None if self._own is None else self._own.pair

    @property
    def has_asked(self) -> bool:
        """Return whether another pair was asked for since, and nothing came of it."""
        return bool(self._asked_under)

    def ask_under(self, region_epoch: RegionEpoch) -> None:
        """Note that a pair is asked for under a region epoch, or may have been given under it by now."""
        self._asked_under.add(region_epoch)

    def look(self, standing: Standing | None) -> None:
        """Note what stands right before a pair is asked for; None for an id that nothing is known of."""
        self._stood = standing

    def hold(self, standing: Standing, acting: RegionEpoch) -> None:
        """Take what the region that acts under `acting` tells right after this producer was given its pair (INV-CP38)."""
        before = self._stood
        is_new = before is None or standing.pair != before.pair
        was_given_here = is_new and standing.region_epoch == acting
        self._own = standing if was_given_here and standing.state == _IDLE else None
        was_aborted = standing.state in _ABORTED_BY_REGION and _is_next(standing, before)
        self.was_replaced = was_given_here and self._own is None and not was_aborted
        if self._own is not None:
            self._asked_under.clear()

    def lose(self) -> None:
        """Know of no pair any more that it is this producer's."""
        self._own = None
        self.was_replaced = False

    def follow(self, standing: Standing | None) -> None:
        """Take the pair that an abort of this producer's own may have brought (KIP-360), and no other."""
        if standing is not None and self._was_bumped_for_own(standing):
            self._own = standing

    def is_anothers(self, standing: Standing | None, *, timed_out: bool) -> bool:
        """Return whether another instance was given the id since (INV-CP20); None stands for an id that nothing is known of.

        `timed_out`: the producer's transaction was open for its whole time-out. Only where `is_known`.
        """
        own = self._own
        assert own is not None, "INV-CP20: nothing to compare with"
        if standing is None or self._may_be_what_was_asked_for(standing):
            return False
        if self._was_bumped_for_own(standing):
            return False
        if standing.region_epoch != own.region_epoch:
            # One from before ours stands where a failover has lost ours.
            return standing.region_epoch > own.region_epoch
        if standing.producer_id != own.producer_id:
            return True
        if standing.producer_epoch <= own.producer_epoch:
            return False
        return not ((timed_out or self.has_asked) and self.was_ended_by_region(standing))

    def was_ended_by_region(self, standing: Standing | None) -> bool:
        """Return whether what stands may be an abort of this producer's transaction by the region itself.

        It gives the producer's next epoch to nobody then; another instance would have been given that or a later one.
        """
        return (
            standing is not None
            and standing.state in _ABORTED_BY_REGION
            and _is_next(standing, self._own)
        )

    def _may_be_what_was_asked_for(self, standing: Standing) -> bool:
        """Return whether no answer told of it: what this producer does not know of it has begun nothing with."""
        asked = self._asked_under
        if not asked or standing.state != _IDLE:
            return False
        return min(asked) <= standing.region_epoch <= max(asked)

    def _was_bumped_for_own(self, standing: Standing) -> bool:
        own, last = self._own, standing.last_producer_epoch
        if own is None:
            return False
        if standing.previous_producer_id is not None:  # whose last epoch it is (INV-TT2)
            return (standing.previous_producer_id, last) == (own.producer_id, own.producer_epoch)
        if not _is_next(standing, own):
            return False
        if last is None:  # a region of an older version, which does not tell
            return (
                standing.region_epoch == own.region_epoch and standing.state in _ABORTED_BY_REGION
            )
        return last == own.producer_epoch


def _is_next(standing: Standing, of: Standing | None) -> bool:
    return (
        of is not None
        and standing.producer_id == of.producer_id
        and standing.producer_epoch == of.producer_epoch + 1
    )
