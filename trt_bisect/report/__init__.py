"""The presentation of results: screen, page, notebook, TensorBoard, Markdown and JUnit."""
