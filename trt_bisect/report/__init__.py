"""What a run found, for people and for other tools: table, words, JSON, CSV, recipe files."""
