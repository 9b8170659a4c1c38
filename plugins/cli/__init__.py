"""The command line, one module per verb.  A verb is a plugin like any other: it registers by ``register_commands``."""
