"""The statements of a report, each held against the figures of the same report: ``report.json`` as another program
reads it.

``CHECKS`` has a check for each kind of line in a verdict, ``SURE`` for each kind of line on what the verdict rests on,
``REASONS`` for the reasons of suspects. A check computes the claim anew from the figures; a kind without one is a
mistake of whoever added it.
"""

from __future__ import annotations

import math
import re

DECIDING = "scales as they are", "scales moved by 2e-5", "ONNX Runtime's optimisations"
OF_INT8 = {"fp16": "FP32", "bf16": "FP32"}
"""The precision over which a low one's speedup is counted, where that is not FP16."""
SHARES = "cosine", "top1", "agreement", "equal"
_PERCENT = r"[<>]?(-?\d[\d.]*)%"


def percents(text):
    """Returns the percentages in a text, as they are written."""
    return re.findall(_PERCENT, text)


def tells(written, value):
    """Returns true if a written percentage is a share of 1, rounded to the digits that it has."""
    if written == "99.9999":  # ">99.9999%" is the most that is written of what is not all
        return 0.999998 < value < 1.0
    if written == "0.0001":  # "<0.0001%" is the least
        return 0.0 < value < 0.000002
    decimals = len(written.partition(".")[2])
    return abs(float(written) - 100.0 * value) <= 0.51 * 10.0**-decimals


def keeps(report, text, cost):
    """Holds the words on a plan's speed, at the end of ``text`` or within, against the share that it gives up."""
    low = report["low"].upper()
    speedup = f"{low}'s speedup over {OF_INT8.get(report['low'], 'FP16')}"
    said = re.search(rf"keeps (all|{_PERCENT}) of (\w+'s speedup over \w+)", text)
    if said is None:
        assert cost >= 1.0
        assert ("slower than" if cost > 1.0 else "as fast as") + f" {speedup.split()[-1]}" in text
        return
    assert said[3] == speedup
    assert cost == 0.0 if said[1] == "all" else tells(said[2], 1.0 - cost)


def takes(report, text, plans):
    """Holds the milliseconds in a text, of plans in this order, against those of the table and their source."""
    written = re.findall(r"(\d[\d.e+-]*) ms", text)
    by_plan = {choice["plan"]: choice["ms"] for choice in report["choices"]}
    assert [float(one) for one in written] == [float(f"{by_plan[plan]:.3g}") for plan in plans]
    source = "(measured)" if report["latency"] else f"(predicted on {(report['predicted'] or {}).get('gpu')})"
    assert source in text
    for plan, ms in by_plan.items():
        if report["latency"]:
            assert ms is None or ms == report["latency"][plan]["median_ms"]
        elif report["predicted"]:
            assert ms is None or ms == report["predicted"]["plans"][plan]["ms"]


def names(text):
    """Returns the names in quotes."""
    return re.findall(r"'([^']+)'", text)


def loss(report, value):
    """Returns the part of a perfect figure that is missing; infinite for no figure."""
    return math.inf if value is None else 1.0 - value


def decided_by(report):
    """Returns the figure that decides, of full INT8 and of the recipe, and its least value."""
    if report["goal"]["drop"]:
        accuracy = report["accuracy"]
        return accuracy["int8"], accuracy["recipe"], accuracy["least"]
    return report["similarity"]["int8"], report["similarity"]["recipe"], report["threshold"]


def is_share(report):
    return bool(report["goal"]["drop"]) or report["metric"] in SHARES


def culprit_rows(report):
    return {row["name"]: row for row in report["layers"] if row["culprit"]}


