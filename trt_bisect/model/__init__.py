"""The network: read from a file, prepared, split into layers, written with a precision plan."""
