"""Wrong use of the command line: the problem and what to write instead, on the screen and as JSON."""

import errno
import itertools
import json
import re
import shlex
import shutil
import subprocess

import numpy as np
import onnx
import pytest

from tests.support.editions import edition
from trt_bisect.cli import main
from trt_bisect.cli.app import COMMANDS, application, bound_to, function_of, help_of
from trt_bisect.errors import BadInput
from trt_bisect.options.concerns import PANELS
from trt_bisect.options.declare import declared

RUN = "run lenet.onnx"
DATA = f"{RUN} --calibration data.npz"
QUICK = "--calibrator minmax --explain none"
COMPARE, SENSITIVITY = (f"{name} lenet.onnx --calibration data.npz" for name in ("compare", "sensitivity"))

TENSORBOARD = {
    "--tensorboard data.npz": "--tensorboard",
    "--tensorboard data.npz/logs": "--tensorboard",
    "--tensorboard-detail channels=3": "Give --tensorboard LOGDIR too",
    "--tensorboard-detail samples=3": "Give --tensorboard LOGDIR too",
    "--tensorboard logs --tensorboard-detail channels=-1": "0 to 256",
    "--tensorboard logs --tensorboard-detail samples=1,channels=1000": "0 to 256",
    "--tensorboard logs --tensorboard-detail bins=3": "channels=8,samples=8,plans=8",
    "--tensorboard logs --tensorboard-detail 3": "channels=8,samples=8,plans=8",
}
LOGS = list(itertools.product(edition(("compare",), ("run", "compare", "profile")), TENSORBOARD.items()))


@pytest.fixture
def folder(tmp_path, lenet):
    place = tmp_path / "use"
    place.mkdir()
    shutil.copy(lenet / "lenet_planted.onnx", place / "lenet.onnx")
    shutil.copy(lenet / "calibration.npz", place / "data.npz")
    (place / "two").mkdir()
    for name in ("two/0.npz", "two/1.npz"):
        shutil.copy(lenet / "calibration.npz", place / name)
    (place / "list.json").write_text("[1, 2]")
    np.savez(place / "unnamed.npz", np.zeros((2, 1, 28, 28), np.float32))
    (place / "faulty.py").write_text(
        "def feeds():\n    yield {'data': [[[[0.0] * 28] * 28]]}\n    raise OSError('gone')\n"
    )
    return place


