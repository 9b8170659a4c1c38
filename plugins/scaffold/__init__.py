"""Templates of packages that ``mainspring new`` writes, and how they are filled in.

Every file of a template folder ends in ``.tmpl``; ``${name}``, ``${kind}``, ``${package}``, ``${distribution}`` and
``${policy}`` stand for what the author chose, in file contents; a folder called ``package`` gets the package's name.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

_SUFFIX = ".tmpl"


def render(kind: str, name: str) -> dict[Path, str]:
    """Relative path -> text of a new package that offers the ``kind`` called ``name``."""
    package = f"{name}_{kind}"
    words = {
        "name": name,
        "kind": kind,
        "package": package,
        "distribution": package.replace("_", "-"),
        "policy": "".join(part.capitalize() for part in name.split("_")),
    }
    root = Path(__file__).parent / kind
    files = {}
    for file in sorted(root.rglob(f"*{_SUFFIX}")):
        parts = [package if part == "package" else part for part in file.relative_to(root).parts]
        files[Path(*parts).with_suffix("")] = Template(file.read_text(encoding="utf-8")).substitute(words)
    return files


def kinds() -> list[str]:
    """What there are templates for."""
    return sorted(folder.name for folder in Path(__file__).parent.iterdir() if any(folder.glob(f"*{_SUFFIX}")))
