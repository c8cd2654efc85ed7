"""TensorBoard's logs: runs, graph, histograms and scalars, written with the ``tensorboard`` package alone."""
