"""The text that ``--cluster`` takes."""

from __future__ import annotations

import re

from trt_bisect.errors import BadInput

AUTO = "auto"  # the Ray cluster that this machine belongs to
GOES_ON = "What was measured is kept, and the same command goes on from there, without --cluster too."
_LOCAL = re.compile(r"local:([1-9]\d{0,3})")
_RAY = re.compile(r"(?!local:)(?:ray://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")


def check_address(address: str) -> None:
    """Raises BadInput if ``--cluster`` has no valid text.

    ``local:N`` is N processes of this machine, ``auto`` its Ray cluster, ``HOST:PORT`` and ``ray://HOST:PORT`` another
    Ray cluster; the empty text is this process, and every GPU of this machine.
    """
    if address and address != AUTO and not _RAY.fullmatch(address) and local_processes(address) is None:
        raise BadInput(
            f"There is no cluster '{address}'.",
            "Give --cluster auto, HOST:PORT or ray://HOST:PORT for Ray, or local:N for N processes here.",
        )


def local_processes(address: str) -> int | None:
    """Returns the N of ``local:N``; None for another address."""
    local = _LOCAL.fullmatch(address)
    return None if local is None else int(local[1])
