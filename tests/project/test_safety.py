"""Files of strangers: nothing they hold is run, read from elsewhere, or written outside the run folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import networks
from tests.support.recorded import explained
from tests.support.records import report_from
from tests.support.waiting import LIMIT
from trt_bisect import BadInput, load_network, open_dataset
from trt_bisect.data.named import load_function
from trt_bisect.data.saved import open_dumps
from trt_bisect.evaluator.accuracy import read_labels
from trt_bisect.history.store import HISTORY
from trt_bisect.runs.cached_inputs import load_inputs

CANARY = "canary"
HOSTILE = (
    "../../../{n}escape",
    "/tmp/trt-bisect-{n}escape",
    "$(touch canary){n}",
    "`touch canary`{n}",
    "'; touch canary; '{n}",
    '"; touch canary; "{n}',
    "a\ntouch canary\n{n}",
    "__import__('pathlib').Path('canary').touch(){n}",
    '"""\n__import__("pathlib").Path("canary").touch()\n"""{n}',
    "--help{n}",
    "con:aux,*{n}",
    "\x1b]0;owned\x07\x1b[2J{n}",
    "..{n}",
    "CON{n}.npz/../..",
)


class Trap:
    """Touches the canary when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(CANARY),)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, where whatever runs unbidden leaves a canary."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    yield place
    assert not (place / CANARY).exists()


def test_the_trap_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Trap()))
    assert (tmp_path / CANARY).exists()


def trapped_arrays(folder: Path) -> dict[str, Path]:
    trap = np.array([Trap()], dtype=object)
    np.save(folder / "trap.npy", trap, allow_pickle=True)
    np.savez(folder / "trap.npz", x=trap)
    (folder / "plain.npz").write_bytes(pickle.dumps(Trap()))
    (folder / "plain.npy").write_bytes(pickle.dumps(Trap()))
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["trap.npy", "trap.npz", "plain.npz", "plain.npy"])
def test_pickles_are_never_loaded(name, here, tmp_path):
    path = trapped_arrays(tmp_path / "here")[name]
    specs = load_network(networks.save(networks.chain(depth=2), tmp_path)).inputs
    with pytest.raises(BadInput):
        list(open_dataset(path, specs))
    with pytest.raises(BadInput):
        next(iter(open_dumps(path, path)[1]))
    with pytest.raises(BadInput):
        read_labels(path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "inputs.npz").write_bytes(path.read_bytes())
    (folder / "inputs.json").write_text(json.dumps({"key": "k", "count": 1, "stacked": True}))
    assert load_inputs(folder, "k") is None


def test_polygraphys_json_brings_no_pytorch_tensor_along(here, tmp_path, monkeypatch):
    """Polygraphy 0.49 gives them to ``torch.load``, which unpickled all that it was given before PyTorch 2.6."""
    from polygraphy.json import from_json
    from polygraphy.json.serde import Decoder

    from_json("[]")
    loaded = []
    monkeypatch.setitem(Decoder.polygraphy_registered, "Tensor", loaded.append)
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps([{"x": {"polygraphy_class": "Tensor", "tensor": "gASV"}}]))
    specs = load_network(networks.save(networks.chain(depth=2), tmp_path)).inputs
    for read in (lambda: open_dataset(path, specs), lambda: open_dumps(path, path)):
        with pytest.raises(BadInput, match=r"inputs\.json"):
            read()
    assert loaded == []


def initializer(model: onnx.ModelProto) -> TensorProto:
    return model.graph.initializer[0]


def attribute(model: onnx.ModelProto) -> TensorProto:
    value = helper.make_tensor("value", TensorProto.FLOAT, [4], [0.0] * 4)
    model.graph.node.append(helper.make_node("Constant", [], ["spare"], name="spare", value=value))
    return model.graph.node[-1].attribute[0].t


def branch(model: onnx.ModelProto) -> TensorProto:
    value = helper.make_tensor("inner", TensorProto.FLOAT, [4], [0.0] * 4)
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("inner", 1, [4])], [value])
    condition = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(condition)
    model.graph.node.append(helper.make_node("If", ["yes"], ["spare"], then_branch=body, else_branch=body))
    return model.graph.node[-1].attribute[0].g.initializer[0]


