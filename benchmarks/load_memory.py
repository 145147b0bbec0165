"""How much memory does loading take at its peak, against the weights' own size? A table, a line per format.

    python -m benchmarks.load_memory [--formats gptq,Q4_K] [--layers 4] [--hidden-size 2048] [--folder DIR]

For each format a Llama of random numbers is written, and loaded by a process of its own. The peak is VmHWM,
set back before the weights are read, less what the process took then. Files are read with read(), so their
pages are not among it. The folder needs room for the largest file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.stored_formats import BLOCKS, FORMATS, Sizes, write_gguf, write_safetensors


def _status(name: str) -> int:
    """Bytes of this process, by the name of a line of /proc."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def load(path: str, quantization: str) -> None:
    """Load a checkpoint in this process, and print what that took."""
    from splitserve.engine_core.checkpoint.config.architectures import read_model_config
    from splitserve.worker.attention.cpu import CpuAttention
    from splitserve.worker.device.cpu import CpuDevice
    from splitserve.worker.models.placement import Placement
    from splitserve.worker.models.registry import declare_model
    from splitserve.worker.weights.loading import load_weights

    device, dtype = CpuDevice(), torch.bfloat16
    plan = declare_model(read_model_config(path), dtype, Placement(device, CpuAttention()), quantization).plan
    Path("/proc/self/clear_refs").write_text("5")
    before, started = _status("VmRSS"), time.process_time()
    load_weights(path, plan, dtype, device, lambda loaded, total: None)
    figures = {
        "weights": plan.num_bytes,
        "peak": _status("VmHWM") - before,
        "rest": _status("VmRSS") - before,
    }
    print(json.dumps({**figures, "cpu_s": time.process_time() - started}))


def _measure(folder: Path, name: str, sizes: Sizes) -> str:
    quantization = "none"
    if name in FORMATS:
        write_safetensors(folder, sizes, FORMATS[name])
        path, quantization = folder, FORMATS[name].quantization
    else:
        path = folder / "model.gguf"
        write_gguf(path, sizes, name)
    words = [
        sys.executable,
        "-m",
        "benchmarks.load_memory",
        "--load",
        str(path),
        "--quantization",
        quantization,
    ]
    # As workers do: idle threads that spin would be counted.
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    figures = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, env=env).stdout)
    mib = {key: figures[key] / 2**20 for key in ("weights", "peak", "rest")}
    return (
        f"| {name} | {mib['weights']:.0f} | {mib['peak']:.0f} | {mib['peak'] / mib['weights']:.3f} | "
        f"{mib['peak'] - mib['weights']:.0f} | {mib['rest'] - mib['weights']:.0f} | {figures['cpu_s']:.1f} |"
    )


def main() -> None:
    """Measure the formats, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = (*FORMATS, *BLOCKS)
    parser.add_argument("--formats", default=",".join(everything))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--load", default="", help=argparse.SUPPRESS)
    parser.add_argument("--quantization", default="none", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        load(args.load, args.quantization)
        return
    print("| format | weights, MiB | peak | ratio | above, MiB | above at the end | CPU s |")
    print(f"{'| --- ' * 7}|")
    for name in args.formats.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            print(_measure(Path(folder), name, Sizes(args.hidden_size, args.layers)), flush=True)


if __name__ == "__main__":
    main()
