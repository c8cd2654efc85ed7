"""Every name of TensorRT's Python interface that the code uses exists in the real modules.

``tests/files/bindings`` has the names of the modules of TensorRT 8.5, 8.6, 10.3, 10.13, 11.4 and TensorRT-RTX, as
``tools/binding_names.py`` wrote them. ``tests/support/api_names.py`` reads the names that the code uses off its source.
"""

import ast
import importlib.util
from pathlib import Path

import pytest

from tests.support import api_names
from tests.support.api_names import BUILDER, COMMON, SINCE_10_8, Called, calls_in, names_in, names_used
from tests.support.fake_tensorrt import Definition, FakeLayer, Kind, Tensor
from trt_bisect.builder import tensorrt_weak
from trt_bisect.builder.tensorrt_engine import _DTYPES

BINDINGS = Path(__file__).parents[1] / "files" / "bindings"
WITH_WEAK = ("tensorrt-8.5.3.1", "tensorrt-8.6.0", "tensorrt-10.3.0", "tensorrt-10.13.3.9")
STRONG_ONLY = ("tensorrt-11.4.0.106", "tensorrt-rtx-1.7.1.116")
_BF16 = {"tensorrt_weak.py: DataType.BF16", "tensorrt_weak.py: BuilderFlag.BF16"}
"""BF16 is refused before TensorRT 10 (``engines.make_builder``)."""
ABSENT = {
    "tensorrt-8.6.0": _BF16,
    "tensorrt-8.5.3.1": {
        *_BF16,
        "tensorrt_build.py: IBuilderConfig.builder_optimization_level",  # asked for with hasattr
        "tensorrt_weak.py: ILayer.metadata",  # asked for with getattr
    },
}
"""The names that a version does not have, and that the code does not need there."""


CALLED_BACK = {"reallocate_output": 4, "reallocate_output_async": 5, "notify_shape": 2}
"""The functions of ``IOutputAllocator`` that TensorRT calls, and the number of their arguments. Modules since 10 list
none of them, and those before not all: they call what a subclass has. Polygraphy's subclass has the same three."""


def names_of(version):
    return names_in(BINDINGS / f"{version}.txt")


def used_by(names):
    return [BUILDER / name for name in names]


WEAK_FILES = [*used_by((*COMMON, *api_names.WEAK)), *sorted(api_names.CHECKS.glob("*.py"))]
"""The files that weak typing and ``tools/gpu_check`` need."""


def absent(version, files):
    there = names_of(version)
    return {
        f"{file.name}: {kind}.{name}"
        for file in files
        for kind, names in names_used(file).items()
        for name in names
        if name not in there.get(kind, ()) and not (kind == "IOutputAllocator" and name in CALLED_BACK)
    }


@pytest.mark.parametrize("version", WITH_WEAK)
def test_with_weak_typing(version):
    assert absent(version, WEAK_FILES) == ABSENT.get(version, set())


@pytest.mark.parametrize("version", STRONG_ONLY)
def test_with_strong_typing_alone(version):
    files = used_by((*COMMON, *api_names.RTX_ALONE) if "rtx" in version else COMMON)
    assert absent(version, files) == set()


@pytest.mark.parametrize("version", ["tensorrt-10.13.3.9", "tensorrt-11.4.0.106"])
def test_debug_tensors(version):
    """Before 10.8 the names are missing: 10.3 lacks what marks unfused tensors, and what turns them on."""
    files = used_by(SINCE_10_8)
    assert absent(version, files) == set()
    assert absent("tensorrt-10.3.0", files) == {
        "debug_tensors.py: INetworkDefinition.mark_unfused_tensors_as_debug_tensors",
        "debug_tensors.py: IExecutionContext.unfused_tensors_debug_state",
    }


