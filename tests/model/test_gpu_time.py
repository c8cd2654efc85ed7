"""The model of time: kernels whose times follow from the data sheet and the constants by hand."""

import math
from dataclasses import replace

import pytest

from trt_bisect.errors import BadInput
from trt_bisect.model.gpu_time import FIT, GPUS, Kernel, Kind, Product, gpu_named, gpu_of, predicted, seconds
from trt_bisect.precision import Precision

A100, RTX3090 = GPUS["A100"], GPUS["RTX3090"]
INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
LAUNCH = FIT.launch * 1e-6


RATES = {
    "A100": (2048, 1024, 512, 64), "H100": (4096, 2048, 1024, 128), "L4": (1024, 512, 256, 128),
    "T4": (1024, 512, None, 64), "RTX": (1024, 512, 128, 128), "Turing": (1024, 512, None, 64),
    "A10": (1024, 512, 256, 128), "Orin": (2048, 1024, 512, 128), "Thor": (8192, 4096, 2048, 128),
}  # fmt: skip
"""Multiply-adds a cycle of one SM, from NVIDIA's whitepapers of the architectures: of its tensor cores in INT8, FP16
and TF32, without sparsity, and of its CUDA cores in FP32. GeForce has half the rate of TF32; FP16 sums in FP16."""
BUILD = {
    "A100": ("A100", 1410, 5120, 2.43),
    "A100-80GB": ("A100", 1410, 5120, 3.186),
    "H100": ("H100", 1830, 5120, 5.23),
    "H200": ("H100", 1830, 6144, 6.25),
    "L4": ("L4", 2040, 192, 12.5),
    "T4": ("T4", 1590, 256, 10),
    "RTX3090": ("RTX", 1695, 384, 19.5),
    "RTX4090": ("RTX", 2520, 384, 21),
    "RTX2060": ("Turing", 1680, 192, 14),
    "RTX3060": ("RTX", 1777, 192, 15),
    "RTX3080": ("RTX", 1710, 320, 19),
    "RTX3080-12GB": ("RTX", 1710, 384, 19),
    "RTX5070": ("RTX", 2512, 192, 28),
    "RTXPRO6000": ("RTX", 2617, 512, 28),
    "A10": ("A10", 1695, 384, 12.5),
    "DGXSpark": ("RTX", 2418, 256, 8.533),
    "OrinNanoSuper": ("Orin", 1020, 128, 6.4),
    "OrinAGX": ("Orin", 1300, 256, 6.4),
    "OrinNX": ("Orin", 918, 128, 6.4),
    "OrinNano": ("Orin", 625, 128, 4.25),
    "Thor": ("Thor", 1570, 256, 8.533),
}
"""The architecture, the clock of the tensor cores in MHz, the bits of the memory's bus, and its Gbit/s a line."""


@pytest.mark.parametrize("name", BUILD)
def test_the_peaks_follow_from_processors_clock_and_rates(name):
    gpu, (architecture, clock, bits, gigabit) = GPUS[name], BUILD[name]
    *tensor, scalar = RATES[architecture]
    for precision, rate in zip((INT8, FP16, FP32), tensor, strict=True):
        peak = None if rate is None else gpu.processors * clock * rate * 2e-6
        assert gpu.tera.get(precision) == (None if peak is None else pytest.approx(peak, rel=0.03))
    assert gpu.scalar == pytest.approx(gpu.processors * gpu.clock * scalar * 2e-6, rel=0.01)
    assert gpu.bandwidth == pytest.approx(bits * gigabit / 8, rel=0.01)


@pytest.mark.parametrize("kind", ["stream", "reformat", "region", "product"])
def test_a_launch_is_a_number_of_cycles(kind):
    """An H200 runs at 1,980 MHz, the A100 of the fit at 1,410."""
    empty = Kernel("x", Kind(kind), 0)
    assert seconds(empty, A100) == pytest.approx(LAUNCH)
    assert seconds(empty, GPUS["H200"]) == pytest.approx(LAUNCH * 1410 / 1980)


