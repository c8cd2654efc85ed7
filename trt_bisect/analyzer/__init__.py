"""What the outputs say: figures, verdicts, the worst inputs."""
