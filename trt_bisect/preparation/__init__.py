"""The preparation of measuring: the network asked for, data, ranges, judged inputs, the reference, the journal."""
