"""The shapes of the JSON files that trt-bisect writes, for ``tools/make_schemas.py``."""
