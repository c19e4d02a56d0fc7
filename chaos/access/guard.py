"""All that a drill does about access while it is played: somebody who changes it, some who must not come in, an operator who renews; and the judgement.

INV-DRA5  when all is well, at each node of every region, who has a password comes in by it, and who has none any more, or another one, does not

Not here: which nodes and regions are lost, and when (`chaos.nodes`, `chaos.regions`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.access.changes import MARKERS_TOPIC, PASSING, Changer, await_equal, found_in, markers_in
from chaos.access.doors import ITERATIONS, LOOKER, Doors, Grant, password_of
from chaos.access.judge import judge_access
from chaos.access.knockers import Knocker, comes_in
from region_broker.workbench.credentials import kafka_login
from region_broker.workbench.local_cluster import LocalCluster

RENEWED_EVERY: Final = 3
"""Each how many rounds a node gets another certificate, and the key another version."""
_CALL_S: Final = 20.0
_REST_S: Final = 60.0
_EQUAL_S: Final = 60.0
_USERS_TRIED: Final = 2


class Guard:
    """`tell` gets what happens, `blame` what is wrong."""

    def __init__(
        self, doors: Doors, cluster: LocalCluster, chance: Random, *, topic: str,
        tell: Callable[[str], None], blame: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Nothing is started. `topic`: what some may know of and neither write nor read."""
        self.doors = doors
        self._cluster = cluster
        self._chance = Random(chance.randrange(1 << 30))
        self._tell, self._blame = tell, blame
        self.changer = Changer(doors, chance)
        addresses = [node.bootstrap for node in cluster.plan.nodes]
        self._knocker = Knocker(addresses, doors.login(LOOKER), topic)
        self._before: dict[str, str] = {}
        self._told_before: Mapping[str, int] = {}
        self.changes = self.changes_gone = self.logins = self.renewed = 0

    def prepare(self, bootstrap: str, grants: Sequence[Grant], replicas: int) -> None:
        """Make users, ACLs and the topic of markers; raises `KafkaException`."""
        self.doors.let_in(bootstrap, grants)
        admin = AdminClient({"bootstrap.servers": bootstrap, **kafka_login()})
        admin.create_topics([NewTopic(MARKERS_TOPIC, 1, replicas)])[MARKERS_TOPIC].result(_CALL_S)

    def start(self, bootstrap: str) -> None:
        """Change access there, and knock at every node, from now on."""
        self.changer.move(bootstrap, lost=False)
        self.changer.start()
        self._knocker.start()

    def renew(self, number: int, *, acting: str, mirror: str) -> None:
        """In some rounds give a node another certificate, and the key of sealed topics another version; raises `StageError`, OSError."""
        if number % RENEWED_EVERY:
            return
        name = self._chance.choice([node.name for node in self._cluster.plan.nodes])
        self.doors.renew(name)
        self.doors.rotate(mirror=mirror, acting=acting)
        self.renewed += 1
        self._tell(f"  {name} has another certificate, and the key another version")

    def rest(self) -> bool:
        """Let nothing be changed; return whether it came to that."""
        if self.changer.rest(_REST_S):
            return True
        self._blame("who changes access does not end what it does")
        return False

    def audit(self, number: int, acting: str, mirror: str | None = None) -> None:
        """Judge while `changer` rests (INV-SAC1), and let it go on; `mirror`: the other region, where there is one."""
        here = self._bootstrap(acting)
        try:
            found, markers = found_in(self.doors, here), markers_in(here)
            if mirror is not None:
                differing = await_equal(self.doors, here, self._bootstrap(mirror), _EQUAL_S)
                for each in differing:
                    self._blame(f"round {number}: access differs: {each}")
        except (KafkaException, OSError, TimeoutError) as error:
            self._blame(f"round {number}: access could not be read back: {error!r}")
            return
        changes = self.changer.taken()
        for each in judge_access(changes, markers, self.changer.term, self._before, found):
            self._blame(f"round {number}: {each}")
        self._judge_logins(
            number, changes, found, (acting,) if mirror is None else (acting, mirror)
        )
        self._note(changes, markers)
        self._before = found
        self.changer.forget(found)
        self.changer.go_on()

    def _note(self, changes: Sequence[Any], markers: Sequence[tuple[int, int]]) -> None:
        shown = set(markers)
        gone = [c for c in changes if c.answered and (c.term, c.number) not in shown]
        self.changes += sum(each.answered for each in changes)
        self.changes_gone += len(gone)
        for each in self._knocker.let_in:
            self._blame(each)
        self._knocker.let_in.clear()
        self._tell(
            f"  access: {sum(each.answered for each in changes)} of {len(changes)} changes answered, markers of {len(gone)} gone; {self.told()}"
        )

    def told(self) -> str:
        """Return what those were told who must not come in, and what who changes access met."""
        knocked = ", ".join(f"{what} {count}" for what, count in sorted(self._knocker.told.items()))
        met = ", ".join(f"{what} {count}" for what, count in sorted(self.changer.errors.items()))
        return f"knocked: {knocked or 'nobody'}; errors: {met or 'none'}"

    def summary(self) -> str:
        """Return what was changed and tried over all rounds."""
        return (
            f"access: {self.changes} changes answered, {self.changes_gone} without a marker, {self.renewed} certificates and versions of a key"
            f" renewed, {self.logins} logins as they must be; {self.told()}"
        )

    def _judge_logins(
        self, number: int, changes: Sequence[Any], found: Mapping[str, str], regions: Sequence[str]
    ) -> None:
        """Rule INV-DRA5, for some users, by logins at each node."""
        users = sorted({c.thing.split()[1] for c in changes if c.thing.startswith("user")})
        for user in self._chance.sample(users, min(_USERS_TRIED, len(users))):
            value = found.get(f"user {user}")
            old = next(
                (c.value for c in reversed(changes) if c.thing == f"user {user}" and c.value and c.value != value),
                str(ITERATIONS),
            )  # fmt: skip
            for node in (n for region in regions for n in self._cluster.place(region).nodes):
                self._try(number, node.bootstrap, user, old, may=False)
                if value:
                    self._try(number, node.bootstrap, user, value, may=True)

    def _try(self, number: int, address: str, user: str, value: str, *, may: bool) -> None:
        assert user.startswith(PASSING)
        login = replace(self.doors.login(user), password=password_of(user, int(value)))
        deadline_s = time.monotonic() + _EQUAL_S
        while (found := comes_in(address, login)) is not may:
            if time.monotonic() > deadline_s:
                told = {True: "is let in", False: "is not let in", None: "is not answered"}[found]
                self._blame(f"round {number}: {user} with password {value} {told} at {address}")
                return
            time.sleep(0.2)
        self.logins += 1

    def _bootstrap(self, region: str) -> str:
        return self._cluster.place(region).bootstrap

    def stop(self) -> None:
        """End all."""
        self.changer.stop()
        self._knocker.stop()
