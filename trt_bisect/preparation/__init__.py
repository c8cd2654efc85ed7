"""The preparation of measurements: network, data, ranges, judged inputs, reference, journal."""
