"""Tasks: a network's use (classes, detections, masks, vectors, texts) compared with FP32's."""
