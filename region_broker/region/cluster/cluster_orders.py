"""What an operator orders of a region of several nodes: drain, elect, elect unclean, remove, spread, gather.

INV-CLO1  an order is carried out by the node that leads the quorum, and by no other: any other one says whom to ask
INV-CLO2  `dry_run` judges an order by the metadata as they are, and changes nothing
INV-CLO3  an election that may lose records needs `confirm`, and is refused by the metadata while anybody in sync runs (INV-MH5). What it costs is
          said of each group of logs, as things stood before it, also by the answer of the one that was carried out
INV-CLO4  a node that is heard is not removed; one that was removed is in the metadata and in the membership of the quorum no more. One that
          was added and has not come is withdrawn
INV-CLO5  a node that is drained and leads on, as nobody else can lead in its place, is said to: whoever stops it then stops what it leads

Removing takes two steps, and an order that ended between them is finished by the next one.
Not here: what is decided (`controller.cluster.orders`), the routes (`http_api`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from idempotency.identity import Member
from region_broker.controller import metadata_commands
from region_broker.controller.cluster.core import NOT_LEADING
from region_broker.controller.cluster.elections import candidates, group_candidates
from region_broker.controller.cluster.events import (
    DrainAsked,
    Order,
    OrderAnswered,
    Outcome,
    PreferredAsked,
    UncleanAsked,
)
from region_broker.controller.cluster.orders import Orders
from region_broker.controller.cluster_commands import PreferSpread, RemoveNode, WithdrawNode
from region_broker.controller.cluster_image import MAIN_GROUP, NodeImage
from region_broker.controller.group_rows import groups_of
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.membership_keeping import without
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.effects import MembershipAsked
from region_broker.controller.raft.failures import Busy, RaftStoreFull, WishFailed
from region_broker.region.cluster.cluster_view import ClusterView
from region_broker.region.cluster.controller_driver import ControllerDriver

ORDER_MS_MAX: Final = 10_000
NO_QUORUM: Final = "no-quorum"
WITHOUT_QUORUM: Final = (
    "nobody leads the quorum, as far as this node hears, so nothing can be changed: most of its voters must run"
    " (tidemark cluster quorum; docs/runbooks/quorum_lost.md)"
)
_AGAIN_MS: Final = 50
_NO_TICKET: Final = 0


class ClusterOrderRefused(Exception):
    """An order is not carried out. `code` is stable; `url`: whom to ask instead, where that is known."""

    def __init__(self, code: str, reason: str, *, url: str | None = None, unknown: bool = False) -> None:  # fmt: skip
        """`unknown`: nobody can say whether it took effect."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.url = url
        self.unknown = unknown


@dataclass(frozen=True, slots=True)
class ClusterOrder:
    """What arrived. `node_id` None: whoever is best."""

    kind: str
    node_id: int | None
    dry_run: bool
    confirmed: bool


def unclean_costs(image: MetadataImage, node_id: int) -> str:
    """Return what is lost where a node leads all logs of the region by an operator's word, in each group whose in-sync set it is not in."""
    groups = groups_of(image)
    lost = []
    for number, row in groups.items():
        held = [each.node_id for each in row.in_sync]
        if node_id not in held:
            which = "the main group" if number == MAIN_GROUP else f"data group {number}"
            names = f"nodes {', '.join(map(str, held))}"
            lost.append(f"{names} hold of {which}" if len(groups) > 1 else f"{names} hold")
    return (
        f"what only {', what only '.join(lost) or 'nodes none hold'} is lost for good, though it was acknowledged: node {node_id} was not in sync."
        " Transactions may be torn by it; the nodes that come back are cut to what it has"
    )


