"""The options of the commands, each declared once: validation, command line, TOML and documentation come from here."""