@pytest.mark.parametrize(
    ("asked", "problem", "remedy"),
    [
        ("run", "MODEL", "trt-bisect run NETWORK.onnx --calibration DATA"),
        ("layers", "MODEL", "trt-bisect layers NETWORK.onnx"),
        (f"{DATA} --threshold 99,5%", "--threshold cannot", "a number"),
        (f"{DATA} --validation 120%", "--validation cannot", "0 to 0.9"),
        (f"{DATA} --memory 1GBit", "--memory cannot", "2GB"),
        (f"{RUN} --calibraton data.npz", "no option --calibraton", "--calibration"),
        (f"{RUN} --calib data.npz", "no option --calib", "Did you mean --calibration?"),
        (f"{RUN} --std 0.229 0.224 0.225", "0.224, 0.225", "Write --std 0.229,0.224,0.225."),
        (f"{RUN} --threshold 0.9 --threshold=0.95", "--threshold takes one value, and '0.9' and '0.95'", "Leave out"),
        (f"{RUN} --input a.npz --load-inputs b.npz", "--input takes one value, and 'a.npz' and 'b.npz'", "Leave out"),
        ("run --model lenet.onnx", "no option --model", "trt-bisect run lenet.onnx"),
        ("rum lenet.onnx", "no command 'rum'", "'run'"),
        (f"{RUN} --high block0 block1", "block1", "Repeat"),
        (f"{DATA} lenet.onnx", "lenet.onnx", "one value"),
        (f"{RUN} --calibration two/0.npz two/1.npz", "two/1.npz", "each: two"),
        (f"{RUN} --calibration two/*.npz", "'two/*.npz'", "folder: two"),
        (f"{RUN} --calibration faulty.py:feeds", "faulty.py:feeds failed: OSError at faulty.py:3: gone", "Correct"),
        (f"{RUN} --calibration unnamed.npz", "no input 'arr_0'", "numpy.savez(FILE, data=...)"),
        (f"{DATA} --threshold -1", "Threshold -1", "--threshold between 0 and 1"),
        (f"{DATA} --samples many", "--samples cannot be 'many'", "1 or more"),
        (f"{RUN} --calibration", "--calibration needs a value", "'trt-bisect run -h'"),
        ("view two/0.npz", "'two/0.npz'", "trt-bisect view two"),
        ("regress one.toml --config other.toml", "'one.toml' and --config 'other.toml'", "one of the two"),
        ("regress nightly.toml", "'nightly.toml'", "trt-bisect regress SUITE.toml"),
        ("regress", "'trt-bisect.toml'", "trt-bisect regress SUITE.toml"),
        ("run none.onnx", "none.onnx", ""),
        (RUN, "", "--calibration"),
        (f"{RUN} --calibration none.npz", "none.npz", ""),
        (f"{DATA} --engine tpu", "tpu", ""),
        (f"{DATA} --strategy guess", "guess", ""),
        (f"{DATA} --curve half", "half", ""),
        (f"{DATA} --memory 0", "", "--memory 1"),
        (f"{DATA} --metric mse", "", "--threshold"),
        (f"{DATA} --threshold 1", "allows no loss", ""),
        (f"{DATA} --shape data:axb", "data:axb", ""),
        ("layers lenet.onnx --shape data:1x3x28x28", "1x3x28x28", ""),
        (f"{DATA} --samples 0", "", "--samples 1 or more"),
        (f"{DATA} --calibrator magic", "magic", ""),
        (f"{DATA} --calibrator percentile=0", "", "percentile more than 0"),
        ("worst lenet.onnx", "", "--calibration"),
        ("worst lenet.onnx --calibration data.npz -o data.npz", "data.npz", ""),
        ("check lenet.onnx -o data.npz", "data.npz", ""),
        (f"{DATA} -o data.npz", "data.npz", ""),
        ("run x.onnx --nonsense", "--nonsense", ""),
        ("compare", "no network", ""),
        ("compare lenet.onnx", "no ranges", ""),
        (f"{COMPARE} --high ip3", "", "'ip2'"),
        (f"{COMPARE} --sort beauty", "beauty", ""),
        (f"{COMPARE} --recipe none", "no recipe", ""),
        (f"{COMPARE} --recipe data.npz", "cannot be read", ""),
        (f"{COMPARE} --engine tpu", "tpu", ""),
        (f"{COMPARE} --threshold 2", "--threshold cannot be 2", ""),
        ("compare --fp32 data.npz", "cannot be compared", ""),
        ("compare --fp32 data.npz --int8 none.npz", "none.npz", ""),
        ("compare --fp32 lenet.onnx --int8 lenet.onnx", "of an unknown kind", ""),
        ("compare --fp32 data.npz --int8 unnamed.npz", "No tensor", ""),
        ("compare --fp32 list.json --int8 list.json", "", "Polygraphy"),
        (f"{COMPARE} -o data.npz", "data.npz", ""),
        ("profile lenet.onnx --prefix nothing", "begins with 'nothing'", ""),
        ("profile lenet.onnx --op Einsum", "'Einsum'", ""),
        ("profile lenet.onnx --prefix conv --op Gemm", "operator Gemm", ""),
        ("profile lenet.onnx --input none.npz", "none.npz", ""),
        (f"{SENSITIVITY} --way half", "half", ""),
        (f"{SENSITIVITY} --order up", "up", ""),
        (f"{SENSITIVITY} --memory 0", "", "MiB"),
        (f"{SENSITIVITY} --precision int4", "int4", ""),
        (f"{SENSITIVITY} --samples 0", "--samples cannot be 0", ""),
        (f"{SENSITIVITY} --calibrator magic", "magic", ""),
        (f"{DATA} --budget half", "--budget cannot be 'half'", ""),
        (f"{DATA} --budget 150%", "--budget cannot be 150%", ""),
        (f"{DATA} --precision int4", "--precision cannot be 'int4'", ""),
        (f"{DATA} --labels none.npy", "", "--dataset"),
        (f"{DATA} --drop 1%", "", "--labels or --accuracy"),
        (f"{DATA} --drop much --labels labels.npy", "--drop cannot be 'much'", ""),
        (f"{DATA} --drop -0.1 --labels labels.npy", "--drop cannot be -0.1", ""),
        (f"{DATA} --drop 150% --labels labels.npy", "--drop cannot be 150%", ""),
        (f"{DATA} --drop 1% --labels none.npy", "", "--dataset"),
        (f"{DATA} --drop 1% --accuracy nowhere:nothing --task detect", "--task and --drop", ""),
        (f"{DATA} --drop 1% --accuracy nowhere:nothing", "nowhere", ""),
        *((f"{name} lenet.onnx --calibration data.npz {asked}", "", said) for name, (asked, said) in LOGS),
        (f"{DATA} --explain nicely", "--explain cannot be 'nicely'", ""),
        (f"{DATA} --explain remedies --low fp16", "--low fp16", ""),
    ],
)
def test_the_right_use_is_told(asked, problem, remedy, folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    code, out, err = command(*shlex.split(asked))
    lines = err.splitlines()
    assert (code, out, len(lines)) == (2, "", 2)
    assert problem in lines[0]
    assert remedy in err
    assert not list(folder.glob("trt-bisect-*"))


def test_data_without_its_option_are_told_with_a_command_that_works(folder, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("run", folder / "lenet.onnx", folder / "data.npz", "-q", "--strategy", "bisect")
    assert code == 2
    suggested = err.strip().splitlines()[-1].split(": trt-bisect ")[1]
    code, out, _ = command(*shlex.split(suggested))
    assert code == 1
    assert "'ip2'" in out


def test_wrong_use_is_one_json_document_with_json(command):
    code, out, err = command("run", "--json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"]) == (2, 2)
    assert error["problem"] in err
    assert error["remedy"] in err


@pytest.mark.parametrize(
    ("raised", "code", "problem", "remedy"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No room is left: No space left on device.", "Make room"),
        (KeyError("x"), 3, "an error of trt-bisect itself, KeyError at test_usage.py:", "Please report it."),
    ],
)
def test_an_unexpected_error_is_told_in_two_lines_and_as_json(raised, code, problem, remedy, command, monkeypatch):
    def fails():
        raise raised

    monkeypatch.setattr("trt_bisect.builder.engines.list_engines", fails)
    monkeypatch.delenv("TRT_BISECT_DEBUG", raising=False)
    ended, out, err = command("engines", "--json")
    error = json.loads(out)["error"]
    assert (ended, error["exit_code"]) == (code, code)
    assert error["problem"].startswith(problem)
    assert error["remedy"].startswith(remedy)
    assert err.splitlines() == [f"trt-bisect: {error['problem']}", error["remedy"]]
    monkeypatch.setenv("TRT_BISECT_DEBUG", "1")
    with pytest.raises(type(raised)) if code == 3 else pytest.raises(SystemExit):
        main()


@pytest.mark.parametrize("given", [(), ("--config",)])
def test_a_suite_is_taken_as_argument_and_as_option(given, folder, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / "suite.toml").write_text(
        f'output = "{tmp_path}/nights"\n[[network]]\nname = "lenet"\nmodel = "lenet.onnx"\ncalibration = "data.npz"\n'
        'repeats = 1\ncalibrator = "minmax"\nexplain = "none"\n'
    )
    code, out, _ = command("regress", *given, folder / "suite.toml", "--json", "-q")
    assert [network["name"] for network in json.loads(out)["networks"]] == ["lenet"]
    assert code in (0, 1)


def test_counts_that_are_repeated_are_joined_and_lists_and_switches_may_be_repeated():
    words = "run net.onnx --tensorboard t --tensorboard-detail channels=2 --tensorboard-detail samples=1 -q -q --as-is"
    _, bound = bound_to([*words.split(), "--high", "a", "--high", "b", "--threshold", "0.9", "--threshold", "0.9"])
    options = bound.arguments["options"]
    assert options.tensorboard_detail == {"channels": 2, "samples": 1}
    assert (list(options.high), options.threshold, options.as_is) == (["a", "b"], 0.9, True)
    with pytest.raises(BadInput, match="twice"):
        bound_to([*words.split(), "--tensorboard-detail", "channels=3"])


def test_paragraphs_of_the_help_are_as_wide_as_the_terminal(command, monkeypatch):
    """The docstring's own line ends do not stand in the help: each line is full, but the last of a paragraph."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in command("run", "-h")[1].splitlines()]
    first = next(place for place, line in enumerate(lines) if "Exit codes:" in line)
    paragraph = list(itertools.takewhile(bool, lines[first:]))
    assert len(paragraph) >= 2
    for line, after in itertools.pairwise(paragraph):
        assert len(f" {line} {after.split()[0]}") >= 78


def test_layers_prints_the_inputs_that_data_are_named_after(folder, command):
    _, out, _ = command("layers", folder / "lenet.onnx")
    graph = onnx.load(folder / "lenet.onnx").graph
    for value in (*graph.input, *graph.output):
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        assert f"'{value.name}' float32{sizes}" in out


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """Gives the words that Bash offers for the last word of each question, with the script that the command writes."""
    script = tmp_path_factory.mktemp("shell") / "completion.bash"
    script.write_text(application().generate_completion(shell="bash"))

    def offered(*questions):
        lines = [f"source {script}", 'complete="$(complete -p trt-bisect | grep -o -- "-F [a-z_]*" | cut -c4-)"']
        for asked in questions:
            words = shlex.split(asked) + [""] * asked.endswith(" ")
            lines += ["COMPREPLY=()", f"COMP_WORDS=({shlex.join(['trt-bisect', *words])})", f"COMP_CWORD={len(words)}"]
            lines += ['"$complete"', 'echo "${COMPREPLY[@]}"']
        shown = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
        return [set(line.split()) for line in shown.stdout.splitlines()]

    return offered


def test_a_shell_completes_commands_options_and_their_values(completed):
    starts = "", "e", "b"
    commands, options, *values = completed("c", "run --thr", *(f"run net.onnx --strategy {start}" for start in starts))
    assert commands == {"compare", "calibrate", "check", "clean"}
    assert options == {"--threshold"}
    strategies = {"auto", "exhaustive", "bisect"}
    assert values == [{each for each in strategies if each.startswith(start)} for start in starts]


def test_percentages_and_sizes_are_taken(folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    _, out, _ = command(*f"{DATA} {QUICK} --json -q --threshold 99.5% --validation 20% --memory 1GB".split())
    assert json.loads(out)["threshold"] == 0.995


def test_the_help_fits_two_screens_and_all_of_it_has_the_experts_options():
    """Two screens of 80 by 50; at most 32 options, each in one of the panels."""
    short, whole = (help_of("run", 80, everything=everything) for everything in (False, True))
    flags = [re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", text) for text in (short, whole)]
    assert len(short.splitlines()) <= 100
    assert len(flags[0]) == len(set(flags[0])) <= 32
    assert max(map(len, short.splitlines())) <= 80
    options = [option for option in declared(function_of("run")) if option.flags]
    assert set(flags[1]) == {option.flag for option in options}
    assert set(flags[0]) == {option.flag for option in options if not option.expert}
    assert "--help-all" in short


def test_every_option_of_every_command_has_a_panel_and_a_help():
    for command in COMMANDS:
        for option in declared(function_of(command)):
            assert option.panel in PANELS
            assert option.effect.endswith(".")
