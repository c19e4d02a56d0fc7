"""Where the sidecar of a segment lies: apart from what is in it, which needs numpy.

Not here: its content (`sidecar`).
"""

from pathlib import Path
from typing import Final

SIDECAR_SUFFIX: Final = ".hdr"


def sidecar_path(segment_path: Path) -> Path:
    """Return where the sidecar of a segment lies."""
    return segment_path.with_suffix(SIDECAR_SUFFIX)
