"""``mainspring plugins``: what could fill each slot, what does, and where it comes from."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from ...core.hookspecs import Register, hookimpl
from ...core.policy import API_LEVELS
from ...core.registry import SLOTS, PluginInfo, Registry
from ..chosen import chosen
from .command import OK, add_json, print_json, print_table
from .options import add_config, load_config


class PluginsCommand:
    help = "list the plugins of every slot: available, active, origin, options"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        registry = Registry()
        active = {(choice.slot, choice.use) for choice in chosen(load_config(args).config)}
        for slot, use in sorted(active):
            registry.resolve(slot, use)  # must load; one given by path is known only then
        slots = {
            slot: [describe(info, (slot, info.name) in active) for info in registry.available(slot)] for slot in SLOTS
        }
        if args.json:
            print_json({"api_levels": sorted(API_LEVELS), "slots": slots})
        else:
            print_table(
                ("SLOT", "NAME", "ACTIVE", "ORIGIN", "API", "OPTIONS"),
                [_row(slot, plugin) for slot, plugins in slots.items() for plugin in plugins],
            )
        return OK


def describe(info: PluginInfo, active: bool) -> dict[str, Any]:
    """A plugin as plain data."""
    return {
        "name": info.name,
        "active": active or info.slot == "command",
        "origin": info.origin,
        "version": info.version,
        "api_level": getattr(info.factory, "api_level", None),
        "options": options_of(info.options),
    }


def options_of(kind: type | None) -> dict[str, Any]:
    """Name -> ``{"type": ..., "default": ...}`` of a plugin's options; no default: required."""
    if kind is None:
        return {}
    out: dict[str, Any] = {}
    kinds = msgspec.inspect.type_info(kind)
    assert isinstance(kinds, msgspec.inspect.StructType | msgspec.inspect.DataclassType)
    annotations = {
        name: text for base in reversed(kind.__mro__) for name, text in vars(base).get("__annotations__", {}).items()
    }
    for field in kinds.fields:
        annotation = annotations[field.name]
        out[field.name] = {
            "type": annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        }
        if not field.required:
            factory = field.default_factory
            out[field.name]["default"] = field.default if factory is msgspec.NODEFAULT else factory()
    return out


def _row(slot: str, plugin: dict[str, Any]) -> tuple[object, ...]:
    options = ", ".join(
        f"{name}={option['default']!r}" if "default" in option else f"{name}: {option['type']}"
        for name, option in plugin["options"].items()
    )
    origin = f"{plugin['origin']} {plugin['version']}".rstrip()
    return slot, plugin["name"], "yes" if plugin["active"] else "", origin, plugin["api_level"] or "", options


@hookimpl
def register_commands(register: Register) -> None:
    register("plugins", PluginsCommand)
