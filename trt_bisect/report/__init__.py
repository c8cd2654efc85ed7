"""Results on the screen, as pages, in notebooks and TensorBoard, as Markdown and JUnit XML."""
