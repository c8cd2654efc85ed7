"""What `docs/reliability.md` promises, as figures: each module breaks runs in one way and counts what came of it."""
