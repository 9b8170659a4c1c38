"""What the machine will run: nvdisasm's listing of a cubin, counted per kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .compiler import file_of

_SECTION = re.compile(r"\s*\.section\s+\.text\.(\S+?),")
_LABEL = re.compile(r"(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)(.*)")
_TARGET = re.compile(r"\((\.L_x_\d+)\)")


@dataclass(frozen=True, slots=True)
class Listing:
    """``loop``: the instructions of the longest loop by kind; what comes before the first dot of a name is its kind."""

    instructions: Counter[str]
    loop: Counter[str]

    @property
    def products(self) -> int:
        """Instructions for tensor cores."""
        return self.instructions["HMMA"]

    @property
    def matrix_loads(self) -> int:
        """``ldmatrix``."""
        return self.instructions["LDSM"]


def listings(cubin: bytes) -> dict[str, Listing]:
    """Listing of each kernel by its mangled name."""
    tool = file_of("nvidia-cuda-nvdisasm", "nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([str(tool), "-c", str(file)], capture_output=True, text=True, check=True)
    return read(done.stdout)


def read(text: str) -> dict[str, Listing]:
    """Of nvdisasm's output."""
    lines: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for line in text.splitlines():
        if found := _SECTION.match(line):
            current = lines.setdefault(found[1], [])
        elif found := _LABEL.match(line):
            current.append(("label", found[1]))
        elif found := _INSTRUCTION.search(line):
            current.append((found[1], found[2]))
    return {name: Listing(_count(body), _longest_loop(body)) for name, body in lines.items()}


def _count(body: list[tuple[str, str]]) -> Counter[str]:
    return Counter(name.split(".")[0] for name, _ in body if name != "label")


def _longest_loop(body: list[tuple[str, str]]) -> Counter[str]:
    """A loop ends with a branch to a label before it."""
    labels = {text: at for at, (name, text) in enumerate(body) if name == "label"}
    best: Counter[str] = Counter()
    for at, (name, text) in enumerate(body):
        target = _TARGET.search(text) if name.startswith("BRA") else None
        if target and labels.get(target[1], at) < at:
            loop = _count(body[labels[target[1]] : at + 1])
            best = max(best, loop, key=lambda counted: counted.total())
    return best
