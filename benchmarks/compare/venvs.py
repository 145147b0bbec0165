"""How is a peer's virtual environment made, once, with pinned packages?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Without CUDA, or the install fails: nobody gets gigabytes of CUDA packages unasked. pip has to know an index
# that holds it, see docs/performance.md.
TORCH = "torch==2.13.0+cpu"
# Others ask for them; of no use to text models, and built for CUDA they break whoever imports them.
UNWANTED = ["torchvision", "torchaudio", "torchcodec"]


def run_logged(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command at low priority, its output appended to a file.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(command)}\n".encode())
        file.flush()
        subprocess.run(["nice", *command], check=True, stdout=file, stderr=file, env=environment)


def make_venv(folder: Path, packages: Sequence[str], log: Path, environment: Mapping[str, str]) -> bool:
    """Install packages into a virtual environment, which is made if need be; False if they all are there.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    recipe = folder / ".recipe"
    wanted = "\n".join(packages)
    if recipe.exists() and recipe.read_text() == wanted:
        return False
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        run_logged([sys.executable, "-m", "venv", str(folder)], log)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run_logged([*pip, "install", *packages], log, environment)
    run_logged([*pip, "uninstall", "--yes", *UNWANTED], log)
    recipe.write_text(wanted)
    return True
