"""Server-sent events over HTTP/1.1 without I/O: bytes in, status and data lines out."""

from __future__ import annotations


class SseReader:
    """Feed the bytes of one response; ``status`` is known after its first line, ``done`` at its end."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.done = False
        self.body = bytearray()  # of a response that is no stream of events: an error, most of the time
        self._raw, self._lines = bytearray(), bytearray()
        self._in_body = self._chunked = self._events = False
        self._left: int | None = None  # bytes left of the body, or of the present chunk

    def feed(self, data: bytes) -> list[bytes]:
        """The values of ``data:`` lines that are complete now."""
        self._raw += data
        if not self._in_body and not self._head():
            return []
        out: list[bytes] = []
        for piece in self._pieces():
            if not self._events:
                self.body += piece
                continue
            self._lines += piece
            while (end := self._lines.find(b"\n")) >= 0:
                line = bytes(self._lines[:end]).rstrip(b"\r")
                del self._lines[: end + 1]
                if line.startswith(b"data:"):
                    out.append(line[5:].strip())
        return out

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        status, *headers = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        self.status = int(status.split(" ")[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
        self._chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        self._events = "event-stream" in fields.get("content-type", "") and self.status < 300
        self._left = None if self._chunked else int(fields["content-length"]) if "content-length" in fields else None
        self._in_body = True
        return True

    def _pieces(self) -> list[bytes]:
        if not self._chunked:
            piece = bytes(self._raw)
            self._raw.clear()
            if self._left is not None:
                self._left -= len(piece)
                self.done = self._left <= 0
            return [piece]
        out: list[bytes] = []
        while True:
            if self._left is None:
                end = self._raw.find(b"\r\n")
                if end < 0:
                    return out
                self._left = int(bytes(self._raw[:end]).split(b";")[0], 16)
                del self._raw[: end + 2]
                if not self._left:
                    self.done = True
                    return out
            if len(self._raw) < self._left + 2:
                return out
            out.append(bytes(self._raw[: self._left]))
            del self._raw[: self._left + 2]
            self._left = None
