"""Results on the screen, as a page, in a notebook, in TensorBoard, as Markdown and as JUnit XML."""