def function(model: onnx.ModelProto) -> TensorProto:
    value = helper.make_tensor("value", TensorProto.FLOAT, [4], [0.0] * 4)
    constant = helper.make_node("Constant", [], ["made"], value=value)
    model.functions.append(helper.make_function("own", "Made", [], ["made"], [constant], [helper.make_opsetid("", 17)]))
    return model.functions[0].node[0].attribute[0].t


def sparse(model: onnx.ModelProto) -> TensorProto:
    values = helper.make_tensor("thin", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    return model.graph.sparse_initializer[0].values


@pytest.mark.parametrize(
    "where", ["../secret.bin", "{outside}", "sub/../../secret.bin", "link.bin", "linked/secret.bin"]
)
@pytest.mark.parametrize("made", [initializer, attribute, branch, function, sparse])
def test_external_data_stays_in_the_networks_folder(made, where, tmp_path):
    folder = tmp_path / "net"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 4096)
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    model = networks.chain(depth=2)
    tensor = made(model)
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", where.format(outside=secret)
    path = folder / "network.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match="external data"):
        load_network(path)


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with hostile names for every node, tensor, input and output."""
    tensors = [value.name for value in (*model.graph.input, *model.graph.initializer, *model.graph.output)]
    tensors += [name for node in model.graph.node for name in node.output if name not in tensors]
    names = {name: HOSTILE[place % len(HOSTILE)].format(n=f"t{place}") for place, name in enumerate(tensors)}
    for place, node in enumerate(model.graph.node):
        node.name = HOSTILE[place % len(HOSTILE)].format(n=f"n{place}")
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
    for value in (*model.graph.input, *model.graph.initializer, *model.graph.output):
        value.name = names[value.name]
    return model


@pytest.fixture
def hostile(tmp_path):
    """A network with a culprit whose names are attacks, and data for it."""
    model = networks.planted(networks.residual(2), ("block1.conv1", "block1.conv2"))
    renamed(model)
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = networks.save(model, folder)
    data = {model.graph.input[0].name: networks.normal(1, 4, 1, 3, 16, 16)}
    return path, data


def everything_but(folder: Path, root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if folder not in (path, *path.parents)}


def test_names_write_nothing_outside_the_run_folder_and_run_nothing(hostile, here, tmp_path, command, monkeypatch):
    path, data = hostile
    generator = path.parent / "feeds.py"
    generator.write_text(
        "import numpy as np\n"
        f"NAME = {next(iter(data))!r}\n"
        "def feeds():\n"
        "    random = np.random.default_rng(1)\n"
        "    for _ in range(4):\n"
        "        yield {NAME: random.normal(0, 1, (1, 3, 16, 16)).astype(np.float32)}\n"
    )
    source = f"{generator}:feeds"
    before = everything_but(here, tmp_path)
    strays = set(Path("/tmp").glob("trt-bisect-*escape*"))
    run = here / "run"
    sqnr = ("--metric", "sqnr", "--calibration", source, "--calibrator", "minmax", "--output", run)
    remedies = ("--explain", "remedies", "--trt-version", "10.3.0", "--tensorboard", run / "logs")
    code, _, err = command("run", path, *sqnr, *remedies)
    assert code == 1, err
    assert_commands_and_scripts_run_nothing(run, here, monkeypatch)
    for more in (
        ("run", path, *sqnr, "--budget", "5%", "--front", "--explain", "none", "--effort", "quick"),
        ("sensitivity", path, *sqnr),
        ("worst", path, *sqnr),
        ("compare", path, "--calibration", source, "--output", run / "compared", "--tensorboard", run / "logs"),
        ("profile", path, "--calibration", source, "--output", run / "profiled"),
        ("calibrate", path, "--calibration", source, "--output", run / "own.cache"),
        ("check", path, "--output", run / "checked"),
        ("layers", path),
    ):
        code, _, err = command(*more)
        assert code in (0, 1), err
    assert everything_but(here, tmp_path) - before <= set((path.parent / "__pycache__").rglob("*")) | {
        path.parent / "__pycache__"
    }
    assert everything_but(run, here) == {here / HISTORY}
    assert set(Path("/tmp").glob("trt-bisect-*escape*")) == strays
    assert not list(run.rglob("*escape*"))


TOOLS = ("trtexec", "polygraphy", "trt-bisect", "python")


def assert_commands_and_scripts_run_nothing(run, here, monkeypatch):
    """Each command that a report offers for copying, given to a shell in which the tools do nothing."""
    report = explained(run)
    assert report.culprits
    tools = here / "tools"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).write_text('#!/bin/sh\nprintf "%s\\n" ran >> "$LOG"\n')
        (tools / name).chmod(0o755)
    log = tools / "log"
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "LOG": str(log)}
    commands = [
        offered.text
        for advice in report.advice
        for remedy in advice.remedies
        for offered in remedy.commands
        if offered.text.split()[0] in (*TOOLS, "(cd")
    ]
    assert len(commands) > 3
    for text in commands:
        subprocess.run(["bash", "-c", text], env=environment, cwd=here, check=True, timeout=LIMIT)
    flags = "grep -v '^#' trtexec.flags | xargs trtexec --onnx=x"
    subprocess.run(["bash", "-c", flags], env=environment, cwd=run / "recipe", check=True, timeout=LIMIT)
    assert len(log.read_text().split()) == len(commands) + 1
    script: dict[str, object] = {}
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "tensorrt", SimpleNamespace(float32="float32", float16="float16"))
        exec((run / "recipe/polygraphy_postprocess.py").read_text(), script)
    assert {name for name, _, _ in script["CONSTRAINTS"]} >= set(report.culprits)
    assert not (run / "recipe" / CANARY).exists()
    shutil.rmtree(tools)


def test_a_strangers_run_folder_is_looked_at_and_not_run(finished, here, tmp_path):
    """A metric of the user's own is a function; a report that names one is not asked to import it."""
    (here / "stranger.py").write_text(f"from pathlib import Path\nPath({CANARY!r}).touch()\n")
    asked = json.loads((finished / "report.json").read_text())
    report_from({**asked, "metric": "stranger:metric"}).save(tmp_path / "copy")
    assert "stranger" not in sys.modules


