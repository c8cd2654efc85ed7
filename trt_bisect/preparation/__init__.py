"""The preparation of measurements: the network asked for, data, ranges, judged inputs, the reference, the journal."""
