"""Comparison of outputs with FP32: metrics, verdicts, statistics of tensors, the worst inputs."""
