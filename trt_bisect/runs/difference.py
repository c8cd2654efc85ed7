"""In what two fingerprints differ, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_VERSIONS = "versions"


@dataclass(frozen=True)
class Difference:
    """One part that differs.

    Attributes:
        part: such as ``model``, ``ranges``, ``inputs`` or an option; of a version, the package's name, or ``device``.
        is_version: it is one of the versions.
        before: and ``after``: the values, None where a version was not there.
    """

    part: str
    is_version: bool
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What differs of the parts that both are known to be made of.

    >>> [d.part for d in differences({"model": "a", "versions": {"tensorrt": "10.1"}},
    ...                              {"model": "a", "versions": {"tensorrt": "10.2"}, "ranges": "b"})]
    ['tensorrt']
    """
    parts = [name for name in before if name in after and name != _VERSIONS]
    found = [Difference(name, False, before[name], after[name]) for name in parts if before[name] != after[name]]
    old, new = before.get(_VERSIONS), after.get(_VERSIONS)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = dict.fromkeys([*old, *new])
        found += [
            Difference(name, True, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
        ]
    return tuple(found)
