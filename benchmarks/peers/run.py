"""Runs the peer tools: each in an environment of its own under ``.bench``, each under a time limit.

    python benchmarks/peers/run.py --networks DIR --only onnxruntime nncf --timeout 900

prints one JSON line a peer and network. A peer that cannot be installed or run yields
``{"peer", "network", "skipped"}``, never a traceback. Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parent.parent / ".bench"
PEERS = ("onnxruntime", "nncf", "aimet", "ppq", "inc")
THREADS = "2"
INSTALL_TIMEOUT = 1800.0


class Skipped(Exception):
    """Raised where a peer gives no figures; its message is the reason in one sentence."""


def run_peer(
    name: str,
    network: Path,
    data: Path,
    timeout_s: float,
    *,
    limit: int | None = None,
    evaluate: int = 1,
    home: Path = HOME,
) -> dict[str, object]:
    """Returns one peer's figures on one network, or the reason why there are none.

    Args:
        name: one of ``PEERS``.
        network: the FP32 ONNX file.
        data: an ``.npz`` with one array an input, samples stacked on the first axis.
        timeout_s: for the run; the installation, once a peer, has a limit of its own.
        limit: at most that many layers are tried.
        evaluate: on how many samples the final outputs are compared.
        home: where the environments are made.
    """
    options = ["--evaluate", str(evaluate), *(["--limit", str(limit)] if limit is not None else [])]
    try:
        python = install(name, home)
        script = [str(python), str(HERE / f"rank_{name}.py"), str(network.resolve()), str(data.resolve()), *options]
        return _result(run_command(script, timeout_s, "the analysis"))
    except Skipped as why:
        return {"peer": name, "network": network.stem, "skipped": str(why)}


def install(name: str, home: Path, requirements: Path = HERE) -> Path:
    """Returns the Python of an environment; makes it first if it is missing or its ``requirements`` changed.

    Args:
        name: of the environment, and of the files in ``requirements``.
        home: where environments are made.
        requirements: the folder of ``NAME.txt`` and, for packages without their own requirements, ``NAME-nodeps.txt``.

    Raises:
        Skipped: it cannot be made.
    """
    folder = home / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    files = [file for end in ("", "-nodeps") if (file := requirements / f"{name}{end}.txt").exists()]
    wanted, stamp = "\n".join(file.read_text() for file in files), folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as why:
        raise Skipped(f"its environment could not be made: {_sentence(str(why))}") from why
    for file in files:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", "-r", str(file)]
        run_command([*pip, "--no-deps"] if file.stem.endswith("-nodeps") else pip, INSTALL_TIMEOUT, "the installation")
    stamp.write_text(wanted)
    return python


def run_command(command: Sequence[str], timeout_s: float, what: str) -> str:
    """The command's stdout; raises Skipped where it fails.

    It runs in an empty folder and takes its children with it when its time is up.
    """
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), THREADS),
    }
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise Skipped(f"{what} did not end within {timeout_s:.0f} s") from None
        finally:
            _end(process)
    if process.returncode:
        raise Skipped(f"{what} failed: {_sentence(err)}")
    return out


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.communicate()


def _result(out: str) -> dict[str, object]:
    lines = out.strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Skipped("the analysis printed no result") from None
    return dict(result)


def _sentence(err: str) -> str:
    """Returns the last line of an error output that names an error, or else the last line."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(ERROR: |[\w.]*(Error|Exception|Interrupt)\b)", line)]
    return ([*lines, *telling] or ["no message"])[-1][:300]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--networks", type=Path, required=True, help="a folder of NAME.onnx, NAME-planted.onnx, NAME.npz"
    )
    parser.add_argument("--only", nargs="+", choices=PEERS, default=PEERS, help="these peers only")
    parser.add_argument("--match", default="*", help="these networks only, a file pattern without .onnx")
    parser.add_argument("--limit", type=int, default=None, help="try at most that many layers")
    parser.add_argument("--evaluate", type=int, default=1, help="samples on which the final outputs are compared")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one peer on one network")
    arguments = parser.parse_args()
    for network in sorted(arguments.networks.glob(f"{arguments.match}.onnx")):
        data = network.with_name(f"{network.stem.removesuffix('-planted')}.npz")
        for name in arguments.only:
            result = run_peer(
                name, network, data, arguments.timeout, limit=arguments.limit, evaluate=arguments.evaluate
            )
            print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
