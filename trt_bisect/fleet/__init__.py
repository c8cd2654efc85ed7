"""Many machines: where ``--cluster`` has plans, and whole runs, done. All that knows Ray is here."""