class ClusterOrders:
    """Gives orders to this node's controller."""

    def __init__(self, view: ClusterView, controller: ControllerDriver) -> None:
        """Look at the metadata of `view`."""
        self._view = view
        self._controller = controller

    async def order(self, order: ClusterOrder) -> Mapping[str, Any]:
        """Carry one out and return how things stand then; raises `ClusterOrderRefused`."""
        self._judge_place()
        before, costs = self._view.describe()["leadership"], self._costs_before(order)
        try:
            async with asyncio.timeout(ORDER_MS_MAX / 1000):
                changed = await self._carry_out(order)
        except TimeoutError as error:
            raise ClusterOrderRefused(
                "outcome-unknown",
                f"not done after {ORDER_MS_MAX // 1000} s; it may still take effect: see tidemark cluster status",
                unknown=True,
            ) from error
        return {
            "order": order.kind,
            "node_id": order.node_id,
            "dry_run": order.dry_run,
            "changed": changed,
            "before": before,
            "leadership": self._view.describe()["leadership"],
            "costs": costs or self._left_by_drain(order),
            "leads_on": order.kind == "drain" and bool(self._kept_by(order)),
        }

    def _judge_place(self) -> None:
        """Refuse where another node leads the quorum (INV-CLO1)."""
        group = self._view.parts.metadata.group
        if group.leads:
            return
        if group.leader is None:
            raise ClusterOrderRefused(NO_QUORUM, WITHOUT_QUORUM)
        url = self._view.http_of(group.leader.node_id)
        raise ClusterOrderRefused(
            "other-node",
            f"node {group.leader.node_id} leads the quorum, and takes orders{f' at {url}' if url else ''}",
            url=url,
        )

    async def _carry_out(self, order: ClusterOrder) -> bool:
        match order.kind:
            case "drain":
                node_id = self._known(order.node_id).node_id
                return await self._by_controller(lambda t: DrainAsked(t, node_id), order)
            case "elect":
                if order.node_id is not None:
                    self._known(order.node_id)
                return await self._by_controller(lambda t: PreferredAsked(t, order.node_id), order)
            case "unclean-election":
                member = self._known(order.node_id).member
                if not order.dry_run and not order.confirmed:
                    raise ClusterOrderRefused(
                        "not-confirmed", f"{self._costs_before(order)}: confirm it"
                    )
                return await self._by_controller(lambda t: UncleanAsked(t, member), order)
            case "spread" | "gather":
                return await self._prefer_spread(order)
            case _:
                assert order.kind == "remove", order
                return await self._remove(order)

    def _known(self, node_id: int | None) -> NodeImage:
        nodes = self._view.parts.metadata.image.nodes
        node = None if node_id is None else nodes.get(node_id)
        if node is None:
            known = ", ".join(map(str, sorted(nodes)))
            raise ClusterOrderRefused(
                "unknown-node",
                f"no node {node_id} is registered in this region; there are: {known}",
            )
        return node

    def _costs_before(self, order: ClusterOrder) -> str:
        """Return what an election that may lose records will cost: once it was carried out, its leader alone is in sync."""
        if order.kind != "unclean-election":
            return ""
        return unclean_costs(self._view.parts.metadata.image, self._known(order.node_id).node_id)

    def _left_by_drain(self, order: ClusterOrder) -> str:
        if order.kind != "drain":
            return ""
        return self._leads_on(order) or self._nothing_to_drain(order.node_id)

    def _leads_on(self, order: ClusterOrder) -> str:
        kept = self._kept_by(order)
        if not kept:
            return ""
        what = "all logs" if kept[0] == MAIN_GROUP else f"data groups {kept}"
        return (
            f"node {order.node_id} leads on, {what} of this region: nobody else who holds all that was committed there is heard, and not about"
            " to stop itself. Stopped now, it leaves them without a leader. Start the other nodes, or wait until they are in sync (tidemark"
            " cluster status): then another one leads by itself"
        )

    def _kept_by(self, order: ClusterOrder) -> list[int]:
        """Return the groups that a node leads, drained or with nobody else to lead them if it were: the main one alone, where it is among them."""
        image = self._view.parts.metadata.image
        kept: list[int] = []
        for number, row in groups_of(image).items():
            if row.leader is None or row.leader.node_id != order.node_id:
                continue
            able = candidates(image, None) if number == MAIN_GROUP else group_candidates(image, number)  # fmt: skip
            if not order.dry_run or all(each == row.leader for each in able):
                kept.append(number)
        return kept[:1] if kept[:1] == [MAIN_GROUP] else kept

    def _nothing_to_drain(self, node_id: int | None) -> str:
        node = None if node_id is None else self._view.parts.metadata.image.nodes.get(node_id)
        if node is None or not node.fenced:
            return ""
        return (
            f"node {node_id} is not heard, so it led nothing, and nothing was led away from it: this counts if it is heard again before it is"
            f" started anew. If it is gone for good: tidemark cluster node remove {node_id}"
        )

    # -- by the controller -----------------------------------------------------------------------

    async def _by_controller(self, make: Callable[[int], Order], order: ClusterOrder) -> bool:
        orders = Orders(1)
        orders.add(make(_NO_TICKET))
        command, answers = orders.next_command(
            self._view.parts.metadata.image, self._controller.damaged
        )
        for answer in answers:
            _judge(answer)
        if order.dry_run or command is None:
            return command is not None  # INV-CLO2
        _judge(await self._controller.order(make))
        return True

    # -- removing --------------------------------------------------------------------------------

    async def _remove(self, order: ClusterOrder) -> bool:
        node_id, metadata = order.node_id, self._view.parts.metadata
        gone = [each for each in self._members() if each.node_id == node_id]
        node = None if node_id is None else metadata.image.nodes.get(node_id)
        is_added = node_id in metadata.image.added_nodes
        if node is None and not gone and not is_added:
            self._known(node_id)
        if node is not None:
            await self._forget(node, dry_run=order.dry_run)
        elif node_id is not None and is_added:
            await self._apply(WithdrawNode(node_id), dry_run=order.dry_run)
        if not order.dry_run:
            for member in gone:
                await self._leave(member)
        return True

    def _members(self) -> tuple[Member, ...]:
        membership = self._view.parts.metadata.group.membership
        return (*membership.voters, *membership.learners)

    async def _forget(self, node: NodeImage, *, dry_run: bool) -> None:
        if not node.fenced:
            raise ClusterOrderRefused(
                "node-runs",
                f"node {node.node_id} is heard: drain it (tidemark cluster drain {node.node_id}), stop it, and remove it then",
            )
        await self._apply(RemoveNode(node.node_id, node.incarnation), dry_run=dry_run)

    async def _prefer_spread(self, order: ClusterOrder) -> bool:
        """Note what the keeper of the spread is to see to (`controller.cluster.spreading`)."""
        wanted = order.kind == "spread"
        changes = self._view.parts.metadata.image.spread_wanted != wanted
        if changes:
            await self._apply(PreferSpread(wanted), dry_run=order.dry_run)
        return changes

    async def _apply(
        self, command: RemoveNode | PreferSpread | WithdrawNode, *, dry_run: bool
    ) -> None:
        metadata = self._view.parts.metadata
        try:
            metadata_commands.apply(metadata.image, command)
            if not dry_run:
                await metadata.apply(command)
        except CommandRefused as error:
            raise ClusterOrderRefused(error.code, error.reason) from error
        except MetadataInDoubt as error:
            raise ClusterOrderRefused("outcome-unknown", str(error), unknown=True) from error
        except MetadataUnwritable as error:
            raise ClusterOrderRefused("metadata-unwritable", str(error)) from error

    async def _leave(self, member: Member) -> None:
        """Have the quorum go on without `member` (INV-CLO4)."""
        group = self._view.parts.metadata.group
        while member in self._members():
            wanted = without(group.membership, member)
            try:
                await group.ask(lambda ticket, wanted=wanted: MembershipAsked(ticket, wanted))  # type: ignore[misc]
            except Busy:
                await self._view.parts.clock.sleep_ms(_AGAIN_MS)
            except (WishFailed, RaftStoreFull) as error:
                raise ClusterOrderRefused(
                    "membership-unchanged",
                    f"node {member.node_id} is removed from the region, and not from its quorum yet ({error}): order it again",
                ) from error


def _judge(answer: OrderAnswered) -> None:
    """Raise what an answer says, unless it was done."""
    if answer.outcome is Outcome.DONE:
        return
    if answer.outcome is Outcome.UNKNOWN:
        text = f"{answer.text}; it may still take effect: see tidemark cluster status"
        raise ClusterOrderRefused("outcome-unknown", text, unknown=True)
    code = NO_QUORUM if answer.text == NOT_LEADING else "refused"
    raise ClusterOrderRefused(code, answer.text)
