"""The network: its ONNX file, its layers, and graphs with a precision plan written into them."""
