"""What docs/models.md says was tested is what the tests run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.executors.architectures import RUN

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_list_of_tested_decoders_is_that_of_the_soak() -> None:
    listed = re.search(r"unless named in full:\n\n(.*?)\.\n\n", PAGE, re.DOTALL)
    assert listed is not None
    assert sorted(listed[1].replace(",", " ").split()) == sorted(name.removesuffix("ForCausalLM") for name in RUN)
