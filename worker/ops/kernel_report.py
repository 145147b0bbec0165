"""Which kernels this machine runs, for `splitserve env`: `python -m splitserve.worker.ops.kernel_report`."""

from __future__ import annotations

from splitserve.worker._native import load_library


def main() -> None:
    """Print a `name: value` line for each library; what cannot be loaded says why."""
    print(f"CPU kernels: {_cpu()}")
    print(f"CUDA kernels: {_cuda()}")


def _cpu() -> str:
    try:
        library = load_library("splitserve_cpu")
        return f"{library.cpu_isa()} in use, of {', '.join(map(str, library.cpu_isas()))}"
    # Whatever is wrong with a library: here it is reported.
    except Exception as error:
        return f"cannot be loaded: {error}"


def _cuda() -> str:
    try:
        load_library("splitserve_cuda")
        return "built, and can be loaded"
    except Exception as error:
        return " ".join(str(error).split())


if __name__ == "__main__":
    main()
