"""Engines that a run builds, counted on stand-ins for TensorRT that differ from the emulation."""