def test_bytes_that_the_second_level_cache_holds_come_at_the_rate_of_the_processors():
    """An RTX 4090 has 72 MB, 128 SMs at 2,520 MHz and 1,008 GB/s. An SM gets 10 bytes a cycle: 3.2256 TB/s."""
    gpu, megabyte = GPUS["RTX4090"], 1_000_000
    cached, from_memory = (megabyte / (rate * 1e12) for rate in (3.2256, 1.008 * FIT.memory))
    launch = LAUNCH * 1410 / 2520
    assert seconds(stream(18 * megabyte), gpu) - launch == pytest.approx(18 * (0.75 * cached + 0.25 * from_memory))
    assert seconds(stream(144 * megabyte), gpu) - launch == pytest.approx(144 * from_memory)


def test_few_processors_cannot_use_all_of_a_memory():
    """132 SMs at 1,980 MHz that get 10 bytes a cycle: 2.6136 TB/s, of an H200's 4.8."""
    taken = seconds(stream(1_000_000_000), GPUS["H200"]) - LAUNCH * 1410 / 1980
    assert taken == pytest.approx(1e-3 / 2.6136)


def test_int8_is_no_faster_than_fp16_in_tensorrts_kernels_on_blackwell():
    full = product(256 * 48 * 4, 128, 64)
    for name in ("DGXSpark", "RTX5070"):
        gpu = GPUS[name]
        int8, fp16 = (work(replace(full, product=replace(full.product, precision=p)), gpu) for p in (INT8, FP16))
        assert int8 / fp16 == pytest.approx(1 / (2 * FIT.integer * 0.4), rel=0.2)


def test_a_gpu_of_the_users():
    described = {"processors": 26, "fp32": 8.0, "bandwidth": 288, "int8": 63.9, "fp16": 31.9, "tf32": 15.9}
    gpu = gpu_of({**described, "clock": 1200, "name": "A2000"}, "file")
    assert (gpu.name, gpu.processors, gpu.clock, gpu.scalar, gpu.bandwidth) == ("A2000", 26, 1200, 8.0, 288)
    assert gpu.tera == {INT8: 63.9, FP16: 31.9, FP32: 15.9}
    assert not gpu.measured, "its range is wide"
    assert (gpu_of(described, "file").name, gpu_of(described, "file").clock) == ("file", A100.clock)
    assert (gpu.cache, gpu_of({**described, "cache": 3}, "file").cache) == (0, 3)
    bare = gpu_of({"processors": 8, "fp32": 1.0, "bandwidth": 60}, "file")
    assert bare.rate(INT8) == bare.rate(FP16) == bare.rate(FP32) == 0.5e12


@pytest.mark.parametrize(("change", "said"), [
    ({"bandwidth": None}, "bandwidth = None"), ({"int8": -1}, "int8 = -1"), ({"fp16": "fast"}, "fp16 = 'fast'"),
    ({"processors": True}, "processors = True"), ({"processors": 0.5}, "0.5 processors"),
    ({"clock": math.inf}, "clock = inf"),
])  # fmt: skip
def test_a_gpu_without_a_figure_that_is_needed_is_refused(change, said):
    with pytest.raises(BadInput, match=said):
        gpu_of({"processors": 26, "fp32": 8.0, "bandwidth": 288, **change}, "file")


def stream(moved, **more):
    return Kernel("pool", Kind.STREAM, moved, **more)


def product(rows, columns, channels, taps=1, precision=INT8, **more):
    return Kernel("conv", Kind.PRODUCT, 0, Product(rows, columns, channels, taps, precision, **more))


def work(kernel, gpu=A100):
    return seconds(kernel, gpu) - LAUNCH * 1410 / gpu.clock


def test_a_kernel_without_a_product_takes_a_launch_and_its_bytes_and_one_that_does_nothing_no_time():
    assert seconds(stream(1_555_000_000), A100) == pytest.approx(LAUNCH + 1e-3 / FIT.memory)
    assert seconds(Kernel("reshape", Kind.NOTHING, 1 << 30), A100) == 0.0


def test_a_change_of_format_of_a_picture_is_slower_by_its_constant():
    plain, narrow = (work(stream(1 << 30, is_narrow=is_narrow)) for is_narrow in (False, True))
    assert narrow == pytest.approx(plain / FIT.narrow)


def test_one_full_wave_of_the_largest_tiles():
    """108 tiles of 256 x 128, one on each SM: an SM does its share of 624 tera operations a second."""
    macs_of_an_sm = 256 * 128 * 64
    rate = 624e12 / 2 / 108 * FIT.integer / (1 + FIT.tile * (1 / 256 + 1 / 128))
    assert work(product(256 * 108, 128, 64)) == pytest.approx(macs_of_an_sm / rate)


