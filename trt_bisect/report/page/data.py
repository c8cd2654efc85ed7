"""The data of the page, as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_bisect.precision import Precision
from trt_bisect.recipe.files import BUILD, FOLDER, PLAN, network_file, recipe_commands
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.model import RECOVER, Report
from trt_bisect.report.page.headline import headline, recovered_headline
from trt_bisect.report.recovery import Recovery
from trt_bisect.report.verdict import TONES
from trt_bisect.support.plain_json import plain

_LARGEST_TEXT = 1 << 20


def page_data(
    report: Report,
    graph: Mapping[str, Any] | None = None,
    explanation: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    *,
    recovery: Recovery | None = None,
    status: str = "finished",
    progress: Mapping[str, Any] | None = None,
    command: str = "",
    folder: str = "",
) -> dict[str, Any]:
    """Returns the data for ``render_page``, in JSON's types: no NaN and no infinity.

    Args:
        report: the report of a finished run, or of one under way.
        graph: the content of ``network.json``.
        explanation: the content of ``explanation.json``.
        recipe: the value of ``recipe_texts``.
        recovery: the best recipe, where ``recover`` was run.
        status: ``finished``, ``running`` or ``interrupted``.
        progress: the progress of a running run, ``stage``, ``done``, ``total`` and ``seconds``.
        command: the command line of the run.
        folder: the run folder, as the commands on the recipe's files name it.
    """
    alone = recovery if report.strategy == RECOVER else None
    few: dict[str, Any] = plain(
        {
            "headline": recovered_headline(alone) if alone else headline(report, status),
            "status": status,
            "tones": {
                "verdict": TONES[report.verdict] if status == "finished" else "",
                **{plan: TONES[verdict] for plan, verdict in report.verdicts.items()},
            },
            "progress": progress,
            "recipe": recipe or {},
            "command": command,
            "commands": _commands(recipe or {}, folder, report.low),
        }
    )
    recovered = None if recovery is None else recovery.to_json()
    return {"report": report.to_json(), "graph": graph, "explanation": explanation, "recovery": recovered, **few}


def _commands(recipe: Mapping[str, Any], folder: str, low: str) -> dict[str, str]:
    """Returns by file of the recipe the complete command that uses it; none where the plan does not tell its build."""
    try:
        plan = json.loads(recipe.get(PLAN, ""))
    except (TypeError, ValueError, RecursionError):
        return {}
    build = Build.from_json(plan.get(BUILD)) if isinstance(plan, dict) else None
    if build is None:
        return {}
    known = recipe_commands(f"{folder}/{FOLDER}" if folder else FOLDER, build, network_file(Precision(low)))
    return {name: command for name, command in known.items() if name in recipe}


def recipe_texts(folder: Path) -> dict[str, str | dict[str, int]]:
    """Returns the files of a recipe by name: the text, or ``{"bytes": size}`` for a binary or long file."""
    found: dict[str, str | dict[str, int]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            found[path.name] = _text(path)
    return found


def _text(path: Path) -> str | dict[str, int]:
    size = path.stat().st_size
    if size <= _LARGEST_TEXT and path.suffix != ".onnx":
        try:
            return path.read_text(encoding="utf-8")
        except ValueError:
            pass
    return {"bytes": size}
