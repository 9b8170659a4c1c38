"""Which web pages may use the server, and the headers that let their browser show them its answers.

Browsers refuse to show a page the answers of another origin unless the answer names the page's origin; before requests
that a plain form could not send they ask with OPTIONS.  Nothing here depends on cookies: a page needs the key like
everybody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from websockets.typing import Origin

METHODS = "GET, HEAD, POST, DELETE"
MAX_AGE_S = 600  # a browser need not ask again for so long
SHOWN = "Retry-After"  # besides the headers that a page may always see
ALWAYS = "Authorization, Content-Type"  # headers that a request may have if its browser does not say which

Rule = Origin | re.Pattern[str] | None


class Cors:
    """``origins`` as for the handshake: exact values, patterns, None for programs, which send no Origin."""

    def __init__(self, origins: Sequence[Rule]) -> None:
        self._origins = origins

    def allows(self, origin: str | None) -> bool:
        """Whether pages of this origin may use the server."""
        return any(
            rule.fullmatch(origin or "") is not None if isinstance(rule, re.Pattern) else rule == origin
            for rule in self._origins
        )

    def headers(self, origin: str | None) -> dict[str, str]:
        """Of an answer."""
        if origin is None or not self.allows(origin):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": SHOWN, "Vary": "Origin"}

    def preflight(self, headers: Mapping[str, str]) -> dict[str, str] | None:
        """More of them for the answer to a browser's OPTIONS; None if it is none, or the page may not.  Names of
        ``headers`` are in lower case."""
        origin = headers.get("origin")
        if origin is None or "access-control-request-method" not in headers or not self.allows(origin):
            return None
        return {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", ALWAYS),
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