PLAIN = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
"""An environment that, unlike a CI service's, does not make ONNX Runtime silent."""
RUN = ("-m", "trt_bisect", "layers", str(Path(__file__).parents[2] / "samples/lenet/lenet.onnx"))


@pytest.mark.subprocess
def test_nothing_is_left_in_home_and_no_name_is_looked_up(tmp_path):
    """ONNX Runtime 1.29 and later write into HOME/.cache and send telemetry, if nobody forbids it before the import."""
    home, trace = tmp_path / "home", tmp_path / "trace"
    home.mkdir()
    words = [sys.executable, *RUN]
    if shutil.which("strace"):  # without it HOME alone is looked at
        words = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(trace), *words]
    subprocess.run(words, env={**PLAIN, "HOME": str(home)}, stdout=subprocess.DEVNULL, check=True)
    assert list(home.rglob("*")) == []
    if trace.exists():
        assert "AF_INET" not in trace.read_text(errors="replace")


@pytest.mark.parametrize(
    ("module", "given", "left"), [("trt_bisect", "0", "0"), ("trt_bisect", "", "1"), ("benchmarks", "", "1")]
)
def test_telemetry_is_off_unless_the_user_wants_it(module, given, left):
    code = f"import os, {module}; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {**PLAIN, "ORT_DISABLE_TELEMETRY": given}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == left


def test_the_current_folder_shadows_no_library(here, monkeypatch):
    """A user's function may come from here; what trt-bisect imports afterwards does not."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    (here / "mine.py").write_text("def feeds():\n    return []\n")
    (here / "statistics.py").write_text(f"from pathlib import Path\nPath({CANARY!r}).touch()\n")
    monkeypatch.delitem(sys.modules, "statistics", raising=False)
    assert list(load_function("mine:feeds", "data set")()) == []
    import statistics

    assert statistics.mean([1, 3]) == 2
    assert sys.path[-1] == ""
