"""Stand-ins for engines, for ``trt-bisect verify``: it names what is wrong with one, and accuses no healthy one."""
