"""Options declared once: their bounds, their old names and units, and what follows from the declarations."""

from __future__ import annotations

import inspect
import pydoc
import warnings

import numpy as np
import pytest
from typer.main import get_command

import trt_bisect
from tests.support import networks
from tools import make_options
from trt_bisect.analyzer.judge import DEFAULT_SHARE
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.builder.base import DEFAULT_TIMEOUT, BuildOptions
from trt_bisect.builder.engines import ENGINES, TYPINGS
from trt_bisect.calibration.histogram import METHODS
from trt_bisect.cli.app import application
from trt_bisect.errors import BadInput
from trt_bisect.history import store
from trt_bisect.jobs.options import concerns
from trt_bisect.jobs.options.commands import COMMANDS, WorstOptions
from trt_bisect.jobs.options.measuring import RecoverOptions, RunOptions
from trt_bisect.jobs.options.repeated import repeated
from trt_bisect.precision import Precision


def test_what_is_made_of_the_options_is_up_to_date():
    """python tools/make_options.py"""
    pages = make_options.pages()
    assert {page.stem for page in pages} == set(get_command(application()).commands)
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, page
    assert make_options.KEYWORDS.read_text(encoding="utf-8") == make_options.keywords()


def test_names_and_defaults_are_those_of_the_modules_that_obey_them():
    assert ("auto", *ENGINES) == concerns.ENGINE_CHOICES
    assert ("auto", *TYPINGS) == concerns.TYPING_CHOICES
    assert ("auto", *METHODS) == concerns.CALIBRATORS
    assert (concerns.BESIDE, concerns.NONE) == (store.BESIDE, store.NONE)
    assert (RunOptions().share, RunOptions().build_timeout) == (DEFAULT_SHARE, DEFAULT_TIMEOUT)
    infos = {info.name: info for info in RecoverOptions.declared()}
    assert infos["together"].choices == ("layers", "fused")
    assert all(f"{name}," in infos["metric"].help for name in BUILT_IN)


@pytest.mark.parametrize(
    ("given", "problem", "remedy"),
    [
        (
            {"engine": "tpu"},
            "no engine 'tpu'",
            "auto, onnxruntime, tensorrt, tensorrt-rtx",
        ),
        ({"samples": 0}, "--samples cannot be 0", "Give --samples 1 or more."),
        ({"memory": 0}, "--memory cannot be 0 MiB", "Give --memory 1 or more, in MiB."),
        ({"memory": "much"}, "--memory cannot be 'much' MiB", "Give --memory 1 or more, in MiB."),
        ({"build_timeout": float("inf")}, "--build-timeout cannot be inf seconds", ""),
        ({"percentile": float("nan")}, "--percentile cannot be nan", ""),
        (
            {"optimization_level": 6},
            "--optimization-level cannot be 6",
            "Give --optimization-level 0 to 5.",
        ),
        ({"share": 0}, "--share cannot be 0", "Give --share more than 0."),
        ({"cluster": "local:0"}, "'local:0'", ""),
        ({"trt_version": "new"}, "'new'", ""),
        ({"try_remedies": True, "explain": "none"}, "explained", "--explain"),
    ],
)
def test_bad_values_are_refused_with_flag_and_remedy(given, problem, remedy):
    with pytest.raises(BadInput) as refused:
        RunOptions(**given)
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy


def test_python_and_command_line_have_the_same_options():
    """Every option that has a flag is a keyword of the function and a flag of the command, with the same default."""
    apart = {"model", "progress", "config"}
    for name, options in COMMANDS.items():
        keywords = inspect.signature(getattr(trt_bisect, name)).parameters
        command = {parameter.name: parameter for parameter in get_command(application()).commands[name].params}
        for info in options.declared():
            assert keywords[info.name].default == info.default
            assert set(info.flags) <= set(",".join(getattr(command.get(info.name), "opts", ())).split(",")) or (
                info.name in apart or "/" in info.flag
            )
        assert set(keywords) == {"model", *(info.name for info in options.declared())}


def test_help_lists_the_options_and_the_signature_is_flat():
    text = pydoc.render_doc(trt_bisect.run, renderer=pydoc.plaintext)
    assert "(in MiB; 1 or more)" in text
    assert list(inspect.signature(trt_bisect.run).parameters)[:3] == ["model", "calibration", "inputs"]
    assert "command" not in inspect.signature(trt_bisect.run).parameters
    for wrong in ("nonsense", "command"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'"):
            trt_bisect.run("net.onnx", **{wrong: 1})
    with pytest.raises(TypeError):
        trt_bisect.run("net.onnx", calibration=1, inputs=2, model="other.onnx")


def test_units_are_mebibytes_and_bytes_of_before_are_still_understood():
    options = RunOptions(memory=3, workspace=7)
    assert options.memory_bytes == 3_145_728
    assert options.build_options() == BuildOptions(
        high=Precision.FP32, workspace_bytes=7_340_032, timeout=1800.0, tactic_sources=None
    )
    with pytest.warns(DeprecationWarning, match="memory=536870912 .* 512$"):
        assert RunOptions.given("run", {"memory": 512 << 20}).memory == 512
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RunOptions.given("run", {"memory": (1 << 20) - 1}).memory == 1_048_575
        assert RunOptions(memory=1 << 20).memory_bytes == 1 << 40


def test_the_order_of_before_is_a_direction():
    with pytest.warns(DeprecationWarning, match="order='ascending' .* direction='higher'") as noted:
        options = WorstOptions.given("worst", {"order": "ascending"})
    assert options.direction == "higher"
    assert len(noted) == 1


def test_a_command_fixes_options_that_it_does_not_have():
    assert RecoverOptions().strategy == "branch"
    with pytest.raises(TypeError):
        RecoverOptions(strategy="bisect")
    assert RecoverOptions(precision="mixed").highs == (Precision.FP32, Precision.FP16)
    with pytest.raises(BadInput, match="no precision 'mixed'"):
        RunOptions(precision="mixed")


def test_suggested_commands_repeat_all_options_but_where_it_writes():
    tensors = {"save_tensors", "max_size", "polygraphy_json"}
    apart = {"output", "tensorboard", "tensorboard_channels", "progress", "time_limit"} | tensors
    assert {info.name for info in RunOptions.declared() if not info.repeated} == apart


def test_what_has_no_name_on_the_command_line_is_left_to_fill_in():
    given = {"calibration": {"x": np.zeros(3)}, "metric": lambda a, b: 0.0, "outputs": ["a", "b"], "force_int8": True}
    assert repeated(RunOptions(**given)) == {
        "--calibration": ("DATA.npz",), "--metric": ("MODULE:FUNCTION",), "--outputs": ("a", "b"), "--force-int8": (),
    }  # fmt: skip
    options = RunOptions(calibration="mine:feeds", metric=networks.samples, memory=3, shapes={"x": (1, 3)})
    assert repeated(options) == {
        "--calibration": ("mine:feeds",), "--metric": ("tests.support.networks:samples",), "--memory": ("3",),
        "--shape": ("x:1x3",),
    }  # fmt: skip
    assert repeated(RunOptions(strategy="bisect", samples=4), RecoverOptions) == {"--samples": ("4",)}