def full_int8(report, text):
    """The verdict: the figure of full INT8 over all inputs, its mean and misses, and the calibrator."""
    answer, (figure, _, least) = report["answer"], decided_by(report)
    missed = [
        name for name, value in answer["settings"].items() if name in DECIDING and loss(report, value) > 1 - least
    ]
    if not is_share(report) or "could not be built" in text:
        return
    first, *others = percents(text.partition(": full ")[2])
    assert tells(first, least)
    if figure is None:
        assert "no figure" in text
    else:
        assert tells(others[0], figure)
    meets = figure is not None and figure >= least
    assert ("misses" not in text.partition(";")[0]) == (meets and (report["verdict"] != "fails" or bool(missed)))
    each = report["by_input"]["int8"]
    if each is not None and not each["together"] and not report["goal"]["drop"]:
        values = [value for value in each["values"] if value is not None]
        finite = [value for value in values if not math.isnan(value)]
        is_worst = figure is None or not finite or math.isclose(figure, min(finite), rel_tol=1e-6)
        assert f"{'worst of' if is_worst else 'over'} {each['inputs']} inputs" in text
        if not is_worst:
            assert tells(others[1], min(finite))
        without = [place for place, value in enumerate(each["values"]) if value is None and place not in each["faint"]]
        failing = sum(not value >= least for value in values) + len(without)
        assert (f"{failing} fail" in text) if failing else ("all pass" in text)
        if "(mean" in text:
            assert tells(others[figure is not None], sum(finite) / len(finite))
    chosen = [row for row in answer["calibrators"] if row["chosen"]]
    if len(answer["calibrators"]) > 1:
        [row] = chosen
        assert f"calibrator {report['ranges']['origin']}" in text
        assert (row["calibrator"], row["similarity"]) == (report["ranges"]["origin"], report["similarity"]["int8"])


def culprits(report, text):
    """Each culprit is named with the figure of the recipe without it, which misses; the worst of each list first."""
    rows, answer, (_, _, least) = culprit_rows(report), report["answer"], decided_by(report)
    named = [name for name in names(text) if name in rows]
    assert ("of the unchanged network" in text) == bool(answer["changes"])
    assert set(answer["ranked"]) == set(rows) == set(report["culprits"])
    assert named == [name for name in answer["ranked"] if name in named]
    main = [name for name in answer["ranked"] if name not in answer["weak"]]
    for group in (main, [name for name in answer["ranked"] if name in answer["weak"]]):
        losses = [loss(report, rows[name]["put_back"]) for name in group]
        assert losses == sorted(losses, reverse=True) or not is_share(report)
    given = answer["given"]
    for name in named:
        row = rows[name]
        if row["put_back"] is None or not is_share(report):
            continue
        assert any(tells(written, row["put_back"]) for written in percents(text))
        assert name in answer["weak"] or row["put_back"] < least
        part = given is not None and row["put_back_on"] is not None and row["put_back_on"] < given["inputs"]
        assert not part or "or worse" in text
        assert part or report["stopped"] or "or worse" not in text
        assert (row["put_back_in"] == DECIDING[1]) <= ("scales moved" in text)


def holds(report, text):
    """The inputs on which a plan passes, counted and the worst named; whether inputs were held out."""
    answer, least = report["answer"], report["threshold"]
    for sentence, held in ((r"(\d+) of (\d+) of your inputs \(worst ([^)]+)\)", answer["given"]),
                           (r"(\d+) of (\d+) held-out inputs \(worst ([^)]+)\)", answer["held_out"])):  # fmt: skip
        said = re.search(sentence, text)
        if said is None:
            assert " of your inputs" not in text or held is not answer["given"]
            continue
        figures = list(held["figures"].values())
        assert int(said[2]) == held["inputs"] == len(figures)
        if report["metric"] != "agreement" and is_share(report):
            assert int(said[1]) == sum(value is not None and value >= least for value in figures)
            assert any(value is None for value in figures) or tells(percents(said[3])[0], min(figures))
    if "No input was held out" in text:
        assert not any("are held out" in note["text"] for note in report["notes"])
        assert answer["held_out"] is None
    assert "No held-out input" not in text or (answer["has_held_out"] and answer["held_out"] is None)


