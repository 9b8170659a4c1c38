"""``mainspring VERB``: finds the verbs that plugins registered and dispatches; nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from .errors import ConfigError, EngineFault, MainspringError
from .registry import Registry

EXIT_FAULT = 70  # EX_SOFTWARE: whoever supervises the process should start it again
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 2 for a configuration or plugin error, 70 when the engine gave up."""
    registry = Registry()
    parser = argparse.ArgumentParser("mainspring", description="LLM serving with pluggable policies.")
    parser.add_argument("--version", action="version", version=f"mainspring {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    try:
        for info in registry.available("command"):
            command = info.factory()
            verb = verbs.add_parser(info.name, help=command.help, description=command.help)
            command.arguments(verb)
            verb.set_defaults(command=command)
        arguments = parser.parse_args(argv)
        return int(arguments.command.run(arguments))
    except EngineFault as error:
        print(f"mainspring: {error}", file=sys.stderr)
        return EXIT_FAULT
    except MainspringError as error:
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        print(f"mainspring: {kind}{error}", file=sys.stderr)
        return EXIT_USAGE
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
