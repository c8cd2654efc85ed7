"""Tasks: the results of a network (classes, detections, masks, vectors, texts), compared with FP32's."""
