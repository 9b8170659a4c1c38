"""API keys: who a peer is, which tenant its requests belong to, and what it may use at once.

Keys are compared as SHA-256 digests, every one of them for every attempt, so that the time taken says nothing.  No key
is ever logged or sent back; errors and log lines use the name of its table in the keys file.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from ...core.config import NonNegInt, PosInt, Section, convert
from ...core.errors import ConfigError, nearest
from ..settings import ServerConfig

_HEX = re.compile(r"[0-9a-f]{64}")


class KeyEntry(Section, frozen=True):
    """One table of the keys file: exactly one of ``key`` and ``sha256`` (of the key, in hexadecimal)."""

    key: str = ""
    sha256: str = ""
    tenant: str = ""  # "": the name of the table
    max_connections: NonNegInt = 0  # 0: server.max_connections_per_key
    max_requests: NonNegInt = 0  # unfinished requests at once; 0: no limit


class Peer(msgspec.Struct, frozen=True):
    """Who is on the other side.  ``tenant`` None: the request's own word counts."""

    name: str
    tenant: str | None = None
    max_connections: int = 0  # 0: no limit of its own
    max_requests: int = 0


ANYBODY = Peer("")


class Keys:
    """``find`` the peer of a key.  Without any key configured everybody is ``ANYBODY``."""

    def __init__(self, entries: dict[str, KeyEntry], max_connections: PosInt) -> None:
        self._peers: list[tuple[bytes, Peer]] = []
        for name, entry in entries.items():
            digest = bytes.fromhex(entry.sha256) if entry.sha256 else _digest(entry.key)
            limit = entry.max_connections or max_connections
            self._peers.append((digest, Peer(name, entry.tenant or name, limit, entry.max_requests)))

    @property
    def required(self) -> bool:
        return bool(self._peers)

    def find(self, key: str | None) -> Peer | None:
        """The peer with this key, ``ANYBODY`` if none is required, None for a missing or wrong one."""
        if not self._peers:
            return ANYBODY
        digest, found = _digest(key or ""), None
        for known, peer in self._peers:
            if hmac.compare_digest(known, digest):
                found = peer
        return found if key else None


def load_keys(server: ServerConfig) -> Keys:
    """The keys of ``server.keys_file``.  Raises ConfigError naming file and table, never a key."""
    if not server.keys_file:
        return Keys({}, server.max_connections_per_key)
    where = f"server.keys_file = {server.keys_file!r}"
    try:
        tree = tomllib.loads(Path(server.keys_file).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line \d+", str(error))
        raise ConfigError(f"{where}: is not TOML{f' ({place[0]})' if place else ''}") from None
    if not tree:
        raise ConfigError(f'{where}: has no table; one per key is expected, e.g. [alice] with key = "..."')
    return Keys({name: _entry(name, table, where) for name, table in tree.items()}, server.max_connections_per_key)


def _entry(name: str, table: Any, where: str) -> KeyEntry:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {name} stands outside a table; one table per key is expected")
    valid = KeyEntry.__struct_fields__
    for field in table:
        if field not in valid:
            raise ConfigError(f"{where}: unknown key {name}.{field}{nearest(field, valid)}")
    for field in ("key", "sha256"):
        if not isinstance(table.get(field, ""), str):
            raise ConfigError(f"{where}: {name}.{field} must be a string")
    entry: KeyEntry = convert(table, KeyEntry, name + ".", where)
    if bool(entry.key) == bool(entry.sha256):
        raise ConfigError(f"{where}: {name} needs exactly one of key and sha256")
    if entry.sha256 and _HEX.fullmatch(entry.sha256) is None:
        raise ConfigError(f"{where}: {name}.sha256 must be 64 lower-case hexadecimal digits")
    return entry


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
