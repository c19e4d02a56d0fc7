"""The regions of a sequence, the links between them, their folders, and an operator who is asked.

A folder is emptied or wound back only where others know what it knows (`chaos.judges.knowledge`), and none that was alone
since before its copy was made.
Only processes of its own cluster are ever signalled. A folder is touched only while its region does not run, or stands
still. Damage to a folder counts from when the clients of its region have noticed that it is down. Every explicit word
of the operator is noted, from when it is given; an order that is accepted counts.

Not here: which actions (`chaos.shuffle.plan`), the operator's choices (`chaos.shuffle.settling`).
"""

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from typing_extensions import override

from chaos.judges.contacts import NEVER, Contacts
from chaos.judges.knowledge import Knowledge
from chaos.shuffle.folders import Folders
from chaos.shuffle.links import PeerLinks
from chaos.shuffle.plan import Action, Kind, Part
from chaos.soak_stage import ClusterStage
from chaos.story import Damage, Story, Word
from region_broker.workbench.local_cluster import START_TIMEOUT_S
from region_broker.workbench.node_http import ApiError, request

ACT_ALONE_S: Final = 20.0
ORDER_S: Final = 15.0
QUIET_S: Final = 0.5
_ASK_S: Final = 0.1


class Stage(ClusterStage):
    """Everything that actions are done to."""

    def __init__(self, folder: Path, regions: int, seed: int) -> None:
        """Plan the cluster; nothing is started."""
        self.chance = Random(seed)
        super().__init__(folder, regions, self.chance)
        self.names = [place.name for place in self.cluster.plan.regions]
        self.links = PeerLinks({each.name: each.peer_port for each in self.cluster.plan.regions})
        self.folders = Folders(folder, self.chance)
        self.story = Story()
        self._cut: set[frozenset[str]] = set()
        self._contacts = Contacts(self.names, self.story.separations)
        self._knowledge = Knowledge()
        self._swapped: tuple[str, str] | None = None

    def set_up(self) -> None:
        """Start all regions, dialling each other through the links."""
        self.links.__enter__()
        self.cluster.route_peers(self.links.ports)
        self.cluster.start()

    def tear_down(self) -> None:
        """Stop all regions and close the links."""
        self.cluster.stop()
        self.links.__exit__()

    def up(self, name: str) -> bool:
        """Return whether its process runs."""
        return bool(self.cluster.pids(name))

    def play(self, action: Action) -> None:
        """Do it, and let the regions be for a moment."""
        self.tell(str(action))
        _PLAYS[action.kind](self, action)
        self.check_ends()
        time.sleep(action.pause_s)

    @override
    def check_ends(self) -> None:
        """Blame regions that ended by themselves; they are apart from all others since."""
        super().check_ends()
        self._note_contacts()

    def kill(self, name: str) -> None:
        """SIGKILL it if it runs."""
        if self.up(name):
            self._knowledge.note_who_acts({name: self.view(name)})
            self.cluster.kill(name)
            self._note_contacts()

    def start(self, name: str, *, put_back: bool = True) -> None:
        """Start it if it does not run; where it refuses its folder, do what the operator can do about that."""
        if self.up(name):
            return
        for _ in range(2):
            refused = self.launch(name)
            if refused is None or not self._mend_folder(name, refused, put_back=put_back):
                return

    def launch(self, name: str) -> str | None:
        """Start it; return None once it answers, or why it ended."""
        self.cluster.launch(name)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            refused = self.cluster.why_ended(name)
            if refused is not None:
                return refused
            if self.view(name) is not None:
                self._note_contacts()
                return None
            time.sleep(_ASK_S)
        self.blame(f"{name} neither answers nor ends within {START_TIMEOUT_S:.0f} s")
        return None

    def _mend_folder(self, name: str, reason: str, *, put_back: bool) -> bool:
        """Return whether a new start makes sense."""
        self.tell(f"  {name} refuses: {reason.splitlines()[-1][:300]}")
        if reason.startswith("the end of"):
            self.blame(f"{name} ended without a word of its own: {reason[-1500:]}")
            return False
        if self._swapped is not None and name in self._swapped:
            self.swap_back()
        elif put_back and self.folders.make_whole(name):
            self.tell(f"  what {name} lacks is put back")
        elif self.folders.is_half(name) and self._others_know(name):
            self.empty(name)
        elif not self.folders.make_whole(name):
            self.blame(f"{name} refuses its own folder: {reason}")
            return False
        return True

    def swap_back(self) -> None:
        """Give two regions their own folders again."""
        assert self._swapped is not None
        one, other = self._swapped
        self.kill(one)
        self.kill(other)
        self.folders.swap(one, other)
        self._swapped = None
        self.tell(f"  {one} and {other} have their own folders again")

    def empty(self, name: str) -> None:
        """Empty its folder; it does not run."""
        self.tell(f"  the folder of {name} is emptied")
        self.folders.empty(name)
        self._note_damage(name)

    def _note_damage(self, name: str) -> None:
        time.sleep(QUIET_S)  # What a client still had in its buffers is older than the damage
        self._damage(name, time.monotonic())

    def _damage(self, name: str, at_s: float) -> None:
        self._knowledge.note_damage(name)
        self.story.damages.append(Damage(at_s, name))

    def _others_know(self, name: str) -> bool:
        """Return whether another region, up and whole, shows tidemarks, and none acts out of reach (INV-SHS3)."""
        views = {each: view for each in self.names if (view := self.view(each)) is not None}
        alone = self._contacts.alone_since_s(name) < NEVER
        return self._knowledge.others_know(name, views, self.view, alone=alone)

    def order(self, kind: str, name: str) -> str:
        """Order what makes region `name` act; return why it did not work, empty if it did."""
        given_s = time.monotonic()
        body: dict[str, Any] = {"to": name, "domain": "main"}
        if kind != "switch":
            body["confirm"] = True
        url = self.cluster.place(name).http
        try:
            operation = request(url, "POST", f"/v1/region/{kind}", body, timeout_s=10)
        except ApiError as error:
            if not str(error):
                self.blame(f"{kind} to {name} is refused without a reason: {error.code}")
            return f"{error.code}: {error}"
        except OSError as error:
            return str(error)
        number = len(self.story.words)
        if kind != "switch":
            self.story.words.append(Word(kind, name, given_s, NEVER))
        failure = self._follow(url, operation)
        if not failure and kind != "switch":
            self.story.words[number] = Word(kind, name, given_s, time.monotonic())
        return failure

    def _follow(self, url: str, operation: Mapping[str, Any]) -> str:
        deadline_s = time.monotonic() + ORDER_S
        while operation["status"] == "running":
            if time.monotonic() > deadline_s:
                return f"not done after {ORDER_S:.0f} s: {operation['steps'][-1:]}"
            time.sleep(_ASK_S)
            try:
                operation = request(url, "GET", f"/v1/operations/{operation['operation_id']}")
            except (OSError, ApiError) as error:
                return str(error)
        return "" if operation["status"] == "succeeded" else str(operation["error"])

    def cut(self, one: str, other: str, *, silent: bool) -> None:
        """Part two regions."""
        (self.links.silence if silent else self.links.cut)(one, other)
        self._cut.add(frozenset((one, other)))
        self._note_contacts()

    def heal(self, one: str, other: str) -> None:
        """Let two regions talk again."""
        self.links.heal(one, other)
        self._cut.discard(frozenset((one, other)))
        self._note_contacts()

    def heal_all(self) -> None:
        """Let all regions talk again."""
        for one, other in map(sorted, list(self._cut)):
            self.heal(one, other)

    def end_separations(self) -> None:
        """Close the books: whoever is apart now is so to the end."""
        self._contacts.end()

    def _note_contacts(self) -> None:
        self._contacts.note(time.monotonic(), self._are_apart)

    def _are_apart(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut or not self.up(one) or not self.up(other)

    # One method per kind of action.

    def play_kill(self, action: Action) -> None:
        self.kill(action.region)

    def play_return(self, action: Action) -> None:
        for name in self.names:
            self.start(name, put_back=action.put_back)

    def play_wipe(self, action: Action) -> None:
        if self._swapped is not None or not self._others_know(action.region):
            self.tell("  not done: nobody else knows what it knows")
            return
        self.kill(action.region)
        self.empty(action.region)
        self.start(action.region)

    def play_copy(self, action: Action) -> None:
        if self.folders.is_half(action.region) or self._swapped is not None:
            return
        running = self.up(action.region)
        if running:
            self.cluster.signal(action.region, signal.SIGSTOP)
        self.folders.copy(action.region, time.monotonic())
        if running:
            self.cluster.signal(action.region, signal.SIGCONT)

    def play_restore(self, action: Action) -> None:
        if not self.folders.copies(action.region) or self._swapped is not None:
            return
        copies = self.folders.copies(action.region, self._contacts.alone_since_s(action.region))
        if not copies or not self._others_know(action.region):
            self.tell("  not done: nobody else knows what it did since its copy was made")
            return
        self.kill(action.region)
        self.folders.restore(action.region, copies)
        self._note_damage(action.region)
        self.start(action.region)

    def play_swap(self, action: Action) -> None:
        one, other = action.region, action.other
        if self._swapped is not None or any(self.folders.is_half(each) for each in (one, other)):
            return
        self.kill(one)
        self.kill(other)
        self.folders.swap(one, other)
        self._swapped = (one, other)
        self.start(one)
        self.start(other)

    def play_half(self, action: Action) -> None:
        if self._swapped is not None:
            return
        self.kill(action.region)
        if not self.folders.halve(action.region, action.part):
            return
        halved_s = time.monotonic()
        self.start(action.region, put_back=action.put_back)
        if self.up(action.region) and self.folders.is_half(action.region):
            # One log may be fetched again from a region that has it; to open without the rest is a fault.
            self._damage(action.region, halved_s)
            self.folders.give_up(action.region)
            if action.part is not Part.PARTITION:
                self.blame(f"{action.region} starts on half of its folder ({action.part.value})")

    def play_cut(self, action: Action) -> None:
        self.cut(action.region, action.other, silent=action.kind is Kind.SILENCE)

    def play_heal(self, action: Action) -> None:
        self.heal(action.region, action.other)

    def play_order(self, action: Action) -> None:
        refused = self.order(action.kind.value, action.region)
        if refused:
            self.tell(f"  not done: {refused[:300]}")

    def play_alone(self, action: Action) -> None:
        """Restart whoever acts with its own folder, and nobody to ask: it must act again."""
        acting = [name for name in self.names if (view := self.view(name)) and view["acting"]]
        if len(acting) != 1 or any(d.region == acting[0] for d in self.story.damages):
            self.tell("  not done: not exactly one acts, or its folder was damaged")
            return
        [name] = acting
        parted = [o for o in self.names if o != name and frozenset((name, o)) not in self._cut]
        for other in parted:
            self.cut(name, other, silent=action.put_back)
        self.kill(name)
        self.start(name)
        if not self.await_acting([name], ACT_ALONE_S):
            view = self.view(name) or {}
            self.blame(
                f"{name} acted, restarts with its own folder and nobody to ask, and does not act:"
                f" {view.get('phase')}: {view.get('reason_not_acting')}"
            )
        for other in parted:
            self.heal(name, other)

    def await_acting(self, names: Sequence[str], timeout_s: float) -> bool:
        """Return whether one of them acts within the time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if any((view := self.view(name)) and view["acting"] for name in names):
                return True
            time.sleep(_ASK_S)
        return False


_PLAYS: Final = {
    Kind.KILL: Stage.play_kill,
    Kind.RETURN: Stage.play_return,
    Kind.WIPE: Stage.play_wipe,
    Kind.COPY: Stage.play_copy,
    Kind.RESTORE: Stage.play_restore,
    Kind.SWAP: Stage.play_swap,
    Kind.HALF: Stage.play_half,
    Kind.CUT: Stage.play_cut,
    Kind.SILENCE: Stage.play_cut,
    Kind.HEAL: Stage.play_heal,
    Kind.FAILOVER: Stage.play_order,
    Kind.SWITCH: Stage.play_order,
    Kind.ALONE: Stage.play_alone,
}
