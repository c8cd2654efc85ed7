"""The use of the command line: help, completion, errors as JSON."""

import errno
import itertools
import json
import re
import shlex
import subprocess

import pytest

from trt_bisect.cli import main
from trt_bisect.cli.app import COMMANDS, application, bound_to, function_of
from trt_bisect.errors import BadInput
from trt_bisect.options import PANELS
from trt_bisect.options.declare import declared


def test_wrong_use_is_one_json_document_with_json(command):
    code, out, err = command("run", "--json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"]) == (2, 2)
    assert error["problem"] in err
    assert error["remedy"] in err


def test_ctrl_c_while_a_library_is_imported_is_no_error_of_the_program(command, monkeypatch):
    def imports():
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("trt_bisect.builder.engines.list_engines", imports)
    code, _, err = command("engines")
    assert (code, err.strip()) == (130, "trt-bisect: interrupted.")


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


def test_counts_that_are_repeated_are_joined_and_lists_and_switches_may_be_repeated():
    words = "run net.onnx --tensorboard t --tensorboard-detail channels=2 --tensorboard-detail samples=1 -q -q --as-is"
    given = "--high a --high b --threshold 0.9 --threshold 0.9"
    options = bound_to(f"{words} {given}".split())[1]["options"]
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


def test_the_help_fits_two_screens_and_all_of_it_has_the_experts_options(command, monkeypatch):
    """Two screens of 80 by 50; at most 32 options, each in one of the panels."""
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (command("run", flag)[1] for flag in ("-h", "--help-all"))
    flags = [re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", text) for text in (short, whole)]
    assert len(short.splitlines()) <= 100
    assert len(flags[0]) == len(set(flags[0])) <= 32
    assert max(map(len, short.splitlines())) <= 80
    options = [option for option in declared(function_of("run")) if option.flags]
    assert set(flags[1]) == {option.flag for option in options}
    assert set(flags[0]) == {option.flag for option in options if not option.expert}
    assert "--help-all" in short


def test_on_a_terminal_only_the_titles_of_the_help_are_bold(command, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = command("history", "-h")
    assert re.findall(r"\x1b\[1[;m](.*?)\x1b", out) == ["Arguments:", "Results:", "Runs:", "Display:"]


def test_every_option_of_every_command_has_a_panel_and_a_help():
    for command in COMMANDS:
        for option in declared(function_of(command)):
            assert option.panel in PANELS
            assert option.effect.endswith(".")
