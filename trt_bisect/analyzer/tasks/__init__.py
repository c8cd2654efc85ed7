"""Tasks: comparison of what a network is used for (classes, detections, masks, vectors, texts) with that of FP32."""
