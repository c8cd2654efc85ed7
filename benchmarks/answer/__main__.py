"""``python -m benchmarks.answer published|costs|tuning``: see the modules of these names."""

from benchmarks.answer import costs, published, tuning
from benchmarks.measure import command_line

if __name__ == "__main__":
    command_line(__doc__, published.measure, costs.measure, tuning.measure)