def recipe(report, text):
    """The layers of the recipe, their precisions, what it passes on, and the speed that it keeps."""
    answer, kept = report["answer"], set(report["recipe"]["high"])
    assert report["recipe"]["meets"]
    assert "'--low fp16' names" not in text or not fp16_of(report)["meets"]
    precisions = sorted({row["recipe"].upper() for row in report["layers"] if row["name"] in kept})
    if kept:
        assert f"{len(kept)} layer{'s' * (len(kept) != 1)} in {' and '.join(precisions)}" in text
    holds(report, text)
    speed = text.partition(" It ")[2].partition(". ")[0]
    if speed.startswith("takes"):
        takes(report, speed, ("recipe", "fp16", "int8"))
    else:
        keeps(report, speed.partition(";")[0], answer["cost"])
        assert "(by multiply-adds)" in speed or report["goal"]["costs"] != "macs"
    if "without changes of the network a recipe" in speed:
        keeps(report, speed.partition("a recipe ")[2], answer["unchanged"]["cost"])
    for figures, precision in ((answer["in_fp16"], "FP16"), (answer["in_fp32"], "FP32")):
        said = re.search(rf"in {precision} \('--precision \w+'\) it ([^,]+), and the [a-z ]+ measures (\S+)", text)
        if said is not None:
            if " ms" not in said[1]:  # the time of a plan that the table does not have
                keeps(report, said[1], figures["cost"])
            assert (
                figures["similarity"] is None
                or not is_share(report)
                or tells(*percents(said[2]), figures["similarity"])
            )


def spread(report, text):
    """No layer of the curve loses as much as is said, and the steps that are named are those of the curve."""
    step = report["share"] * report["budget"]
    drops = {row["name"]: row["loss"] for row in report["layers"] if row["loss"] is not None}
    assert max(drops.values()) < step
    assert tells(percents(text)[0], step)
    assert tells(percents(text)[1], report["budget"])
    for name, written in re.findall(rf"([^\s,]+) \({_PERCENT}\)", text.partition("largest steps")[2]):
        assert name not in drops or tells(written, drops[name])


def untested(report, text):
    assert set(names(text)) <= {*report["recipe"]["untested"]} or "more" in text
    assert ("was stopped" in text) == bool(report["stopped"])
    assert ("networks of more" in text) <= (sum(row["quantizable"] for row in report["layers"]) > 500)


def unsure(report, text):
    """The clauses on what would reverse the verdict on the recipe: noise, and each setting in which it misses."""
    answer = report["answer"]
    assert ("noise" in text) == answer["close"]
    if is_share(report):
        missing = [value for value in answer["settings"].values() if value is None or value < report["threshold"]]
        assert text.count("misses the threshold") == len(missing)


def cost(report, text):
    if "not predicted to be faster" in text:
        assert text == f"COST: {no_gain(report)}."
        return
    expensive = {layer["name"]: layer for layer in report["answer"]["expensive"]}
    assert set(names(text)) <= set(expensive)
    if "misses the threshold even" in text and is_share(report):
        said = percents(text.partition("high precision (")[2])
        alone = [layer["alone"] for layer in expensive.values() if layer["alone"] < report["threshold"]]
        assert all(tells(written, value) for written, value in zip(said, alone, strict=True))


def scales(report, text):
    """A calibrator that is named has the figure that its row has, which decides."""
    assert not report["goal"]["drop"]
    [row] = [row for row in report["answer"]["calibrators"] if f"calibrator {row['calibrator']} full" in text]
    assert row["similarity"] is None or not is_share(report) or any(tells(p, row["similarity"]) for p in percents(text))
    if "misses" in text:
        assert not row["meets"]
    else:
        assert row["meets"]
        assert row["confirmed"]


def too_expensive(report, text):
    cost = report["answer"]["cost"]
    assert cost > 0.5
    assert fp16_of(report) is None or not fp16_of(report)["meets"]
    assert ("FP16 misses too" in text) == (fp16_of(report) is not None and fp16_of(report)["meets"] is False)
    if reason := no_gain(report):
        assert text.endswith(f"{reason}.")
    else:
        keeps(report, text, cost)


def no_gain(report):
    """Returns that INT8 saves no time, as predicted; that is so if it saves less than 5 % of FP16's."""
    predicted = report["predicted"]
    if predicted is None or report["latency"] or not predicted["no_gain"]:
        return ""
    assert predicted["plans"]["int8"]["ms"] > 0.95 * predicted["plans"]["fp16"]["ms"]
    return predicted["no_gain"]


def fp16_of(report):
    """Returns the row of FP16 in the table of plans; None without one."""
    return next((choice for choice in report["choices"] if choice["plan"] == "fp16"), None)


