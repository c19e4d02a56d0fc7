"""raftos' classes that `shell` inherits from; the stub beside this file says what of them is used.

Not here: what is replaced, and why (`shell`), how they are loaded (`raftos_parts`).
"""

from region_broker.controller.raft.raftos_parts import loaded_parts

_parts = loaded_parts()
RaftosTimer = _parts["timer"].Timer
RaftosBaseState = _parts["state"].BaseState
RaftosFollower = _parts["state"].Follower
RaftosCandidate = _parts["state"].Candidate
RaftosLeader = _parts["state"].Leader
RaftosState = _parts["state"].State
RaftosNode = _parts["server"].Node
