"""What becomes of a node's data folder while it is down: emptied, older, another's, halved, removed, damaged; and what an operator does.

INV-NFF1  a folder that is another node's, that lacks one of its parts, or that its region removed, is refused; so is an older copy once
          its node was started since (INV-MN6, INV-MN7, T36)
INV-NFF2  a folder that is refused costs nothing but itself: with its own whole folder back, or with an empty one, the node joins
Each is for a time at which the others of its region hold all that it held.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from random import Random
from typing import Any, Final

from idempotency.identity import INTERNAL_TOPICS
from region_broker.controller.metadata_store import QUORUM_FOLDER
from region_broker.node import Node
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from tests.simulation.folder_faults import FolderCopy, copy_of, empty_folder, restore
from tests.simulation.node_faults.stage import NodesStage
from tests.simulation.region_cluster import Member
from tests.simulation.region_pair import Region

Stage = NodesStage[Any]
"""With any nodes."""

DOWN_S: Final = 1.6
"""Longer than a session, so that somebody else leads before a folder is another one."""
JUDGED_S: Final = 60.0
"""Within that a node registers, or is refused, if a quorum is there."""
ORDERED_S: Final = 20.0
ANSWER_S: Final = 12.0
COPY_SHARE: Final = 0.5
TOPIC_ID_DIGITS: Final = 32
OLDER: Final = "is an older copy"
REMOVED: Final = "was removed from region"
REPLACED: Final = "took the place of it"


class Part(StrEnum):
    """Which half of a folder goes. Without one of the first five a folder is not whole."""

    METADATA = "metadata.db"
    LOGS = "logs"
    IDENTITY = "identity"
    JOURNAL = "failover.journal"
    QUORUM = QUORUM_FOLDER
    PARTITION = "a partition"
    LEDGER = "a ledger"
    MANIFEST = "logs/manifest"


NOT_WHOLE: Final = {Part.METADATA, Part.LOGS, Part.IDENTITY, Part.JOURNAL, Part.QUORUM}


async def emptied(stage: Stage, name: str, _for_s: float, _chance: Random) -> None:
    """Let it come back with a new disk."""
    await stage.kill(name)
    await asyncio.sleep(DOWN_S)
    await _with_an_empty_one(stage, name)


async def older(stage: Stage, name: str, _for_s: float, chance: Random) -> None:
    """Let it come back with a copy of its folder that was made at some time, or with a folder that it had before an empty one."""
    own, former = stage.copies.get(name), stage.former.get(name)
    if own is None and former is None:
        return
    await stage.kill(name)
    await asyncio.sleep(DOWN_S)
    if own is None or (former is not None and chance.random() < 0.5):
        assert former is not None
        restore(stage.nodes[name], former)
        must = False
    else:
        restore(stage.nodes[name], own[0])
        last = stage.nodes[name].member.node
        must = own[1] is not None and last is not None and last is not own[1]
    refused = await _judged_by_its_region(stage, name, OLDER, REMOVED, REPLACED)
    if not refused and must and name in stage.running:
        stage.blame(f"{name} takes part with an older copy of its folder (INV-NFF1)")
    if name not in stage.running and not stage.unsound(name):
        await _with_an_empty_one(stage, name, is_newest=False)


async def another(stage: Stage, name: str, _for_s: float, chance: Random) -> None:
    """Give it a copy of the folder of another node, which runs on."""
    other = chance.choice([each for each in stage.nodes if each != name])
    await stage.kill(name)
    own = copy_of(stage.nodes[name])
    restore(stage.nodes[name], copy_of(stage.nodes[other]))
    await _is_refused(stage, name, f"the folder of {other}")
    await _renew(stage, name, own, chance)


async def swapped(stage: Stage, name: str, for_s: float, other: str) -> None:
    """Exchange the folders of two nodes, and give them back."""
    nodes = [stage.nodes[each] for each in (name, other)]
    for node in nodes:
        await stage.kill(node.name)
    await asyncio.sleep(for_s)
    ours, theirs = map(copy_of, nodes)
    for node, copy in zip(nodes, (theirs, ours), strict=True):
        restore(node, copy)
    for node in nodes:
        await _is_refused(stage, node.name, "the folder of another node")
    for node, copy in zip(nodes, (ours, theirs), strict=True):
        restore(node, copy)
    for node in nodes:
        await stage.start_soundly(node.name)


async def halved(stage: Stage, name: str, for_s: float, chance: Random) -> None:
    """Let a part of its folder be gone: it refuses the rest, or copies that part from its region again."""
    part = chance.choice(tuple(Part))
    await without(stage, name, part, chance.choice((0.0, for_s, DOWN_S)), chance)


async def without(stage: Stage, name: str, part: Part, down_s: float, chance: Random) -> None:
    """Let this part be gone."""
    await stage.kill(name)
    await asyncio.sleep(down_s)
    node = stage.nodes[name]
    own = copy_of(node)
    if not _lose(stage, node, part, chance):
        await stage.start_soundly(name)
    elif part in NOT_WHOLE:
        await _is_refused(stage, name, f"a folder without {part.value}")
        await _renew(stage, name, own, chance)
    else:
        await stage.start_soundly(name)


async def removed(stage: Stage, name: str, _for_s: float, chance: Random) -> None:
    """Let an operator remove it, start it with its former folder perhaps, and then with an empty one."""
    await stage.kill(name)
    if not await _remove(stage, name):
        await stage.start_soundly(name)
        return
    if chance.random() < 0.5:
        if not await _judged_by_its_region(stage, name, REMOVED) and name in stage.running:
            stage.blame(f"{name} takes part with a folder that was removed (INV-NFF1)")
        await stage.kill(name)
    await _with_an_empty_one(stage, name)


async def damaged(stage: Stage, name: str, for_s: float, chance: Random) -> None:
    """Flip a bit of its folder at rest, let it live with that, and give the bit back, or give it an empty folder."""
    await stage.kill(name)
    node = stage.nodes[name]
    flip = stage.flips.flip(node, chance)
    if flip is not None:
        stage.tell(f"  a bit flips at {name}: byte {flip.position} of {flip.path}")
        stage.damaged.add(name)
        if reason := await stage.start(name):
            stage.tell(f"  {name} refuses it: {reason[:200]}")
        await asyncio.sleep(for_s)
        await stage.kill(name)
        stage.flips.give_back(node)
        stage.damaged.discard(name)
        if chance.random() < 0.4:
            await asyncio.sleep(DOWN_S)
            await _with_an_empty_one(stage, name, is_newest=False)
    await stage.start_soundly(name)


# -- what they have in common ----------------------------------------------------------------------


async def _with_an_empty_one(stage: Stage, name: str, *, is_newest: bool = True) -> None:
    node = stage.nodes[name]
    if is_newest:
        stage.former[name] = copy_of(node)
    empty_folder(node)
    stage.copies.pop(name, None)
    await stage.start_soundly(name)


async def _renew(stage: Stage, name: str, own: FolderCopy, chance: Random) -> None:
    """Do what a refusal asks for (INV-NFF2): give the whole folder back, or an empty one, of a node that was removed or not."""
    restore(stage.nodes[name], own)
    how = chance.random()
    if how < 0.5:
        await stage.start_soundly(name)
        return
    await asyncio.sleep(DOWN_S)
    if how < 0.7:
        await _remove(stage, name)
    await _with_an_empty_one(stage, name)


async def _is_refused(stage: Stage, name: str, what: str) -> None:
    """Demand that it does not start."""
    stage.damaged.add(name)  # It may not be judged by what it does with it.
    reason = await stage.start(name)
    if not reason:
        await asyncio.sleep(1)
        stage.blame(f"{name} starts with {what} (INV-NFF1)")
        await stage.kill(name)
    stage.damaged.discard(name)


async def _judged_by_its_region(stage: Stage, name: str, *texts: str) -> bool:
    """Start it, and return whether it was refused with one of these texts, by itself or by others."""
    stage.doubted[name] = texts
    member = stage.nodes[name].member
    reason = await stage.start(name)
    if reason and not any(text in reason for text in texts):
        stage.blame(f"{name} refuses its folder: {reason}")
    elif not reason:
        member = stage.nodes[name].member
        await stage.until(lambda: name not in stage.running or member.node is not None, JUDGED_S)
    del stage.doubted[name]
    return bool(reason) or name not in stage.running


async def _remove(stage: Stage, name: str) -> bool:
    """Order `tidemark cluster node remove` until it is done; return whether it was."""
    node_id, deadline_s = stage.nodes[name].node_id, stage.now_s() + ORDERED_S
    told = "nobody leads the quorum"
    while stage.now_s() < deadline_s:
        leading = [
            n
            for each in stage.siblings(name)
            if (n := stage.joined(each)) is not None and _leads(n)
        ]
        if leading:
            told = await _order_removal(stage, leading[-1], node_id)
            if not told:
                stage.tell(f"  {name} is removed from its region")
                return True
        await asyncio.sleep(0.2)
    stage.tell(f"  {name} is not removed: {told}")
    return False


def _leads(node: Node) -> bool:
    return node.storage.metadata.group.leads and node.operating is not None


async def _order_removal(stage: Stage, node: Node, node_id: int) -> str:
    """Return why it was not done, empty if it was."""
    operating = node.operating
    assert operating is not None
    ordered = stage.loop.create_task(
        operating.order("remove", node_id, dry_run=False, confirmed=True)
    )
    await asyncio.wait([ordered], timeout=ANSWER_S)
    if not ordered.done():
        ordered.cancel()
        return "no answer"
    if ordered.cancelled():
        return "its node ended"
    error = ordered.exception()
    if error is None:
        return ""
    if not isinstance(error, ClusterOrderRefused):
        stage.blame(f"a removal fails: {error!r}")
    return str(error)


def _lose(stage: Stage, node: Region, part: Part, chance: Random) -> bool:
    """Let a part be gone for good; return whether it was there."""
    disk, path = node.disk, node.folder / part.value
    if part in {Part.PARTITION, Part.LEDGER}:
        logs = _logs_of(node, only_ledgers=part is Part.LEDGER)
        if not logs:
            return False
        path = chance.choice(logs)
    if not disk.exists(path):
        return False
    (
        disk.remove_tree
        if part in {Part.LOGS, Part.QUORUM, Part.PARTITION, Part.LEDGER}
        else disk.remove
    )(path)
    disk.write_out()
    stage.tell(f"  {node.name} has lost {path}")
    return True


def _logs_of(node: Region, *, only_ledgers: bool) -> list[Any]:
    """Return the folders of partitions; of ledgers, those of whole topics."""
    disk, logs = node.disk, node.folder / "logs"
    topics = [each for each in disk.list_dir(logs) if len(each) == TOPIC_ID_DIGITS]
    if not only_ledgers:
        return [logs / t / n for t in topics for n in disk.list_dir(logs / t) if n.isdecimal()]
    assert isinstance(node, Member)
    known = {} if node.member.node is None else node.node.storage.metadata.image.topics
    ledgers = {topic.topic_id.hex for name, topic in known.items() if name in INTERNAL_TOPICS}
    return [logs / each for each in topics if each in ledgers]


FOLDER_PLAYS: Final[dict[str, Callable[[Stage, str, float, Random], Awaitable[None]]]] = {
    "wipe": emptied,
    "older": older,
    "another": another,
    "half": halved,
    "remove": removed,
    "flip": damaged,
}
"""By the name of the fault."""
