"""The regions of one life, what is done to them, and an operator who is asked: on simulated time, disk and network.

No folder is emptied or wound back that alone knows what clients saw (INV-SHS3, `chaos.judges.knowledge`).
Every explicit word of the operator is noted, from when it is given; an order that is accepted counts.

Not here: which actions (`rates`), clients (`clients`), the judgement (`chaos.shuffle.judge`).
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from chaos.judges.contacts import NEVER, Contacts
from chaos.judges.knowledge import Knowledge
from chaos.judges.operator import Stand, stand_of
from chaos.shuffle.plan import Action, Kind, Part
from chaos.story import Damage, Story, Word
from region_broker.node import START_REFUSALS
from region_broker.region.failover.operations import Operation, OperationRefused
from region_broker.region.folder.identity_file import FILE_NAME
from region_broker.region.view import RegionService
from tests.simulation.folder_faults import (
    FolderCopy,
    copy_of,
    empty_folder,
    lose_logs,
    lose_metadata,
    restore,
)
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.swarm.flips import Flips
from tests.simulation.swarm.rates import Rates
from tests.simulation.trace import Trace

NAMES: Final = ("eu", "us", "ap")
ORDER_S: Final = 15.0
ASK_S: Final = 0.1
QUIET_S: Final = 0.5
TOPIC_ID_DIGITS: Final = 32
RETENTION_CHECK_MS: Final = 1_000


class Stage:
    """Everything that actions are done to."""

    def __init__(
        self,
        chance: random.Random,
        rates: Rates,
        regions: int,
        trace: Trace,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Plan the regions; nothing is started. `say` gets what happens, a line each."""
        self.chance, self.rates, self.trace, self._say = chance, rates, trace, say
        self.names = NAMES[:regions]
        self.fabric = Fabric(random.Random(chance.random()), delay_ms_max=rates.delay_ms_max)
        self.fabric.trace = trace
        self.fabric.late_share = rates.late_share
        self.fabric.late_sites = frozenset(self.names if rates.late_share else ())
        self.regions = {name: self._region(name) for name in self.names}
        self.story = Story()
        self.anomalies: list[str] = []
        self.settle_s, self.stays_s, self.hasty = 120.0, 3.0, False
        """How long an operator's patience is; how long all must be well (regions that were just healed have not met
        yet); whether the first anomaly ends all waiting."""
        self._up: set[str] = set()
        self._copies: dict[str, list[tuple[float, Stand, FolderCopy]]] = {}
        self._cut: set[frozenset[str]] = set()
        self._apart: Counter[frozenset[str]] = Counter()
        self.played: list[tuple[str, str, float]] = []
        """What was done, by number: its kind, and when."""
        self._contacts = Contacts(self.names, self.story.separations)
        self._knowledge = Knowledge()
        self._swapped: tuple[str, str] | None = None
        self._without_identity: list[str] = []
        self._missing: dict[str, FolderCopy] = {}
        self.flips = Flips()
        self.disk_failed: set[str] = set()
        """Whose disk failed in this life of its process: that may end it, or some of its partitions."""
        self.days_off = False
        """Whether a region's clock was so wrong that clients' timestamps are refused, as in Kafka."""
        self.on_kill: Callable[[str], None] = lambda _: None
        """Told before a region that is up is killed."""

    def _region(self, name: str) -> Region:
        region = Region(
            name,
            Path("/simulated") / name,
            self.fabric,
            random.Random(self.chance.random()),
            self.names,
        )
        region.settings = {
            "tidemark_interval_ms": self.rates.tidemark_interval_ms,
            "retention_check_interval_ms": RETENTION_CHECK_MS,
        }
        region.disk.trace = self.trace
        region.disk.on_sync = _wait_for_disk
        region.disk.forget_by_chance(random.Random(self.chance.random()), self.rates.cold_chance)
        return region

    def now_s(self) -> float:
        """Return the simulated time."""
        return asyncio.get_running_loop().time()

    def tell(self, text: str) -> None:
        """Say what happens."""
        self.trace.note("told", text)
        if self._say is not None:
            self._say(f"{self.now_s():8.2f}  {text}")

    def blame(self, text: str) -> None:
        """Note what is wrong."""
        self.anomalies.append(text)
        self.tell(f"VIOLATION: {text}")

    @property
    def is_over(self) -> bool:
        """Return whether enough is known."""
        return self.hasty and bool(self.anomalies)

    def up(self, name: str) -> bool:
        """Return whether its process runs."""
        return name in self._up

    def view(self, name: str) -> Mapping[str, Any] | None:
        """Return what `GET /v1/region` says, None where it does not run."""
        if not self.up(name):
            return None
        return self.service(name).describe()

    def service(self, name: str) -> RegionService:
        """Return what serves the region's HTTP routes."""
        node = self.regions[name].node
        partitions = node.storage.partitions
        return RegionService(
            node.failover, node.operations, partitions.kept, lambda: partitions.room.refusal
        )

    def acting(self) -> list[str]:
        """Return who acts."""
        nodes = {name: self.regions[name].node for name in self.names if self.up(name)}
        return [name for name, node in nodes.items() if node.failover.parts.role.acting]

    def note_played(self, label: str, kind: str) -> None:
        """Note that something that has a number is done."""
        self.played.append((label, kind, self.now_s()))

    async def play(self, action: Action) -> None:
        """Do it, and let the regions be for a moment."""
        self.tell(str(action))
        if action.kind in _TAKE_FOLDERS:
            for name in {action.region: 1, action.other: 1}:
                await self.mend_bits(name)
        await getattr(self, f"play_{_PLAYS[action.kind]}")(action)
        self.check_ends()
        await asyncio.sleep(action.pause_s)

    def check_ends(self) -> None:
        """Blame regions that ended by themselves."""
        for name in sorted(self._up):
            region = self.regions[name]
            if region.died:
                self._up.discard(name)
                if name in self.disk_failed or self.flips.at(name):
                    self.tell(f"  {name} ended, as its disk failed")
                else:
                    self.blame(f"{name} ended by itself: {region.why_died()}")
        self._note_contacts()

    async def kill(self, name: str, *, power: bool | None = None) -> None:
        """End it as SIGKILL does, or as a power cut (None: by chance), if it runs."""
        if not self.up(name):
            return
        self._knowledge.note_who_acts({name: self.view(name)})
        self.on_kill(name)
        self._up.discard(name)
        self.disk_failed.discard(name)
        if power is None:
            power = self.chance.random() < self.rates.power_share
        lost = None
        if power:
            lost = random.Random(self.chance.random())
            self.tell(f"  {name} loses power")
        await self.regions[name].kill(power=lost)
        self._note_contacts()

    async def start(self, name: str, *, put_back: bool = True) -> None:
        """Start it if it does not run; where it refuses its folder, do what the operator can do about that."""
        for _ in range(3):
            if self.up(name):
                return
            refused = await self._launch(name)
            if refused is None or not await self._mend(name, refused, put_back=put_back):
                return

    async def _launch(self, name: str) -> str | None:
        region = self.regions[name]
        if region.died:
            await region.kill()
        self.disk_failed.discard(name)
        if region.disk.room_bytes is not None:
            self.disk_failed.add(name)  # full before it starts
        try:
            await region.begin()
        except START_REFUSALS as error:
            await region.kill()
            return str(error)
        except OSError as error:
            if name not in self.disk_failed:
                raise
            self.tell(f"  {name} does not start, as its disk failed: {error}")
            await region.kill()
            return None
        self._up.add(name)
        self._note_contacts()
        return None

    async def _mend(self, name: str, reason: str, *, put_back: bool) -> bool:
        self.tell(f"  {name} refuses: {reason.splitlines()[-1][:200]}")
        if self._swapped is not None and name in self._swapped:
            await self.swap_back()
        elif self.flips.at(name):
            self.flips.give_back(self.regions[name])
        elif name in self._missing and (put_back or not self._others_know(name)):
            restore(self.regions[name], self._missing.pop(name))
        elif name in self._missing:
            await self._empty(name)
        else:
            self.blame(f"{name} refuses its own folder: {reason}")
            return False
        return True

    async def swap_back(self) -> None:
        """Give two regions their own folders again."""
        assert self._swapped is not None
        one, other = self._swapped
        await self.kill(one)
        await self.kill(other)
        self._exchange(one, other)
        for name in self._without_identity:  # the other region has begun to live in it
            empty_folder(self.regions[name])
        self._swapped = None
        self.tell(f"  {one} and {other} have their own folders again")

    def _has_identity(self, name: str) -> bool:
        return self.regions[name].disk.exists(self.regions[name].folder / FILE_NAME)

    def _exchange(self, one: str, other: str) -> None:
        ours, theirs = copy_of(self.regions[one]), copy_of(self.regions[other])
        restore(self.regions[one], theirs)
        restore(self.regions[other], ours)

    async def _empty(self, name: str) -> None:
        self._missing.pop(name, None)
        empty_folder(self.regions[name])
        await self._note_damage(name)

    async def _note_damage(self, name: str) -> None:
        await asyncio.sleep(QUIET_S)
        self._damage(name, self.now_s())

    def _damage(self, name: str, at_s: float) -> None:
        self._knowledge.note_damage(name)
        self.story.damages.append(Damage(at_s, name))

    def _others_know(self, name: str) -> bool:
        """Return whether another region, up and whole, shows tidemarks, and none acts out of reach (INV-SHS3)."""
        self.check_ends()  # one that has just ended knows nothing
        views = {each: view for each in self.names if (view := self.view(each)) is not None}
        alone = self._contacts.alone_since_s(name) < NEVER
        return self._knowledge.others_know(name, views, views.get, alone=alone)

    def _stands(self, *, without: str = "") -> list[Stand]:
        """Return the tidemarks that regions stand at, those that are up and whole."""
        self.check_ends()
        names = [
            each for each in self.names if each != without and each not in self._knowledge.damaged
        ]
        return [stand_of(view) for each in names if (view := self.view(each)) is not None]

    async def order(self, kind: str, name: str) -> str:
        """Order what makes region `name` act; return why it did not work, empty if it did."""
        if not self.up(name):
            return f"{name} does not run"
        region = self.regions[name]
        operations, given_s = region.node.operations, self.now_s()
        try:
            if kind == "switch":
                operation = region.within(operations.begin_switch)
            elif kind == "failover":
                operation = region.within(partial(operations.begin_failover, confirmed=True))
            else:
                operation = region.within(partial(operations.begin_accept_loss, confirmed=True))
        except OperationRefused as error:
            if not str(error):
                self.blame(f"{kind} to {name} is refused without a reason")
            return str(error)
        number = len(self.story.words)
        if kind != "switch":
            self.story.words.append(Word(kind, name, given_s, NEVER))
        failure = await self._follow(name, operation)
        if not failure and kind != "switch":
            self.story.words[number] = Word(kind, name, given_s, self.now_s())
        return failure

    async def order_as_told(self, kind: str, name: str) -> None:
        """Order it as chance says, unless the loss statement says that all would be lost: no operator confirms that."""
        view = self.view(name)
        if kind == "failover" and view is not None and stand_of(view)[1] == 0:
            refused = f"{name} has reached no tidemark"
        else:
            refused = await self.order(kind, name)
        if refused:
            self.tell(f"  not done: {refused[:200]}")

    def given_up(self, name: str) -> int:
        """Count the words that gave up what a region has shown: the base may be another tidemark of the same number."""
        return sum(each.kind == "accept-loss" and each.target != name for each in self.story.words)

    async def _follow(self, name: str, operation: Operation) -> str:
        deadline_s = self.now_s() + ORDER_S
        while operation.status == "running":
            if self.now_s() > deadline_s or not self.up(name):
                return f"not done after {ORDER_S:.0f} s: {operation.steps[-1:]}"
            await asyncio.sleep(ASK_S)
        return "" if operation.status == "succeeded" else operation.error

    def part(self, one: str, other: str, *, silent: bool) -> None:
        """Part two regions: connections break, or (`silent`) nothing arrives any more."""
        if silent:
            self.fabric.hush(one, other)
        else:
            self.fabric.cut(one, other)
        self._cut.add(frozenset((one, other)))
        self._note_contacts()

    def heal(self, one: str, other: str) -> None:
        """Let two regions talk again."""
        self.fabric.heal(one, other)
        self._cut.discard(frozenset((one, other)))
        self._note_contacts()

    def heal_all(self) -> None:
        """Let all regions talk again."""
        for one, other in sorted(map(sorted, self._cut)):
            self.heal(one, other)

    def begin_apart(self, name: str, *others: str) -> None:
        """Note that it cannot talk to `others`, or to nobody: it stands still, or a link works one way only."""
        self._count_apart(name, others, 1)

    def end_apart(self, name: str, *others: str) -> None:
        """Note that it can again."""
        self._count_apart(name, others, -1)

    def _count_apart(self, name: str, others: Sequence[str], step: int) -> None:
        for other in others or [each for each in self.names if each != name]:
            self._apart[frozenset((name, other))] += step
        self._note_contacts()

    def end_separations(self) -> None:
        """Close the books: whoever is apart now is so to the end."""
        self._contacts.end()

    def _note_contacts(self) -> None:
        self._contacts.note(self.now_s(), self._are_apart)

    def _are_apart(self, one: str, other: str) -> bool:
        pair = frozenset((one, other))
        is_parted = pair in self._cut or self._apart[pair] > 0
        return is_parted or not self.up(one) or not self.up(other)

    async def flip_a_bit(self, name: str, chance: random.Random) -> None:
        """End a region, flip a bit of one of its files, and start it; not where it alone knows what clients saw."""
        if self._swapped is not None or name in self._missing or not self._others_know(name):
            return
        await self.kill(name)
        flip = self.flips.flip(self.regions[name], chance)
        if flip is not None:
            self.tell(f"  a bit flips at {name}: byte {flip.position} of {flip.path}")
            await self._note_damage(name)
        await self.start(name)

    async def mend_bits(self, name: str) -> None:
        """Give a region its bits back, and start it with them."""
        if self.flips.at(name):
            await self.kill(name)
            self.flips.give_back(self.regions[name])
            await self.start(name)

    # One method per kind of action.

    async def play_kill(self, action: Action) -> None:
        await self.kill(action.region)

    async def play_return(self, action: Action) -> None:
        for name in self.names:
            await self.start(name, put_back=action.put_back)

    async def play_wipe(self, action: Action) -> None:
        if self._swapped is not None or not self._others_know(action.region):
            return
        await self.kill(action.region)
        await self._empty(action.region)
        await self.start(action.region)

    async def play_copy(self, action: Action) -> None:
        own = self.view(action.region)
        if action.region in self._missing or self._swapped is not None or own is None:
            return
        copy = copy_of(self.regions[action.region])
        # A region that was damaged may yet have published more than others have reached: its copy holds that.
        newest = max(stand_of(own), *self._stands())
        self._copies.setdefault(action.region, []).append((self.now_s(), newest, copy))

    async def play_restore(self, action: Action) -> None:
        # Another region has reached a tidemark since: it can tell that the copy is an older one (T33).
        alone_s = self._contacts.alone_since_s(action.region)
        known = max(self._stands(without=action.region), default=(0, 0))
        copies = [
            copy
            for at_s, newest, copy in self._copies.get(action.region, ())
            if at_s < alone_s and newest < known
        ]
        if not copies or self._swapped is not None or not self._others_know(action.region):
            return
        await self.kill(action.region)
        self._missing.pop(action.region, None)
        restore(self.regions[action.region], self.chance.choice(copies))
        await self._note_damage(action.region)
        await self.start(action.region)

    async def play_swap(self, action: Action) -> None:
        one, other = action.region, action.other
        if self._swapped is not None or {one, other} & self._missing.keys():
            return
        await self.kill(one)
        await self.kill(other)
        self._without_identity = [name for name in (one, other) if not self._has_identity(name)]
        self._exchange(one, other)
        self._swapped = (one, other)
        for name in (one, other):
            # Without an identity it is nobody's yet: a start ended before it was written.
            held = self._has_identity(name)
            await self.start(name)
            if held and self.up(name) and self._still_swapped():
                self.blame(f"{name} starts on the folder of another region")

    def _still_swapped(self) -> bool:
        return self._swapped is not None

    async def play_half(self, action: Action) -> None:
        name = action.region
        if self._swapped is not None or name in self._missing:
            return
        if action.part is Part.PARTITION and not self._others_know(name):
            return
        await self.kill(name)
        region = self.regions[name]
        if not region.disk.exists(region.folder / "metadata.db"):
            return
        self._missing[name] = copy_of(region)
        if action.part is Part.PARTITION:
            await self._lose_partition(name, put_back=action.put_back)
            return
        (lose_logs if action.part is Part.LOGS else lose_metadata)(region)
        await self.start(name, put_back=action.put_back)
        if self.up(name) and name in self._missing:
            self.blame(f"{name} starts on half of its folder ({action.part.value})")

    async def _lose_partition(self, name: str, *, put_back: bool) -> None:
        """Let it start without one of its partitions: it may refuse to, or fetch that one from who has it."""
        region = self.regions[name]
        logs = region.folder / "logs"
        folders = [
            logs / topic / number
            for topic in region.disk.list_dir(logs)
            for number in region.disk.list_dir(logs / topic)
            if len(topic) == TOPIC_ID_DIGITS and number.isdecimal()
        ]
        if not folders:
            del self._missing[name]
            return
        region.disk.remove_tree(self.chance.choice(folders))
        await self._note_damage(name)
        await self.start(name, put_back=put_back)
        if self.up(name):
            self._missing.pop(name, None)

    async def play_part(self, action: Action) -> None:
        self.part(action.region, action.other, silent=action.kind is Kind.SILENCE)

    async def play_heal(self, action: Action) -> None:
        self.heal(action.region, action.other)

    async def play_order(self, action: Action) -> None:
        await self.order_as_told(action.kind.value, action.region)

    async def play_alone(self, action: Action) -> None:
        """Restart whoever acts with its own folder, and nobody to ask: it must act again."""
        acting = self.acting()
        if len(acting) != 1 or any(d.region == acting[0] for d in self.story.damages):
            return
        [name] = acting
        parted = [o for o in self.names if o != name and frozenset((name, o)) not in self._cut]
        for other in parted:
            self.part(name, other, silent=action.put_back)
        await self.kill(name)
        await self.start(name)
        for _ in range(200):
            if name in self.acting():
                break
            await asyncio.sleep(ASK_S)
        else:
            view = self.view(name) or {}
            wrong = self.tell if name in self.disk_failed else self.blame
            wrong(
                f"{name} acted, restarts with its own folder and nobody to ask, and does not act:"
                f" {view.get('phase')}: {view.get('reason_not_acting')}"
            )
        for other in parted:
            self.heal(name, other)


def _wait_for_disk() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.wait_for_disk()


_TAKE_FOLDERS: Final = frozenset({Kind.COPY, Kind.RESTORE, Kind.SWAP, Kind.HALF, Kind.WIPE})
"""What copies or removes files: bits that had flipped are given back before."""
_PLAYS: Final = {
    Kind.KILL: "kill", Kind.RETURN: "return", Kind.WIPE: "wipe", Kind.COPY: "copy",
    Kind.RESTORE: "restore", Kind.SWAP: "swap", Kind.HALF: "half", Kind.CUT: "part",
    Kind.SILENCE: "part", Kind.HEAL: "heal", Kind.FAILOVER: "order", Kind.SWITCH: "order",
    Kind.ALONE: "alone",
}  # fmt: skip
