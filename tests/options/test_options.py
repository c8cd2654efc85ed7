"""Options declared once: their bounds, their old names and units, and what follows from the declarations."""

import inspect
import pydoc
import re
from typing import get_args

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tools import make_options
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.analyzer.tasks.find import TASKS
from trt_bisect.builder.base import DEFAULT_TIMEOUT, BuildOptions
from trt_bisect.builder.engines import ENGINES, TYPINGS
from trt_bisect.calibration.histogram import METHODS
from trt_bisect.cli import app
from trt_bisect.data.preprocessing import COLORS
from trt_bisect.errors import BadInput
from trt_bisect.history import store
from trt_bisect.model.quantizer import LOWS
from trt_bisect.options import concerns, kinds
from trt_bisect.options.commands import COMMANDS, SensitivityOptions
from trt_bisect.options.concerns import RunOptions
from trt_bisect.options.declare import declared, repeated, takes
from trt_bisect.precision import Precision
from trt_bisect.support.voices import CHOICES, in_python


def test_what_is_made_of_the_options_is_up_to_date():
    """python tools/make_options.py"""
    pages = make_options.pages()
    assert {page.stem for page in pages} == set(app.COMMANDS)
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, page


def test_names_and_defaults_are_those_of_the_modules_that_obey_them():
    options = {option.keyword: option for option in declared(RunOptions)}
    words = {keyword: {*option.kind.choices} for keyword, option in options.items()}
    assert words["engine"] == {"auto", *ENGINES}
    assert words["typing"] == {"auto", *TYPINGS, concerns.WEAK_INT8}
    assert words["calibrator"] == {"auto", *METHODS}
    assert words["colors"] == {*COLORS}
    assert words["task"] == {*TASKS}
    assert {*map(Precision, words["low"])} == {*LOWS, Precision.INT16}
    assert (concerns.BESIDE, concerns.NONE) == (store.BESIDE, store.NONE)
    assert {*BUILT_IN} == {*get_args(kinds.MetricName)}
    assert all(f"{name}," in options["metric"].effect for name in BUILT_IN)


@pytest.mark.parametrize(
    ("given", "problem", "remedy"),
    [
        ({"memory": 1 << 30}, "MiB", "Give --memory 1024 "),
        ({"threshold": True}, "--threshold cannot be True", ""),
        ({"samples": 1.5}, "--samples cannot be 1.5", "1 or more"),
        ({"letterbox": 1}, "--letterbox cannot be 1", "true or false"),
        ({"high": 3}, "--high cannot be 3", ""),
        ({"margin": float("inf")}, "--margin cannot be inf", ""),
        ({"calibrator": "percentile=nan"}, "percentile cannot be 'nan'", ""),
        ({"trtexec": 3}, "--trtexec cannot be 3", ""),
    ],
)
def test_bad_values_are_refused_with_flag_and_remedy(given, problem, remedy):
    with pytest.raises(BadInput) as refused:
        RunOptions(**given)
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy


def test_python_and_command_line_have_the_same_options():
    """Every option of a function but its progress is one of the command, with the same default."""
    for name, options in COMMANDS.items():
        function = trt_bisect.run_pipeline if name == "pipeline" else getattr(trt_bisect, name)
        keywords = inspect.signature(function).parameters
        command = {option.keyword: option for option in declared(app.function_of(name))}
        for option in declared(options):
            assert keywords[option.keyword].default == option.default == command[option.keyword].default
        assert set(keywords) == {next(iter(keywords)), *(option.keyword for option in declared(options))}


