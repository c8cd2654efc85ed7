"""The network: read from a file, made ready, seen as an ordered tuple of layers, written with a precision plan."""
