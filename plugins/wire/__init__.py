"""Wire protocols without I/O: text in, actions and frames out.  No sockets, no event loop, no clock of their own."""
