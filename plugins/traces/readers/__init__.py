"""One module for each format of recorded traffic, each with one function ``read(path, **options) -> Trace``."""
