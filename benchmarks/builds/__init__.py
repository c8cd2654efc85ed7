"""What a run builds on an engine, counted on stand-ins for TensorRT that differ from the emulation."""
