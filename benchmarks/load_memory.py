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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

VOCAB = 32000
_GROUP = 128
Tensors = dict[str, torch.Tensor]


class Format(NamedTuple):
    """How a checkpoint is stored and loaded.

    Attributes:
        matrix: returns the tensors of a linear layer [N, K] by their last names.
        quantization_config: of config.json.
        quantization: --quantization.
    """

    matrix: Callable[[int, int], Tensors]
    quantization_config: dict[str, object] | None = None
    quantization: str = "none"


def _bytes(*shape: int) -> torch.Tensor:
    """Random bytes, cheaply: a short run again and again."""
    count = torch.Size(shape).numel()
    run = torch.randint(0, 256, (1 << 16,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return run.repeat(-(-count // len(run)))[:count].view(shape)


def _words(*shape: int) -> torch.Tensor:
    return _bytes(*shape[:-1], 4 * shape[-1]).view(torch.int32)


def _scales(*shape: int) -> torch.Tensor:
    return (_bytes(*shape).float() + 1).mul_(1e-4).half()


def _plain(n: int, k: int) -> Tensors:
    return {"weight": (_bytes(n, k).float() - 128).mul_(1e-3).bfloat16()}


def _gptq(n: int, k: int, has_order: bool = False) -> Tensors:
    groups = torch.arange(k, dtype=torch.int32) // _GROUP
    if has_order:
        groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(1))]
    return {
        "qweight": _words(k // 8, n),
        "qzeros": _words(k // _GROUP, n // 8),
        "scales": _scales(k // _GROUP, n),
        "g_idx": groups,
    }


def _awq(n: int, k: int) -> Tensors:
    return {
        "qweight": _words(k, n // 8),
        "qzeros": _words(k // _GROUP, n // 8),
        "scales": _scales(k // _GROUP, n),
    }


def _packed(n: int, k: int) -> Tensors:
    return {
        "weight_packed": _words(n, k // 8),
        "weight_scale": _scales(n, k // _GROUP).bfloat16(),
        "weight_shape": torch.tensor([n, k]),
    }


def _int8(n: int, k: int) -> Tensors:
    return {"weight": _bytes(n, k).view(torch.int8), "weight_scale": _scales(n, 1).bfloat16()}


def _fp8(n: int, k: int) -> Tensors:
    # Neither sign's NaN.
    codes = _bytes(n, k) & 0x77
    scales = torch.full((-(-n // 128), -(-k // 128)), 1e-3)
    return {"weight": codes.view(torch.float8_e4m3fn), "weight_scale_inv": scales}


def _group_config(bits: int, strategy: str, kind: str) -> dict[str, object]:
    weights: dict[str, object] = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy}
    if strategy == "group":
        weights["group_size"] = _GROUP
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "sym": False}
FORMATS = {
    "bfloat16": Format(_plain),
    "int8 on load": Format(_plain, quantization="int8"),
    "int4 on load": Format(_plain, quantization="int4"),
    "w8a8 on load": Format(_plain, quantization="w8a8"),
    "gptq": Format(_gptq, {**_GPTQ, "desc_act": False}),
    "gptq act-order": Format(lambda n, k: _gptq(n, k, has_order=True), {**_GPTQ, "desc_act": True}),
    "awq": Format(
        _awq, {"quant_method": "awq", "bits": 4, "group_size": _GROUP, "zero_point": True, "version": "gemm"}
    ),
    "w4a16": Format(_packed, _group_config(4, "group", "pack-quantized")),
    "w8a16": Format(_int8, _group_config(8, "channel", "int-quantized")),
    "fp8 blocks": Format(_fp8, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
}
BLOCKS = ("Q8_0", "Q4_K", "Q6_K", "MXFP4")


class Sizes(NamedTuple):
    """Of the model."""

    hidden: int
    layers: int

    @property
    def inner(self) -> int:
        """Width of the MLP, in whole blocks of all formats."""
        return -(-11 * self.hidden // 1024) * 256

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Shapes of a layer's matrices."""
        h, inner = self.hidden, self.inner
        attention = {"q": (h, h), "k": (h // 4, h), "v": (h // 4, h), "o": (h, h)}
        mlp = {"gate": (inner, h), "up": (inner, h), "down": (h, inner)}
        return {
            **{f"self_attn.{name}_proj": shape for name, shape in attention.items()},
            **{f"mlp.{name}_proj": shape for name, shape in mlp.items()},
        }

    def config(self) -> dict[str, object]:
        """Return config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": VOCAB,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64,
            "num_key_value_heads": self.hidden // 256,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "torch_dtype": "bfloat16",
        }


def write_safetensors(folder: Path, sizes: Sizes, stored: Format) -> None:
    """Write a checkpoint of one file per layer, so that little of it is in memory at once."""
    from safetensors.torch import save_file

    config = sizes.config()
    if stored.quantization_config is not None:
        config["quantization_config"] = stored.quantization_config
    (folder / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    norm = torch.ones(sizes.hidden).bfloat16()
    for number, tensors in enumerate(_shards(sizes, stored, norm)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _shards(sizes: Sizes, stored: Format, norm: torch.Tensor) -> Iterator[Tensors]:
    yield {
        "model.embed_tokens.weight": _plain(VOCAB, sizes.hidden)["weight"],
        "model.norm.weight": norm,
        "lm_head.weight": _plain(VOCAB, sizes.hidden)["weight"],
    }
    for layer in range(sizes.layers):
        start = f"model.layers.{layer}"
        tensors = {f"{start}.{name}.weight": norm for name in ("input_layernorm", "post_attention_layernorm")}
        # Two tensors of a file may not share memory.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, shape in sizes.linears.items():
            made = stored.matrix(*shape)
            tensors |= {f"{start}.{name}.{last}": tensor.contiguous() for last, tensor in made.items()}
        yield tensors


def write_gguf(path: Path, sizes: Sizes, kind: str) -> None:
    """Write a GGUF file with all matrices in a type of blocks, whose scales are finite."""
    import gguf
    import numpy as np

    number = gguf.GGMLQuantizationType[kind]
    elements, num_bytes = gguf.GGML_QUANT_SIZES[number]
    halves = {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,), "MXFP4": ()}[kind]

    def matrix(n: int, k: int) -> np.ndarray:
        blocks = _bytes(n * k // elements, num_bytes)
        for place in halves:
            blocks[:, place : place + 2] = torch.tensor([0x00, 0x10], dtype=torch.uint8)
        if kind == "MXFP4":
            blocks[:, 0] = 120
        return blocks.view(n, -1).numpy()

    writer = gguf.GGUFWriter(path, "llama")
    config = sizes.config()
    for key, name in (
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ):
        writer.add_uint32(f"llama.{key}", int(str(config[name])))
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    norm = np.ones(sizes.hidden, np.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", matrix(VOCAB, sizes.hidden), raw_dtype=number)
    writer.add_tensor("output_norm.weight", norm)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for layer in range(sizes.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
        for name, shape in zip(names, sizes.linears.values(), strict=True):
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(*shape), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