def test_the_names_are_found_in_the_source():
    """A mistake in the search for names would make the tests above pass."""
    build, walk = names_used(BUILDER / "tensorrt_build.py"), names_used(BUILDER / "tensorrt_weak.py")
    assert {"clear_flag", "set_timing_cache", "builder_optimization_level"} <= build["IBuilderConfig"]
    assert {"precision", "set_output_type", "metadata", "get_input"} <= walk["ILayer"]
    assert walk["IElementWiseLayer"] == {"op"}
    checks = names_used(api_names.CHECKS / "plan_checks.py")
    assert checks["IInt8EntropyCalibrator2"] >= {"get_batch", "read_calibration_cache"}
    assert names_used(BUILDER / "tensorrt_engine.py")["IExecutionContext"] >= {"execute_async_v3", "infer_shapes"}
    rtx = names_used(BUILDER / "tensorrt_rtx.py")
    assert rtx["IRuntimeConfig"] >= {"dynamic_shapes_kernel_specialization_strategy", "set_runtime_cache"}


def test_a_wrong_name_is_found(tmp_path):
    wrong = tmp_path / "tensorrt_wrong.py"
    wrong.write_text("def f(trt, config):\n    config.set_flags(trt.BuilderFlag.INT9)\n    return trt.Bilder()\n")
    assert absent("tensorrt-8.6.0", [wrong]) == {
        "tensorrt_wrong.py: IBuilderConfig.set_flags",
        "tensorrt_wrong.py: BuilderFlag.INT9",
        "tensorrt_wrong.py: *.Bilder",
    }


def misfits(version, files):
    """The calls that fit no signature of a version, with the signatures that it has."""
    there = api_names.signatures_in(BINDINGS / f"{version}.signatures.txt")
    made = [(file.name, call) for file in files for call in calls_in(file)]
    return len(made), [
        (file, call, there.get(call.name))
        for file, call in made
        if not any(call.fits(arguments) for arguments in there.get(call.name, ()))
        and call.positional != CALLED_BACK.get(call.name.removeprefix("IOutputAllocator."))
    ]


def test_the_functions_of_an_output_allocator_are_those_of_polygraphy():
    there = Path(importlib.util.find_spec("polygraphy").origin).parent / "backend" / "trt" / "runner.py"
    classes = [node for node in ast.walk(ast.parse(there.read_text())) if isinstance(node, ast.ClassDef)]
    (allocator,) = [node for node in classes if node.name == "OutputAllocator"]
    counts = {part.name: len(part.args.args) - 1 for part in allocator.body if isinstance(part, ast.FunctionDef)}
    assert counts.items() >= CALLED_BACK.items()
    mine = [call for call in calls_in(BUILDER / "tensorrt_engine.py") if call.name.startswith("IOutputAllocator.")]
    assert {call.name.removeprefix("IOutputAllocator."): call.positional for call in mine} == CALLED_BACK


@pytest.mark.parametrize("version", ["tensorrt-8.6.0", "tensorrt-10.13.3.9"])
def test_every_call_fits_a_signature_with_weak_typing(version):
    """The number and the names of its arguments; of our subclasses, the arguments that TensorRT gives their methods."""
    count, wrong = misfits(version, WEAK_FILES)
    assert wrong == []
    assert count > 60


def test_every_call_of_debug_tensors_fits_a_signature():
    count, wrong = misfits("tensorrt-10.13.3.9", used_by(SINCE_10_8))
    assert wrong == []
    assert count == 4, "mark, the constructor, the listener, its function"


def test_every_call_fits_a_signature_of_tensorrt_rtx():
    count, wrong = misfits("tensorrt-rtx-1.7.1.116", used_by((*COMMON, *api_names.RTX_ALONE)))
    assert wrong == []
    assert count > 35