def ship_fp16(report, text):
    """FP16 meets; the plan in INT8 that meets keeps under half of the speedup, saves under 5 % of the time, misses on
    held-out inputs, or is none.

    That plan is full INT8 if it passes, else the recipe.
    """
    fp16, ms = fp16_of(report), {choice["plan"]: choice["ms"] for choice in report["choices"]}
    assert fp16["meets"]
    assert report["goal"]["most"] is None, "whoever gives a budget knows what INT8 is worth"
    before = [line["kind"] for line in report["lines"]]
    assert {*before[: before.index("ship fp16")]} <= {"doubted", "data", "part", "random"}
    if is_share(report):
        figure, least = fp16["similarity"], report["threshold"]
        if report["goal"]["drop"]:
            figure, least = fp16["accuracy"], report["accuracy"]["least"]
        assert figure >= least
        assert tells(percents(text)[0], figure)
    reason = text.partition(", and ")[2]
    if reason.startswith("no plan in"):
        assert report["verdict"] == "fails"
        assert not report["recipe"]["meets"]
        return
    passes = report["verdict"] != "fails"
    plan, cost = ("int8", 0.0) if passes else ("recipe", report["answer"]["cost"])
    assert reason.startswith(f"full {report['low'].upper()} " if passes else "the recipe ")
    assert passes or report["recipe"]["meets"]
    if reason.endswith(" misses it on held-out inputs, on which FP16 does not."):
        held = report["answer"]["held_out"]
        assert held["holds"] < held["inputs"]
        assert fp16["held_out"]
        return
    if " ms" in reason:
        takes(report, reason, (plan, "fp16"))
        assert ms[plan] > 0.95 * ms["fp16"]
    else:
        keeps(report, reason, cost)
        assert cost > 0.5


def choices(report):
    """The table of plans has the figures that stand elsewhere in the report."""
    rows = {choice["plan"]: choice for choice in report["choices"]}
    answer, similarity, accuracy = report["answer"], report["similarity"], report["accuracy"]
    assert list(rows) == [plan for plan in ("fp32", "fp16", "int8", "recipe") if plan in rows]
    assert ("recipe" in rows) == bool(report["recipe"]["high"] or answer["changes"])
    assert rows["int8"]["gives_up"] == 0.0 or any(layer["fixed"] for layer in report["layers"])
    assert rows["int8"]["meets"] == (report["verdict"] in ("passes", "passes with doubts"))
    assert rows["int8"]["similarity"] == similarity["int8"]
    assert report["low"] not in OF_INT8 or "fp16" not in rows
    if "fp16" in rows:
        assert rows["fp16"]["gives_up"] == 1.0
        value = rows["fp16"]["similarity"]
        if is_share(report) and not report["goal"]["drop"] and report["metric"] != "agreement":
            meets = None if value is None and report["stopped"] else value is not None and value >= report["threshold"]
            assert rows["fp16"]["meets"] == meets
    if "recipe" in rows:
        assert rows["recipe"]["gives_up"] == answer["cost"]
        assert rows["recipe"]["meets"] == report["recipe"]["meets"]
        assert rows["recipe"]["similarity"] == similarity["recipe"]
    for plan, row in rows.items():
        assert row["accuracy"] == (None if accuracy is None else accuracy[plan])


def engine_passes(report, text):
    """Full INT8 passes on the engine and not in the emulation; the layers that are named are its culprits there."""
    assert report["answer"]["on_engines"]["engine"] in text
    assert report["verdict"] != "fails"
    emulated = report["answer"]["on_engines"]["int8_emulated"]
    assert is_share(report) <= (emulated is None or emulated < report["threshold"])
    assert emulated is None or not is_share(report) or tells(percents(text)[0], emulated)


def wrong_kernel(report, text):
    """A layer that the engine computes otherwise stays high, and no figure blames it."""
    [name] = names(text)
    assert not report["recipe"]["meets"] or name in report["recipe"]["high"]


def loses_more(report, text):
    """As many layers stay high for the engine as are named, and those are not of the emulation's recipe."""
    [line] = [line for line in report["lines"] if line["kind"] == "engine loses more"]
    count = int(re.search(r"(\d+) more layer", text)[1])
    assert 0 < count <= len(line["layers"])
    assert not report["recipe"]["meets"] or report["recipe"]["high"]


