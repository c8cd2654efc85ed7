"""A suite of networks compared with a baseline every night."""
