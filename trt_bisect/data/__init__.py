"""Data sets, saved tensors and the files that hold them."""
