"""The argument by which commands are told to start a server of their own."""

from __future__ import annotations

import argparse


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL; `model_to_serve` is None without it."""
    parser.add_argument(
        "model_to_serve",
        nargs="?",
        default=None,
        metavar="MODEL",
        help="start a private server of this model, a checkpoint directory, GGUF file, or Hugging Face id "
        "(splitserve-demo: the demo model), and end it afterwards (default: ask the server at --url)",
    )
