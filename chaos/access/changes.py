"""Somebody who changes users, ACLs and quotas all along, one thing after another, also while nodes and regions are lost.

After each change that was answered a marker is written: who finds it later knows what must be there (`judge`, INV-DRA2).
Not here: what they mean for who comes in (`knockers`).
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramMechanism, UserScramCredentialDeletion

from chaos.access.doors import ITERATIONS, Doors, upsertion
from chaos.access.judge import ABSENT, Change
from chaos.readers import read_all
from region_broker.workbench.credentials import kafka_login

MARKERS_TOPIC: Final = "access-markers"
THERE: Final = "there"
PASSING: Final = "passing-"
"""How users begin that come and go."""
QUOTA: Final = "producer_byte_rate"
_THINGS: Final = 6
_PACE_S: Final = 0.15
_CALL_S: Final = 6.0
_QUOTA_EVERY: Final = 25
"""A quota is changed by a command, which costs half a second of the processor."""
_LITERAL: Final = ResourcePatternType.LITERAL


class Changer(threading.Thread):
    """Changes the region that it is told to (`move`) until it is stopped; rests when asked."""

    def __init__(self, doors: Doors, chance: Random) -> None:
        """Nothing is changed before `start`."""
        super().__init__(name="access", daemon=True)
        self._doors = doors
        self._chance = Random(chance.randrange(1 << 30))
        self._where: tuple[str, int] = ("", 0)
        self._number = 0
        self._changes: list[Change] = []
        self._values: dict[str, str] = {}
        self.errors: Counter[str] = Counter()
        self._running, self._resting, self._stopping = (threading.Event() for _ in range(3))

    @property
    def term(self) -> int:
        """Return how many failovers there were."""
        return self._where[1]

    @property
    def answered(self) -> int:
        """Return how many changes were answered since `forget`."""
        return sum(each.answered for each in list(self._changes))

    def move(self, bootstrap: str, *, lost: bool) -> None:
        """Change that region from now on; `lost`: a failover has ended the term."""
        self._where = (bootstrap, self._where[1] + lost)

    def start(self) -> None:
        """Change from now on."""
        self._running.set()
        super().start()

    def rest(self, timeout_s: float) -> bool:
        """Let it end what it does; return whether that came in time."""
        self._resting.clear()
        self._running.clear()
        return not self.is_alive() or self._resting.wait(timeout_s)

    def go_on(self) -> None:
        """Change again."""
        self._running.set()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._running.set()
        if self.is_alive():
            self.join(10 * _CALL_S)

    def taken(self) -> list[Change]:
        """Return all changes since `forget`; for while it rests."""
        return list(self._changes)

    def forget(self, found: Mapping[str, str]) -> None:
        """Begin anew from what was found; for while it rests."""
        self._changes, self._values = [], dict(found)

    def run(self) -> None:
        """Change until stopped."""
        where: tuple[str, int] | None = None
        admin: Any = None
        producer: Any = None
        while not self._stopping.is_set():
            if not self._running.is_set():
                self._resting.set()
                self._running.wait()
                continue
            if where != self._where:
                where = self._where
                config = {"bootstrap.servers": where[0], "log_level": 0, **kafka_login()}
                admin = AdminClient({**config, "reconnect.backoff.max.ms": 500})
                producer = Producer({**config, "message.timeout.ms": 5_000, "linger.ms": 0})
            self._change(admin, producer, where)
            self._stopping.wait(_PACE_S)

    def _change(self, admin: Any, producer: Any, where: tuple[str, int]) -> None:
        self._number += 1
        kind = "quota" if self._number % _QUOTA_EVERY == 0 else self._chance.choice(("user", "acl"))
        thing = f"{kind} {PASSING}{self._chance.randrange(_THINGS)}"
        value = self._value_of(kind, self._values.get(thing, ABSENT))
        answered = False
        try:
            answered = self._order(admin, where[0], thing, value)
        except KafkaException as error:
            self.errors[f"access {error.args[0].name()}"] += 1
        except TimeoutError:
            self.errors["access no answer"] += 1
        self._changes.append(Change(self._number, where[1], thing, value, answered))
        if answered:
            self._values[thing] = value
            producer.produce(MARKERS_TOPIC, value=f"{where[1]} {self._number}", partition=0)
            producer.flush(_CALL_S)

    def _value_of(self, kind: str, now: str) -> str:
        if now and self._chance.random() < 0.5:
            return ABSENT
        if kind == "acl":
            return THERE
        return str((ITERATIONS if kind == "user" else 1_000_000) + self._number)

    def _order(self, admin: Any, bootstrap: str, thing: str, value: str) -> bool:
        kind, name = thing.split()
        if kind == "quota":
            return self._order_quota(bootstrap, name, value)
        if kind == "user":
            order = (
                upsertion(name, int(value))
                if value
                else UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512)
            )
            futures = admin.alter_user_scram_credentials([order], request_timeout=_CALL_S)
        elif value:
            binding = AclBinding(ResourceType.TOPIC, name, _LITERAL, f"User:{name}", "*", AclOperation.READ, AclPermissionType.ALLOW)  # fmt: skip
            futures = admin.create_acls([binding], request_timeout=_CALL_S)
        else:
            wanted = _filter(name, _LITERAL, f"User:{name}")
            futures = admin.delete_acls([wanted], request_timeout=_CALL_S)
        for future in futures.values():
            future.result(2 * _CALL_S)
        return True

    def _order_quota(self, bootstrap: str, name: str, value: str) -> bool:
        what = ("set", f"{QUOTA}={value}") if value else ("remove",)
        done = self._doors.command("quota", *what, "--for-user", name, "--bootstrap", bootstrap)
        if done.returncode:
            self.errors[f"quota: exit code {done.returncode}"] += 1
        return done.returncode == 0


def found_in(doors: Doors, bootstrap: str) -> dict[str, str]:
    """Return what is there of the things that come and go, as a region tells; raises `KafkaException`, OSError."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **kafka_login()})
    told: Any = admin.describe_user_scram_credentials(request_timeout=_CALL_S)
    found = {
        f"user {name}": str(each.scram_credential_infos[0].iterations)
        for name, each in told.result(2 * _CALL_S).items()
        if name.startswith(PASSING)
    }
    every = _filter(None, ResourcePatternType.ANY, None)
    for acl in admin.describe_acls(every, request_timeout=_CALL_S).result(2 * _CALL_S):
        if acl.name.startswith(PASSING):
            found[f"acl {acl.name}"] = THERE
    listed = doors.quotas(bootstrap)
    if listed.returncode:
        raise OSError(f"`tidemark quota list` ends with {listed.returncode}: {listed.stderr.strip()}")  # fmt: skip
    return found | _quotas(json.loads(listed.stdout))


