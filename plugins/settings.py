"""The whole configuration: the kernel's tables and those of the edges, one attribute per table of ``plugins.toml``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ..core import config as core
from ..core.config import NonNegFloat, NonNegInt, PosFloat, PosInt, Section


class ShadowConfig(Section, frozen=True):
    """A second policy that is asked at every step and never obeyed."""

    use: str = ""  # "": none
    wrap: tuple[str | dict[str, Any], ...] = ()
    seed: int = 0
    options: dict[str, Any] = {}


class SchedulerConfig(core.SchedulerConfig, frozen=True):
    shadow: ShadowConfig = ShadowConfig()


class ModelConfig(Section, frozen=True):
    path: str = ""  # "": the embedded default; else a GGUF file or a Hugging Face folder
    max_context: NonNegInt = 0  # tokens; 0: what the model supports
    chat_template: str = ""  # a file; "": the model's own


class ServerConfig(Section, frozen=True):
    host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    admin_key: str = ""
    drain_s: NonNegFloat = 30.0  # running requests may finish for so long on SIGTERM
    max_message_bytes: PosInt = 16 * 2**20
    keys_file: str = ""  # TOML, one table per API key; "": anybody may connect
    query_key: bool = False  # take a key from ?api_key= too, although addresses end up in logs
    allow_origins: tuple[str, ...] = ()  # exact Origin values of web pages; on loopback also pages of this machine
    model_aliases: tuple[str, ...] = ()  # further names under which the model is served
    metrics_prefix: str = "mainspring:"  # before every name in /metrics; "vllm:" fits existing dashboards
    max_connections: PosInt = 1000
    max_connections_per_key: PosInt = 100
    max_running_per_connection: PosInt = 16  # requests given to the engine at once; more wait in the gateway
    max_queued_per_connection: NonNegInt = 64  # of those that wait; beyond it queue_full
    max_queued: NonNegInt = 1024  # of those that wait on all connections
    max_pending_bytes: PosInt = 32 * 2**20  # of the frames of one connection's unfinished requests
    max_retain_s: NonNegFloat = 300.0  # longest time a stream can be resumed after its connection is lost
    max_retained_per_key: NonNegInt = 64  # streams kept for a resume
    response_store_bytes: NonNegInt = 0  # of responses kept for `store`, in memory; 0: nothing is stored
    max_connection_age_s: NonNegFloat = 3600.0  # give or take 5 %; 0: no limit
    idle_timeout_s: NonNegFloat = 600.0  # without a request and without a frame; 0: no limit
    write_deadline_s: PosFloat = 60.0  # one send may wait so long for a client that does not read
    pause_max_s: PosFloat = 60.0  # a request paused for longer, because its client does not read, is cancelled


class JournalConfig(Section, frozen=True):
    size: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 4096  # messages kept in memory
    path: str = "auto"  # JSONL folder; "auto": the user's state folder; "": none
    max_bytes: PosInt = 64 * 2**20  # per process; then the older half is dropped
    prompts: bool = False  # write token ids and text
    trace: str = ""  # folder for a trace of the traffic: lengths, arrivals, prefix hashes; "": none


class LogConfig(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
    prompts: bool = False


class Config(core.Config, frozen=True):
    """Everything that ``plugins.toml`` and ``--set`` may say."""

    scheduler: SchedulerConfig = SchedulerConfig()
    model: ModelConfig = ModelConfig()
    server: ServerConfig = ServerConfig()
    journal: JournalConfig = JournalConfig()
    log: LogConfig = LogConfig()