def test_one_more_row_costs_another_wave():
    """Twice the rows of one wave take twice as long; one row more than a wave takes more than that wave."""
    one, more, two = (work(product(rows, 128, 64)) for rows in (256 * 108, 256 * 108 + 1, 2 * 256 * 108))
    assert two == pytest.approx(2 * one)
    assert one * 1.1 < more <= two


@pytest.mark.parametrize(("precision", "few", "filled"), [(INT8, 24, 32), (FP16, 24, 32), (FP16, 9, 16), (FP32, 5, 8)])
def test_channels_are_filled_up_to_32_bytes(precision, few, filled):
    times = [work(product(50_000, 128, channels, 9, precision)) for channels in (few, filled)]
    assert times[0] == pytest.approx(times[1])


def test_a_batch_of_one_keeps_few_processors_busy():
    """7 x 7 places and 512 filters are 8 tiles of 64 x 64: 8 times the batch costs the same, not 8 times as much."""
    one, eight = (work(product(49 * batch, 512, 512, 9)) for batch in (1, 8))
    assert eight < 2 * one


@pytest.mark.parametrize(("precision", "share"), [(FP32, 1 / 4), (FP16, 1 / 2), (INT8, 1.0)])
def test_a_depthwise_convolution_runs_at_the_rate_of_shared_memory(precision, share):
    kernel = product(100_352, 1, 1, 9, precision, groups=96)
    assert work(kernel) == pytest.approx(96 * 100_352 * 9 / (19.5e12 / 2 * share * FIT.scalar))


@pytest.mark.parametrize(("precision", "by_fours", "macs"), [(FP32, False, 147), (INT8, True, 49 * 4 / 4)])
def test_the_first_convolution_uses_no_tensor_cores(precision, by_fours, macs):
    """In INT8 by fours it is DP4A: three channels take the time of four, four multiply-adds an instruction."""
    kernel = product(401_408, 64, 3, 49, precision, by_fours=by_fours)
    assert work(kernel) == pytest.approx(401_408 * 64 * macs / (19.5e12 / 2 * FIT.scalar))


def test_arithmetic_and_bytes_overlap_but_not_quite():
    bare = product(256 * 108, 128, 64)
    both = replace(bare, moved=10_000_000)
    assert max(work(bare), work(stream(10_000_000))) < work(both) < work(bare) + work(stream(10_000_000))
    assert work(both) == pytest.approx(math.sqrt(work(bare) ** 2 + work(stream(10_000_000)) ** 2))


@pytest.mark.parametrize(("written", "name"), [
    ("a100", "A100"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA GeForce RTX 3090", "RTX3090"),
    ("rtx-4090", "RTX4090"), ("Tesla T4", "T4"), ("NVIDIA H200", "H200"), ("Orin Nano", "OrinNano"),
    ("agx orin", "OrinAGX"), ("thor", "Thor"),
])  # fmt: skip
def test_names_of_gpus_as_people_and_drivers_write_them(written, name):
    assert gpu_named(written).name == name


@pytest.mark.parametrize(
    "name", ["", "GTX 1080", "NVIDIA L40S", "A16", "Orin Nano Ti", "RTX 3090 Ti", "RTX 4090 Laptop GPU"]
)
def test_an_unknown_gpu_is_refused(name):
    with pytest.raises(BadInput, match="No peaks"):
        gpu_named(name)


def test_a_precision_that_a_gpu_lacks_runs_in_the_next_one():
    assert GPUS["T4"].rate(Precision.BF16) == GPUS["T4"].rate(FP16)
    assert GPUS["A100"].rate(Precision.FP8) == GPUS["A100"].rate(FP16)
    assert GPUS["T4"].rate(FP32) == 8.1e12 / 2


def test_the_range_widens_for_gpus_and_kernels_that_were_not_compared():
    kernels = [stream(100_000_000)] * 3
    sure, unsure = predicted(kernels, A100), predicted(kernels, RTX3090)
    assert sure.ms == pytest.approx(3e3 * seconds(kernels[0], A100))
    assert sure.least < sure.ms < sure.most
    assert unsure.most / unsure.ms > sure.most / sure.ms
    region = predicted([*kernels[1:], replace(kernels[0], kind=Kind.REGION)], A100)
    assert (region.ms, region.least) == pytest.approx((sure.ms, sure.least))
    assert region.most > sure.most
    assert str(predicted([], A100)) == "0 ms (0 to 0)"
