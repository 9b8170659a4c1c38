"""Everything at the edge: executors, models, text, gateways, the command line, the simulator."""