WRONG = """
class Cache(trt.IInt8EntropyCalibrator2):
    def __init__(self):
        trt.IInt8EntropyCalibrator2.__init__(self)
    def get_batch(self, names, more):
        config.set_timing_cache(cache)
        config.set_timing_cache(cache, mismatch=False)
        config.set_timing_cache(cache, ignore_mismatch=False)
        profile.set_shape(name, smallest, largest)
        profile.set_shape(name, min=smallest, opt=usual, max=largest)
        return rt.builder.create_network(1, 2)
"""


def test_a_wrong_call_is_found(tmp_path):
    path = tmp_path / "tensorrt_wrong.py"
    path.write_text(WRONG)
    count, wrong = misfits("tensorrt-8.6.0", [path])
    assert count == 8
    assert {call for _, call, _ in wrong} == {
        Called("IInt8EntropyCalibrator2.get_batch", 2, ()),
        Called("IBuilderConfig.set_timing_cache", 1, ()),
        Called("IBuilderConfig.set_timing_cache", 1, ("mismatch",)),
        Called("IOptimizationProfile.set_shape", 3, ()),
        Called("Builder.create_network", 2, ()),
    }


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("LayerType", tensorrt_weak._LEFT_ALONE | tensorrt_weak._HEAVY | tensorrt_weak._MOVES),
        ("LayerType", frozenset(tensorrt_weak._KINDS.values())),
        ("DataType", tensorrt_weak._FLOATS | _DTYPES.keys()),
        ("NetworkDefinitionCreationFlag", {"EXPLICIT_BATCH", "STRONGLY_TYPED"}),
        ("BuilderFlag", {"OBEY_PRECISION_CONSTRAINTS"}),
        ("TacticSource", {"JIT_CONVOLUTIONS", "EDGE_MASK_CONVOLUTIONS"}),
    ],
)
def test_names_in_texts_are_names_of_some_version(kind, names):
    """The code compares the names of enums' members with these; no version has all of them."""
    known = set().union(*(names_of(version)[kind] for version in (*WITH_WEAK, *STRONG_ONLY)))
    assert set(names) <= known
    assert "OBEY_PRECISION_CONSTRAINTS" in names_of("tensorrt-8.5.3.1")["BuilderFlag"]


@pytest.mark.parametrize(
    ("stand_in", "kind"), [(FakeLayer, "ILayer"), (Tensor, "ITensor"), (Definition, "INetworkDefinition")]
)
def test_stand_ins_of_the_tests_have_no_invented_names(stand_in, kind):
    """The stand-ins for the walk have the interface of TensorRT 8.6's own objects."""
    helpers = {"inputs", "outputs", "weights", "op", "output_types", "tensors", "output_names", "layers"}
    helpers |= {"add", "asked"}
    public = {name for name in {*vars(stand_in), *getattr(stand_in, "__annotations__", ())} if not name.startswith("_")}
    assert public - helpers <= names_of("tensorrt-8.6.0")[kind]
    assert {member.name for member in Kind} <= names_of("tensorrt-8.6.0")["LayerType"]


def test_pycuda():
    there = names_in(BINDINGS / "pycuda-2026.1.txt")
    found = set(api_names.cuda_names_used())
    missing = {n for n in found if n.rpartition(".")[2] not in there.get(n.rpartition(".")[0] or "*", ())}
    assert missing == set()
    assert {"memcpy_htod_async", "Event.time_since", "Device.retain_primary_context"} <= found


@pytest.mark.parametrize(("module", "version"), [("tensorrt_rtx_bindings", "tensorrt-rtx-1.7.1.116")])
def test_the_committed_names_are_those_of_the_installed_module(module, version):
    """TensorRT-RTX is installed where these tests run: the table of its version is as the tool writes it."""
    rtx = pytest.importorskip(module)
    if not version.endswith(rtx.__version__):
        pytest.skip(f"{rtx.__version__} is installed")
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("binding_names", root / "tools" / "binding_names.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.names_of(module) == (BINDINGS / f"{version}.txt").read_text()
    assert tool.signatures_of(module) == (BINDINGS / f"{version}.signatures.txt").read_text()