def test_help_lists_the_options_and_the_signature_is_flat():
    text = pydoc.render_doc(trt_bisect.run, renderer=pydoc.plaintext)
    assert "high: Keep this layer in high precision" in text
    assert "(a share: 0 to 0.9; default: 0.2)" in " ".join(text.split())
    assert list(inspect.signature(trt_bisect.run).parameters)[:3] == ["model", "calibration", "inputs"]
    assert "command" not in inspect.signature(trt_bisect.run).parameters
    for wrong in ("nonsense", "command"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'"):
            trt_bisect.run("net.onnx", **{wrong: 1})
    for given in ({"model": "net.onnx", "inputs": 2, "input": 3}, {"calibration": 1}):
        with pytest.raises(TypeError):
            trt_bisect.run(**given)
    with pytest.raises(TypeError):
        trt_bisect.run("net.onnx", calibration=1, inputs=2, model="other.onnx")


def test_a_misspelt_keyword_is_answered_with_the_right_one():
    for wrong, right in (("calibratoin", "calibration"), ("thresold", "threshold"), ("pluginss", "plugins")):
        with pytest.raises(TypeError, match=f"'{wrong}'. Did you mean '{right}'"):
            trt_bisect.run("net.onnx", **{wrong: 1})
    with pytest.raises(TypeError) as refused:
        trt_bisect.compare("net.onnx", samples=1)
    assert "shapes" not in str(refused.value), "another word, not a misspelt one"


def test_the_flags_names_are_keywords_too():
    given = {"input": "x.npz", "shape": {"x": (1, 3)}, "plugin": "ops.so"}
    asked = RunOptions(inputs="x.npz", shapes={"x": (1, 3)}, plugins=["ops.so"])
    assert RunOptions.given("run", given) == asked


def test_errors_in_python_name_the_keywords(lenet):
    for given, named in (
        ({"threshold": 99}, "threshold=0.99"),
        ({"validation": 20}, "validation=0.2"),
        ({"calibration": None}, "calibration"),
    ):
        with pytest.raises(BadInput) as refused:
            trt_bisect.run(lenet / "lenet.onnx", **{"calibration": lenet / "calibration.npz", **given})
        assert named in str(refused.value)
        assert "--" not in str(refused.value)


def test_percentages_and_sizes_are_read():
    """A percentage is its hundredth. K, M and G are powers of 1024, as in trtexec's --memPoolSize."""
    options = RunOptions(threshold="99.5%", validation="20%", margin="10 %", memory="2GB")
    assert (options.threshold, options.validation, options.margin) == (0.995, 0.2, 0.1)
    assert options.memory_bytes == 2 << 30
    assert RunOptions(memory="1048576 kB").memory_bytes == RunOptions(memory="1g").memory_bytes == 1 << 30


def test_flags_of_trtexec_are_read():
    """trtexec counts in MiB, and takes G. Of tactic sources those with a plus, or without a sign, are used."""
    flags = "--memPoolSize=workspace:7  --tacticSources=-CUBLAS,+CUDNN,JIT_CONVOLUTIONS,-CUBLAS_LT"
    assert RunOptions(memory=3, trtexec=flags).build_options() == BuildOptions(
        high=Precision.FP32,
        workspace_bytes=7_340_032,
        timeout=DEFAULT_TIMEOUT,
        tactic_sources=("CUDNN", "JIT_CONVOLUTIONS"),
    )
    more = RunOptions(trtexec="--memPoolSize=workspace:2G --builderOptimizationLevel=0").build_options()
    assert (more.workspace_bytes, more.optimization_level, more.tactic_sources) == (2 << 30, 0, None)
    assert repeated(RunOptions(trtexec=flags)) == {"--trtexec": (flags,)}


def test_a_command_fixes_options_that_it_does_not_have():
    assert SensitivityOptions().strategy == "auto"
    with pytest.raises(TypeError):
        SensitivityOptions(strategy="bisect")
    assert RunOptions(precision="mixed").high_precision is Precision.FP32
    with pytest.raises(BadInput, match="'mixed'"):
        SensitivityOptions(precision="mixed")


def test_suggested_commands_repeat_all_options_but_where_it_writes():
    apart = {"output", "progress", "time_limit", "tensorboard", "tensorboard_detail", "save_tensors"}
    assert {option.keyword for option in declared(RunOptions) if not option.repeated} == apart


def test_what_has_no_name_on_the_command_line_is_left_to_fill_in():
    given = {"calibration": {"x": np.zeros(3)}, "metric": lambda a, b: 0.0, "outputs": ["a", "b"], "letterbox": True}
    assert repeated(RunOptions(**given)) == {
        "--calibration": ("DATA",), "--letterbox": (), "--metric": ("MODULE:FUNCTION",), "--outputs": ("a", "b"),
    }  # fmt: skip
    options = RunOptions(calibration="mine:feeds", metric=networks.samples, memory=3, shapes={"x": (1, 3)})
    assert repeated(options) == {
        "--calibration": ("mine:feeds",), "--metric": ("tests.support.networks:samples",), "--memory": ("3",),
        "--shape": ("x:1x3",),
    }  # fmt: skip
    goal = {"budget": "5%", "drop": "1%", "labels": "l.npy", "dataset": "d.npz", "front": True, "cost": "measured"}
    assert repeated(RunOptions(**goal)) == {
        "--dataset": ("d.npz",), "--labels": ("l.npy",), "--budget": ("0.05",), "--drop": ("1%",), "--front": (),
        "--cost": ("measured",),
    }  # fmt: skip


SPOKEN = {
    "With FP16 ('--base fp16'), as in most engines": 'With FP16 (base="fp16"), as in most engines',
    "'trt-bisect run --low fp16' names the layers; --base fp32 avoids it.": (
        'trt_bisect.run(low="fp16") names the layers; base="fp32" avoids it.'
    ),
    "Give --threshold to judge, --samples 3 or --budget 50%.": 'Give threshold to judge, samples=3 or budget="50%".',
    "'trt-bisect run --input' with these": "trt_bisect.run(input=...) with these",
    "Give --high LAYER, as --keep-low does.": "Give high=LAYER, as keep_low does.",
    "'--fuse-norms' makes it one node": "fuse_norms=True makes it one node",
    "'trt-bisect layers x.onnx' lists them": "'trt-bisect layers x.onnx' lists them",
    "trtexec --onnx=x --noTF32": "trtexec --onnx=x --noTF32",
    "The same command goes on.": "The same call goes on.",
}


@pytest.mark.parametrize("text", SPOKEN)
def test_texts_on_the_command_line_are_spoken_in_python(text):
    assert in_python(text) == SPOKEN[text]


def test_the_words_that_are_told_as_values_are_the_choices():
    options = [option for command in COMMANDS.values() for option in declared(command)]
    assert {choice for option in options for choice in option.kind.choices} == CHOICES


def test_docstrings_speak_of_python():
    for function in (trt_bisect.run, trt_bisect.compare, trt_bisect.worst, trt_bisect.sensitivity, trt_bisect.profile):
        text = " ".join(function.__doc__.split())
        assert not re.search(r"(?<!with )--[a-z]", text), text
        assert "Repeatable" not in text
        assert "default: None, nothing is written" in text
    assert "one of 'quick', 'default', 'thorough'; default: 'default'" in " ".join(trt_bisect.run.__doc__.split())


def test_the_options_are_told_where_python_has_dedented_the_docstring():
    """As Python 3.13 and later do."""

    def job(model, options):
        pass

    job.__doc__ = "Does it.\n\nArgs:\n    model: a network.\n    options: as listed.\n"
    lines = takes(RunOptions)(job).__doc__.splitlines()
    assert lines[3] == "    model: a network."
    assert lines[4].startswith("    calibration: Calibrate with this data")


def test_errors_and_results_of_python_name_its_keywords(tmp_path):
    model = networks.chain(2)
    path, data = networks.given(model, tmp_path, 4)
    qa = trt_bisect.Analysis(path, engine="onnxruntime", metric="mse")
    with pytest.raises(BadInput, match="no calibration") as refused:
        qa.compare(inputs=data)
    assert "--" not in str(refused.value)
    suite = tmp_path / "suite.toml"
    suite.write_text(f"[[network]]\nmodel = '{path}'\n")
    with pytest.raises(BadInput, match="update_baseline") as refused:
        trt_bisect.regress(suite, tmp_path)
    assert "--" not in str(refused.value)
    with pytest.raises(BadInput) as refused:
        trt_bisect.check(path, gpu="GTX 9")
    assert "--" not in str(refused.value)
    found = trt_bisect.worst(path, data, engine="onnxruntime", metric="mse")
    assert "--threshold" in found.verdict, "the command line has the flag"
    assert "Give threshold " in " ".join(str(found).split())
    assert "Give threshold " in found._repr_html_()