def other_scales(report, text):
    assert not report["recipe"]["meets"]
    assert report["answer"]["on_engines"]["engine"] in text


def not_needed(report, text):
    """Layers of the emulation's recipe that the engine's has not."""
    assert not set(names(text)) & set(report["recipe"]["high"])
    assert report["recipe"]["meets"]


def base_misses(report, text):
    base = report["answer"]["on_engines"]["base"]
    assert not report["recipe"]["meets"]
    assert not is_share(report) or base is None or base < report["threshold"]


def no_kernel(report, text):
    """Layers that stay high because nothing runs them low are no culprits, and are fixed."""
    fixed = {row["name"] for row in report["layers"] if row["why_not"] or row["fixed"]}
    named = set(names(text)) & {row["name"] for row in report["layers"]}
    assert named <= fixed
    assert not named & set(report["culprits"])


def held_out(report, text):
    held, bound = report["answer"]["held_out"], report["bound"]
    assert f"{bound['missed']} of {bound['inputs']} held-out inputs" in text
    if held is not None and is_share(report) and report["metric"] != "agreement":
        assert bound["missed"] == sum(
            value is None or value < report["threshold"] for value in held["figures"].values()
        )
    assert float(re.search(rf"at most {_PERCENT}", text)[1]) >= 100 * bound["most"] - 1e-6
    if bound["next"] is None:
        assert "(" not in text
        return
    count, would = re.search(rf"\((?:with )?(\d+) [a-z -]+ would (?:prove|be) {_PERCENT}", text).groups()
    assert tells(would, bound["next"])
    assert int(count) > bound["inputs"]
    if bound["missed"] == 0:
        # n inputs without a miss bound the share that misses by p where (1 - p) ** n is at most the doubt.
        assert (1.0 - bound["next"]) ** int(count) <= 1.0 - bound["sure"] < (1.0 - bound["next"]) ** (int(count) - 1)


def no_recipe(report, text):
    _, figure, least = decided_by(report)
    assert not report["recipe"]["meets"]
    fixed_high = any(row["fixed"] not in ("", report["low"]) for row in report["layers"])
    assert not (fixed_high and "no layer in high" in text)
    if figure is not None and is_share(report):
        assert any(tells(written, figure) for written in percents(text))
        assert figure < least or "but" in text or report["goal"]["most"] is not None


def accuracy(report, text):
    of_plan = report["accuracy"]
    for name, value in (("FP32", of_plan["fp32"]), ("full INT8", of_plan["int8"]), ("the recipe", of_plan["recipe"])):
        said = re.search(rf"{name} (not measured|{_PERCENT})", text)
        assert said is None or (value is None) == (said[1] == "not measured")
        assert said is None or value is None or tells(said[2], value)


def stopped(report, text):
    assert report["stopped"]
    if report["answer"] is None:
        assert report["verdict"] == "not measured"
        return
    assert all(clause in text for clause in report["answer"]["not_done"])
    assert ("held-out inputs were not" in text) <= report["answer"]["has_held_out"]


def doubted(report, text):
    assert text.removeprefix("DOUBT: ") in [line["text"] for line in [*report["answer"]["doubts"], *report["refused"]]]


def counted(report, text):
    """Elements of integers that differ, and rows lost or won: the figures of the plan that is named."""
    for plan, key in (("full INT8", "int8"), ("the recipe", "recipe")):
        sentence = re.search(rf"In {plan} (.*?)\.(?= |$)", text)
        figures = [value for of in report["outputs"][key].values() for value in of.values() if value is not None]
        for written in percents(sentence[1]) if sentence else ():
            shares = [*figures, *(1.0 - value for value in figures)]
            shares += [lost / rows for lost in figures for rows in figures if rows > 0]
            assert any(tells(written, share) for share in shares)


def scores(report, text):
    """The error of a score that no input raises, and FP32's largest, of the plan that is named."""
    for plan, key in (("full INT8", "int8"), ("the recipe", "recipe")):
        for name, error, largest in re.findall(
            rf"In {plan} the score '(.*?)' is off by at most (\S+), .*? is (\S+) ", text
        ):
            figures = report["outputs"][key][name]
            assert float(error) == float(f"{figures['max_abs']:.1g}")
            assert float(largest) == float(f"{figures['largest_score']:.2g}") < 0.05