def _filter(name: str | None, pattern: ResourcePatternType, principal: str | None) -> AclBindingFilter:  # fmt: skip
    any_host: Any = None
    given: Any = (name, principal)  # its types know of no None, which means any
    return AclBindingFilter(
        ResourceType.TOPIC, given[0], pattern, given[1], any_host, AclOperation.ANY, AclPermissionType.ANY
    )  # fmt: skip


def _quotas(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        f"quota {row['user']}": str(row["value"])
        for row in rows
        if row["quota"] == QUOTA and row["user"].startswith(PASSING)
    }


def markers_in(bootstrap: str) -> list[tuple[int, int]]:
    """Return the markers that a region shows; raises `KafkaException`, OSError."""
    found = []
    for each in read_all(bootstrap, {MARKERS_TOPIC: 1}):
        term, number = each.value.decode().split()
        found.append((int(term), int(number)))
    return found


def await_equal(doors: Doors, one: str, other: str, timeout_s: float) -> list[str]:
    """Return what two regions still tell differently of access after that time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        here, there = found_in(doors, one), found_in(doors, other)
        differing = [
            f"{thing}: {here.get(thing)} at {one}, {there.get(thing)} at {other}"
            for thing in sorted({*here, *there})
            if here.get(thing) != there.get(thing)
        ]
        if not differing or time.monotonic() > deadline_s:
            return differing
        time.sleep(0.2)
