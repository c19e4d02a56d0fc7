from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from region_broker.controller.raft.effects import Received

class RaftosTimer:
    interval: float | Callable[[], float]
    callback: Callable[[], None]
    loop: AbstractEventLoop
    is_active: bool
    handler: TimerHandle

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def reset(self) -> None: ...
    def get_interval(self) -> float: ...
    def _run(self) -> None: ...

class RaftosBaseState:
    state: RaftosState

    def __init__(self, state: RaftosState) -> None: ...

class RaftosFollower(RaftosBaseState):
    election_timer: RaftosTimer

    def start(self) -> None: ...
    def stop(self) -> None: ...

class RaftosCandidate(RaftosBaseState):
    election_timer: RaftosTimer

    def start(self) -> None: ...
    def stop(self) -> None: ...

class RaftosLeader(RaftosBaseState):
    heartbeat_timer: RaftosTimer
    step_down_timer: RaftosTimer

    def start(self) -> None: ...
    def stop(self) -> None: ...

class RaftosState:
    server: RaftosNode
    id: str
    loop: AbstractEventLoop
    state: RaftosFollower | RaftosCandidate | RaftosLeader

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def request_handler(self, data: Received) -> None: ...
    @staticmethod
    def _get_id(host: object, port: object) -> str: ...
    def _change_state(
        self, new_state: type[RaftosFollower | RaftosCandidate | RaftosLeader]
    ) -> None: ...

class RaftosNode:
    loop: AbstractEventLoop
    state: RaftosState

    def request_handler(self, data: Received) -> None: ...
