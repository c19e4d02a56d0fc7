"""Why a login is refused: one text for whoever asks, another for whoever runs the node.

INV-SSL1  what is said to a client is the same for an unknown user, a wrong password, an ended token and keys that do not fit: the reason
          stands in the log only, and neither text holds a password, a proof or a token
Not here: how long a refusal is held back (`attempts`).
"""

from typing import Final

WRONG: Final = "Authentication failed: the user name or the credentials are wrong ({})"


class LoginRefused(Exception):
    """A login failed. The text is for the log of the node; `said` is what the client is told, `tried` the user who it said it was."""

    def __init__(
        self,
        mechanism: str,
        why: str,
        said: str | None = None,
        *,
        tried: str = "",
        is_judged: bool = True,
    ) -> None:
        """Refuse for `why`; without `said` the client is told what all are told. `is_judged`: somebody has looked at what it showed."""
        super().__init__(why)
        self.is_judged = is_judged
        self.tried = tried
        self.said = WRONG.format(mechanism) if said is None else said
