"""The text of a compilation unit: its file with every local include put in its place, once.

Whole texts go to the compiler, so that no include path has to be found and a cache keyed by the text is never stale.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


@cache
def unit(*files: str) -> str:
    """Text of the given ``.cu`` files as one unit; compilers' messages still name each file and line.

    An include that is no file of this folder is left as it is.
    """
    seen: set[str] = set()
    return "".join(_expand(name, seen) for name in files)


def _expand(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    seen.add(name)
    out = [f'#line 1 "{name}"\n']
    for number, line in enumerate((FOLDER / name).read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        found = _INCLUDE.match(line.rstrip("\n"))
        if found and (FOLDER / found[1]).exists():
            out += [_expand(found[1], seen), f'#line {number + 1} "{name}"\n']
        else:
            out.append(line)
    return "".join(out)
