"""Blocks of units, by the names that exporters give layers, and a search that opens only the blocks that matter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trt_bisect.driver.recipes.minimal import Chosen, chosen, cut_rankings, reduced
from trt_bisect.driver.recipes.search_space import Batches, Kept, MeasuredSets, Space

Block = tuple[int, ...]
"""The numbers of its units, ascending."""
BLOCKS = 8
"""The number of blocks to choose from at a time, about."""
_PARTS = re.compile(r"[/.]+")


def open_blocks(blocks: Sequence[Block], names: Mapping[int, str], wanted: int = BLOCKS) -> tuple[Block, ...]:
    """Splits the largest block, again and again, until there are as many as wanted or only single units.

    Args:
        blocks: to split.
        names: of the units, such as ``/layer3/layer3.0/conv1/Conv``.
        wanted: the smallest number of blocks.
    """
    found = sorted(blocks)
    while len(found) < wanted:
        largest = max(found, key=lambda block: (len(block), -block[0]))
        if len(largest) == 1:
            break
        found.remove(largest)
        found = sorted([*found, *_children(largest, names)])
    return tuple(found)


def _children(block: Block, names: Mapping[int, str]) -> list[Block]:
    """The parts of a block: by the first part of the names in which its units differ, or else runs of equal length."""
    parts = {unit: _PARTS.split(names[unit].strip("/")) for unit in block}
    depth = 0
    while True:
        groups: dict[tuple[str, ...], list[int]] = {}
        for unit in block:
            groups.setdefault(tuple(parts[unit][: depth + 1]), []).append(unit)
        deeper = any(len(part) > depth + 1 for part in parts.values())
        if len(groups) > 1 or not deeper:
            break
        depth += 1
    if not 1 < len(groups) <= 4 * BLOCKS:
        size = -(-len(block) // BLOCKS)
        return [block[start : start + size] for start in range(0, len(block), size)]
    return [tuple(units) for units in groups.values()]


def minimal_by_blocks(space: Space, names: Mapping[int, str]) -> Batches[Chosen]:
    """Keeps as few blocks high as are enough, splits these, and goes on inside them, down to single units.

    It asks for tens of plans for each culprit, however many units there are. The set that it returns is 1-minimal. The
    units of blocks that it did not split are low.

    Args:
        space: the units to choose from.
        names: of all layers, by index; a unit has the name of its first layer.
    """
    called = {number: names[unit[0]] for number, unit in enumerate(space.units)}
    blocks: tuple[Block, ...] = (tuple(sorted(space.all)),)
    losses: dict[Kept, float] = {}
    while True:
        blocks = open_blocks(blocks, called, max(BLOCKS, 3 * len(blocks)))
        units = tuple(tuple(space.layers(block)) for block in blocks)
        costs = tuple(space.cost(block) for block in blocks)
        found = yield from _quick(replace(space, base=space.plan(frozenset()), units=units, costs=costs))
        losses.update((_units_of(kept, blocks), loss) for kept, loss in found.losses.items())
        kept = _units_of(found.kept, blocks)
        blocks = tuple(blocks[number] for number in sorted(found.kept))
        if not found.meets or all(len(block) == 1 for block in blocks):
            return Chosen(kept, found.loss, found.meets, None, losses)


def _units_of(kept: Kept, blocks: Sequence[Block]) -> Kept:
    """Returns the units of blocks."""
    return frozenset(unit for number in kept for unit in blocks[number])


def _quick(space: Space) -> Batches[Chosen]:
    """Finds a 1-minimal set in few plans: units are ranked by the loss without each alone."""
    known = MeasuredSets(space)
    yield from known.ask([frozenset(), space.all])
    if known.meets(frozenset()):
        return chosen(known, frozenset(), None)
    if not known.meets(space.all):
        return chosen(known, min(known.losses, key=lambda kept: (known.losses[kept], len(kept))), None)
    units = sorted(space.all)
    alone = yield from known.ask([space.all - {unit} for unit in units])
    ranked = sorted(units, key=lambda unit: (-alone[unit], unit))
    (start,) = yield from cut_rankings(known, [ranked])
    kept = yield from reduced(known, start)
    return chosen(known, kept, None)