def data(report, text):
    assert text.removeprefix("DATA: ") in report["inputs"]["warnings"]


def budget(report, text):
    assert report["goal"]["most"] is not None
    assert report["stopped"] or report["answer"]["cost"] <= report["goal"]["most"] + 1e-9
    assert f"{report['low'].upper()}'s speedup over {OF_INT8.get(report['low'], 'FP16')}" in text
    assert tells(re.search(rf"and gives up {_PERCENT}", text)[1], report["answer"]["cost"])


def few_inputs(report, text):
    if "single input" in text:
        assert report["answer"]["given"]["inputs"] == 1
        return
    figures = report["by_input"]["int8"]
    assert figures["inputs"] == report["answer"]["given"]["inputs"] < len(figures["values"]) / 2
    assert f"only {figures['inputs']} of {len(figures['values'])} inputs" in text


def stays(kind):
    """The layers that stay high for another reason than the threshold are those of that list, and no culprits."""

    def check(report, text):
        listed = report["recipe"][kind]
        assert (" with them " in text) <= (len(listed) > 1)
        assert set(names(text)) - {"--base fp32"} <= set(listed) or "more" in text
        assert not set(listed) & set(report["culprits"])

    return check


def unsaid(report, text):
    """A line of words alone: it has no figure of a plan."""


CHECKS = {
    **dict.fromkeys(("passes", "passes with doubts", "fails"), full_int8),
    "culprits": culprits, "recipe": recipe, "holds": holds, "spread": spread, "not tested": untested, "unsure": unsure,
    "cost": cost, "ranges": scales, "too expensive": too_expensive, "held out": held_out, "no recipe": no_recipe,
    "accuracy": accuracy, "stopped": stopped, "doubted": doubted, "data": data, "budget": budget,
    "ship fp16": ship_fp16, "engine passes": engine_passes, "wrong kernel": wrong_kernel,
    "engine loses more": loses_more, "other scales": other_scales, "not needed on the engine": not_needed,
    "base misses": base_misses, "no kernel": no_kernel,
    "few inputs": few_inputs, "faster": stays("faster"), "for fp16": stays("for_fp16"),
    **dict.fromkeys(("integers", "rows", "variation"), counted), "scores": scores,
    **dict.fromkeys(("task", "fixed", "experiment", "part", "base", "not judged", "infinite scale",
                     "scale not positive"), unsaid),
}  # fmt: skip


def settings_of(report):
    return [loss(report, value) for name, value in report["answer"]["settings"].items() if name in DECIDING]


def one_setting(report, text):
    assert len(settings_of(report)) <= 1


def inputs(report, text):
    answer = report["answer"]
    assert f"{answer['given']['inputs']} input" in text
    assert f"search used {answer['judged']} " in text
    held = answer["held_out"]
    assert ("none held out" in text) <= (not answer["has_held_out"])
    assert held is None or f"and {held['inputs']} held-out" in text


def clear(report, text):
    losses = settings_of(report)
    assert not report["answer"]["close"]
    assert "every setting that decides" not in text or max(losses) - min(losses) <= 0.01 * report["budget"]
    if is_share(report) and losses:
        passes = max(losses) <= report["budget"]
        assert ("'s miss is larger" in text) <= (not passes)
        assert (f"{plan_of(report, capital=True)}'s margin is larger" in text) <= passes


def plan_of(report, *, capital=False):
    """Returns the words for the plan of the answer: full INT8 where no layer stays high."""
    is_recipe = report["recipe"]["high"] or report["answer"]["changes"]
    words = "the recipe" if is_recipe else f"full {report['low'].upper()}"
    return words[0].upper() + words[1:] if capital else words


def unquantized(report, text):
    figure = report["answer"]["settings"]["unquantized layers in INT8"]
    if is_share(report):
        passes = figure is not None and figure >= report["threshold"]
        assert (f"INT8 {plan_of(report)} passes" in text) == passes
        assert (" too: " in text) == (passes == report["recipe"]["meets"])


