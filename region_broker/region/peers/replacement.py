"""What a node tells a folder whose place another folder took: the grounds of its word, so that the other one need not just believe it.

Not here: who says so and who believes it (`region.cluster.replaced_folder`).
"""

from uuid import UUID

import msgspec


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a refusal: `node_id` and `incarnation` say who refuses, a voter of `region` of `cluster_id` that hears who leads the quorum.

    `leader_id`: who that is. `metadata_version`: how much of the region's history it knows. `successor`: the folder that took the place. `is_removed`: an operator
    removed the node with that one since. `unclean`: how often an operator let somebody lead who was not in sync, in all groups.
    """

    cluster_id: str
    region: str
    node_id: int
    incarnation: UUID
    leader_id: int
    metadata_version: int
    successor: UUID
    is_removed: bool
    unclean: int
