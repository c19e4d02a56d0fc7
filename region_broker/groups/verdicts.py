"""What the group coordinator says about a request; no Kafka error numbers here.

Not here: the numbers (`region_broker.handlers.groups.errors`).
"""

from enum import Enum, auto, unique


@unique
class GroupVerdict(Enum):
    """The answer's meaning. Every handler maps every member to one Kafka error."""

    OK = auto()
    INVALID_GROUP_ID = auto()
    TOO_MANY_GROUPS = auto()
    NOT_COORDINATOR = auto()
    LOADING = auto()
    NOT_AVAILABLE = auto()
    UNKNOWN_MEMBER = auto()
    FENCED_INSTANCE = auto()
    ILLEGAL_GENERATION = auto()
    REBALANCE_IN_PROGRESS = auto()
    MEMBER_ID_REQUIRED = auto()
    INCONSISTENT_PROTOCOL = auto()
    INVALID_SESSION_TIMEOUT = auto()
    GROUP_FULL = auto()
    REQUEST_TOO_LARGE = auto()
    METADATA_TOO_LARGE = auto()
    COMMIT_TOO_LARGE = auto()
    TOO_MANY_OFFSETS = auto()
    OFFSET_BEYOND_EPOCH = auto()
    UNKNOWN_PARTITION = auto()
    UNSTABLE_OFFSET = auto()
    GROUP_NOT_FOUND = auto()
    INVALID_REQUEST = auto()
    FENCED_MEMBER_EPOCH = auto()
    STALE_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    INVALID_REGEX = auto()
    UNSUPPORTED_VERSION = auto()
    NON_EMPTY_GROUP = auto()
    SUBSCRIBED_TO_TOPIC = auto()