def weak(report, text):
    answer = report["answer"]
    if answer["changes"]:
        assert set(names(text)) <= set(report["recipe"]["high"])
        assert "culprits" not in text
        return
    assert set(names(text)) <= set(answer["weak"])
    many = re.match(r"(\d+) of (\d+) culprits", text)
    assert many is None or (int(many[1]), int(many[2])) == (len(answer["weak"]), len(answer["ranked"]))


def margin(report, text):
    kept = report["budget"] * (1.0 - report["answer"]["margin"]) * (1.0 + 1e-9)
    if is_share(report) and report["metric"] != "agreement":
        within = sum(loss(report, value) <= kept for value in report["answer"]["given"]["figures"].values())
        assert within == report["answer"]["given"]["inputs"]


def cheaper(report, text):
    answer = report["answer"]
    assert answer["cheapest"]["cost"] < answer["cost"] <= 1.25 * answer["cheapest"]["cost"] + 0.05
    assert answer["cheapest"]["similarity"] >= report["threshold"] or not is_share(report)


def close(report, text):
    assert report["answer"]["close"]


SURE = {
    "inputs": inputs, "margin": margin, "beyond the noise": clear, "within the noise": close, "weak culprit": weak,
    "unquantized layers": unquantized, "cheaper set": cheaper, "one setting": one_setting,
    **dict.fromkeys(("few inputs", "arithmetic", "unquantized layers round"), unsaid),
}  # fmt: skip


def covered(report, row):
    return report["recipe"]["meets"] and bool(report["recipe"]["high"]) and row["name"] not in report["recipe"]["high"]


REASONS = {
    "the layers that stay high make up": covered,
    "full INT8 passes with it": lambda report, row: not report["recipe"]["high"] and report["recipe"]["meets"],
    "no plan tried passes": lambda report, row: not report["recipe"]["meets"],
    "it stays high for speed": lambda report, row: row["name"] in report["recipe"]["high"],
    "it stays high, but was not shown": lambda report, row: row["name"] in report["recipe"]["untested"],
    "later layers cancel": lambda report, row: row["alone"] is not None and row["alone"] <= 0.0,
    "not decided yet": lambda report, row: bool(report["stopped"]),
}


def check_statements(report):
    """Holds every statement of a report, as JSON types, against its figures."""
    for line in report["lines"]:
        CHECKS[line["kind"]](report, line["text"])
    answer = report["answer"]
    if answer is None:
        return
    choices(report)
    for line in answer["confidence"]:
        SURE[line["kind"]](report, line["text"])
    said = {line["kind"] for line in report["lines"]}
    reverses = report["recipe"]["meets"] and (
        answer["close"] or any(is_share(report) and value is not None and value < report["threshold"]
                               for value in answer["settings"].values())
    )  # fmt: skip
    assert not reverses or "unsure" in said
    assert not any("--task " in note["text"] and "look" in note["text"] for note in report["notes"])
    for row in report["layers"]:
        if row["suspect"]:
            [holds_true] = [check for words, check in REASONS.items() if row["suspect"].startswith(words)]
            assert "without changes" in row["suspect"] or holds_true(report, row)
    if answer["given"] is not None and report["recipe"]["meets"] and report["metric"] not in ("agreement",):
        assert math.isclose(answer["given"]["worst"], report["similarity"]["recipe"], abs_tol=1e-9) or not is_share(
            report
        )


def check_advice(report, explanation):
    """The precision that a culprit has in the recipe is a remedy that was measured: the recipe itself.

    On a changed network it is the recipe without changes, of which the report has no layers.
    """
    kept = {row["name"]: row["recipe"].upper() for row in report["layers"]}
    if report["answer"]["changes"]:
        return
    for advice in explanation["advice"]:
        (own,) = (remedy for remedy in advice["remedies"] if remedy["tried"] and remedy["tried"]["own"])
        assert own["remedy"] == kept[advice["culprit"]]
        assert own["tried"]["high"] == len(report["recipe"]["high"])
        assert math.isclose(own["tried"]["similarity"], report["similarity"]["recipe"], abs_tol=1e-6)
    for cause in explanation["causes"]:
        unmeasured = {remedy["remedy"] for remedy in cause["remedies"]}
        assert not unmeasured & {kept[name] for name in cause["culprits"]}
