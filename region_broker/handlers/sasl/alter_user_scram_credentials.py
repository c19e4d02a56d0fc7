"""AlterUserScramCredentials (51), versions 0-0: gives users keys, and takes them away (KIP-554).

The client sends the salted password, never the password. Each user is answered by itself: all that is asked for one takes effect, or
nothing of it. The first user puts access in force, so it is refused while nobody could make an ACL then (INV-AUZ6). Source: ScramControlManager.java `alterCredentials`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import CLUSTER_DENIED
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.changing import changed
from region_broker.handlers.sasl.scram_mechanisms import NAMES
from region_broker.security.access import Access, AccessChange, ScramKeys
from region_broker.security.sasl.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN
from region_broker.security.sasl.scram_keys import keys_of_salted, problem_of, user_problem
from region_broker.wire.cooperative_yield import CooperativeYield

_LOCKS_OUT: Final = (
    "this would be the first user: from then on everybody is refused what no ACL allows, and nobody could make an ACL, as there is no super"
    ' user. Name one first, super_users = "User:admin" in the configuration of every node, and restart them (docs/reference/security.md)'
)


@dataclass(slots=True)
class _User:
    """What is asked for one user; `refused`: the first thing that is wrong with it."""

    refused: tuple[ErrorCode, str] | None = None
    put: list[ScramKeys] = field(default_factory=list)
    removed: list[tuple[str, str]] = field(default_factory=list)


async def handle_alter_user_scram_credentials(ctx: RequestContext, request: Any) -> Fields:
    """Change what can be changed, in one step."""
    check_count("AlterUserScramCredentials", len(request.deletions) + len(request.upsertions))
    access = ctx.services.metadata.image.access
    users = await _judged(access, request)
    if ctx.services.authorizer.users_would_lock_out:
        for each in users.values():
            if each.put and each.refused is None:
                each.refused = ErrorCode.policy_violation, _LOCKS_OUT
    change = AccessChange(
        keys_put=tuple(keys for each in users.values() if not each.refused for keys in each.put),
        keys_removed=tuple(key for each in users.values() if not each.refused for key in each.removed),
    )  # fmt: skip
    error: ErrorCode = ErrorCode.none
    text: str | None = None
    if change.keys_put or change.keys_removed:
        error, text = await changed(ctx, request, change)
        if error is CLUSTER_DENIED:
            return _on_error(ctx, request, error)
    return {"results": [_row(name, *(each.refused or (error, text))) for name, each in users.items()]}  # fmt: skip


async def _judged(access: Access, request: Any) -> dict[str, _User]:
    """Return what each user that is named gets."""
    yielding = CooperativeYield()
    asked = [*request.deletions, *request.upsertions]
    times = Counter((str(each.name), int(each.mechanism)) for each in asked)
    users: dict[str, _User] = {str(each.name): _User() for each in asked}
    for each in asked:
        await yielding.row()
        name, mechanism = str(each.name), NAMES.get(int(each.mechanism))
        user = users[name]
        if user.refused is not None:
            continue
        if times[name, int(each.mechanism)] > 1:
            user.refused = (
                ErrorCode.duplicate_resource,
                "A user credential cannot be altered twice in the same request",
            )
        elif mechanism is None:
            user.refused = ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
        elif hasattr(each, "salted_password"):
            _put(user, name, mechanism, each)
        elif any(keys.mechanism == mechanism for keys in access.keys_of(name)):
            user.removed.append((name, mechanism))
        else:
            text = "Attempt to delete a user credential that does not exist"
            user.refused = ErrorCode.resource_not_found, text
    return users


def _put(user: _User, name: str, mechanism: str, asked: Any) -> None:
    """Give a user keys, or say why not."""
    iterations, salted = int(asked.iterations), bytes(asked.salted_password)
    wrong = user_problem(name)
    if wrong is None and iterations < ITERATIONS_MIN:
        wrong = "Too few iterations"
    elif wrong is None and iterations > ITERATIONS_MAX:
        wrong = "Too many iterations"
    elif wrong is None and len(salted) != hashlib.new(HASHES[mechanism]).digest_size:
        wrong = f"The salted password has not the size that {mechanism} makes"
    if wrong is None:
        keys = keys_of_salted(name, mechanism, salted, bytes(asked.salt), iterations)
        wrong = problem_of(keys)
        user.put.append(keys)
    if wrong is not None:
        user.refused = ErrorCode.unacceptable_credential, wrong


def _row(name: str, error: int, text: str | None) -> Fields:
    return {"user": name, "error_code": error, "error_message": text}


def _names(request: Any) -> Iterable[str]:
    return dict.fromkeys(str(each.name) for each in (*request.deletions, *request.upsertions))


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"results": [_row(name, error_code, None) for name in _names(request)]}


API: Final = Api(
    51, "AlterUserScramCredentials", range(1), handle_alter_user_scram_credentials,
    forward=True, on_error=_on_error,
)  # fmt: skip
