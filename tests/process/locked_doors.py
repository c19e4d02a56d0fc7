"""What a logged-in client notices of 100 wrong logins a second, and of 10,000 handshakes that are begun and not ended.

    python -m tests.process.locked_doors --seconds 60

A region with TLS, logins and ACLs, a process of its own. The good client (librdkafka) writes small records at a steady rate, each timed from when it was due;
beside it another one connects and logs in anew, again and again. Attackers are in a process of their own, and come from many addresses of this machine;
that process has the lowest priority: strangers have cores of their own, and what they compute for a handshake is not taken from who they attack (`--equals`: it is).
Told at the end: p50 and p99 of both by period, and over those of the quiet period before; memory of the node; what became of the attackers.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import percentile
from region_broker.cli.bench.grow import GrowPlan, Load
from region_broker.cli.bench.stage import client
from region_broker.workbench.credentials import present_as
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import secured
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.memory_census import Process

TOPIC: Final = "doors"
RATE_PER_S: Final = 100.0
WRONG_PER_S: Final = 100
HALF_OPEN: Final = 10_000
ADDRESSES: Final = 40
ANSWER_S: Final = 30.0
_LOWEST: Final = 19
PERIODS: Final = ("quiet", "wrong logins", "quiet again", "half-open handshakes", "quiet at last")
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_CLIENT_HELLO_BEGUN: Final = bytes.fromhex("16030102000100")


def main() -> None:
    """Measure, or attack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each period (20)")
    parser.add_argument(
        "--equals", action="store_true", help="attackers have the priority of all others"
    )
    parser.add_argument("--attack", choices=PERIODS[1::2], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ca", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        if not options.equals:
            os.nice(_LOWEST)
        attack = wrong_logins if options.attack == PERIODS[1] else half_open
        print(json.dumps(asyncio.run(attack(options.port, options.ca, options.seconds))))
    else:
        measure(options.seconds, equals=options.equals)


def measure(seconds: float, *, equals: bool) -> None:
    """Go through the periods."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-doors-")))
        cluster = stack.enter_context(
            LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=13))
        )
        made = secured(folder, cluster.plan)
        cluster.tell(made.settings, made.of_node, "https")
        present_as(made.admin)
        cluster.start()
        bootstrap, process = cluster.plan.regions[0].bootstrap, Process(cluster.pids("eu")[0])
        admin = AdminClient(client(bootstrap))
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(ANSWER_S)
        plan = GrowPlan(
            partition_count=1, megabytes=1, record_bytes=100, rate_per_s=RATE_PER_S, seconds=seconds
        )
        load, logins = Load(bootstrap, [(TOPIC, 0)], plan), Logins(bootstrap)
        for each in (load, logins):
            thread = threading.Thread(target=each.run, daemon=True)
            stack.callback(thread.join, 2 * ANSWER_S)
            stack.callback(each.ends.set)
            thread.start()
        time.sleep(3)  # connections are made, and caches are as they stay
        before: list[float] = []
        for number, period in enumerate(PERIODS):
            place = cluster.plan.regions[0].kafka_port, made.admin.ca
            told, spans = played(period, seconds, place, equals=equals)
            figures = [
                percentile(took, share)
                for took in (load.between(*spans), logins.between(*spans))
                for share in (0.5, 0.99)
            ]
            before = figures if number % 2 == 0 else before
            ratios = " ".join(
                f"{now / then:.2f}" for now, then in zip(figures, before, strict=True)
            )
            print(
                f"{period:22}  write p50 {figures[0]:6.2f} p99 {figures[1]:6.2f}, log in p50 {figures[2]:6.1f} p99 {figures[3]:6.1f} ms;"
                f" over quiet {ratios}; {process.resident_bytes() / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f}; {told}",
                flush=True,
            )  # fmt: skip
        assert not load.errors, load.errors


def played(
    period: str, seconds: float, place: tuple[int, str], *, equals: bool
) -> tuple[str, tuple[float, float]]:
    """Let a period pass; return what the attackers told, and from when to when it was."""
    if period not in PERIODS[1::2]:
        from_s = time.monotonic()
        time.sleep(seconds)
        return "", (from_s, time.monotonic())
    port, ca = place
    command = [sys.executable, "-m", "tests.process.locked_doors", "--attack", period]
    command += ["--equals"] if equals else []
    with subprocess.Popen(
        [*command, "--port", str(port), "--ca", ca, "--seconds", str(seconds)],
        stdout=subprocess.PIPE, text=True,
    ) as attackers:  # fmt: skip
        assert attackers.stdout is not None
        began = attackers.stdout.readline()
        assert began == "began\n", began
        from_s = time.monotonic()
        told = attackers.stdout.readline().strip()
        until_s = time.monotonic()
    return told, (from_s, until_s)


class Logins:
    """Connects and logs in anew, again and again; `between` as of `Load`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._took_ms: list[tuple[float, float]] = []
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.wait(0.2):
            from_s = time.monotonic()
            AdminClient(client(self._bootstrap)).list_topics(timeout=ANSWER_S)
            self._took_ms.append((from_s, 1000 * (time.monotonic() - from_s)))

    def between(self, from_s: float, until_s: float) -> list[float]:
        return [took for at_s, took in self._took_ms if from_s <= at_s < until_s]


def _address(number: int) -> tuple[str, int]:
    return f"127.0.1.{1 + number % ADDRESSES}", 0


async def wrong_logins(port: int, ca: str, seconds: float) -> dict[str, Any]:
    """Log in with a wrong proof, so many times a second; return how often what came of it."""
    context, ended = ssl.create_default_context(cafile=ca), Counter[str]()

    async def one(number: int) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                ended[await _wrong_login(port, context, number)] += 1
        except (OSError, EOFError, TimeoutError) as error:
            ended[type(error).__name__] += 1

    async with asyncio.TaskGroup() as group:
        print("began", flush=True)
        # As many strangers come: at random moments, never in step with the good client.
        chance, due_s = random.Random(13), time.monotonic()
        for number in range(int(WRONG_PER_S * seconds)):
            due_s += chance.expovariate(WRONG_PER_S)
            await asyncio.sleep(due_s - time.monotonic())
            group.create_task(one(number))
    return dict(ended)


async def _wrong_login(port: int, context: ssl.SSLContext, number: int) -> str:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, local_addr=_address(number)
    )
    client = RawClient(reader, writer)
    try:
        await client.call(_SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
        user = "admin" if number % 2 else f"nobody{number}"
        first = await _say(client, f"n,,n={user},r=mine")
        nonce = first.auth_bytes.decode().partition(",")[0]
        proof = base64.b64encode(os.urandom(64)).decode()
        last = await _say(client, f"c=biws,{nonce},p={proof}")
        return f"error {last.error_code.value}"
    finally:
        writer.close()


async def _say(client: RawClient, message: str) -> Any:
    return await client.call(_SASL_AUTHENTICATE, 1, {"auth_bytes": message.encode()})


async def half_open(port: int, _ca: str, seconds: float) -> dict[str, Any]:
    """Begin so many handshakes, spread over the time, and end none; return how many were open at most, and what became of them."""
    ended, held = Counter[str](), set[int]()
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=_address(number)
            )
            writer.write(_CLIENT_HELLO_BEGUN)
            held.add(number)
            most = max(most, len(held))
            try:
                await reader.read(1)
                ended["closed by the node"] += 1
            finally:
                held.discard(number)
                writer.close()
        except OSError as error:
            ended[type(error).__name__] += 1

    async with asyncio.TaskGroup() as group:
        print("began", flush=True)
        began_s = time.monotonic()
        tasks = []
        for number in range(HALF_OPEN):
            await asyncio.sleep(began_s + number * seconds / HALF_OPEN - time.monotonic())
            tasks.append(group.create_task(one(number)))
        for task in tasks:
            task.cancel()
    return {"open at most": most, **ended}


if __name__ == "__main__":
    main()
