"""Networks, stand-ins and helpers that several tests use."""
